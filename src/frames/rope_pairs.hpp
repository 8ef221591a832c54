// What a layer's RoPE does to rows at other positions than those they were seen at.
#pragma once

#include <complex>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/crew.hpp"
#include "polyhead/rope.h"

namespace polyhead::inline v0::frames {

/// Two dims of a head that RoPE turns together.
struct RopePair {
  std::int64_t first, second;
  double frequency;  ///< radians a position
};

/// The pairs of heads of head_dim; none without RoPE. Throws InvalidArgument.
std::vector<RopePair> rope_pairs(const std::optional<RopeConfig>& rope, std::int64_t head_dim);

/// What turns each pair back from `position` to position 0.
std::vector<std::complex<double>> turns_back(std::span<const RopePair> pairs,
                                             std::int64_t position);

/// A row as if it had been at position 0. `turns`: turns_back() from the row's position.
void turn_back(std::span<double> row, std::span<const RopePair> pairs,
               std::span<const std::complex<double>> turns);

/// Sums over rows of each head's dims that were turned back to position 0.
class TurnedBackSums {
 public:
  TurnedBackSums(std::int64_t heads, std::int64_t dim);

  /// Any number of rows [..][dim] of a head, in their order. The same bits for any crew.
  void add(const Crew& crew, std::int64_t head, std::span<const double> rows);

  /// Averages over rows and over positions 0 .. length - 1: [heads * dim], and of the products of
  /// any two dims [heads * dim * dim].
  struct Averages {
    std::vector<double> value, moment;
  };
  Averages over(std::int64_t length, std::span<const RopePair> pairs) const;

 private:
  std::int64_t heads_, dim_;
  std::vector<std::int64_t> rows_;      // [heads]
  std::vector<double> value_, moment_;  // [heads * dim], [heads * dim * dim] to the diagonal
};

}  // namespace polyhead::inline v0::frames
