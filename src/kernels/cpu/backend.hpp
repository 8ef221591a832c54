// What a CPU instruction set offers: one table of kernels, and the sizes that the schedule needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract.hpp"

namespace polyhead::inline v0::kernels::cpu {

// Both are part of the promise of same bits: rescaling is decided a row and key block at a time,
// and sums restart at split boundaries. They are counted from key 0 and depend on nothing.
inline constexpr std::int64_t kKeyBlock =
    64;  // P and Q^T of one tile stay in L1; one 64-bit visibility word a lane
inline constexpr std::int64_t kSplitKeys =
    1024;  // long enough to amortise a merge, short enough to share out a decode

/// One piece of work: consecutive rows of one KV head against splits [first_split, end_split) of
/// the keys. Row r stands for query r / group and query head kv_head * group + r % group.
struct WorkItem {
  std::int64_t batch = 0, kv_head = 0;
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_split = 0, end_split = 0;
  /// A guess at what the worker does next, to fetch its inputs early; next_rows is 0 without one.
  std::int64_t next_batch = 0, next_kv_head = 0, next_first_row = 0, next_rows = 0;
  std::int64_t next_first_split = 0;
  /// Whether other workers read memory meanwhile: what is read how then differs, no result does.
  bool beside_others = false;

  void guess(const WorkItem& next) {
    next_batch = next.batch, next_kv_head = next.kv_head;
    next_first_row = next.first_row, next_rows = next.rows;
    next_first_split = next.first_split;
  }
};

/// Where a partial holds one row: its reference, its sums of weights and, `step` floats apart, its
/// sums of weighted values; of kernels that have row statistics what they need.
struct PartialRow {
  float *max, *total, *exact_total, *sums;
  std::int64_t step;
  float *spread = nullptr, *best = nullptr;
  std::int32_t* best_key = nullptr;
};

/// Kernels of one element path. `partial`, where given, receives the unnormalised state of the
/// item's rows instead of out; `merge` folds one into another in split order, and `finish` writes
/// out, LSE and statistics.
struct AttendKernel {
  const char* name;
  std::int64_t least_rows;                       ///< an item holds a multiple of this many rows
  std::int64_t (*rows)(const AttendCall& call);  ///< rows of one full item
  std::int64_t (*scratch_bytes)(
      const AttendCall& call);  ///< a worker's, for calls of these dims and types
  std::int64_t (*partial_bytes)(const AttendCall& call);
  void (*attend)(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                 std::byte* partial);
  /// The same with the item's splits joined, one after the other, to what `running` has so far.
  void (*proceed)(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                  std::byte* running);
  void (*merge)(const AttendCall& call, const WorkItem& item, std::byte* running,
                const std::byte* partial);
  void (*finish)(const AttendCall& call, const WorkItem& item, std::byte* running,
                 std::byte* scratch);
  /// Row `row` of an item's partial, counted up to the next multiple of least_rows.
  PartialRow (*row)(const AttendCall& call, std::byte* partial, std::int64_t row);
};

/// Queries [first, first + count) of the head_index-th wanted head of one sequence.
struct WeightRows {
  std::int64_t batch = 0, head_index = 0, first = 0, count = 0;
};

/// The second pass of one element path, a head at a time.
struct InspectKernel {
  std::int64_t least_rows;                        ///< an item's rows are a multiple of
  std::int64_t (*rows)(const InspectCall& call);  ///< and at most
  std::int64_t (*scratch_bytes)(const InspectCall& call);
  /// The weights of an item; those of `next`, if any, are probably the worker's next.
  void (*store_weights)(const InspectCall& call, const WeightRows& rows, const WeightRows& next,
                        std::byte* scratch);
  /// Received mass and pooled map of one query head.
  void (*sum_head)(const InspectCall& call, std::int64_t batch, std::int64_t q_head,
                   std::byte* scratch);
};

/// Head statistics of one element path, a tile of `rows` queries of one head at a time.
struct HeadKernel {
  std::int64_t rows;
  std::int64_t (*scratch_bytes)(const HeadSweep& sweep);
  /// Queries [first, first + count) of the call's query head.
  void (*run)(const HeadSweep& sweep, std::int64_t head, std::int64_t first, int count,
              const HeadTile& to, std::byte* scratch);
};

/// All kernels of one element path; null functions where the set has no such path.
struct ElementPath {
  AttendKernel prefill, decode;
  InspectKernel inspect;
  HeadKernel heads;
};

/// float32 takes every type; bfloat16 takes bfloat16 q, and k and v of bfloat16 or 8-bit floats;
/// integer bfloat16 q, and k and v of int8 or int4.
struct Backend {
  Isa isa;
  ElementPath float32, bfloat16, integer;
};

/// The table of an instruction set that resolve_isa() has allowed.
const Backend& backend(Isa isa);

}  // namespace polyhead::inline v0::kernels::cpu
