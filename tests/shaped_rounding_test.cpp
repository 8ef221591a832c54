// Rounding to int4 by how errors count: what a cache reads is what rounding chose, and it costs
// less than rounding each dim to nearest.
#include "frames/shaped_rounding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/element.hpp"
#include "cache/store.hpp"

namespace polyhead {
namespace {

using frames::RoundingShape;

constexpr double kDamping = 0.02;
constexpr std::int64_t kDims[] = {64, 48, 5, 256, 33};

std::vector<float> normal(std::int64_t dim, std::mt19937& random) {
  std::normal_distribution<float> any;
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (float& x : row) x = any(random);
  return row;
}

/// Of rows that have few directions, as queries do: far from a multiple of the identity.
std::vector<double> moment_of(std::int64_t dim, std::mt19937& random) {
  std::vector<double> moment(static_cast<std::size_t>(dim * dim), 0.0);
  for (int sample = 0; sample < 8; ++sample) {
    const std::vector<float> row = normal(dim, random);
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::size_t j = 0; j < row.size(); ++j)
        moment[i * row.size() + j] += static_cast<double>(row[i]) * row[j] / 8.0;
  }
  return moment;
}

/// What a cache of int4 by token reads of a row that came as `type`.
std::vector<float> cached(const std::vector<float>& row, ElementType type) {
  const auto dim = static_cast<std::int64_t>(row.size());
  const std::int64_t bytes = element_bytes(type);
  std::vector<std::byte> came(row.size() * 4);
  for (std::int64_t d = 0; d < dim; ++d)
    base::store_float32(came.data() + d * bytes, type, row[static_cast<std::size_t>(d)]);
  cache::Store store("test", {ElementType::int4, 1, 1, 1, dim});
  store.write(0, 0, 0, {came.data(), type, bytes});
  std::vector<float> read;
  for (std::int64_t d = 0; d < dim; ++d) read.push_back(store.value(0, 0, 0, d));
  return read;
}

std::vector<float> rounded(std::vector<float> row, const RoundingShape& shape) {
  frames::round_shaped(row, shape.carry.data(), shape.cost.data());
  return row;
}

/// e' M e of what was made of a row.
double cost_of(const std::vector<double>& moment, const std::vector<float>& row,
               const std::vector<float>& made) {
  double sum = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      sum += moment[i * row.size() + j] * (static_cast<double>(made[i]) - row[i]) *
             (static_cast<double>(made[j]) - row[j]);
    }
  }
  return sum;
}

TEST(ShapedRounding, ACacheReadsWhatItChose) {
  std::mt19937 random(5);
  for (const std::int64_t dim : kDims) {
    const RoundingShape shape = frames::rounding_shape(moment_of(dim, random), dim, kDamping);
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<float> row = normal(dim, random);
      if (trial % 2 == 1) row[row.size() / 2] *= 30.0f;  // an outlier
      const std::vector<float> made = rounded(row, shape);
      for (const ElementType type :
           {ElementType::float32, ElementType::bfloat16, ElementType::float16})
        EXPECT_EQ(cached(made, type), made) << dim << ' ' << element_name(type);
    }
  }
}

// 8 directions of 64 to 256 dims matter: the error is carried into the others. A third is what
// anybody could ask; a tenth and less is seen.
TEST(ShapedRounding, CostsLessThanRoundingToNearest) {
  std::mt19937 random(6);
  for (const std::int64_t dim : {64, 48, 256}) {
    const std::vector<double> moment = moment_of(dim, random);
    const RoundingShape shape = frames::rounding_shape(moment, dim, kDamping);
    double shaped = 0.0, nearest = 0.0;
    for (int trial = 0; trial < 100; ++trial) {
      const std::vector<float> row = normal(dim, random);
      shaped += cost_of(moment, row, rounded(row, shape));
      nearest += cost_of(moment, row, cached(row, ElementType::float32));
    }
    RecordProperty("of_nearest_" + std::to_string(dim), std::to_string(shaped / nearest));
    EXPECT_LT(shaped, nearest / 3.0) << dim;
  }
}

// L D L' is the moment and what was added to its diagonal.
TEST(ShapedRounding, FactorsTheMoment) {
  std::mt19937 random(9);
  const std::int64_t dim = 33;
  const std::vector<double> moment = moment_of(dim, random);
  const RoundingShape shape = frames::rounding_shape(moment, dim, kDamping);
  double trace = 0.0;
  for (std::size_t i = 0; i < 33; ++i) trace += moment[i * 34];
  for (std::size_t i = 0; i < 33; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (std::size_t k = 0; k <= j; ++k) {
        sum += static_cast<double>(shape.carry[i * 33 + k]) * shape.cost[k] *
               static_cast<double>(shape.carry[j * 33 + k]);
      }
      const double added = i == j ? kDamping * trace / 33.0 : 0.0;
      // Each of up to 33 products of float32 factors: 3 u of it; their magnitudes sum to at most
      // the larger diagonal, below 4 of a moment of 8 normal samples.
      EXPECT_NEAR(sum, moment[i * 33 + j] + added, 4.0 * std::ldexp(3.0, -24)) << i << ' ' << j;
    }
  }
}

TEST(ShapedRounding, LeavesWhatIsNotFinite) {
  std::mt19937 random(7);
  const RoundingShape shape = frames::rounding_shape(moment_of(64, random), 64, kDamping);
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> row = normal(64, random);
    row[40] = odd;
    const std::vector<float> made = rounded(row, shape);
    for (std::size_t d = 0; d < 64; ++d)
      EXPECT_TRUE(made[d] == row[d] || (std::isnan(made[d]) && std::isnan(row[d]))) << d;
  }
  const std::vector<float> zeros(64, 0.0f);
  EXPECT_EQ(rounded(zeros, shape), zeros);
}

}  // namespace
}  // namespace polyhead
