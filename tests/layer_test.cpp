// The layer against its plain computation under every option, and the promise of same bits.
#include "polyhead/layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/layer_reference.hpp"

namespace {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::Isa;
using polyhead::KvCache;
using polyhead::LayerCall;
using polyhead::LayerConfig;
using polyhead::LayerWeights;
using polyhead::MultiHeadAttention;
using polyhead::View;
using polyhead_test::Matrix;

std::vector<float> random_floats(std::int64_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

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

  polyhead_test::PlainWeights plain() const {
    const auto matrix = [&](const std::vector<float>& w, std::int64_t out, std::int64_t in) {
      Matrix m(static_cast<std::size_t>(out));
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
          m[static_cast<std::size_t>(o)].push_back(
              polyhead_test::rounded(w[static_cast<std::size_t>(o * in + i)], config.weight_type));
        }
      }
      return m;
    };
    const auto vector = [&](const std::vector<float>& b) {
      return biases ? std::vector<double>(b.begin(), b.end()) : std::vector<double>{};
    };
    polyhead_test::PlainWeights w;
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

Matrix rows_of(const std::vector<float>& values, std::int64_t columns) {
  Matrix rows;
  for (auto at = values.begin(); at != values.end(); at += columns) {
    rows.emplace_back(at, at + columns);
  }
  return rows;
}

LayerConfig base_config() {
  LayerConfig config;
  config.model_dim = 48;
  config.q_heads = 4;
  return config;
}

polyhead::RopeConfig half_split() {
  polyhead::RopeConfig rope;
  rope.pairing = polyhead::RopePairing::half_split;
  return rope;
}

constexpr float kSinks[] = {0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -2.0f};

struct Case {
  const char* name;
  std::function<void(LayerConfig&)> change;
};

const Case kCases[] = {
    {"plain", [](LayerConfig&) {}},
    {"grouped", [](LayerConfig& c) { c.q_heads = 6, c.kv_heads = 2, c.head_dim = 16; }},
    {"one kv head", [](LayerConfig& c) { c.kv_heads = 1; }},
    {"odd dims",
     [](LayerConfig& c) { c.model_dim = 37, c.q_heads = 3, c.head_dim = 13, c.value_dim = 7; }},
    {"normalised", [](LayerConfig& c) { c.qk_norm = true; }},
    {"rope half split", [](LayerConfig& c) { c.rope = half_split(); }},
    {"rope interleaved, partial",
     [](LayerConfig& c) {
       c.rope = half_split();
       c.rope->pairing = polyhead::RopePairing::interleaved;
       c.rope->rotary_dims = 6;
     }},
    {"rope yarn, normalised",
     [](LayerConfig& c) {
       c.rope = half_split();
       c.rope->scaling = polyhead::RopeScaling::yarn;
       c.rope->factor = 4;
       c.rope->original_length = 64;
       c.qk_norm = true;
     }},
    {"causal", [](LayerConfig& c) { c.mask = polyhead::causal(); }},
    {"window", [](LayerConfig& c) { c.mask = polyhead::causal() & polyhead::window(5, 0); }},
    {"prefix", [](LayerConfig& c) { c.mask = polyhead::prefix(7); }},
    {"soft cap, scale",
     [](LayerConfig& c) { c.modifiers.soft_cap = 2.0f, c.modifiers.scale = 0.7f; }},
    {"alibi",
     [](LayerConfig& c) {
       c.modifiers.alibi.use_default_slopes = true, c.mask = polyhead::causal();
     }},
    {"sink", [](LayerConfig& c) { c.modifiers.sink = ConstView(kSinks, {4}); }},
    {"no projections", [](LayerConfig& c) { c.use_projections = false; }},
    {"no projections, rope",
     [](LayerConfig& c) { c.use_projections = false, c.rope = half_split(), c.qk_norm = true; }},
};

constexpr ElementType kTypes[] = {ElementType::float32, ElementType::float16,
                                  ElementType::bfloat16};

double largest_error(const Matrix& exact, const std::vector<float>& found) {
  double error = 0;
  std::size_t at = 0;
  for (const auto& row : exact) {
    for (const double value : row) error = std::max(error, std::abs(found[at++] - value));
  }
  return error;
}

double largest_error(const Matrix& exact, const Matrix& found) {
  std::vector<float> flat;
  for (const auto& row : found) flat.insert(flat.end(), row.begin(), row.end());
  return largest_error(exact, flat);
}

double largest(const Matrix& rows) {
  double most = 0;
  for (const auto& row : rows) {
    for (const double value : row) most = std::max(most, std::abs(value));
  }
  return most;
}

/// The yardstick: at most twice the error of the plain computation with the same roundings (both
/// against double, the largest over all seeds), plus a few roundings of the largest output.
struct Accuracy {
  double found = 0, plain = 0, magnitude = 0;
  void add(const Matrix& exact, const Matrix& plain_rows, const std::vector<float>& fast) {
    found = std::max(found, largest_error(exact, fast));
    plain = std::max(plain, largest_error(exact, plain_rows));
    magnitude = std::max(magnitude, largest(exact));
  }
  void expect(const std::string& what) const {
    EXPECT_LE(found, 2 * plain + 4 * 0x1p-24 * magnitude) << what;
  }
};

std::string name_of(Isa isa, ElementType type, const char* what) {
  return std::string(polyhead::isa_name(isa)) + " " + polyhead::element_name(type) + " " + what;
}

TEST(Layer, AgreesWithThePlainComputation) {
  constexpr std::int64_t tokens = 70;
  for (const Case& one : kCases) {
    for (const ElementType type : kTypes) {
      LayerConfig config = base_config();
      one.change(config);
      config.weight_type = type;
      const bool with_biases = one.name[0] != 'g', with_output = one.name[0] != 'c';
      const Model model(config, with_biases, with_output);
      const auto plain_weights = model.plain();
      const polyhead_test::PlainLayer<double> exact(model.config, plain_weights);
      const polyhead_test::PlainLayer<float> plain(model.config, plain_weights);
      std::vector<Accuracy> accuracy(polyhead::available_isas().size());
      for (unsigned seed = 20; seed < 23; ++seed) {
        const auto x = random_floats(tokens * model.config.model_dim, seed);
        const Matrix x_rows = rows_of(x, model.config.model_dim);
        const Matrix exact_rows = exact.forward(x_rows, x_rows, false);
        const Matrix plain_rows = plain.forward(x_rows, x_rows, false);
        std::size_t index = 0;
        for (const Isa isa : polyhead::available_isas()) {
          const MultiHeadAttention layer = model.layer(isa);
          std::vector<float> y(static_cast<std::size_t>(tokens * model.y_columns()), std::nanf(""));
          layer.forward(ConstView(x.data(), {tokens, model.config.model_dim}),
                        View(y.data(), {tokens, model.y_columns()}));
          accuracy[index++].add(exact_rows, plain_rows, y);
        }
      }
      std::size_t index = 0;
      for (const Isa isa : polyhead::available_isas()) {
        accuracy[index++].expect(name_of(isa, type, one.name));
      }
    }
  }
}

TEST(Layer, CrossAttentionAgreesWithThePlainComputation) {
  constexpr std::int64_t tokens = 9, context_tokens = 33;
  for (const ElementType type : kTypes) {
    LayerConfig config = base_config();
    config.context_dim = 29;
    config.kv_heads = 2;
    config.rope = half_split();
    config.weight_type = type;
    const Model model(config);
    const auto plain_weights = model.plain();
    const auto x = random_floats(tokens * 48, 30), context = random_floats(context_tokens * 29, 31);
    const Matrix exact = polyhead_test::PlainLayer<double>(model.config, plain_weights)
                             .forward(rows_of(x, 48), rows_of(context, 29), true);
    const Matrix plain = polyhead_test::PlainLayer<float>(model.config, plain_weights)
                             .forward(rows_of(x, 48), rows_of(context, 29), true);
    for (const Isa isa : polyhead::available_isas()) {
      std::vector<float> y(tokens * 48, std::nanf(""));
      model.layer(isa).forward(ConstView(x.data(), {tokens, std::int64_t{48}}),
                               ConstView(context.data(), {context_tokens, std::int64_t{29}}),
                               View(y.data(), {tokens, std::int64_t{48}}));
      Accuracy accuracy;
      accuracy.add(exact, plain, y);
      accuracy.expect(name_of(isa, type, "cross"));
    }
  }
}

// --- Same bits
// ------------------------------------------------------------------------------------

/// A decoder-like layer with everything that depends on position.
LayerConfig decoder(ElementType type) {
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

constexpr std::int64_t kTokens = 150;

std::vector<float> whole(const MultiHeadAttention& layer, const std::vector<float>& x,
                         std::int64_t tokens = kTokens) {
  const std::int64_t columns = layer.config().model_dim;
  std::vector<float> y(static_cast<std::size_t>(tokens * columns), std::nanf(""));
  layer.forward(ConstView(x.data(), {tokens, columns}), View(y.data(), {tokens, columns}));
  return y;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
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

TEST(Layer, SameBitsInChunksAndTokenByToken) {
  const auto x = random_floats(kTokens * 64, 40);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    const auto expected = whole(layer, x);
    for (const std::int64_t chunk :
         {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, std::int64_t{100}, kTokens}) {
      KvCache cache(layer.cache_config(1, kTokens));
      polyhead::LayerWorkspace workspace;
      std::vector<float> y(x.size(), std::nanf(""));
      for (std::int64_t token = 0; token < kTokens; token += chunk) {
        const std::int64_t n = std::min(chunk, kTokens - token);
        layer.forward(ConstView(x.data() + token * 64, {n, std::int64_t{64}}), cache,
                      View(y.data() + token * 64, {n, std::int64_t{64}}),
                      {.workspace = &workspace});
        ASSERT_EQ(cache.length(0), token + n);
      }
      expect_same_bits(y, expected, what + "chunks of " + std::to_string(chunk));
    }
  });
}

TEST(Layer, SameBitsInABatchWithLengths) {
  constexpr std::int64_t batch = 3;
  const std::int64_t lengths[] = {kTokens, 1, 77};
  auto x = random_floats(batch * kTokens * 64, 41);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    std::vector<float> alone[batch];
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto from = x.begin() + b * kTokens * 64;
      alone[b] = whole(layer, {from, from + lengths[b] * 64}, lengths[b]);
    }
    std::vector<float> padded = x;  // NaN in the padding must reach nothing
    for (std::int64_t b = 0; b < batch; ++b) {
      std::fill(padded.begin() + (b * kTokens + lengths[b]) * 64,
                padded.begin() + (b + 1) * kTokens * 64, std::nanf(""));
    }
    std::vector<float> y(x.size(), std::nanf(""));
    layer.forward(ConstView(padded.data(), {batch, kTokens, std::int64_t{64}}),
                  View(y.data(), {batch, kTokens, std::int64_t{64}}),
                  {.lengths = ConstView(lengths, {batch})});
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto from = y.begin() + b * kTokens * 64;
      expect_same_bits({from, from + lengths[b] * 64}, alone[b], what + "sequence in a batch");
      for (auto at = from + lengths[b] * 64; at != from + kTokens * 64; ++at) {
        ASSERT_EQ(*at, model.b_o[static_cast<std::size_t>((at - y.begin()) % 64)]) << "padding";
      }
    }
  });
}

