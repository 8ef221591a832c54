// Which sequences of a call are taken together, and in which order: those whose keys begin on the
// same pages compute them once.
#pragma once

#include <cstdint>

#include "kernels/contract.hpp"

namespace polyhead::inline v0 {

/// One sequence, or several whose first `splits` splits of the keys lie on the same pages and are
/// seen in full by all of their queries.
struct Turn {
  std::int64_t first;   ///< of its sequences, in the order of Turns
  std::int64_t count;   ///< of its sequences
  std::int64_t splits;  ///< computed once for all of them; 0: nothing is
};

/// All sequences of a call in turns, of an uneven batch the most work first, so that no long one is
/// left for the end. Speed follows from it, and no result.
class Turns {
 public:
  /// Batches beyond it even out by themselves; they share nothing.
  static constexpr std::int64_t kMost = 512;

  Turns() = default;

  /// `most_rows`: of one KV head that sequences may share keys for. What is shared is found in the
  /// page table, in time linear in it but for the sorting.
  Turns(const kernels::AttendCall& call, std::int64_t most_rows);

  std::int64_t count() const { return count_; }
  Turn operator[](std::int64_t turn) const { return listed_ ? turns_[turn] : Turn{turn, 1, 0}; }
  std::int64_t sequence(const Turn& turn, std::int64_t member) const {
    return listed_ ? sequences_[turn.first + member] : turn.first + member;
  }
  /// Whether any turn shares anything.
  bool share() const { return share_; }

 private:
  friend class PrefixSearch;
  bool listed_ = false, share_ = false;  // not listed: every sequence alone, in order
  std::int64_t count_ = 0;
  std::int16_t sequences_[kMost];
  Turn turns_[kMost];
};

}  // namespace polyhead::inline v0
