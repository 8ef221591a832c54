#include "models/rope_pairs.hpp"

#include <cmath>

namespace polyhead::inline v0::models {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The mean of exp(i p angle) over p = 0 .. count - 1.
std::complex<double> mean_turn(double angle, std::int64_t count) {
  const double half = angle / 2.0, n = static_cast<double>(count);
  if (std::abs(std::sin(half)) < 1e-12) return 1.0;  // whole turns
  return std::polar(1.0, (n - 1.0) * half) * (std::sin(n * half) / (n * std::sin(half)));
}

}  // namespace

std::vector<RopePair> rope_pairs(const LayerGeometry& layer) {
  std::vector<RopePair> pairs;
  if (!layer.rope) return pairs;
  const std::vector<double> frequencies = rope_frequencies(*layer.rope, layer.head_dim);
  const auto count = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t i = 0; i < count; ++i) {
    if (layer.rope->pairing == RopePairing::half_split)
      pairs.push_back({i, i + count, frequencies[index(i)]});
    else
      pairs.push_back({2 * i, 2 * i + 1, frequencies[index(i)]});
  }
  return pairs;
}

TurnedBackSums::TurnedBackSums(std::int64_t heads, std::int64_t dim)
    : heads_(heads),
      dim_(dim),
      rows_(index(heads), 0),
      value_(index(heads * dim), 0.0),
      squared_(value_),
      product_(value_) {}

std::vector<std::complex<double>> turns_back(std::span<const RopePair> pairs,
                                             std::int64_t position) {
  std::vector<std::complex<double>> turns;
  turns.reserve(pairs.size());
  for (const RopePair& pair : pairs)
    turns.push_back(std::polar(1.0, -static_cast<double>(position) * pair.frequency));
  return turns;
}

void TurnedBackSums::add(std::int64_t head, std::span<const double> row,
                         std::span<const RopePair> pairs,
                         std::span<const std::complex<double>> turns) {
  std::vector<double> turned(row.begin(), row.end());
  const std::size_t at = index(head * dim_);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    double& x = turned[index(pairs[i].first)];
    double& y = turned[index(pairs[i].second)];
    // Not by operator*, which looks for infinities.
    const double cosine = turns[i].real(), sine = turns[i].imag();
    const double still_x = x * cosine - y * sine, still_y = x * sine + y * cosine;
    x = still_x;
    y = still_y;
    product_[at + index(pairs[i].first)] += x * y;
  }
  for (std::size_t d = 0; d < turned.size(); ++d) {
    value_[at + d] += turned[d];
    squared_[at + d] += turned[d] * turned[d];
  }
  ++rows_[index(head)];
}

TurnedBackSums::Averages TurnedBackSums::over(std::int64_t length,
                                              std::span<const RopePair> pairs) const {
  Averages mean{value_, squared_};
  for (std::int64_t head = 0; head < heads_; ++head) {
    const double rows = static_cast<double>(rows_[index(head)]);
    for (std::int64_t d = head * dim_; d < (head + 1) * dim_; ++d) {
      mean.value[index(d)] /= rows;
      mean.squared[index(d)] /= rows;
    }
    for (const RopePair& pair : pairs) {
      const std::size_t first = index(head * dim_ + pair.first);
      const std::size_t second = index(head * dim_ + pair.second);
      const std::complex<double> once =
          std::complex(mean.value[first], mean.value[second]) * mean_turn(pair.frequency, length);
      mean.value[first] = once.real();
      mean.value[second] = once.imag();
      // (x cos - y sin)^2 and (x sin + y cos)^2, in the double angle.
      const std::complex<double> twice = mean_turn(2.0 * pair.frequency, length);
      const double half = (mean.squared[first] + mean.squared[second]) / 2.0;
      const double swing = (mean.squared[first] - mean.squared[second]) / 2.0 * twice.real() -
                           product_[first] / rows * twice.imag();
      mean.squared[first] = half + swing;
      mean.squared[second] = half - swing;
    }
  }
  return mean;
}

}  // namespace polyhead::inline v0::models