TEST(Layer, SameBitsRagged) {
  const std::int32_t offsets[] = {0, 40, 40, 41, 140};
  const auto x = random_floats(kTokens * 64, 42);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    std::vector<float> y(x.size(), std::nanf(""));
    layer.forward(ConstView(x.data(), {kTokens, std::int64_t{64}}),
                  View(y.data(), {kTokens, std::int64_t{64}}),
                  {.offsets = ConstView(offsets, {5})});
    for (int s = 0; s < 4; ++s) {
      const auto begin = offsets[s] * 64, end = offsets[s + 1] * 64;
      const auto alone =
          whole(layer, {x.begin() + begin, x.begin() + end}, offsets[s + 1] - offsets[s]);
      expect_same_bits({y.begin() + begin, y.begin() + end}, alone, what + "ragged");
    }
  });
}

TEST(Layer, SameBitsInABatchOfCaches) {
  constexpr std::int64_t batch = 2;
  const std::int64_t first_lengths[] = {40, 9}, steps = 12;
  const auto x = random_floats(batch * 52 * 64, 43);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    KvCache cache(layer.cache_config(batch, 0, true));
    std::vector<float> y(x.size(), std::nanf(""));
    std::vector<float> last(batch * 64);
    polyhead::LayerWorkspace workspace;
    layer.forward(
        ConstView(x.data(), {batch, std::int64_t{40}, std::int64_t{64}}, {52 * 64, 64, 1}), cache,
        View(y.data(), {batch, std::int64_t{40}, std::int64_t{64}}, {52 * 64, 64, 1}),
        {.lengths = ConstView(first_lengths, {batch}), .workspace = &workspace});
    std::size_t bytes = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      std::vector<float> token(batch * 64);
      for (std::int64_t b = 0; b < batch; ++b) {
        std::copy_n(x.begin() + (b * 52 + first_lengths[b] + step) * 64, 64,
                    token.begin() + b * 64);
      }
      layer.forward(ConstView(token.data(), {batch, std::int64_t{1}, std::int64_t{64}}), cache,
                    View(last.data(), {batch, std::int64_t{1}, std::int64_t{64}}),
                    {.workspace = &workspace});
      if (step == 0) bytes = workspace.bytes();
      EXPECT_EQ(workspace.bytes(), bytes) << "grows while decoding";
    }
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t n = first_lengths[b] + steps;
      EXPECT_EQ(cache.length(b), n);
      const auto from = x.begin() + b * 52 * 64;
      const auto alone = whole(layer, {from, from + n * 64}, n);
      expect_same_bits({last.begin() + b * 64, last.begin() + (b + 1) * 64},
                       {alone.end() - 64, alone.end()}, what + "decoded in a batch");
      expect_same_bits({y.begin() + b * 52 * 64, y.begin() + (b * 52 + first_lengths[b]) * 64},
                       {alone.begin(), alone.begin() + first_lengths[b] * 64}, what + "prefilled");
    }
  });
}

