// Latent attention layers with random weights, and what they give in one call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/latent.h"
#include "support/random.h"

namespace polyhead::test {

inline constexpr LatentForm kForms[] = {LatentForm::expanded, LatentForm::absorbed};

/// A configuration and its random weights.
struct LatentModel {
  LatentConfig c;
  std::vector<float> w_q, w_q_down, q_norm, w_kv_down, kv_norm, w_kv_up, w_o;

  explicit LatentModel(const LatentConfig& config) : c(config) {
    const auto matrix = [](std::int64_t out, std::int64_t in, unsigned seed) {
      return random_floats(out * in, seed, 1.0 / std::sqrt(static_cast<double>(in)));
    };
    const std::int64_t q_in = c.q_rank > 0 ? c.q_rank : c.model_dim;
    w_q = matrix(c.heads * (c.nope_dim + c.rope_dim), q_in, 1);
    w_q_down = matrix(c.q_rank, c.model_dim, 2);
    q_norm = random_floats(c.q_rank, 3);
    w_kv_down = matrix(c.kv_rank + c.rope_dim, c.model_dim, 4);
    kv_norm = random_floats(c.kv_rank, 5);
    w_kv_up = matrix(c.heads * (c.nope_dim + c.value_dim), c.kv_rank, 6);
    w_o = matrix(c.model_dim, c.heads * c.value_dim, 7);
  }

  LatentWeights weights() const {
    LatentWeights w;
    const ConstView up(
        w_q.data(), {c.heads * (c.nope_dim + c.rope_dim), c.q_rank > 0 ? c.q_rank : c.model_dim});
    if (c.q_rank > 0) {
      w.w_q_up = up;
      w.w_q_down = {w_q_down.data(), {c.q_rank, c.model_dim}};
      w.q_norm = {q_norm.data(), {c.q_rank}};
    } else {
      w.w_q = up;
    }
    w.w_kv_down = {w_kv_down.data(), {c.kv_rank + c.rope_dim, c.model_dim}};
    w.kv_norm = {kv_norm.data(), {c.kv_rank}};
    w.w_kv_up = {w_kv_up.data(), {c.heads * (c.nope_dim + c.value_dim), c.kv_rank}};
    w.w_o = {w_o.data(), {c.model_dim, c.heads * c.value_dim}};
    return w;
  }
};

inline LatentConfig small_latent(std::int64_t q_rank = 24) {
  LatentConfig c;
  c.model_dim = 40;
  c.heads = 3;
  c.q_rank = q_rank;
  c.kv_rank = 32;
  c.nope_dim = 16;
  c.rope_dim = 8;
  c.value_dim = 20;
  c.rope.emplace().pairing = RopePairing::interleaved;
  c.mask = causal(Align::end);
  return c;
}

/// Self attention over all of x [batch, tokens, model_dim].
inline std::vector<float> run(const LatentAttention& layer, const std::vector<float>& x,
                              std::int64_t batch, std::int64_t tokens, LatentForm form,
                              const LayerCall& call = {}) {
  const std::int64_t dim = layer.config().model_dim;
  std::vector<float> y(static_cast<std::size_t>(batch * tokens * dim),
                       std::numeric_limits<float>::quiet_NaN());
  layer.forward({x.data(), {batch, tokens, dim}}, {y.data(), {batch, tokens, dim}}, form, call);
  return y;
}

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

}  // namespace polyhead::test
