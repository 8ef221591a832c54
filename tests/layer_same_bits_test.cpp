// The layer's promise of same bits: chunks, batches, threads, strides, steps and fused weights.
#include "polyhead/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/layer_model.hpp"

namespace polyhead_test {
namespace {

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

/// Without an output projection too the concatenated heads are rounded, whatever y's type: padded,
/// ragged, and after a cache.
TEST(Layer, Bfloat16HeadsWithoutAProjectionGiveTheSameBits) {
  const auto x = random_floats(30 * 64, 46);
  for (const Isa isa : polyhead::available_isas()) {
    const Model model(decoder(ElementType::bfloat16), true, false);
    const MultiHeadAttention layer = model.layer(isa);
    std::vector<polyhead::bfloat16> packed(static_cast<std::size_t>(30 * layer.packed_dim()));
    std::vector<polyhead::bfloat16> heads(30 * 64), narrow(30 * 64);
    const View packed_view(packed.data(), {std::int64_t{30}, layer.packed_dim()});
    layer.project(ConstView(x.data(), {30, 64}), packed_view);
    const polyhead::LayerHeads split = layer.split(packed_view);
    layer.attend(split.q, split.k, split.v, View(heads.data(), {1, 30, 4, 16}));
    std::vector<float> expected;
    for (const polyhead::bfloat16 head : heads) expected.push_back(to_float32(head));
    const auto expect = [&](const std::vector<float>& found, const char* what) {
      expect_same_bits(found, expected, what);
    };
    const ConstView rows(x.data(), {30, 64});
    layer.forward(rows, View(narrow.data(), {30, 64}));
    EXPECT_EQ(std::memcmp(narrow.data(), heads.data(), heads.size() * 2), 0) << isa_name(isa);
    std::vector<float> y(30 * 64, std::nanf("")), turned(64 * 30), found;
    layer.forward(rows, View(y.data(), {30, 64}));
    expect(y, "into float32");
    layer.forward(rows, View(turned.data(), {30, 64}, {1, 30}));
    for (std::size_t i = 0; i < y.size(); ++i) found.push_back(turned[i % 64 * 30 + i / 64]);
    expect(found, "into columns");
    const std::int64_t offsets[] = {0, 30};
    std::ranges::fill(y, std::nanf(""));
    layer.forward(rows, View(y.data(), {30, 64}), {.offsets = {offsets, {2}}});
    expect(y, "ragged");
    KvCache cache(layer.cache_config(1, 30));
    std::ranges::fill(y, std::nanf(""));
    for (std::int64_t t = 0; t < 30; t += 10)
      layer.forward(ConstView(x.data() + t * 64, {10, 64}), cache,
                    View(y.data() + t * 64, {10, 64}));
    expect(y, "after a cache");
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

}  // namespace
}  // namespace polyhead_test
