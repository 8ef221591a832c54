// Which of the numbers 0, 1, 2, ... are there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace polyhead::inline v0::cache {

/// A set of numbers as ascending stretches with gaps between them. What comes in order is one.
class Stretches {
 public:
  /// How many are there before the first that is not.
  std::int64_t from_zero() const {
    return list_.empty() || list_.front().first > 0 ? 0 : list_.front().end;
  }

  bool contains(std::int64_t number) const {
    const auto at = std::ranges::upper_bound(list_, number, {}, &Stretch::end);
    return at != list_.end() && at->first <= number;
  }

  /// So that the next add() does not fail.
  void make_room() {
    if (list_.size() == list_.capacity()) list_.reserve(2 * list_.size() + 1);
  }

  void add(std::int64_t first, std::int64_t end) {
    if (first >= end) return;
    const auto at = from(first);
    auto past = at;
    for (; past != list_.end() && past->first <= end; ++past) {
      first = std::min(first, past->first);
      end = std::max(end, past->end);
    }
    if (past == at) {
      list_.insert(at, {first, end});
      return;
    }
    *at = {first, end};
    list_.erase(at + 1, past);
  }

  /// Takes everything from `end` on away.
  void cut(std::int64_t end) {
    while (!list_.empty() && list_.back().first >= end) list_.pop_back();
    if (!list_.empty()) list_.back().end = std::min(list_.back().end, end);
  }

  /// Calls visit(first, end) for each stretch of [first, end) that is there.
  template <class Visit>
  void visit_within(std::int64_t first, std::int64_t end, const Visit& visit) {
    for (auto at = from(first); at != list_.end() && at->first < end; ++at) {
      const std::int64_t begins = std::max(first, at->first), ends = std::min(end, at->end);
      if (begins < ends) visit(begins, ends);
    }
  }

 private:
  struct Stretch {
    std::int64_t first, end;
  };

  /// The first stretch that ends at `first` or later.
  std::vector<Stretch>::iterator from(std::int64_t first) {
    return std::ranges::lower_bound(list_, first, {}, &Stretch::end);
  }

  std::vector<Stretch> list_;
};

}  // namespace polyhead::inline v0::cache
