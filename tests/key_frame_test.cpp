// The frame in which a model's int4 keys are stored: scores stay what they were, up to a constant a
// row.
#include "models/key_frame.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "layers/calls.hpp"

namespace polyhead {
namespace {

using models::KeyFrame;

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

TEST(KeyFrame, MovesEveryScoreOfARowByTheSame) {
  std::mt19937 random(7);
  const Crew crew = layers::engine_of("KeyFrame", Options{}).crew;
  for (const Sizes s : {Sizes{5, 4, 2, 64}, Sizes{3, 3, 1, 48}, Sizes{19, 2, 2, 5}}) {
    const std::vector<float> q = draws(s.tokens * s.q_heads * s.dim, random, -1.0f, 1.0f);
    const std::vector<float> k = draws(s.tokens * s.kv_heads * s.dim, random, -1.0f, 1.0f);
    const KeyFrame frame{draws(s.kv_heads * s.dim, random, -1.0f, 1.0f),
                         draws(s.kv_heads * s.dim, random, 0.5f, 2.0f)};
    std::vector<float> turned_q = q, turned_k = k;
    models::enter_frame(crew, frame,
                        {turned_q.data(), {std::int64_t{1}, s.tokens, s.q_heads, s.dim}},
                        {turned_k.data(), {std::int64_t{1}, s.tokens, s.kv_heads, s.dim}});
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

}  // namespace
}  // namespace polyhead
