// Which sequences of a call are taken together, and in which order: those whose keys begin on the
// same pages compute them once.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>

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
  static constexpr std::int64_t kMost = std::int64_t{1} << 16;

  /// Bytes that arrange() needs for a call, or for any of up to so many sequences, which outlive
  /// what it arranges; none for batches up to 512, whose lists lie within.
  static std::size_t room_bytes(const kernels::AttendCall& call);
  static std::size_t room_bytes(std::int64_t batch) {
    const std::int64_t most = std::min(batch, kMost);
    return most > kWithin ? static_cast<std::size_t>(most + 1) * kAll : 0;
  }

  /// `most_rows`: of one KV head that sequences may share keys for. What is shared is found in the
  /// page table, in time linear in it but for the sorting.
  void arrange(const kernels::AttendCall& call, std::int64_t most_rows, std::byte* room);

  std::int64_t count() const { return count_; }
  Turn operator[](std::int64_t turn) const {
    return listed() ? list<Turn>(kTurns)[turn] : Turn{turn, 1, 0, 0};
  }
  std::int64_t sequence(const Turn& turn, std::int64_t member) const {
    const std::int64_t at = turn.first + member;
    return listed() ? list<std::int32_t>(kSequences)[at] : at;
  }
  const Stretch& stretch(const Turn& turn, int which) const {
    return list<Stretch>(kStretches)[turn.first_stretch + which];
  }
  /// Whether any turn shares anything.
  bool share() const { return stretch_count_ > 0; }

 private:
  friend class PrefixSearch;
  struct Cost {
    std::int64_t common = 0, squares = 0;  // of the rows of each turn
    auto operator<=>(const Cost&) const = default;
  };
  /// Where lists begin, in bytes for each of `each_` entries: one more than sequences, since places
  /// between them are counted too. Of a tree's stretches there are fewer than twice as many as
  /// leaves. Those before kSequences are for arrange() alone.
  enum : std::size_t {
    kWork = 0,
    kRows = kWork + 8,
    kPages = kRows + 8,
    kCommon = kPages + 8,
    kLeast = kCommon + 8,
    kBegin = kLeast + sizeof(Cost),
    kSequences = kBegin + 4,
    kTurns = kSequences + 4,
    kStretches = kTurns + sizeof(Turn),
    kAll = kStretches + 2 * sizeof(Stretch)
  };
  static constexpr std::int64_t kWithin = 512;

  bool listed() const { return each_ > 0; }  // else every sequence is alone, in order
  template <class T>
  const T* list(std::size_t which) const {
    return reinterpret_cast<const T*>((room_ ? room_ : within_) + which * each_);
  }
  template <class T>
  T* list(std::size_t which) {
    return const_cast<T*>(std::as_const(*this).template list<T>(which));
  }

  std::byte* room_ = nullptr;  // none: the lists lie within
  std::size_t each_ = 0;
  int stretch_count_ = 0;
  std::int64_t count_ = 0;
  alignas(8) std::byte within_[(kWithin + 1) * kAll];
};

}  // namespace polyhead::inline v0
