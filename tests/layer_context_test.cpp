// A context of cross attention: sequences one after the other, positions of its own, and what is
// refused of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "polyhead/layer.h"
#include "support/layer_model.hpp"
#include "support/refusal.h"

namespace polyhead_test {
namespace {

using polyhead::LayerCall;
using polyhead::test::refusal_of;

constexpr std::int64_t kModel = 48, kContext = 29, kHead = 8;

LayerConfig crossing(ElementType type) {
  LayerConfig config;
  config.model_dim = kModel;
  config.q_heads = 6;
  config.kv_heads = 2;
  config.context_dim = kContext;
  config.rope = half_split();
  config.weight_type = type;
  return config;
}

/// Three sequences, of which one has no context: 5, 1 and 7 tokens over 70, 0 and 33.
struct Sequences {
  std::int64_t offsets[4] = {0, 5, 6, 13}, context_offsets[4] = {0, 70, 70, 103};
  std::vector<float> x = random_floats(13 * kModel, 60),
                     context = random_floats(103 * kContext, 61);
  std::vector<std::int64_t> positions, context_positions;

  Sequences() {
    for (std::int64_t t = 0; t < 13; ++t) positions.push_back(t * 3 % 17);
    for (std::int64_t t = 0; t < 103; ++t) context_positions.push_back(t * 7 % 31);
  }

  ConstView rows() const { return {x.data(), {std::int64_t{13}, kModel}}; }
  ConstView context_rows() const { return {context.data(), {std::int64_t{103}, kContext}}; }

  LayerCall call(bool places) const {
    LayerCall call;
    call.offsets = {offsets, {4}};
    call.context_offsets = {context_offsets, {4}};
    if (places) {
      call.positions = {positions.data(), {positions.size()}};
      call.context_positions = {context_positions.data(), {context_positions.size()}};
    }
    return call;
  }

  /// What each sequence gives by itself.
  std::vector<float> alone(const MultiHeadAttention& layer, bool places) const {
    std::vector<float> y(x.size(), std::nanf(""));
    for (int s = 0; s < 3; ++s) {
      const std::int64_t first = offsets[s], n = offsets[s + 1] - first;
      const std::int64_t other = context_offsets[s], m = context_offsets[s + 1] - other;
      LayerCall one;
      if (places) {
        one.positions = {positions.data() + first, {n}};
        one.context_positions = {context_positions.data() + other, {m}};
      }
      layer.forward({x.data() + first * kModel, {n, kModel}},
                    ConstView(context.data() + other * kContext, {m, kContext}),
                    {y.data() + first * kModel, {n, kModel}}, one);
    }
    return y;
  }
};

TEST(LayerContext, SequencesOneAfterTheOtherGiveTheBitsOfEachAlone) {
  const Sequences of;
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(crossing(type));
    const MultiHeadAttention layer = model.layer(isa);
    for (const bool places : {false, true}) {
      std::vector<float> y(of.x.size(), std::nanf(""));
      layer.forward(of.rows(), of.context_rows(), {y.data(), {std::int64_t{13}, kModel}},
                    of.call(places));
      expect_same_bits(y, of.alone(layer, places), what + (places ? "with positions" : ""));
      const polyhead::RowTrace row =
          layer.explain(of.rows(), of.context_rows(), {.query = 2, .batch = 2}, of.call(places));
      EXPECT_EQ(row.kv_len, 33) << what;
      const double most = type == ElementType::bfloat16 ? 2e-2 : 2e-5;
      for (std::int64_t i = 0; i < kModel; ++i) {
        EXPECT_NEAR(row.projected[static_cast<std::size_t>(i)],
                    static_cast<double>(y[static_cast<std::size_t>((6 + 2) * kModel + i)]), most)
            << what;
      }
    }
  });
}

