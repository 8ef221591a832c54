// The heart of both kinds of BPE: neighbours merge, the best pair first, until none is left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace polyhead::inline v0::models {

/// A stretch of text that is one piece, or none yet (id -1).
struct Symbol {
  std::uint32_t begin = 0, size = 0;  ///< bytes; size 0: merged into the one before
  std::int32_t id = -1;
  std::int32_t previous = -1, next = -1;  ///< neighbours; -1: none
};

/// What a pair would become. Low priorities merge first, of equal ones the leftmost.
struct Joined {
  double priority = 0.0;
  std::int32_t id = -1;
};

/// Merges of one text after another, with scratch kept between them. A heap of pairs over a linked
/// list of symbols: O(n log n), also for a text without spaces.
class Merging {
 public:
  std::vector<Symbol> symbols;  ///< filled by `add`; what is left after `run` is linked from 0

  void clear() { symbols.clear(); }

  void add(std::uint32_t begin, std::uint32_t size, std::int32_t id) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    if (at > 0) symbols.back().next = at;
    symbols.push_back({begin, size, id, at - 1, -1});
  }

  /// `joined(left, right)` says what two neighbouring symbols become: optional<Joined>.
  template <class Function>
  void run(const Function& joined) {
    pairs_.clear();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      consider(static_cast<std::int32_t>(i), joined);
    std::make_heap(pairs_.begin(), pairs_.end());
    while (!pairs_.empty()) {
      std::pop_heap(pairs_.begin(), pairs_.end());
      const Pair pair = pairs_.back();
      pairs_.pop_back();
      if (!stands(pair)) continue;
      merge(pair);
      for (const std::int32_t left : {at(pair.left).previous, pair.left}) {
        if (left >= 0 && consider(left, joined)) std::push_heap(pairs_.begin(), pairs_.end());
      }
    }
  }

 private:
  struct Pair {
    double priority;
    std::int32_t left, id;
    std::uint32_t size;  ///< of both: another one means that a neighbour has changed since

    bool operator<(const Pair& other) const {  // heaps bring the largest up
      return priority != other.priority ? priority > other.priority : left > other.left;
    }
  };

  Symbol& at(std::int32_t i) { return symbols[static_cast<std::size_t>(i)]; }

  /// Enters the pair that begins at `left`, where it may merge; whether it did.
  template <class Function>
  bool consider(std::int32_t left, const Function& joined) {
    const Symbol& first = at(left);
    if (first.next < 0) return false;
    const Symbol& second = at(first.next);
    const std::optional<Joined> result = joined(first, second);
    if (result) pairs_.push_back({result->priority, left, result->id, first.size + second.size});
    return result.has_value();
  }

  bool stands(const Pair& pair) {
    const Symbol& first = at(pair.left);
    return first.size != 0 && first.next >= 0 && first.size + at(first.next).size == pair.size;
  }

  void merge(const Pair& pair) {
    Symbol& first = at(pair.left);
    Symbol& second = at(first.next);
    first.size = pair.size;
    first.id = pair.id;
    first.next = second.next;
    if (second.next >= 0) at(second.next).previous = pair.left;
    second.size = 0;
  }

  std::vector<Pair> pairs_;
};

}  // namespace polyhead::inline v0::models
