// The frames in which a model's int8 and int4 keys and values are stored: scores stay what they
// were, up to a constant a row, and values come back.
#include "models/code_frame.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "layers/calls.hpp"
#include "models/rope_pairs.hpp"
#include "polyhead/rope.h"

namespace polyhead {
namespace {

using models::CodeFrame;
using models::LayerFrames;

struct Sizes {
  std::int64_t tokens, q_heads, kv_heads, dim;
};

std::vector<float> draws(std::int64_t count, std::mt19937& random, float least, float most) {
  std::uniform_real_distribution<float> any(least, most);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = any(random);
  return values;
}

double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

ConstView view(const std::vector<float>& rows, const Sizes& s, std::int64_t heads) {
  return {rows.data(), {std::int64_t{1}, s.tokens, heads, s.dim}};
}

CodeFrame frame_of(const Sizes& s, std::mt19937& random) {
  return {draws(s.kv_heads * s.dim, random, -1.0f, 1.0f),
          draws(s.kv_heads * s.dim, random, 0.5f, 2.0f)};
}

TEST(CodeFrame, MovesEveryScoreOfARowByTheSame) {
  std::mt19937 random(7);
  const Crew crew = layers::engine_of("CodeFrame", Options{}).crew;
  for (const Sizes s : {Sizes{5, 4, 2, 64}, Sizes{3, 3, 1, 48}, Sizes{19, 2, 2, 5}}) {
    const std::vector<float> q = draws(s.tokens * s.q_heads * s.dim, random, -1.0f, 1.0f);
    const std::vector<float> k = draws(s.tokens * s.kv_heads * s.dim, random, -1.0f, 1.0f);
    const CodeFrame frame = frame_of(s, random);
    std::vector<float> turned_q = q, turned_k = k, v = k;
    models::enter_frames(crew, {frame, {}}, view(turned_q, s, s.q_heads),
                         view(turned_k, s, s.kv_heads), view(v, s, s.kv_heads));
    EXPECT_EQ(v, k) << "values without a frame";
    for (std::int64_t head = 0; head < s.q_heads; ++head) {
      const std::int64_t kv_head = head / (s.q_heads / s.kv_heads);
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        const std::int64_t query = (i * s.q_heads + head) * s.dim;
        const double moved = dot(&q[static_cast<std::size_t>(query)],
                                 &frame.centre[static_cast<std::size_t>(kv_head * s.dim)], s.dim);
        for (std::int64_t j = 0; j < s.tokens; ++j) {
          const std::int64_t key = (j * s.kv_heads + kv_head) * s.dim;
          const double before =
              dot(&q[static_cast<std::size_t>(query)], &k[static_cast<std::size_t>(key)], s.dim);
          const double after = dot(&turned_q[static_cast<std::size_t>(query)],
                                   &turned_k[static_cast<std::size_t>(key)], s.dim);
          // Each turned vector has a relative error of at most (log2(dim) + 4) u of its length:
          // sqrt(dim) * 4 for k, at most 2 after centring over a stretch of 1/2, and * 2 for q.
          const double u = std::ldexp(1.0, -24);
          const double bound = 2.0 * (std::log2(static_cast<double>(s.dim)) + 4.0) * u * 8.0 *
                               static_cast<double>(s.dim);
          EXPECT_NEAR(after, before - moved, bound) << head << ' ' << i << ' ' << j;
        }
      }
    }
  }
}

// What a query head makes of values in their frame is what it would have made of them as they were.
TEST(CodeFrame, ValuesComeBack) {
  std::mt19937 random(8);
  const Crew crew = layers::engine_of("CodeFrame", Options{}).crew;
  for (const Sizes s : {Sizes{5, 4, 2, 64}, Sizes{19, 3, 1, 48}, Sizes{3, 2, 2, 5}}) {
    const std::vector<float> v = draws(s.tokens * s.kv_heads * s.dim, random, -1.0f, 1.0f);
    const LayerFrames frames{frame_of(s, random), frame_of(s, random)};
    std::vector<float> q(static_cast<std::size_t>(s.tokens * s.q_heads * s.dim), 0.0f);
    std::vector<float> k(v.size(), 0.0f), turned = v, out;
    models::enter_frames(crew, frames, view(q, s, s.q_heads), view(k, s, s.kv_heads),
                         view(turned, s, s.kv_heads));
    EXPECT_NE(turned, v);
    const std::int64_t group = s.q_heads / s.kv_heads;
    const auto head_of = [&](const std::vector<float>& rows, std::int64_t row, std::int64_t head) {
      return rows.begin() + (row * s.kv_heads + head / group) * s.dim;
    };
    for (std::int64_t row = 0; row < s.tokens * s.q_heads; ++row) {
      const auto from = head_of(turned, row / s.q_heads, row % s.q_heads);
      out.insert(out.end(), from, from + s.dim);
    }
    models::leave_frame(crew, frames.values, s.kv_heads, view(out, s, s.q_heads));
    for (std::int64_t row = 0; row < s.tokens * s.q_heads; ++row) {
      const auto wanted = head_of(v, row / s.q_heads, row % s.q_heads);
      for (std::int64_t d = 0; d < s.dim; ++d) {
        // (log2(dim) + 4) u of the turned vector's length each way, 4 sqrt(dim), times a stretch
        // of at most 2.
        const double bound = 2.0 * (std::log2(static_cast<double>(s.dim)) + 4.0) *
                             std::ldexp(8.0, -24) * std::sqrt(static_cast<double>(s.dim));
        EXPECT_NEAR(out[static_cast<std::size_t>(row * s.dim + d)], wanted[d], bound) << row;
      }
    }
  }
}

// Rows seen at one place say what their averages are at others: here beside turning each of them.
TEST(CodeFrame, AveragesAreThoseOfAllPositions) {
  models::LayerGeometry layer;
  layer.head_dim = 10;
  const std::int64_t rows = 7, length = 300;
  const Crew crew = layers::engine_of("CodeFrame", Options{}).crew;
  for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
    layer.rope.emplace();
    layer.rope->pairing = pairing;
    layer.rope->base = 500.0;
    layer.rope->rotary_dims = 8;
    const auto pairs = models::rope_pairs(layer);
    ASSERT_EQ(pairs.size(), 4U);
    std::mt19937 random(3);
    const std::vector<float> still = draws(rows * layer.head_dim, random, -1.0f, 2.0f);
    const auto turned = [&](std::int64_t row, std::int64_t position) {
      std::vector<float> x(still.begin() + row * layer.head_dim,
                           still.begin() + (row + 1) * layer.head_dim);
      apply_rope({x.data(), {std::int64_t{1}, std::int64_t{1}, layer.head_dim}},
                 {&position, {std::int64_t{1}}}, *layer.rope);
      return std::vector<double>(x.begin(), x.end());
    };
    models::TurnedBackSums sums(2, layer.head_dim);
    std::vector<double> value(10, 0.0), moment(100, 0.0);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<double> back = turned(row, 5 * row);
      models::turn_back(back, pairs, models::turns_back(pairs, 5 * row));
      sums.add(crew, 1, back);
      for (std::int64_t position = 0; position < length; ++position) {
        const std::vector<double> x = turned(row, position);
        for (std::size_t d = 0; d < x.size(); ++d) {
          value[d] += x[d] / static_cast<double>(rows * length);
          for (std::size_t e = 0; e < x.size(); ++e)
            moment[d * 10 + e] += x[d] * x[e] / static_cast<double>(rows * length);
        }
      }
    }
    const auto average = sums.over(length, pairs);
    for (std::size_t d = 0; d < value.size(); ++d)
      EXPECT_NEAR(average.value[10 + d], value[d], 1e-6) << d;
    for (std::size_t i = 0; i < moment.size(); ++i)
      EXPECT_NEAR(average.moment[100 + i], moment[i], 2e-6) << i / 10 << ' ' << i % 10;
  }
}

}  // namespace
}  // namespace polyhead
