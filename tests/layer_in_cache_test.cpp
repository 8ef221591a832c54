// A layer over rings with positions in the cache: what its steps and attend_in_cache give by hand,
// in any chunks and batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "polyhead/layer.h"
#include "polyhead/sliding_attention.h"
#include "support/layer_streams.hpp"

namespace polyhead_test {
namespace {

using polyhead::LayerWorkspace;
using polyhead::SlidingPositions;

constexpr ElementType kFloat32 = ElementType::float32;

/// What steps give by hand: q of a layer without rope into attend_in_cache.
std::vector<float> in_cache_by_hand(const MultiHeadAttention& layer, SlidingCache& cache,
                                    const std::vector<float>& x, std::int64_t chunk) {
  LayerConfig still = layer.config();
  still.rope.reset();
  const MultiHeadAttention plain = Model(still).layer(Isa::automatic);
  std::vector<float> y(x.size(), std::nanf(""));
  const std::int64_t all = std::ssize(x) / kColumns, packed = layer.packed_dim();
  for (std::int64_t at = 0; at < all; at += chunk) {
    const std::int64_t n = std::min(chunk, all - at);
    const ConstView part(x.data() + at * kColumns, {n, kColumns});
    std::vector<float> turned(static_cast<std::size_t>(n * packed)), q(turned.size());
    std::vector<float> heads(static_cast<std::size_t>(n * kColumns));
    std::vector<std::int64_t> positions(static_cast<std::size_t>(n));
    std::iota(positions.begin(), positions.end(), at);
    const View rows(turned.data(), {n, packed}), still_rows(q.data(), {n, packed});
    layer.project(part, rows, layer.config().rope ? ConstView(positions.data(), {n}) : ConstView());
    plain.project(part, still_rows);
    const polyhead::LayerHeads split = layer.split(rows);
    cache.append(split.k, split.v);
    const View out(heads.data(), {std::int64_t{1}, n, std::int64_t{4}, std::int64_t{16}});
    polyhead::attend_in_cache(
        cache, layer.config().rope,
        {.q = plain.split(still_rows).q, .out = out, .modifiers = layer.config().modifiers});
    layer.output(layer.concat(out), View(y.data() + at * kColumns, {n, kColumns}));
  }
  return y;
}

TEST(LayerInCache, PositionsInTheCacheAreAttendInCache) {
  const float sinks[] = {0.5f, -1.0f, 2.0f, 0.0f};
  for (const bool alibi : {false, true}) {  // with RoPE, or of a model that has none
    LayerConfig config = decoder(kFloat32);
    config.modifiers.sink = ConstView(sinks, {4});
    config.modifiers.alibi.use_default_slopes = alibi;
    if (alibi) config.rope.reset();
    const MultiHeadAttention layer = Model(config).layer(Isa::automatic);
    const auto x = random_floats(kTokens * kColumns, 31);
    for (const ElementType held : kHeldTypes) {
      SlidingCache by_hand = ring_of(layer, held, 4);
      const auto expected = in_cache_by_hand(layer, by_hand, x, 30);
      for (const std::int64_t chunk : {1, 7, 30}) {
        SlidingCache cache = ring_of(layer, held, 4);
        std::vector<float> y(x.size(), std::nanf(""));
        for (std::int64_t at = 0; at < kTokens; at += chunk) {
          const std::int64_t n = std::min(chunk, kTokens - at);
          layer.forward(ConstView(x.data() + at * kColumns, {n, kColumns}), cache,
                        View(y.data() + at * kColumns, {n, kColumns}), SlidingPositions::in_cache);
        }
        expect_same_bits(
            y, expected,
            std::string(polyhead::element_name(held)) + ", chunks of " + std::to_string(chunk));
      }
    }
  }
}

// Nothing moves closer where no first tokens are kept, so that both kinds of positions agree; with
// bfloat16 weights q is rounded once, after it has turned, in either.
TEST(LayerInCache, WithoutFirstTokensPositionsInTheCacheAreTheOriginal) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    Stream streams[] = {{100, 41}, {100, 41}};
    for (const auto positions : {SlidingPositions::original, SlidingPositions::in_cache}) {
      SlidingCache cache = ring_of(layer, held, 0);
      Stream& stream = streams[positions == SlidingPositions::in_cache];
      Stream* const one[] = {&stream};
      while (stream.done < 100) {
        const std::int64_t n = 20;
        step(one, {&n, 1},
             [&](ConstView x, View y, LayerCall) { layer.forward(x, cache, y, positions); });
      }
    }
    expect_same_bits(streams[1].y, streams[0].y, what);
  });
}

