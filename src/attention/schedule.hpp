// Cuts a call into work items and runs them: workers claim items, boundaries come from positions
// only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract.hpp"
#include "kernels/cpu/backend.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0 {

/// How one call is cut. Items are numbered by sequence (of an uneven batch the most work first), KV
/// head, row tile (the last, heaviest under a causal mask, first) and key split; the numbering
/// depends on the call, the results do not depend on the numbering.
struct Schedule {
  const kernels::cpu::AttendKernel* kernel = nullptr;
  /// For the sequences of an uneven batch that have few rows, where the kernel is for many.
  const kernels::cpu::AttendKernel* few = nullptr;
  std::int64_t rows_per_item = 1;
  std::int64_t row_tiles = 0;   ///< of the longest sequence
  std::int64_t key_splits = 1;  ///< items a row tile is cut into; 1: an item walks all of its keys
  std::int64_t items = 0;
  int workers = 1;
};

/// Whether q and k (and v, where given) are bfloat16 and the backend multiplies pairs of them.
bool uses_bfloat16_dot(const kernels::AttendCall& call, const kernels::cpu::Backend& backend);

Schedule make_schedule(const kernels::AttendCall& call, const kernels::cpu::Backend& backend,
                       int workers);

/// Bytes of scratch for `workers` workers of any call with these dims and types.
std::size_t scratch_bytes(const kernels::AttendCall& call, const kernels::cpu::Backend& backend,
                          int workers);

/// Runs the call. `memory` holds scratch_bytes(); nothing is allocated. Rethrows what a modifier or
/// the executor threw.
void run_schedule(const kernels::AttendCall& call, const Schedule& schedule, Executor& executor,
                  std::byte* memory);

/// The executor that `options` stand for, and how many of its tasks to use.
struct Crew {
  Executor* executor;
  int workers;
};
Crew crew_of(const Options& options);

}  // namespace polyhead::inline v0
