// A layer with random weights of every kind it takes, for the layer's tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "polyhead/layer.h"
#include "support/layer_reference.hpp"
#include "support/random.h"

namespace polyhead_test {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::Isa;
using polyhead::KvCache;
using polyhead::LayerCall;
using polyhead::LayerConfig;
using polyhead::LayerWeights;
using polyhead::MultiHeadAttention;
using polyhead::View;
using polyhead::test::random_floats;

/// A configuration with random weights of every kind it takes.
struct Model {
  LayerConfig config;
  std::vector<float> w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, q_norm, k_norm;
  bool biases = true, output = true;

  explicit Model(const LayerConfig& c, bool with_biases = true, bool with_output = true)
      : config(c), biases(with_biases), output(with_output) {
    if (config.kv_heads == 0) config.kv_heads = config.q_heads;
    if (config.head_dim == 0) config.head_dim = config.model_dim / config.q_heads;
    if (config.value_dim == 0) config.value_dim = config.head_dim;
    if (config.context_dim == 0) config.context_dim = config.model_dim;
    const float q_scale = 1.0f / std::sqrt(static_cast<float>(config.model_dim));
    const float kv_scale = 1.0f / std::sqrt(static_cast<float>(config.context_dim));
    w_q = random_floats(q_rows() * config.model_dim, 1, q_scale);
    w_k = random_floats(k_rows() * config.context_dim, 2, kv_scale);
    w_v = random_floats(v_rows() * config.context_dim, 3, kv_scale);
    w_o = random_floats(config.model_dim * concat(), 4,
                        1.0f / std::sqrt(static_cast<float>(concat())));
    b_q = random_floats(q_rows(), 5);
    b_k = random_floats(k_rows(), 6);
    b_v = random_floats(v_rows(), 7);
    b_o = random_floats(config.model_dim, 8);
    q_norm = random_floats(config.head_dim, 9);
    k_norm = random_floats(config.head_dim, 10);
  }

  std::int64_t q_rows() const { return config.q_heads * config.head_dim; }
  std::int64_t k_rows() const { return config.kv_heads * config.head_dim; }
  std::int64_t v_rows() const { return config.kv_heads * config.value_dim; }
  std::int64_t concat() const { return config.q_heads * config.value_dim; }
  std::int64_t y_columns() const { return output ? config.model_dim : concat(); }

  LayerWeights weights() const {
    LayerWeights w;
    if (config.use_projections) {
      w.w_q = {w_q.data(), {q_rows(), config.model_dim}};
      w.w_k = {w_k.data(), {k_rows(), config.context_dim}};
      w.w_v = {w_v.data(), {v_rows(), config.context_dim}};
      if (biases) {
        w.b_q = {b_q.data(), {q_rows()}};
        w.b_k = {b_k.data(), {k_rows()}};
        w.b_v = {b_v.data(), {v_rows()}};
      }
    }
    if (output) {
      w.w_o = {w_o.data(), {config.model_dim, concat()}};
      if (biases) w.b_o = {b_o.data(), {config.model_dim}};
    }
    if (config.qk_norm) {
      w.q_norm = {q_norm.data(), {config.head_dim}};
      w.k_norm = {k_norm.data(), {config.head_dim}};
    }
    return w;
  }

  PlainWeights plain() const {
    const auto matrix = [&](const std::vector<float>& w, std::int64_t out, std::int64_t in) {
      Matrix m(static_cast<std::size_t>(out));
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
          m[static_cast<std::size_t>(o)].push_back(
              rounded(w[static_cast<std::size_t>(o * in + i)], config.weight_type));
        }
      }
      return m;
    };
    const auto vector = [&](const std::vector<float>& b) {
      return biases ? std::vector<double>(b.begin(), b.end()) : std::vector<double>{};
    };
    PlainWeights w;
    if (config.use_projections) {
      w.q = matrix(w_q, q_rows(), config.model_dim);
      w.k = matrix(w_k, k_rows(), config.context_dim);
      w.v = matrix(w_v, v_rows(), config.context_dim);
      w.b_q = vector(b_q);
      w.b_k = vector(b_k);
      w.b_v = vector(b_v);
    }
    if (output) {
      w.o = matrix(w_o, config.model_dim, concat());
      w.b_o = vector(b_o);
    }
    w.q_norm.assign(q_norm.begin(), q_norm.end());
    w.k_norm.assign(k_norm.begin(), k_norm.end());
    return w;
  }

  MultiHeadAttention layer(Isa isa, int threads = 1) const {
    return {config, weights(), {.isa = isa, .threads = threads}};
  }
};

inline polyhead::RopeConfig half_split() {
  polyhead::RopeConfig rope;
  rope.pairing = polyhead::RopePairing::half_split;
  return rope;
}

inline constexpr ElementType kTypes[] = {ElementType::float32, ElementType::float16,
                                         ElementType::bfloat16};

inline std::string name_of(Isa isa, ElementType type, const char* what) {
  return std::string(polyhead::isa_name(isa)) + " " + polyhead::element_name(type) + " " + what;
}

/// A decoder-like layer with everything that depends on position.
inline LayerConfig decoder(ElementType type) {
  LayerConfig config;
  config.model_dim = 64;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.qk_norm = true;
  config.rope = half_split();
  config.mask = polyhead::causal();
  config.modifiers.soft_cap = 20.0f;
  config.weight_type = type;
  return config;
}

inline constexpr std::int64_t kTokens = 150;

inline std::vector<float> whole(const MultiHeadAttention& layer, const std::vector<float>& x,
                                std::int64_t tokens = kTokens) {
  const std::int64_t columns = layer.config().model_dim;
  std::vector<float> y(static_cast<std::size_t>(tokens * columns), std::nanf(""));
  layer.forward(ConstView(x.data(), {tokens, columns}), View(y.data(), {tokens, columns}));
  return y;
}

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  if (a.empty()) return;  // memcmp takes no null pointers
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

template <class Body>
void for_each_layer(Body body) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type : kTypes) body(isa, type, name_of(isa, type, ""));
  }
}

}  // namespace polyhead_test
