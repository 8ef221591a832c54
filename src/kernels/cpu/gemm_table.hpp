// Projections y = x W^T + bias with weights packed once: what an instruction set offers for them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/weight_blocks.hpp"
#include "polyhead/isa.h"
#include "polyhead/types.h"

namespace polyhead::inline v0::kernels::cpu {

/// A packed matrix: panels of GemmTable::panel outputs, each with its inputs one after the other
/// ([panel][step][lane]; a step is one input, or a pair of them for the bf16 dot and AMX). The last
/// panel and step, for AMX the last 16 steps, are filled up with zeros. Or quantised
/// (gemm_quantised.hpp): then x and the results are those of the dequantised weights packed as
/// float32, to the bit.
struct GemmWeights {
  const std::byte* panels = nullptr;
  ElementType type = ElementType::float32;
  std::int64_t in = 0, out = 0;
  base::BlockForm blocks{};  ///< quantised: their form, and `type` is float32; in is whole blocks
};

/// Rows of x are as GemmTable::prepare writes them, or such as GemmTable::direct accepts.
struct GemmCall {
  const std::byte* x = nullptr;
  std::int64_t x_row = 0;  ///< bytes
  GemmWeights weights;
  const float* bias = nullptr;  ///< [out], or none
  std::byte* y = nullptr;
  ElementType y_type = ElementType::float32;
  std::int64_t y_row = 0, y_column = 0;  ///< bytes
};

/// The part of a call one worker does. Cutting a call changes no bit of it.
struct GemmRange {
  std::int64_t first_row = 0, end_row = 0;
  std::int64_t first_panel = 0, end_panel = 0;
};

/// Each output element is one chain of fused multiply-adds over the inputs in order (pairs of them
/// for the bf16 dot; with AMX 32 at a time, which two chains of their own sum before), however many
/// rows there are; the bias is added last.
struct GemmTable {
  int panel;                   ///< outputs of one panel
  std::int64_t scratch_bytes;  ///< a worker's
  std::int64_t unpack_bytes;   ///< more of it, where weights are quantised

  /// Of a matrix with the type, form and sizes of `shape`.
  std::int64_t (*packed_bytes)(const GemmWeights& shape);

  /// Packs outputs [panel * GemmTable::panel, + count): `rows` are count rows of float32,
  /// `row_floats` apart, readable to a multiple of 16 floats. count is a panel, or what is left for
  /// the last one. Not for quantised weights.
  void (*pack_panel)(std::byte* to, const GemmWeights& shape, std::int64_t panel,
                     std::int64_t count, const float* rows, std::int64_t row_floats);

  /// Packs quantised outputs [first, first + count) from rows of blocks of `type`, any alignment.
  /// Calls for different outputs may run at once.
  void (*pack_blocks)(std::byte* to, const GemmWeights& shape, std::int64_t first,
                      std::int64_t count, WeightType type, const std::byte* rows,
                      std::int64_t row_bytes);

  /// Element (o, i) of what was packed, widened.
  float (*weight)(const GemmWeights& weights, std::int64_t o, std::int64_t i);

  /// Whether rows of `type`, dense, can be multiplied as they lie.
  bool (*direct)(const GemmWeights& weights, ElementType type);

  /// Those begin at multiples of so many bytes.
  std::int64_t direct_alignment;

  /// Bytes of a prepared row, a whole number of cache lines.
  std::int64_t (*prepared_bytes)(const GemmWeights& weights);

  /// One row of x (elements of `type`, `stride` bytes apart) in the form the product reads:
  /// float32, or for bfloat16 weights rounded to bfloat16.
  void (*prepare)(std::byte* to, const GemmWeights& weights, const std::byte* row, ElementType type,
                  std::int64_t stride);

  void (*multiply)(const GemmCall& call, const GemmRange& range, std::byte* scratch);

  /// to[i] = from[i * stride], widened to float32.
  void (*widen_row)(float* to, const std::byte* from, ElementType type, std::int64_t stride,
                    std::int64_t n);

  /// to[i * stride] = from[i], rounded to nearest even.
  void (*narrow_row)(std::byte* to, const float* from, ElementType type, std::int64_t stride,
                     std::int64_t n);
};

/// The table of an instruction set that resolve_isa() has allowed.
const GemmTable& gemm(Isa isa);

}  // namespace polyhead::inline v0::kernels::cpu