TEST(LayerInCache, PositionsInTheCacheRaggedAndPaddedGiveTheBitsOfEachAlone) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    Stream a(kMix[0], 51), b(kMix[1], 52), c(kMix[2], 53), d(kMix[3], 54);
    Stream* const all[] = {&a, &b, &c, &d};
    std::vector<std::vector<float>> alone;
    for (Stream* stream : all) {
      SlidingCache cache = ring_of(layer, held, 4);
      Stream copy = *stream;
      Stream* const one[] = {&copy};
      const std::int64_t n = 1;
      while (copy.done < copy.tokens()) {
        step(one, {&n, 1}, [&](ConstView x, View y, LayerCall) {
          layer.forward(x, cache, y, SlidingPositions::in_cache);
        });
      }
      alone.push_back(copy.y);
    }
    SlidingCache ragged = ring_of(layer, held, 4, 4), padded = ring_of(layer, held, 4, 4);
    LayerWorkspace workspace;
    serve_mix(all, [&](std::span<Stream* const> streams, std::span<const std::int64_t> counts) {
      const std::int64_t most = *std::ranges::max_element(counts);
      std::vector<float> x(static_cast<std::size_t>(4 * most * kColumns), std::nanf("")), y(x);
      for (std::size_t i = 0; i < 4; ++i) {
        std::copy_n(streams[i]->x.begin() + streams[i]->done * kColumns, counts[i] * kColumns,
                    x.begin() + static_cast<std::int64_t>(i) * most * kColumns);
      }
      const std::int64_t four = 4;
      layer.forward(ConstView(x.data(), {four, most, kColumns}), padded,
                    View(y.data(), {four, most, kColumns}), SlidingPositions::in_cache,
                    {.lengths = ConstView(counts.data(), {four}), .workspace = &workspace});
      std::vector<std::int64_t> before;
      for (const Stream* stream : streams) before.push_back(stream->done);
      step(streams, counts, [&](ConstView rows, View to, LayerCall call) {
        call.workspace = &workspace;
        layer.forward(rows, ragged, to, SlidingPositions::in_cache, call);
      });
      for (std::size_t i = 0; i < 4; ++i) {
        const auto from = y.begin() + static_cast<std::int64_t>(i) * most * kColumns;
        const auto found = streams[i]->y.begin() + before[i] * kColumns;
        expect_same_bits({from, from + counts[i] * kColumns}, {found, found + counts[i] * kColumns},
                         what + ", padded");
      }
    });
    for (std::size_t i = 0; i < 4; ++i) expect_same_bits(all[i]->y, alone[i], what + ", ragged");
  });
}

// What a ring holds does not depend on how it is read, so that calls of both kinds may take turns.
TEST(LayerInCache, CallsMixPositions) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  constexpr std::int64_t kChunk = 25;
  const auto serve = [&](const auto& positions_of_call) {
    SlidingCache cache = ring_of(layer, ElementType::int8, 4);
    Stream stream(kTokens, 58);
    Stream* const one[] = {&stream};
    for (int call = 0; stream.done < kTokens; ++call) {
      step(one, {&kChunk, 1}, [&](ConstView x, View y, LayerCall) {
        layer.forward(x, cache, y, positions_of_call(call));
      });
    }
    return stream.y;
  };
  const auto original = serve([](int) { return SlidingPositions::original; });
  const auto in_cache = serve([](int) { return SlidingPositions::in_cache; });
  const auto mixed = serve(
      [](int call) { return call % 2 ? SlidingPositions::in_cache : SlidingPositions::original; });
  for (int call = 0; call < kTokens / kChunk; ++call) {
    const auto first = call * kChunk * kColumns, end = first + kChunk * kColumns;
    const auto& expected = call % 2 ? in_cache : original;
    expect_same_bits({mixed.begin() + first, mixed.begin() + end},
                     {expected.begin() + first, expected.begin() + end}, "mixed");
  }
  EXPECT_NE(original, in_cache);
}

// A window's LSE, and one joined of the two parts, are those that attention over the row gives.
TEST(LayerInCache, PositionsInTheCacheGiveAnLse) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  const auto x = random_floats(30 * kColumns, 55);
  for (const std::int64_t first_tokens : {0, 4}) {
    SlidingCache cache = ring_of(layer, kFloat32, first_tokens);
    std::vector<float> y(x.size()), lse(30 * 4, std::nanf("")), expected(lse);
    layer.forward(ConstView(x.data(), {30, 64}), cache, View(y.data(), {30, 64}),
                  SlidingPositions::in_cache, {.lse = View(lse.data(), {1, 30, 4})});
    layer.forward(ConstView(x.data(), {30, 64}), View(y.data(), {30, 64}),
                  {.lse = View(expected.data(), {1, 30, 4})});
    // All 30 tokens are within the window, where positions are the original; merge_partials rounds
    // the joined LSE once more.
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], expected[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace polyhead_test
