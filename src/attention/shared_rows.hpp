// Keys that several sequences begin with, computed once: their rows become those of one sequence,
// and go back to their own sequences as partial results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/turns.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {

/// Members [first, end) of a turn.
struct Members {
  const Turns& turns;
  const Turn& turn;
  std::int64_t first, end;

  static Members all(const Turns& turns, const Turn& turn) { return {turns, turn, 0, turn.count}; }
  static Members of(const Turns& turns, const Turn& turn, const Stretch& stretch) {
    return {turns, turn, stretch.first, stretch.first + stretch.count};
  }
  static Members before(const Turns& turns, const Turn& turn, const Stretch& stretch) {
    return {turns, turn, 0, stretch.first};
  }
  std::int64_t sequence(std::int64_t member) const { return turns.sequence(turn, member); }
  /// Of one KV head.
  std::int64_t rows(const kernels::AttendCall& call) const;
};

/// The rows of some members of a turn for one KV head and the splits that they share, as a call of
/// a single sequence that sees all of its keys. Valid while `memory`, which takes the rows of q and
/// what a bias and ALiBi ask of them, is.
class SharedRows {
 public:
  SharedRows(const kernels::AttendCall& call, const Members& members, std::int64_t splits,
             std::int64_t kv_head, std::byte* memory);

  /// What a kernel does with an item: its attend or its proceed.
  using Attend = void(const kernels::AttendCall& call, const kernels::cpu::WorkItem& item,
                      std::byte* scratch, std::byte* to);

  /// The splits of `of` of all rows.
  void attend(Attend* with, const kernels::cpu::WorkItem& of, std::byte* scratch,
              std::byte* to) const;

  /// Of memory, for `rows` rows.
  static std::int64_t bytes(const kernels::AttendCall& call, std::int64_t rows);

 private:
  /// What follows in memory.
  std::byte* place_bias(const kernels::AttendCall& call, const Members& members,
                        std::int64_t kv_head, std::byte* memory);
  void place_alibi(const kernels::AttendCall& call, const Members& members, std::int64_t kv_head,
                   std::byte* memory);

  kernels::AttendCall call_;
};

/// Rows of one kernel's partial from `first` on.
struct PartialRows {
  const kernels::cpu::AttendKernel* kernel;
  std::byte* partial;
  std::int64_t first = 0;
};

/// `rows` rows of `from` become rows of `to`.
void copy_rows(const kernels::AttendCall& call, const PartialRows& from, const PartialRows& to,
               std::int64_t rows);

/// They become all rows of `to`, whose tile's lanes past the last row repeat it.
void copy_all_rows(const kernels::AttendCall& call, const PartialRows& from, const PartialRows& to,
                   std::int64_t rows);

}  // namespace polyhead::inline v0
