// Cuts a call into work items and runs them: workers claim items, boundaries come from positions
// only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/turns.hpp"
#include "base/crew.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/backend.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0 {

/// How one call is cut. Items are numbered by turn, KV head, row tile (the last, heaviest under a
/// causal mask, first) and key split; the numbering depends on the call, the results do not depend
/// on the numbering. A turn that shares keys has no row tiles: for each KV head it is one item, or
/// one for each split of each of its stretches, in their order. Split by split, items are numbered
/// by turn, key split and KV head.
struct Schedule {
  const kernels::cpu::AttendKernel* kernel = nullptr;
  /// For the sequences of an uneven batch that have few rows, where the kernel is for many.
  const kernels::cpu::AttendKernel* few = nullptr;
  /// For the keys that sequences share; shared_few is null where no kernel for few rows will do.
  const kernels::cpu::AttendKernel *shared_few = nullptr, *shared_many = nullptr;
  Turns turns;
  std::int64_t rows_per_item = 1;
  /// The most items a row tile is cut into, one for each split of keys in which it may see
  /// something; 1: an item walks all of its keys, or one split (split_major).
  std::int64_t key_splits = 1;
  /// Whether a split is an item of each KV head before the next split is: heads share pages, which
  /// memory gives faster the closer they are read together (docs/kernel-notes.md).
  bool split_major = false;
  std::int64_t items = 0;
  int workers = 1;
};

/// The kernels that the types of q and k (and v, where given) ask for.
const kernels::cpu::ElementPath& path_of(const kernels::AttendCall& call,
                                         const kernels::cpu::Backend& backend);

/// `room`: of Turns::room_bytes(call), which outlives the schedule.
Schedule make_schedule(const kernels::AttendCall& call, const kernels::cpu::Backend& backend,
                       int workers, std::byte* room);

/// Bytes of scratch for `workers` workers of any call with these dims and types, and no more KV
/// heads and keys; `share`: whether its sequences may share keys; `split_major`: whether it may be
/// cut so.
std::size_t scratch_bytes(const kernels::AttendCall& call, const kernels::cpu::Backend& backend,
                          int workers, bool share, bool split_major);

/// Key rows that the call's items read of one KV head, and how many that would be if every sequence
/// read its own.
struct KeysRead {
  std::int64_t together = 0, apart = 0;
};
KeysRead keys_read(const kernels::AttendCall& call, const Schedule& schedule);

/// Runs the call. `memory` holds scratch_bytes(); nothing is allocated. Rethrows what a modifier or
/// the executor threw.
void run_schedule(const kernels::AttendCall& call, const Schedule& schedule, Executor& executor,
                  std::byte* memory);

}  // namespace polyhead::inline v0