/// x one after the other, its context padded: of each sequence the tokens that are valid.
TEST(LayerContext, APaddedContextGoesWithOffsets) {
  const Sequences of;
  constexpr std::int64_t most = 70;
  const std::int32_t lengths[] = {70, 0, 33};
  std::vector<float> padded(3 * most * kContext, std::nanf(""));
  std::vector<std::int64_t> places(3 * most, 5);
  for (int s = 0; s < 3; ++s) {
    const std::int64_t first = of.context_offsets[s];
    std::copy_n(of.context.begin() + first * kContext, lengths[s] * kContext,
                padded.begin() + s * most * kContext);
    std::copy_n(of.context_positions.begin() + first, lengths[s], places.begin() + s * most);
  }
  const ConstView context(padded.data(), {std::int64_t{3}, most, kContext});
  for_each_layer([&](Isa isa, ElementType type, const std::string& what) {
    const Model model(crossing(type));
    const MultiHeadAttention layer = model.layer(isa);
    LayerCall call = of.call(true);
    call.context_offsets = {};
    call.context_lengths = {lengths, {3}};
    call.context_positions = {places.data(), {std::int64_t{3}, most}};
    std::vector<float> y(of.x.size(), std::nanf(""));
    const polyhead::View to(y.data(), {std::int64_t{13}, kModel});
    layer.forward(of.rows(), context, to, call);
    expect_same_bits(y, of.alone(layer, true), what + "padded");
    EXPECT_EQ(layer.explain(of.rows(), context, {.batch = 2}, call).kv_len, 33) << what;

    KvCache cache(layer.cache_config(3, most));
    layer.project_context(context, cache, {lengths, {3}}, call.context_positions);
    call.context_lengths = call.context_positions = {};
    std::fill(y.begin(), y.end(), std::nanf(""));
    layer.cross(of.rows(), cache, to, call);
    expect_same_bits(y, of.alone(layer, true), what + "computed once");
  });
}

