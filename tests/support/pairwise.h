// Few rows that hold every pair of levels of every two factors.
#pragma once

#include <cstdint>
#include <vector>

#include "support/random.h"

namespace polyhead::test {

/// Rows of one level a factor such that each combination of two levels of two factors stands in
/// some row. Greedy: each row is the best of a few that start from an uncovered pair and choose,
/// factor by factor, the level that covers most.
inline std::vector<std::vector<int>> pairwise_rows(const std::vector<int>& levels,
                                                   std::uint64_t seed) {
  const std::size_t factors = levels.size();
  std::vector<std::vector<std::vector<char>>> open(factors,
                                                   std::vector<std::vector<char>>(factors));
  std::int64_t left = 0;
  for (std::size_t a = 0; a < factors; ++a) {
    for (std::size_t b = a + 1; b < factors; ++b) {
      const int pairs = levels[a] * levels[b];
      open[a][b].assign(static_cast<std::size_t>(pairs), 1);
      left += pairs;
    }
  }
  const auto pair = [&](std::size_t a, int level_a, std::size_t b, int level_b) -> char& {
    return a < b ? open[a][b][static_cast<std::size_t>(level_a * levels[b] + level_b)]
                 : open[b][a][static_cast<std::size_t>(level_b * levels[a] + level_a)];
  };
  Random random(seed);
  std::vector<std::vector<int>> rows;
  std::size_t first_a = 0, first_b = 1;
  while (left > 0) {
    std::vector<int> row(factors, -1);
    bool started = false;
    for (; !started;) {  // the next pair that is still open
      for (int i = 0; i < levels[first_a] * levels[first_b] && !started; ++i) {
        if (!open[first_a][first_b][static_cast<std::size_t>(i)]) continue;
        row[first_a] = i / levels[first_b];
        row[first_b] = i % levels[first_b];
        started = true;
      }
      if (!started && ++first_b == factors) first_b = ++first_a + 1;
    }
    for (std::size_t f = 0; f < factors; ++f) {
      if (row[f] >= 0) continue;
      int best_gain = -1;
      const int start = static_cast<int>(random.below(levels[f]));
      for (int i = 0; i < levels[f]; ++i) {
        const int level = (start + i) % levels[f];
        int gain = 0;
        for (std::size_t other = 0; other < factors; ++other) {
          if (row[other] >= 0 && other != f) gain += pair(f, level, other, row[other]);
        }
        if (gain > best_gain) best_gain = gain, row[f] = level;
      }
    }
    for (std::size_t a = 0; a < factors; ++a) {
      for (std::size_t b = a + 1; b < factors; ++b) {
        char& still = pair(a, row[a], b, row[b]);
        left -= still;
        still = 0;
      }
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace polyhead::test
