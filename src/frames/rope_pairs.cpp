#include "frames/rope_pairs.hpp"

#include <algorithm>
#include <cmath>

#include "base/ceil_div.hpp"
#include "base/share_out.hpp"

namespace polyhead::inline v0::frames {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The mean of exp(i p angle) over p = 0 .. count - 1.
std::complex<double> mean_turn(double angle, std::int64_t count) {
  const double half = angle / 2.0, n = static_cast<double>(count);
  if (std::abs(std::sin(half)) < 1e-12) return 1.0;  // whole turns
  return std::polar(1.0, (n - 1.0) * half) * (std::sin(n * half) / (n * std::sin(half)));
}

}  // namespace

std::vector<RopePair> rope_pairs(const std::optional<RopeConfig>& rope, std::int64_t head_dim) {
  std::vector<RopePair> pairs;
  if (!rope) return pairs;
  const std::vector<double> frequencies = rope_frequencies(*rope, head_dim);
  const auto count = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t i = 0; i < count; ++i) {
    if (rope->pairing == RopePairing::half_split)
      pairs.push_back({i, i + count, frequencies[index(i)]});
    else
      pairs.push_back({2 * i, 2 * i + 1, frequencies[index(i)]});
  }
  return pairs;
}

std::vector<std::complex<double>> turns_back(std::span<const RopePair> pairs,
                                             std::int64_t position) {
  std::vector<std::complex<double>> turns;
  turns.reserve(pairs.size());
  for (const RopePair& pair : pairs)
    turns.push_back(std::polar(1.0, -static_cast<double>(position) * pair.frequency));
  return turns;
}

void turn_back(std::span<double> row, std::span<const RopePair> pairs,
               std::span<const std::complex<double>> turns) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    double& x = row[index(pairs[i].first)];
    double& y = row[index(pairs[i].second)];
    // Not by operator*, which looks for infinities.
    const double cosine = turns[i].real(), sine = turns[i].imag();
    const double still_x = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = still_x;
  }
}

TurnedBackSums::TurnedBackSums(std::int64_t heads, std::int64_t dim)
    : heads_(heads),
      dim_(dim),
      rows_(index(heads), 0),
      value_(index(heads * dim), 0.0),
      moment_(index(heads * dim * dim), 0.0) {}

void TurnedBackSums::add(const Crew& crew, std::int64_t head, std::span<const double> rows) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size()) / dim_;
  const auto add_dim = [&](std::int64_t d) {
    double* const products = moment_.data() + (head * dim_ + d) * dim_;
    for (std::int64_t row = 0; row < count; ++row) {
      const double* const x = rows.data() + row * dim_;
      value_[index(head * dim_ + d)] += x[d];
      for (std::int64_t e = 0; e <= d; ++e) products[e] += x[d] * x[e];
    }
  };
  constexpr std::int64_t kDimsAnItem = 16;
  base::share_out(*crew.executor, crew.workers, base::ceil_div(dim_, kDimsAnItem),
                  [&](std::int64_t item, int) {
                    const std::int64_t end = std::min(dim_, (item + 1) * kDimsAnItem);
                    for (std::int64_t d = item * kDimsAnItem; d < end; ++d) add_dim(d);
                  });
  rows_[index(head)] += count;
}

namespace {

/// A pair, or a dim that RoPE leaves alone, as one complex number x + iy that turns.
std::vector<RopePair> turning(std::span<const RopePair> pairs, std::int64_t dim) {
  std::vector<RopePair> all(pairs.begin(), pairs.end());
  std::vector<bool> paired(index(dim), false);
  for (const RopePair& pair : pairs) paired[index(pair.first)] = paired[index(pair.second)] = true;
  for (std::int64_t d = 0; d < dim; ++d)
    if (!paired[index(d)]) all.push_back({d, -1, 0.0});  // y is 0
  return all;
}

/// Averages of x x', x y', y x' and y y' of two numbers that turn, in `moment` [dim][dim]. They are
/// sums of the parts of z conj(z'), which turns by the difference of their frequencies, and of
/// z z', which turns by the sum.
void average_turns(double* moment, std::int64_t dim, const RopePair& a, const RopePair& b,
                   std::int64_t length) {
  double none = 0.0;
  const auto at = [&](std::int64_t i, std::int64_t j) -> double& {
    return i < 0 || j < 0 ? none : moment[i * dim + j];
  };
  double &xx = at(a.first, b.first), &xy = at(a.first, b.second);
  double &yx = at(a.second, b.first), &yy = at(a.second, b.second);
  const auto apart = std::complex(xx + yy, yx - xy) * mean_turn(a.frequency - b.frequency, length);
  const auto along = std::complex(xx - yy, yx + xy) * mean_turn(a.frequency + b.frequency, length);
  xx = (apart.real() + along.real()) / 2.0;
  yy = (apart.real() - along.real()) / 2.0;
  yx = (along.imag() + apart.imag()) / 2.0;
  xy = (along.imag() - apart.imag()) / 2.0;
}

}  // namespace

TurnedBackSums::Averages TurnedBackSums::over(std::int64_t length,
                                              std::span<const RopePair> pairs) const {
  Averages mean{value_, moment_};
  const std::vector<RopePair> numbers = turning(pairs, dim_);
  for (std::int64_t head = 0; head < heads_; ++head) {
    const double rows = static_cast<double>(rows_[index(head)]);
    double* const value = mean.value.data() + head * dim_;
    double* const moment = mean.moment.data() + head * dim_ * dim_;
    for (std::int64_t d = 0; d < dim_; ++d) {
      value[d] /= rows;
      for (std::int64_t e = 0; e <= d; ++e)
        moment[d * dim_ + e] = moment[e * dim_ + d] = moment[d * dim_ + e] / rows;
    }
    for (const RopePair& pair : pairs) {
      const std::complex<double> once =
          std::complex(value[pair.first], value[pair.second]) * mean_turn(pair.frequency, length);
      value[pair.first] = once.real();
      value[pair.second] = once.imag();
    }
    for (const RopePair& a : numbers)
      for (const RopePair& b : numbers) average_turns(moment, dim_, a, b, length);
  }
  return mean;
}

}  // namespace polyhead::inline v0::frames