TEST(Layer, SameBitsOnAnyNumberOfThreads) {
  const auto x = random_floats(kTokens * 64, 44);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const auto expected = whole(model.layer(isa, 1), x);
    for (const int threads : {2, 3, 5}) {
      expect_same_bits(whole(model.layer(isa, threads), x), expected, what + "threads");
    }
  });
}

TEST(Layer, SameBitsForAnyStridesAndStepByStep) {
  const auto x = random_floats(2 * 30 * 64, 45);
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    std::vector<float> expected(x.size());
    layer.forward(ConstView(x.data(), {2, 30, 64}), View(expected.data(), {2, 30, 64}));

    // [columns, tokens, batch] in, rows with gaps out.
    std::vector<float> turned(x.size()), gaps(2 * 40 * 70, std::nanf("")), found;
    for (std::size_t i = 0; i < x.size(); ++i) {
      turned[(i % 64 * 30 + i / 64 % 30) * 2 + i / 64 / 30] = x[i];
    }
    layer.forward(ConstView(turned.data(), {2, 30, 64}, {1, 2, 60}),
                  View(gaps.data(), {2, 30, 64}, {40 * 70, 70, 1}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      found.push_back(gaps[i / 64 / 30 * 40 * 70 + i / 64 % 30 * 70 + i % 64]);
    }
    expect_same_bits(found, expected, what + "strides");

    // In place.
    auto y = x;
    layer.forward(ConstView(y.data(), {2, 30, 64}), View(y.data(), {2, 30, 64}));
    expect_same_bits(y, expected, what + "in place");

    // One step at a time.
    std::vector<float> packed(static_cast<std::size_t>(2 * 30 * layer.packed_dim()));
    std::vector<float> heads(x.size());
    const View packed_view(packed.data(), {std::int64_t{2}, std::int64_t{30}, layer.packed_dim()});
    layer.project(ConstView(x.data(), {2, 30, 64}), packed_view);
    if (layer.activation_type() == ElementType::float32) {
      const polyhead::LayerHeads split = layer.split(packed_view);
      const View heads_view(heads.data(), {2, 30, 4, 16});
      layer.attend(split.q, split.k, split.v, heads_view);
      std::vector<float> stepped(x.size());
      layer.output(layer.concat(heads_view), View(stepped.data(), {2, 30, 64}));
      expect_same_bits(stepped, expected, what + "steps");
    }
  });
}