/// All of it, where nothing says how much is valid.
TEST(LayerContext, AWholePaddedContextGoesWithOffsets) {
  const Sequences of;
  constexpr std::int64_t most = 70;
  const Model model(crossing(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto all = random_floats(3 * most * kContext, 69);
  std::vector<float> y(of.x.size()), alone = y;
  layer.forward(of.rows(), {all.data(), {std::int64_t{3}, most, kContext}},
                polyhead::View(y.data(), {std::int64_t{13}, kModel}),
                {.offsets = {of.offsets, {4}}});
  for (int s = 0; s < 3; ++s) {
    const std::int64_t first = of.offsets[s], n = of.offsets[s + 1] - first;
    layer.forward({of.x.data() + first * kModel, {n, kModel}},
                  ConstView(all.data() + s * most * kContext, {most, kContext}),
                  {alone.data() + first * kModel, {n, kModel}});
  }
  expect_same_bits(y, alone, "whole");
}

TEST(LayerContext, TheStepOfAttentionTakesItsOffsets) {
  const Sequences of;
  const Model model(crossing(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto q = random_floats(13 * kModel, 62), k = random_floats(103 * 2 * kHead, 63),
             v = random_floats(103 * 2 * kHead, 64);
  std::vector<float> heads(q.size(), std::nanf("")), alone = heads;
  layer.attend({q.data(), {13, 6, 8}}, {k.data(), {103, 2, 8}}, ConstView(v.data(), {103, 2, 8}),
               {heads.data(), {13, 6, 8}}, of.call(false));
  for (int s = 0; s < 3; ++s) {
    const std::int64_t first = of.offsets[s], n = of.offsets[s + 1] - first;
    const std::int64_t other = of.context_offsets[s] * 2 * kHead,
                       m = of.context_offsets[s + 1] - of.context_offsets[s];
    const std::initializer_list<std::int64_t> q_shape = {1, n, 6, kHead},
                                              k_shape = {1, m, 2, kHead};
    layer.attend({q.data() + first * kModel, q_shape}, {k.data() + other, k_shape},
                 ConstView(v.data() + other, k_shape), {alone.data() + first * kModel, q_shape});
  }
  expect_same_bits(heads, alone, "attend");
}

/// project, split, attend, concat and output, one after the other as they come.
TEST(LayerContext, TheFiveStepsFollowEachOtherWithOffsets) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  constexpr std::int64_t tokens = 13;
  const std::int64_t offsets[] = {0, 5, 6, 13};
  const auto x = random_floats(tokens * 64, 68);
  std::vector<std::int64_t> places;
  for (std::int64_t t = 0; t < tokens; ++t) places.push_back(t - (t < 5 ? 0 : t < 6 ? 5 : 6));
  std::vector<float> packed(static_cast<std::size_t>(tokens * layer.packed_dim())),
      heads(tokens * 64), y(tokens * 64, std::nanf("")), whole = y;
  const ConstView rows(x.data(), {tokens, std::int64_t{64}});
  const polyhead::View projected(packed.data(), {tokens, layer.packed_dim()});
  const LayerCall call{.offsets = {offsets, {4}}};
  layer.forward(rows, {whole.data(), {tokens, std::int64_t{64}}}, call);
  layer.project(rows, projected, {places.data(), {places.size()}});
  const polyhead::LayerHeads parts = layer.split(projected);
  const polyhead::View of_heads(heads.data(), {13, 4, 16});
  layer.attend(parts.q, parts.k, ConstView(parts.v), of_heads, call);
  layer.output(layer.concat(of_heads), {y.data(), {tokens, std::int64_t{64}}});
  expect_same_bits(y, whole, "steps with offsets");
}

/// project_q, project_kv, split, attend, concat and output, with and without places of one's own.
TEST(LayerContext, TheFiveStepsOfCrossAttentionGiveItsBits) {
  for (const bool places : {false, true}) {
    const Sequences of;
    const Model model(crossing(ElementType::float32));
    const MultiHeadAttention layer = model.layer(Isa::automatic);
    constexpr std::int64_t n = 7, m = 33, q_columns = 6 * kHead, kv_columns = 2 * (kHead + kHead);
    const ConstView x(of.x.data(), {n, kModel}), context(of.context.data(), {m, kContext}),
        at = places ? ConstView(of.positions.data(), {n}) : ConstView(),
        context_at = places ? ConstView(of.context_positions.data(), {m}) : ConstView();
    std::vector<float> q(n * q_columns), kv(m * kv_columns), heads(n * q_columns),
        y(n * kModel, std::nanf("")), whole = y;
    const polyhead::View q_rows(q.data(), {n, q_columns}), kv_rows(kv.data(), {m, kv_columns}),
        of_heads(heads.data(), {std::int64_t{1}, n, std::int64_t{6}, kHead});
    layer.forward(x, context, {whole.data(), {n, kModel}},
                  {.positions = at, .context_positions = context_at});
    layer.project_q(x, q_rows, at);
    layer.project_kv(context, kv_rows, context_at);
    const polyhead::LayerHeads parts = layer.split(q_rows, kv_rows);
    layer.attend(parts.q, parts.k, ConstView(parts.v), of_heads);
    layer.output(layer.concat(of_heads), {y.data(), {std::int64_t{1}, n, kModel}});
    expect_same_bits(y, whole, "steps of cross attention");

    const polyhead::View few(kv.data(), {m - 1, kv_columns}), narrow(q.data(), {n, q_columns - 1});
    EXPECT_EQ(refusal_of([&] { layer.project_kv(context, few); }),
              "MultiHeadAttention::project_kv: kv has batch 1 and tokens 32, expected those of "
              "context, 1 and 33");
    EXPECT_EQ(refusal_of([&] { layer.project_kv(x, kv_rows); }),
              "MultiHeadAttention::project_kv: context: columns is 48, expected 29");
    EXPECT_EQ(refusal_of([&] { layer.project_q(x, narrow); }),
              "MultiHeadAttention::project_q: q: columns is 47, expected 48");
    EXPECT_EQ(refusal_of([&] { layer.split(kv_rows, kv_rows); }),
              "MultiHeadAttention::split: q: columns is 32, expected 48");
  }
}

/// Attention without a mask does not ask in which order keys come, if their positions come along.
TEST(LayerContext, PositionsBelongToTokens) {
  const Model model(crossing(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  constexpr std::int64_t tokens = 4, context_tokens = 21;
  const auto x = random_floats(tokens * kModel, 65);
  const auto context = random_floats(context_tokens * kContext, 66);
  std::vector<float> turned;
  std::vector<std::int32_t> places;
  for (std::int32_t t = context_tokens - 1; t >= 0; --t) {
    turned.insert(turned.end(), context.begin() + t * kContext,
                  context.begin() + (t + 1) * kContext);
    places.push_back(t);
  }
  const auto with = [&](const std::vector<float>& rows, const LayerCall& call) {
    std::vector<float> y(x.size(), std::nanf(""));
    layer.forward({x.data(), {tokens, kModel}}, ConstView(rows.data(), {context_tokens, kContext}),
                  {y.data(), {tokens, kModel}}, call);
    return y;
  };
  const std::vector<float> expected = with(context, {}), misplaced = with(turned, {});
  const std::vector<float> found =
      with(turned, {.context_positions = {places.data(), {places.size()}}});
  float moved = 0.0f;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-5f);
    moved = std::max(moved, std::fabs(misplaced[i] - expected[i]));
  }
  EXPECT_GT(moved, 1e-3f);
}

TEST(LayerContext, RefusesWhatDoesNotFit) {
  const Sequences of;
  const Model model(crossing(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  std::vector<float> y(of.x.size(), 7.0f);
  std::vector<float> all(of.x.size());
  EXPECT_EQ(refusal_of([&] {
              layer.attend({of.x.data(), {13, 6, 8}}, {of.context.data(), {20, 2, 8}},
                           ConstView(of.context.data(), {20, 2, 8}), {all.data(), {13, 6, 8}},
                           {.offsets = {of.offsets, {4}}});
            }),
            "MultiHeadAttention::attend: offsets are given without context_offsets, but q_len is "
            "13 and kv_len 20; expected both or neither");
  EXPECT_EQ(refusal_of([&] {
              layer.attend({of.x.data(), {13, 6, 8}}, {}, ConstView(of.context.data(), {13, 2, 8}),
                           {all.data(), {13, 6, 8}}, {.offsets = {of.offsets, {4}}});
            }),
            "MultiHeadAttention::attend: k is not given, expected [kv_tokens, kv_heads, head_dim]");
  const auto said = [&](auto change) {
    LayerCall call = of.call(true);
    change(call);
    return refusal_of([&] {
      layer.forward(of.rows(), of.context_rows(), {y.data(), {std::int64_t{13}, kModel}}, call);
    });
  };
  const std::string forward = "MultiHeadAttention::forward: ";
  EXPECT_EQ(said([](LayerCall& c) { c.context_offsets = {}; }),
            forward + "context has batch 1, expected x's 3 sequences (or context_offsets)");
  EXPECT_EQ(said([](LayerCall& c) { c.offsets = {}; }),
            forward + "context_offsets are given without offsets");
  EXPECT_EQ(said([&](LayerCall& c) {
              c.context_offsets = {of.context_offsets, {3}};
            }),
            forward + "context_offsets has 3 entries, expected 4 as offsets");
  const std::int64_t beyond[] = {0, 70, 70, 104}, back[] = {0, 70, 60, 103};
  EXPECT_NE(said([&](LayerCall& c) {
              c.context_offsets = {beyond, {4}};
            }).find("context_offsets"),
            std::string::npos);
  EXPECT_NE(said([&](LayerCall& c) {
              c.context_offsets = {back, {4}};
            }).find("context_offsets"),
            std::string::npos);
  const std::int64_t lengths[] = {1, 1, 1};
  EXPECT_EQ(said([&](LayerCall& c) {
              c.context_lengths = {lengths, {3}};
            }),
            forward + "context_lengths and context_offsets are both given, expected one");
  EXPECT_EQ(said([&](LayerCall& c) { c.context_positions = c.positions; }),
            forward + "context_positions: tokens is 13, expected 103");
  LayerConfig plain = crossing(ElementType::float32);
  plain.rope.reset();
  const Model still(plain);
  const MultiHeadAttention unmoved = still.layer(Isa::automatic);
  LayerCall call = of.call(true);
  call.positions = {};
  EXPECT_EQ(
      refusal_of([&] {
        unmoved.forward(of.rows(), of.context_rows(), {y.data(), {std::int64_t{13}, kModel}}, call);
      }),
      forward + "context_positions are given, but the layer has no rope");
  for (const float value : y) ASSERT_EQ(value, 7.0f);
}

TEST(LayerContext, WithoutOneNothingIsSaidOfIt) {
  const Model model(decoder(ElementType::float32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto x = random_floats(2 * 64, 67);
  std::vector<float> y(x.size(), 7.0f);
  const std::int64_t some[] = {0, 2};
  KvCache cache(layer.cache_config(1, 4));
  const ConstView rows(x.data(), {2, 64});
  const polyhead::View out(y.data(), {2, 64});
  for (const auto& [name, call] :
       {std::pair{"context_offsets", LayerCall{.context_offsets = {some, {2}}}},
        {"context_positions", LayerCall{.context_positions = {some, {2}}}}}) {
    const std::string given = std::string(name) + " are given";
    EXPECT_EQ(refusal_of([&, c = call] { layer.forward(rows, out, c); }),
              "MultiHeadAttention::forward: " + given + " without a context");
    EXPECT_EQ(refusal_of([&, c = call] { layer.forward(rows, cache, out, c); }),
              "MultiHeadAttention::forward: " + given + " without a context");
    EXPECT_EQ(refusal_of([&, c = call] { layer.cross(rows, cache, out, c); }),
              "MultiHeadAttention::cross: " + given + ", but the cache has its own");
  }
  EXPECT_EQ(cache.length(0), 0);
  for (const float value : y) ASSERT_EQ(value, 7.0f);
}

}  // namespace
}  // namespace polyhead_test
