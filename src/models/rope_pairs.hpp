// What a layer's RoPE does to keys at other positions than those they were seen at.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

#include "models/config.hpp"

namespace polyhead::inline v0::models {

/// Two dims of a head that RoPE turns together.
struct RopePair {
  std::int64_t first, second;
  double frequency;  ///< radians a position
};

/// The pairs of a layer; none without RoPE.
std::vector<RopePair> rope_pairs(const LayerGeometry& layer);

/// What turns each pair back from `position` to position 0.
std::vector<std::complex<double>> turns_back(std::span<const RopePair> pairs,
                                             std::int64_t position);

/// Sums over rows of a head's dims, as if each had been at position 0.
class TurnedBackSums {
 public:
  TurnedBackSums(std::int64_t heads, std::int64_t dim);

  /// `turns`: turns_back() from the row's position.
  void add(std::int64_t head, std::span<const double> row, std::span<const RopePair> pairs,
           std::span<const std::complex<double>> turns);

  /// Averages [heads * dim] over rows and over positions 0 .. length - 1.
  struct Averages {
    std::vector<double> value, squared;
  };
  Averages over(std::int64_t length, std::span<const RopePair> pairs) const;

 private:
  std::int64_t heads_, dim_;
  std::vector<std::int64_t> rows_;                 // [heads]
  std::vector<double> value_, squared_, product_;  // [heads * dim]; product_ at a pair's first dim
};

}  // namespace polyhead::inline v0::models