TEST(Layer, Bfloat16StepsGiveTheSameBits) {
  const auto x = random_floats(30 * 64, 46);
  for (const Isa isa : polyhead::available_isas()) {
    const Model model(decoder(ElementType::bfloat16));
    const MultiHeadAttention layer = model.layer(isa);
    EXPECT_EQ(layer.activation_type(), ElementType::bfloat16);
    std::vector<polyhead::bfloat16> packed(static_cast<std::size_t>(30 * layer.packed_dim()));
    std::vector<polyhead::bfloat16> heads(30 * 64);
    const View packed_view(packed.data(), {std::int64_t{30}, layer.packed_dim()});
    layer.project(ConstView(x.data(), {30, 64}), packed_view);
    const polyhead::LayerHeads split = layer.split(packed_view);
    const View heads_view(heads.data(), {1, 30, 4, 16});
    layer.attend(split.q, split.k, split.v, heads_view);
    std::vector<float> y(30 * 64);
    layer.output(layer.concat(heads_view), View(y.data(), {1, 30, 64}));
    expect_same_bits(y, whole(layer, x, 30), "bfloat16 steps");
  }
}

TEST(Layer, FusedWeightsAreTheThree) {
  const Model model(decoder(ElementType::float32));
  std::vector<float> w = model.w_q, b = model.b_q;
  w.insert(w.end(), model.w_k.begin(), model.w_k.end());
  w.insert(w.end(), model.w_v.begin(), model.w_v.end());
  b.insert(b.end(), model.b_k.begin(), model.b_k.end());
  b.insert(b.end(), model.b_v.begin(), model.b_v.end());
  LayerWeights fused = model.weights();
  fused.w_q = fused.w_k = fused.w_v = fused.b_q = fused.b_k = fused.b_v = {};
  fused.w_qkv = {w.data(), {128, 64}};
  fused.b_qkv = {b.data(), {128}};
  const auto x = random_floats(kTokens * 64, 47);
  expect_same_bits(whole(MultiHeadAttention(model.config, fused), x),
                   whole(MultiHeadAttention(model.config, model.weights()), x), "fused");

  // The same kept as [in, out].
  std::vector<float> turned(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) turned[i % 64 * 128 + i / 64] = w[i];
  fused.w_qkv = {turned.data(), {128, 64}, {1, 128}};
  expect_same_bits(whole(MultiHeadAttention(model.config, fused), x),
                   whole(MultiHeadAttention(model.config, model.weights()), x), "transposed");
}

