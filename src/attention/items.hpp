// The numbering of a schedule's work items, and what each is about.
#pragma once

#include <cstdint>

#include "attention/schedule.hpp"

namespace polyhead::inline v0 {

/// The splits of a sequence's keys in which any of its queries sees something by structure (causal,
/// window, prefix, length, first keys): those of the first keys that are kept, then those of the
/// windows.
struct SplitsSeen {
  std::int64_t count = 0, kept = 0, first = 0;
  /// Which split of the sequence is the i-th of them.
  std::int64_t operator[](std::int64_t i) const { return i < kept ? i : first + i - kept; }
};
SplitsSeen splits_seen(const kernels::AttendCall& call, std::int64_t batch);

/// How the rows of one sequence are cut.
struct Cut {
  const kernels::cpu::AttendKernel* kernel;
  std::int64_t rows, rows_per_item, tiles;
  SplitsSeen splits;  ///< where splits are items
};
Cut cut_of(const kernels::AttendCall& call, const Schedule& schedule, std::int64_t batch);

/// The kernel for `rows` rows of several sequences.
const kernels::cpu::AttendKernel& shared_kernel(const kernels::AttendCall& call,
                                                const Schedule& schedule, std::int64_t rows);

/// What an item is about.
struct Work {
  enum Kind {
    alone,   ///< rows of one sequence that shares nothing
    turn,    ///< for item.kv_head all of a turn that shares keys; item and kernel say nothing else
    stretch  ///< some splits of one of its stretches
  } kind = alone;
  kernels::cpu::WorkItem item;
  const kernels::cpu::AttendKernel* kernel = nullptr;
  Turn of{0, 1, 0, 0};
  Stretch part{};
  bool first_split = true, last_split = true;  ///< of its rows, or of the stretch
};

/// All splits of a stretch for one KV head.
Work stretch_work(const kernels::AttendCall& call, const Schedule& schedule, const Turn& of,
                  const Stretch& part, std::int64_t kv_head);

/// Items of one KV head in one turn.
std::int64_t items_a_head(const Schedule& schedule, const Turn& turn, const Cut& first);

/// Where a worker is in the numbering: items are claimed in ascending order, so it only ever moves
/// forward.
class Cursor {
 public:
  Cursor(const kernels::AttendCall& call, const Schedule& schedule);
  Work at(std::int64_t index);

 private:
  void enter(std::int64_t at);
  Work of_sequence() const;  // what all of its items have
  Work of_one(std::int64_t index) const;
  Work of_split(std::int64_t index) const;
  Work of_several(std::int64_t index);

  const kernels::AttendCall& call_;
  const Schedule& schedule_;
  std::int64_t at_ = 0, base_ = 0, count_ = 0, items_a_head_ = 0;
  Turn turn_{0, 1, 0, 0};
  int stretch_ = 0;                // of several that share keys: the one last asked for
  std::int64_t stretch_base_ = 0;  // its first item of a KV head's
  Cut cut_{};
};

}  // namespace polyhead::inline v0
