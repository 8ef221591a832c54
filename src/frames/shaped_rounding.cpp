#include "frames/shaped_rounding.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "base/codes.hpp"
#include "base/limits.hpp"
#include "frames/head_rows.hpp"

namespace polyhead::inline v0::frames {
namespace {

using base::kCodeBlock;

/// Scales tried, as shares of the one that reaches the value of largest magnitude: smaller ones
/// clamp it and are finer for the rest, larger ones leave room for carried errors.
constexpr float kShares[] = {0.75f, 0.8f, 0.85f, 0.9f, 0.95f, 1.0f, 1.08f, 1.15f};
constexpr int kTrials = static_cast<int>(std::size(kShares));

/// 5 significant bits of a finite value.
float coarse(float scale) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(scale) + 0x40000u) & ~0x7ffffu);
}

/// One dim, or one dim's code, for each scale tried.
struct Trials {
  float of[kTrials];
};

/// Codes of a block for each scale, in lanes so that they run beside each other.
struct Block {
  Trials values[kCodeBlock];  ///< of each dim, what was carried to it included
  Trials scale, inverse, cost{};
};

/// Rounds dim i of every trial; the one at the block's extreme takes -8 whatever was carried to it.
void round_dim(Block& block, std::int64_t i, bool extreme, float cost) {
  // Added and taken away, it leaves an integer: to nearest, ties to even.
  constexpr float kWhole = 0x1.8p23f;
  Trials& values = block.values[i];
  for (int t = 0; t < kTrials; ++t) {
    const float wanted = values.of[t];
    const float clamped = std::min(std::max(wanted * block.inverse.of[t], -8.0f), 7.0f);
    const float code = extreme ? -8.0f : (clamped + kWhole) - kWhole;
    values.of[t] = code * block.scale.of[t];
    const float error = values.of[t] - wanted;
    block.cost.of[t] += cost * error * error;
  }
}

/// The row's block of n dims from `first`: into `rounded`. `exact` is the row before any rounding.
void round_block(std::span<const float> row, std::span<const float> exact, std::int64_t first,
                 std::int64_t n, const float* carry, const float* cost, float* rounded) {
  const auto dim = static_cast<std::int64_t>(row.size());
  std::int64_t extreme = 0;
  const float* const x = row.data() + first;
  for (std::int64_t i = 1; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(x[extreme])) extreme = i;
  Block block;
  for (int t = 0; t < kTrials; ++t) {
    block.scale.of[t] = coarse(x[extreme] * kShares[t] / -8.0f);
    block.inverse.of[t] = 1.0f / block.scale.of[t];
  }
  if (!std::isfinite(block.inverse.of[0])) {  // nothing here, or next to nothing
    std::fill_n(rounded, n, 0.0f);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) std::fill_n(block.values[i].of, kTrials, x[i]);
  for (std::int64_t i = n - 1; i >= 0; --i) {
    round_dim(block, i, i == extreme, cost[first + i]);
    Trials error;
    for (int t = 0; t < kTrials; ++t)
      error.of[t] = block.values[i].of[t] - exact[static_cast<std::size_t>(first + i)];
    const float* const factors = carry + (first + i) * dim + first;
    for (std::int64_t j = 0; j < i; ++j)
      for (int t = 0; t < kTrials; ++t) block.values[j].of[t] -= factors[j] * error.of[t];
  }
  const auto best = std::min_element(block.cost.of, block.cost.of + kTrials) - block.cost.of;
  for (std::int64_t i = 0; i < n; ++i) rounded[i] = block.values[i].of[best];
}

}  // namespace

RoundingShape rounding_shape(std::vector<double> moment, std::int64_t dim, double damping) {
  const auto at = [dim](std::int64_t i, std::int64_t j) {
    return static_cast<std::size_t>(i * dim + j);
  };
  double trace = 0.0;
  for (std::int64_t i = 0; i < dim; ++i) trace += moment[at(i, i)];
  const double added = trace > 0.0 ? damping * trace / static_cast<double>(dim) : 1.0;
  for (std::int64_t i = 0; i < dim; ++i) moment[at(i, i)] += added;
  RoundingShape shape{std::vector<float>(moment.size(), 0.0f), {}};
  // Column by column: below a pivot, what remains of the moment becomes L times it.
  for (std::int64_t j = 0; j < dim; ++j) {
    const double pivot = moment[at(j, j)];
    shape.cost.push_back(static_cast<float>(pivot));
    shape.carry[at(j, j)] = 1.0f;
    for (std::int64_t i = j + 1; i < dim; ++i) {
      const double factor = moment[at(i, j)] / pivot;
      shape.carry[at(i, j)] = static_cast<float>(factor);
      for (std::int64_t k = j + 1; k <= i; ++k) moment[at(i, k)] -= factor * moment[at(k, j)];
    }
  }
  return shape;
}

void round_shaped(std::span<float> row, const float* carry, const float* cost) {
  if (!all_finite(row)) return;
  const auto dim = static_cast<std::int64_t>(row.size());
  float before[base::kMaxDim];
  std::copy(row.begin(), row.end(), before);
  const std::span<const float> exact(before, row.size());
  for (std::int64_t block = base::code_blocks(dim) - 1; block >= 0; --block) {
    const std::int64_t first = block * kCodeBlock, n = std::min(kCodeBlock, dim - first);
    float rounded[kCodeBlock];
    round_block(row, exact, first, n, carry, cost, rounded);
    for (std::int64_t i = first; i < first + n; ++i) {
      const auto d = static_cast<std::size_t>(i);
      row[d] = rounded[i - first];
      const float error = row[d] - exact[d];
      const float* const factors = carry + i * dim;
      for (std::int64_t j = 0; j < first; ++j)
        row[static_cast<std::size_t>(j)] -= factors[j] * error;
    }
  }
}

}  // namespace polyhead::inline v0::frames