TEST(Layer, ExplicitPositionsMoveRopeAlone) {
  Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer(model.config, model.weights());
  const auto x = random_floats(20 * 64, 48);
  std::vector<std::int32_t> shifted(20), counted(20);
  for (int i = 0; i < 20; ++i)
    counted[static_cast<std::size_t>(i)] = i, shifted[static_cast<std::size_t>(i)] = i + 1000;
  const auto expected = whole(layer, x, 20);
  std::vector<float> y(20 * 64);
  layer.forward(ConstView(x.data(), {20, 64}), View(y.data(), {20, 64}),
                {.positions = ConstView(counted.data(), {20})});
  expect_same_bits(y, expected, "positions as counted");
  layer.forward(ConstView(x.data(), {20, 64}), View(y.data(), {20, 64}),
                {.positions = ConstView(shifted.data(), {20})});
  // Distances are what they were: equal to rounding (scores of normalised heads of 16 stay under
  // 16 |w|^2, so a few dozen eps), not to the bit.
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-4);
}

TEST(Layer, ExplainAgreesWithForward) {
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(decoder(type));
    const MultiHeadAttention layer = model.layer(isa);
    const auto x = random_floats(20 * 64, 49);
    const auto y = whole(layer, x, 20);
    const polyhead::RowTrace trace =
        layer.explain(ConstView(x.data(), {20, 64}), {.head = 2, .query = 11});
    ASSERT_EQ(trace.heads.size(), 1u);
    EXPECT_EQ(trace.heads[0].kv_head, 1);
    EXPECT_EQ(trace.input[3], static_cast<double>(x[11 * 64 + 3]));
    ASSERT_EQ(trace.projected.size(), 64u);
    // float32: sums of 20 and 64 terms around 1. bfloat16: weights and heads rounded to 8 bits
    // before 64 terms, so 2^-8 of the largest head value times sqrt-free sum of |w_o| (about 0.8 *
    // 64 / 8): 6.4 * 2 * 2^-8.
    const double bound = type == ElementType::bfloat16 ? 6.4 * 4 * 0x1p-8 : 64 * 8 * 0x1p-24 * 4;
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_NEAR(trace.projected[i], y[11 * 64 + i], bound) << what;
    }
  });
}

TEST(Layer, CacheOfFixedCapacityRefusesAndNothingChanges) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  KvCache cache(layer.cache_config(1, 8));
  const auto x = random_floats(9 * 64, 50);
  std::vector<float> y(9 * 64, 7.0f);
  layer.forward(ConstView(x.data(), {5, 64}), cache, View(y.data(), {5, 64}));
  std::fill(y.begin(), y.end(), 7.0f);
  EXPECT_THROW(layer.forward(ConstView(x.data(), {4, 64}), cache, View(y.data(), {4, 64})),
               polyhead::InvalidArgument);
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(y[0], 7.0f);
  // Refused by attention itself, after the cache had grown.
  const auto bias = random_floats(3, 51);
  EXPECT_THROW(layer.forward(ConstView(x.data(), {2, 64}), cache, View(y.data(), {2, 64}),
                             {.bias = ConstView(bias.data(), {1, 1, 1, 3})}),
               polyhead::InvalidArgument);
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(y[0], 7.0f);
}

