// A head's running sums over rows: double, in query order.
#pragma once

#include <cstdint>

#include "kernels/contract.hpp"
#include "polyhead/heads.h"

namespace polyhead::inline v0 {

/// What a row's sums do not say about it.
struct RowPlace {
  std::int64_t q_pos = 0;
  bool copy_of_first = false;  ///< key 0 is an earlier copy of the query's token
  bool first_is_delimiter = false;
};

struct HeadSums {
  struct Sum {
    std::int64_t rows = 0;
    double mass = 0, chance = 0;
    double part = 0, whole = 0, whole_chance = 0;  ///< outside key 0
  };

  std::int64_t rows = 0, seeing_rows = 0, first_rows = 0;
  double entropy = 0, largest = 0, first_mass = 0;
  double spread = 0, spread_most = 0;
  double distance = 0, distance_mass = 0;
  Sum targets[kernels::kTargets];

  void take(const kernels::TileSums& tile, int row, const RowPlace& place);

  /// Nats, key 0 included.
  static float entropy_of(const kernels::TileSums& tile, int row);
  /// The weight on key 0, and the largest. NaN of a row whose weights are.
  static float first_of(const kernels::TileSums& tile, int row);
  static float largest_of(const kernels::TileSums& tile, int row);

  /// The flags: whether tokens and delimiters are known, and whether positions do not compare.
  HeadMeasures measures(bool tokens, bool delimiters, bool cross) const;
};

}  // namespace polyhead::inline v0
