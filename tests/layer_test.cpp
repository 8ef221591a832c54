// The layer against its plain computation under every option.
#include "polyhead/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/difference.h"
#include "support/layer_model.hpp"

namespace polyhead_test {
namespace {

using polyhead::test::largest_difference;

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

std::vector<double> values_of(const Matrix& rows) {
  std::vector<double> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  return values;
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
    const std::vector<double> expected = values_of(exact);
    found = std::max(found, largest_difference(fast, expected));
    plain = std::max(plain, largest_difference(values_of(plain_rows), expected));
    magnitude = std::max(magnitude, largest(exact));
  }
  void expect(const std::string& what) const {
    ASSERT_LT(plain, std::numeric_limits<double>::infinity()) << what;
    EXPECT_LE(found, 2 * plain + 4 * 0x1p-24 * magnitude) << what;
  }
};

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
      const PlainLayer<double> exact(model.config, plain_weights);
      const PlainLayer<float> plain(model.config, plain_weights);
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
    const Matrix exact = PlainLayer<double>(model.config, plain_weights)
                             .forward(rows_of(x, 48), rows_of(context, 29), true);
    const Matrix plain = PlainLayer<float>(model.config, plain_weights)
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

}  // namespace
}  // namespace polyhead_test