TEST(Layer, EmptyCallsAreLegal) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  float nothing = 0;
  layer.forward(ConstView(&nothing, {0, 64}), View(&nothing, {0, 64}));
  layer.forward(ConstView(&nothing, {0, 5, 64}), View(&nothing, {0, 5, 64}));
  KvCache cache(layer.cache_config(0, 8));
  layer.forward(ConstView(&nothing, {0, 5, 64}), cache, View(&nothing, {0, 5, 64}));
  // A context without tokens: every row sees nothing, so y is the output bias.
  const auto x = random_floats(3 * 64, 52);
  std::vector<float> y(3 * 64);
  LayerConfig config = decoder(ElementType::float32);
  config.mask = {};
  const Model open(config);
  open.layer(Isa::automatic)
      .forward(ConstView(x.data(), {3, 64}), ConstView(&nothing, {0, 64}), View(y.data(), {3, 64}));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], open.b_o[i % 64]);
}

// --- Refusals
// -------------------------------------------------------------------------------------

void expect_refused(const LayerConfig& config, const LayerWeights& weights, const char* message) {
  try {
    const MultiHeadAttention layer(config, weights);
    FAIL() << "expected: " << message;
  } catch (const polyhead::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), message);
  }
}

TEST(Layer, RefusesWhatDoesNotFit) {
  const Model model(decoder(ElementType::float32));
  LayerConfig config = model.config;
  config.q_heads = 9;
  expect_refused(config, model.weights(),
                 "MultiHeadAttention: q_heads (9) is not a multiple of kv_heads (2)");
  config = model.config;
  config.head_dim = 0, config.q_heads = 6;
  expect_refused(
      config, model.weights(),
      "MultiHeadAttention: model_dim (64) is not a multiple of q_heads (6), and head_dim "
      "is not given");
  config = model.config;
  config.rope->pairing = polyhead::RopePairing::unstated;
  expect_refused(
      config, model.weights(),
      "MultiHeadAttention: rope.pairing is not stated; expected half_split or interleaved");
  LayerWeights weights = model.weights();
  weights.w_k = {};
  expect_refused(model.config, weights, "MultiHeadAttention: w_k is not given, expected [out, in]");
  weights = model.weights();
  weights.w_o.layout.extents[1] = 63;
  expect_refused(model.config, weights, "MultiHeadAttention: w_o: in is 63, expected 64");
  weights = model.weights();
  weights.w_o = {};
  expect_refused(model.config, weights, "MultiHeadAttention: b_o is given, but w_o is not");
  config = model.config;
  config.weight_type = ElementType::int32;
  expect_refused(config, model.weights(),
                 "MultiHeadAttention: weight_type (int32) is not float32, float16 or bfloat16");
}

template <class Call>
void expect_call_refused(const char* message, Call call) {
  try {
    call();
    FAIL() << "expected: " << message;
  } catch (const polyhead::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), message);
  }
}

TEST(Layer, RefusesCallsThatDoNotFit) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto x = random_floats(8 * 64, 53);
  std::vector<float> y(8 * 64);
  const ConstView x_view(x.data(), {2, 4, 64});
  const View y_view(y.data(), {2, 4, 64});
  expect_call_refused("MultiHeadAttention::forward: x: columns is 32, expected 64", [&] {
    layer.forward(ConstView(x.data(), {2, 4, 32}), y_view);
  });
  expect_call_refused(
      "MultiHeadAttention::forward: y has batch 1 and tokens 8, expected those of x, 2 and 4", [&] {
        layer.forward(x_view, View(y.data(), {8, 64}));
      });
  expect_call_refused("MultiHeadAttention::forward: y: its elements overlap each other", [&] {
    layer.forward(x_view, View(y.data(), {2, 4, 64}, {0, 64, 1}));
  });
  const std::int64_t lengths[] = {4, 5};
  expect_call_refused("MultiHeadAttention::forward: lengths[1] (5) is not within 0 .. 4",
                      [&] { layer.forward(x_view, y_view, {.lengths = ConstView(lengths, {2})}); });
  KvCache wrong(layer.cache_config(1, 8));
  expect_call_refused("MultiHeadAttention::forward: cache has batch 1, expected 2",
                      [&] { layer.forward(x_view, wrong, y_view); });
}

}  // namespace
