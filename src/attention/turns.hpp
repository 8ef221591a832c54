// Which sequences of a call are taken together, and in which order: those whose keys begin on the
// same pages compute them once.
#pragma once

#include <cstdint>

#include "kernels/contract.hpp"

namespace polyhead::inline v0 {

/// One sequence, or several that begin on the same pages: a tree, whose stretches are the splits
/// that some of them share and those that each has to itself.
struct Turn {
  std::int64_t first;  ///< of its sequences, in the order of Turns
  std::int64_t count;  ///< of its sequences
  int first_stretch;
  int stretches;  ///< the one of all members first, others after those they follow; 0: none

  bool shares() const { return stretches > 0; }
};

/// Splits [first_split, end_split) of the keys, which lie on the same pages for all of its members
/// and are seen in full by all of their queries; or all that one member has left, perhaps none.
struct Stretch {
  std::int16_t first, count;  ///< members of the turn
  std::int32_t first_split, end_split;

  bool shared() const { return count > 1; }
  std::int32_t splits() const { return end_split - first_split; }
};

/// All sequences of a call in turns, of an uneven batch the most work first, so that no long one is
/// left for the end. Speed follows from it, and no result.
class Turns {
 public:
  /// Batches beyond it even out by themselves; they share nothing.
  static constexpr std::int64_t kMost = 512;

  /// `most_rows`: of one KV head that sequences may share keys for. What is shared is found in the
  /// page table, in time linear in it but for the sorting.
  void arrange(const kernels::AttendCall& call, std::int64_t most_rows);

  std::int64_t count() const { return count_; }
  Turn operator[](std::int64_t turn) const { return listed_ ? turns_[turn] : Turn{turn, 1, 0, 0}; }
  std::int64_t sequence(const Turn& turn, std::int64_t member) const {
    return listed_ ? sequences_[turn.first + member] : turn.first + member;
  }
  const Stretch& stretch(const Turn& turn, int which) const {
    return stretches_[turn.first_stretch + which];
  }
  /// Whether any turn shares anything.
  bool share() const { return stretch_count_ > 0; }

 private:
  friend class PrefixSearch;
  bool listed_ = false;  // not listed: every sequence alone, in order
  int stretch_count_ = 0;
  std::int64_t count_ = 0;
  std::int16_t sequences_[kMost];
  Turn turns_[kMost];
  Stretch stretches_[2 * kMost];  // of a tree: fewer than twice its leaves
};

}  // namespace polyhead::inline v0
