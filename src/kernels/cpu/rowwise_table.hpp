// Elementwise work on rows of activations: what an instruction set offers for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/isa.h"
#include "polyhead/types.h"

namespace polyhead::inline v0::kernels::cpu {

/// A row of n elements that a kernel writes, dense: float32, or rounded from it to nearest even.
struct RowOut {
  std::byte* data;
  ElementType type;
};

/// Kernels over one row of n float32 values. What they give depends on the row and the instruction
/// set alone. The row that is written may be one that is read where it is float32. u is 2^-24.
struct RowTable {
  /// to = x / sqrt(mean(x^2) + eps) * weight: within 14 u of each element, relative, for
  /// |x| < 1e18 (the squares are float32).
  void (*rms_norm)(RowOut to, const float* x, const float* weight, float eps, std::int64_t n);

  /// to = (x - mean) / sqrt(variance + eps) * weight + bias; `bias` may be null. |x| < 1e18.
  void (*layer_norm)(RowOut to, const float* x, const float* weight, const float* bias, float eps,
                     std::int64_t n);

  /// to = f(x) * up, or f(x) where `up` is null. f is x / (1 + exp(-x)), x Phi(x), or x Phi(x) with
  /// Phi by tanh: each within 8 u |x| before the factor.
  void (*silu)(RowOut to, const float* x, const float* up, std::int64_t n);
  void (*gelu)(RowOut to, const float* x, const float* up, std::int64_t n);
  void (*gelu_tanh)(RowOut to, const float* x, const float* up, std::int64_t n);

  void (*add)(float* to, const float* term, std::int64_t n);  ///< to += term
  void (*soft_cap)(float* x, float cap, std::int64_t n);      ///< x = cap * tanh(x / cap)
  double (*log_sum_exp)(const float* x, std::int64_t n);      ///< n >= 1; within 64 u
};

/// The table of an instruction set that resolve_isa() has allowed.
const RowTable& rowwise(Isa isa);

}  // namespace polyhead::inline v0::kernels::cpu
