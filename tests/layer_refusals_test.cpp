// What the layer refuses, and that nothing has changed then.
#include "polyhead/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/layer_model.hpp"
#include "support/refusal.h"

namespace polyhead_test {
namespace {

using polyhead::test::refusal_of;

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

/// What no call could be served with is refused when the layer is made.
TEST(Layer, RefusesAMaskAndModifiersThatNoCallCanHave) {
  const Model model(decoder(ElementType::float32));
  const float sinks[] = {0.0f, 0.0f, 0.0f};
  const struct {
    void (*set)(LayerConfig& c);
    const char* message;
  } cases[] = {
      {[](LayerConfig& c) { c.modifiers.scale = NAN; }, "modifiers.scale (nan) is not finite"},
      {[](LayerConfig& c) { c.modifiers.soft_cap = -1.0f; },
       "modifiers.soft_cap (-1) is neither 0 (none) nor within 1e-30 .. 1e+30"},
      {[](LayerConfig& c) { c.modifiers.dropout.probability = 2.0f; },
       "modifiers.dropout.probability (2) is not within [0, 1)"},
      {[](LayerConfig& c) { c.mask.windowed = true, c.mask.left = -5; },
       "mask.left (-5) is less than -1 (unbounded)"},
      {[](LayerConfig& c) { c.mask.first_tokens = 4; },
       "mask.first_tokens (4) is given without a window"},
      {[](LayerConfig& c) { c.mask.align = static_cast<polyhead::Align>(9); },
       "mask.align (9) is not Align::unstated, start or end"},
      {[](LayerConfig& c) { c.mask = polyhead::prefix(3) & polyhead::prefix(4); },
       "mask joins two masks of one kind that differ: prefix"}};
  for (const auto& [set, message] : cases) {
    LayerConfig config = model.config;
    config.modifiers = {}, config.mask = {};
    set(config);
    expect_refused(config, model.weights(),
                   (std::string("MultiHeadAttention: ") + message).c_str());
  }
  LayerConfig config = model.config;
  config.modifiers.sink = ConstView(sinks, {3});
  expect_refused(config, model.weights(),
                 "MultiHeadAttention: modifiers.sink: q_heads is 3, expected 4");
  config = model.config;  // causal may come with a call
  config.mask = {}, config.mask.prefix_length = 2;
  EXPECT_NO_THROW(MultiHeadAttention(config, model.weights()));
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
  const std::int64_t descending[] = {0, 5, 4}, beyond[] = {0, 5, 9};
  const auto ragged = [&](const std::int64_t* offsets) {
    layer.forward(ConstView(x.data(), {8, 64}), View(y.data(), {8, 64}),
                  {.offsets = ConstView(offsets, {3})});
  };
  expect_call_refused(
      "MultiHeadAttention::forward: offsets[2] (4) is below offsets[1] (5), expected ascending "
      "offsets",
      [&] { ragged(descending); });
  expect_call_refused(
      "MultiHeadAttention::forward: offsets[2] (9) is beyond the tokens of x, expected at most 8",
      [&] { ragged(beyond); });
  KvCache wrong(layer.cache_config(1, 8));
  expect_call_refused("MultiHeadAttention::forward: cache has batch 1, expected 2",
                      [&] { layer.forward(x_view, wrong, y_view); });
}

// Lengths of the queries are not those of keys from elsewhere, of which some would be hidden.
// In the words of a layer, also where attention itself writes y.
TEST(Layer, RefusesOutputsOverTheLengthsOfACall) {
  for (const bool projected : {true, false}) {
    const Model model(decoder(ElementType::float32), projected, projected);
    const MultiHeadAttention layer = model.layer(polyhead::Isa::automatic);
    const std::vector<float> x = random_floats(2 * 3 * 64, 1);
    std::vector<float> y(x.size(), 1.0f);
    auto* const lengths = reinterpret_cast<std::int32_t*>(y.data());
    for (int i = 0; i < 3; ++i) lengths[i] = i;
    const std::string call = "MultiHeadAttention::forward: ", end = " (or cannot be shown not to)";
    const View out(y.data(), {2, 3, 64}), lse(y.data(), {2, 3, 4});
    std::vector<float> apart(x.size());
    const ConstView padded(x.data(), {2, 3, 64}), rows(x.data(), {6, 64});
    EXPECT_EQ(refusal_of([&] { layer.forward(padded, out, {.lengths = ConstView(lengths, {2})}); }),
              call + "y overlaps lengths" + end);
    EXPECT_EQ(refusal_of([&] {
                layer.forward(padded, View(apart.data(), {2, 3, 64}),
                              {.lengths = ConstView(lengths, {2}), .lse = lse});
              }),
              call + "lse overlaps lengths" + end);
    lengths[2] = 6;
    EXPECT_EQ(refusal_of([&] {
                layer.forward(rows, View(y.data(), {6, 64}), {.offsets = ConstView(lengths, {3})});
              }),
              call + "y overlaps offsets" + end);
  }
}

TEST(Layer, TheStepOfAttentionAsksForTheLayersHeads) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto some = random_floats(2 * 5 * 4 * 16, 54);
  std::vector<float> heads(some.size(), 7.0f);
  const auto attend = [&](std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                          std::int64_t value_dim) {
    return polyhead::test::refusal_of([&] {
      layer.attend({some.data(), {std::int64_t{1}, std::int64_t{5}, q_heads, head_dim}},
                   {some.data(), {std::int64_t{1}, std::int64_t{5}, kv_heads, head_dim}},
                   ConstView(some.data(), {std::int64_t{1}, std::int64_t{5}, kv_heads, value_dim}),
                   View(heads.data(), {std::int64_t{1}, std::int64_t{5}, q_heads, value_dim}));
    });
  };
  const std::string name = "MultiHeadAttention::attend: ";
  EXPECT_EQ(attend(2, 2, 16, 16), name + "q: q_heads is 2, expected 4");
  EXPECT_EQ(attend(4, 2, 8, 16), name + "q: head_dim is 8, expected 16");
  EXPECT_EQ(attend(4, 1, 16, 16), name + "k: kv_heads is 1, expected 2");
  EXPECT_EQ(attend(4, 2, 16, 8), name + "v: value_dim is 8, expected 16");
  EXPECT_EQ(attend(4, 2, 16, 16), "accepted");
}

TEST(Layer, TheStepOfAttentionAsksWhoseLengthsTheyAre) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const LayerConfig& c = layer.config();
  constexpr std::int64_t kOne = 1, kQueries = 2, kKeys = 5;
  const auto q = random_floats(static_cast<std::size_t>(kQueries * c.q_heads * c.head_dim), 55);
  const auto k = random_floats(static_cast<std::size_t>(kKeys * c.kv_heads * c.head_dim), 56);
  const auto v = random_floats(static_cast<std::size_t>(kKeys * c.kv_heads * c.value_dim), 57);
  std::vector<float> heads(static_cast<std::size_t>(kQueries * c.q_heads * c.value_dim), 7.0f);
  const std::int32_t x_lengths[] = {1}, context_lengths[] = {4};
  const auto attend = [&](LayerCall call) {
    call.mask.align = polyhead::Align::end;
    layer.attend(ConstView(q.data(), {kOne, kQueries, c.q_heads, c.head_dim}),
                 ConstView(k.data(), {kOne, kKeys, c.kv_heads, c.head_dim}),
                 ConstView(v.data(), {kOne, kKeys, c.kv_heads, c.value_dim}),
                 View(heads.data(), {kOne, kQueries, c.q_heads, c.value_dim}), call);
  };
  expect_call_refused(
      "MultiHeadAttention::attend: lengths are given without context_lengths, but q_len is 2 and "
      "kv_len 5; expected both or neither",
      [&] { attend({.lengths = ConstView(x_lengths, {1})}); });
  const std::int32_t three[] = {3}, six[] = {6};
  expect_call_refused("MultiHeadAttention::attend: lengths[0] (3) is not within 0 .. 2", [&] {
    attend({.lengths = ConstView(three, {1}), .context_lengths = ConstView(three, {1})});
  });
  expect_call_refused("MultiHeadAttention::attend: context_lengths[0] (6) is not within 0 .. 5",
                      [&] { attend({.context_lengths = ConstView(six, {1})}); });
  const std::string narrow =
      "MultiHeadAttention::attend: heads: q_heads is 1, expected " + std::to_string(c.q_heads);
  expect_call_refused(narrow.c_str(), [&] {
    layer.attend(ConstView(q.data(), {kOne, kQueries, c.q_heads, c.head_dim}),
                 ConstView(k.data(), {kOne, kKeys, c.kv_heads, c.head_dim}),
                 ConstView(v.data(), {kOne, kKeys, c.kv_heads, c.value_dim}),
                 View(heads.data(), {kOne, kQueries, kOne, c.value_dim}));
  });
  expect_call_refused(
      "MultiHeadAttention::attend: heads overlaps k (or cannot be shown not to)", [&] {
        const ConstView over(heads.data(), {kOne, kOne, c.kv_heads, c.head_dim});
        layer.attend(ConstView(q.data(), {kOne, kOne, c.q_heads, c.head_dim}), over, over,
                     View(heads.data(), {kOne, kOne, c.q_heads, c.value_dim}));
      });
  expect_call_refused("MultiHeadAttention::attend: q: extent -1 of axis 0 is negative", [&] {
    layer.attend(ConstView(q.data(), {std::int64_t{-1}, kQueries, c.q_heads, c.head_dim}),
                 ConstView(k.data(), {kOne, kKeys, c.kv_heads, c.head_dim}),
                 ConstView(v.data(), {kOne, kKeys, c.kv_heads, c.value_dim}),
                 View(heads.data(), {kOne, kQueries, c.q_heads, c.value_dim}),
                 {.lengths = ConstView(x_lengths, {1})});
  });
  expect_call_refused("MultiHeadAttention::attend: k: extent -5 of axis 1 is negative", [&] {
    layer.attend(ConstView(q.data(), {kOne, kQueries, c.q_heads, c.head_dim}),
                 ConstView(k.data(), {kOne, -kKeys, c.kv_heads, c.head_dim}),
                 ConstView(v.data(), {kOne, kKeys, c.kv_heads, c.value_dim}),
                 View(heads.data(), {kOne, kQueries, c.q_heads, c.value_dim}),
                 {.context_lengths = ConstView(context_lengths, {1})});
  });
  std::vector<std::int64_t> own(heads.size() / 2, 1);
  expect_call_refused(
      "MultiHeadAttention::attend: heads overlaps context_lengths (or cannot be shown not to)",
      [&] {
        layer.attend(
            ConstView(q.data(), {kOne, kQueries, c.q_heads, c.head_dim}),
            ConstView(k.data(), {kOne, kKeys, c.kv_heads, c.head_dim}),
            ConstView(v.data(), {kOne, kKeys, c.kv_heads, c.value_dim}),
            View(reinterpret_cast<float*>(own.data()), {kOne, kQueries, c.q_heads, c.value_dim}),
            {.context_lengths = ConstView(own.data(), {1})});
      });
  EXPECT_EQ(heads[0], 7.0f);
  attend(
      {.lengths = ConstView(x_lengths, {1}), .context_lengths = ConstView(context_lengths, {1})});
  EXPECT_NE(heads[0], 7.0f);
}

}  // namespace
}  // namespace polyhead_test
