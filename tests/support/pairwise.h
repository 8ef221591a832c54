// Few rows that hold every pair of levels of every two factors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/random.h"

namespace polyhead::test {

/// One level of each factor; an open factor's level is -1.
using Levels = std::vector<int>;

/// The pairs of two levels of two factors that no row has had yet.
class OpenPairs {
 public:
  explicit OpenPairs(const Levels& levels)
      : levels_(levels), open_(levels.size(), std::vector<std::vector<char>>(levels.size())) {
    for (std::size_t a = 0; a < levels.size(); ++a) {
      for (std::size_t b = a + 1; b < levels.size(); ++b)
        open_[a][b].assign(static_cast<std::size_t>(levels[a] * levels[b]), 1);
    }
  }

  void close_all_of(const Levels& row) {
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = a + 1; b < row.size(); ++b) {
        if (row[a] >= 0 && row[b] >= 0) pair(a, row[a], b, row[b]) = 0;
      }
    }
  }

  /// Row with the first open pair and no other level; empty where none is left.
  Levels first() {
    for (std::size_t a = 0; a < levels_.size(); ++a) {
      for (std::size_t b = a + 1; b < levels_.size(); ++b) {
        for (int i = 0; i < levels_[a] * levels_[b]; ++i) {
          if (!open_[a][b][static_cast<std::size_t>(i)]) continue;
          Levels row(levels_.size(), -1);
          row[a] = i / levels_[b];
          row[b] = i % levels_[b];
          return row;
        }
      }
    }
    return {};
  }

  /// How many open pairs a level of a factor would close beside what a row has.
  int gain(const Levels& row, std::size_t factor, int level) {
    int gain = 0;
    for (std::size_t other = 0; other < row.size(); ++other) {
      if (row[other] >= 0 && other != factor) gain += pair(factor, level, other, row[other]);
    }
    return gain;
  }

 private:
  char& pair(std::size_t a, int level_a, std::size_t b, int level_b) {
    return a < b ? open_[a][b][static_cast<std::size_t>(level_a * levels_[b] + level_b)]
                 : open_[b][a][static_cast<std::size_t>(level_b * levels_[a] + level_a)];
  }

  const Levels& levels_;
  std::vector<std::vector<std::vector<char>>> open_;
};

/// A pair of levels that no row has, as a row of nothing else; empty where all pairs are there.
inline Levels missing_pair(const Levels& levels, const std::vector<Levels>& rows) {
  OpenPairs open(levels);
  for (const Levels& row : rows) open.close_all_of(row);
  return open.first();
}

/// Rows such that each combination of two levels of two factors stands in some row, but for those
/// that do not fit even beside the first levels of all other factors, which must be the ones that
/// fit best. `fits(row)` decides. Greedy: each row starts from an uncovered pair and takes, factor
/// by factor, of the levels that fit the one that covers most.
template <class Fits>
std::vector<Levels> pairwise_rows(const Levels& levels, std::uint64_t seed, const Fits& fits) {
  const auto may_become = [&](Levels row) {
    for (int& level : row) level = std::max(level, 0);
    return fits(row);
  };
  OpenPairs open(levels);
  Random random(seed);
  std::vector<Levels> rows;
  for (Levels row = open.first(); !row.empty(); row = open.first()) {
    if (!may_become(row)) {
      open.close_all_of(row);
      continue;
    }
    for (std::size_t f = 0; f < levels.size(); ++f) {
      if (row[f] >= 0) continue;
      int best_gain = -1, best = 0;
      const int start = static_cast<int>(random.below(levels[f]));
      for (int i = 0; i < levels[f]; ++i) {
        const int level = (start + i) % levels[f], gain = open.gain(row, f, level);
        if (gain <= best_gain) continue;
        row[f] = level;
        if (may_become(row)) best_gain = gain, best = level;
        row[f] = -1;
      }
      row[f] = best;
    }
    open.close_all_of(row);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace polyhead::test
