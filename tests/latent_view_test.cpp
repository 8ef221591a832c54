// Latent attention over paged and sliding caches and any other view: the bits of the contiguous
// cache, whatever the pages, the chunks and the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "polyhead/latent.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/latent_serving.h"
#include "support/refusal.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kOne = 1, kThree = 3;

TEST(LatentView, PagesGiveTheBitsOfTheContiguousCache) {
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    Stream stream(83, 21);
    const std::vector<float> expected = contiguous(layer, way, stream.x);
    for (const std::int64_t page_tokens : {8, 16, 64, 256}) {
      for (const std::int64_t chunk : {1, 7, 64, 83}) {
        Pool pool(layer, way, page_tokens, 83 / page_tokens + 2);
        const std::int64_t id = pool.cache->create();
        stream.done = 0;
        std::ranges::fill(stream.y, NAN);
        Stream* const one[] = {&stream};
        while (stream.done < 83) {
          const std::int64_t count = std::min(chunk, 83 - stream.done);
          pool.step(one, {&id, 1}, {&count, 1});
        }
        expect_same_bits(stream.y, expected,
                         way.name() + ", pages of " + std::to_string(page_tokens) + ", chunks of " +
                             std::to_string(chunk));
      }
    }
  }
}

// Prompts of two sequences in chunks beside the steps of a third, and nothing of a fourth.
TEST(LatentView, ARaggedMixGivesTheBitsOfEachAlone) {
  for (const Isa isa : available_isas()) {
    for (const Way& way : kWays) {
      const LatentAttention layer = layer_of(way, causal(Align::end), isa);
      for (const Appends appends : kAppends) {
        Stream a(90, 31), b(41, 32), c(8, 33), d(5, 34);
        Pool pool(layer, way, 16, 16, appends);
        Stream* const all[] = {&a, &b, &c, &d};
        std::vector<std::int64_t> ids;
        for (int i = 0; i < 4; ++i) ids.push_back(pool.cache->create());
        pool.step(all, ids, std::vector<std::int64_t>{30, 1, 1, 5});
        for (int i = 0; i < 6; ++i) pool.step(all, ids, std::vector<std::int64_t>{10, 5, 1, 0});
        pool.step(all, ids, std::vector<std::int64_t>{0, 10, 1, 0});
        int i = 0;
        for (const Stream* stream : all) {
          ASSERT_EQ(stream->done, stream->tokens());
          expect_same_bits(stream->y, contiguous(layer, way, stream->x),
                           way.name() + ", sequence " + std::to_string(i++) + ", " + isa_name(isa));
        }
      }
    }
  }
}

// A prompt of more than a split of 1,024 keys, whose pages three sequences share: attention
// computes what they have in common once, and the expanded form makes its keys once.
TEST(LatentView, SharedPrefixesGiveTheBitsOfEachAlone) {
  constexpr std::int64_t kPrompt = 1100, kAfter = 4;
  for (const Way& way : {kWays[0], kWays[2], kWays[5], kWays[6]}) {
    const LatentAttention layer = layer_of(way);
    Stream prompt(kPrompt, 41);
    Pool pool(layer, way, 64, 24);
    const std::int64_t first = pool.cache->create();
    Stream* const one[] = {&prompt};
    pool.step(one, {&first, 1}, {&kPrompt, 1});
    std::vector<Stream> streams;
    std::vector<Stream*> all;
    std::vector<std::int64_t> ids;
    for (unsigned i = 0; i < 3; ++i) {
      streams.emplace_back(kAfter, 42 + i);
      streams[i].x.insert(streams[i].x.begin(), prompt.x.begin(), prompt.x.end());
      streams[i].y = prompt.y;
      streams[i].y.resize(streams[i].x.size(), NAN);
      streams[i].done = kPrompt;
      ids.push_back(pool.cache->fork(first));
    }
    for (Stream& stream : streams) all.push_back(&stream);
    pool.cache->release(first);
    for (int step = 0; step < kAfter; ++step)
      pool.step(all, ids, std::vector<std::int64_t>{1, 1, 1});
    for (const Stream& stream : streams)
      expect_same_bits(stream.y, contiguous(layer, way, stream.x), way.name());
  }
}

// Two sequences hold one page, to different lengths: the last tokens of both once more.
TEST(LatentView, APageIsReadAsFarAsEachSequenceGoes) {
  constexpr std::int64_t kTokens = 13, kShorter = 10;
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    Stream stream(kTokens, 47);
    Pool pool(layer, way, 8, 4);
    const std::int64_t longer = pool.cache->create();
    Stream* const one[] = {&stream};
    pool.step(one, {&longer, 1}, {&kTokens, 1});
    const std::int64_t ids[] = {longer, pool.cache->fork(longer)};
    pool.cache->truncate(ids[1], kShorter);
    PagedBatch batch;
    pool.cache->batch(ids, batch);
    std::vector<float> x, y(2 * kModel, NAN), expected;
    for (const std::int64_t length : {kTokens, kShorter}) {
      const std::int64_t first = (length - 1) * kModel, end = length * kModel;
      x.insert(x.end(), stream.x.begin() + first, stream.x.begin() + end);
      expected.insert(expected.end(), stream.y.begin() + first, stream.y.begin() + end);
    }
    const std::int32_t offsets[] = {0, 1, 2};
    layer.forward({x.data(), {std::int64_t{2}, kModel}}, pool.cache->view(0, batch),
                  {y.data(), {std::int64_t{2}, kModel}}, way.form, {.offsets = {offsets, {3}}});
    expect_same_bits(y, expected, way.name());
  }
}

/// x piece by piece over a ring, which the caller or the layer fills.
std::vector<float> over_ring(const LatentAttention& layer, const Way& way,
                             const SlidingCacheConfig& config, const std::vector<float>& x,
                             Appends appends) {
  SlidingCache cache(config);
  const std::int64_t tokens = std::ssize(x) / kModel, dim = config.head_dim;
  std::vector<float> y(x.size(), NAN), rows(static_cast<std::size_t>(config.chunk * dim));
  for (std::int64_t at = 0, turn = 0; at < tokens; ++turn) {
    const std::int64_t count = std::min(turn % 3 == 0 ? config.chunk : turn % 4 + 1, tokens - at);
    const ConstView part(x.data() + at * kModel, {kOne, count, kModel});
    const View to(y.data() + at * kModel, {kOne, count, kModel});
    if (appends == Appends::layer) {
      layer.forward(part, cache, to, way.form);
    } else {
      std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
      std::iota(positions.begin(), positions.end(), at);
      layer.latents(part, {rows.data(), {kOne, count, dim}}, {positions.data(), {kOne, count}});
      cache.append({rows.data(), {kOne, count, kOne, dim}}, {});
      layer.forward(part, cache.view(), to, way.form, {.mask = cache.mask()});
    }
    at += count;
  }
  return y;
}

TEST(LatentView, ARingGivesTheBitsOfTheWindowOverEverything) {
  constexpr std::int64_t kTokens = 301, kWindow = 50;
  for (const Way& way : kWays) {
    for (const std::int64_t first_tokens : {0, 5}) {
      const LatentAttention layer = layer_of(way);
      const LatentAttention windowed =
          layer_of(way, window_and_first(kWindow - 1, 0, first_tokens, Align::end));
      const std::vector<float> x = random_floats(kTokens * kModel, 51);
      auto c = sized<SlidingCacheConfig>(layer);
      c.type = way.held;
      c.window = kWindow;
      c.first_tokens = first_tokens;
      c.chunk = 9;
      const std::vector<float> expected = contiguous(windowed, way, x);
      for (const Appends appends : kAppends)
        expect_same_bits(over_ring(layer, way, c, x, appends), expected,
                         way.name() + ", first tokens " + std::to_string(first_tokens));
    }
  }
}

// Without its window a query would see other tokens' latents in the places of those that are gone.
TEST(LatentView, ARingWithoutItsWindowIsRefusedInBothForms) {
  constexpr std::int64_t kTokens = 200, kWindow = 20;
  const LatentAttention layer = layer_of(kWays[0]);
  auto c = sized<SlidingCacheConfig>(layer);
  c.window = kWindow;
  c.first_tokens = 5;
  SlidingCache cache(c);
  const std::vector<float> x = random_floats(kTokens * kModel, 55);
  std::vector<float> row(static_cast<std::size_t>(c.head_dim)), y(kModel, NAN);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    layer.latents({x.data() + t * kModel, {kOne, kModel}}, {row.data(), {kOne, c.head_dim}},
                  {&t, {1}});
    cache.append({row.data(), {kOne, kOne, kOne, c.head_dim}}, {});
  }
  const ConstView last(x.data() + (kTokens - 1) * kModel, {kOne, kModel});
  const View output(y.data(), {kOne, kModel});
  for (const LatentForm form : kForms) {
    expect_refusal([&] { layer.forward(last, cache.view(), output, form); },
                   "LatentAttention::forward: query 0 of sequence 0 sees key 5, but kv holds its "
                   "keys from");
    EXPECT_TRUE(std::isnan(y[0]));
  }
}

// Padded batches over a view without pages, and one without lengths.
TEST(LatentView, APaddedBatchOverAContiguousViewGivesTheBitsOfTheCache) {
  constexpr std::int64_t kTokens = 9;
  const std::int64_t counts[] = {kTokens, std::int64_t{4}, std::int64_t{0}};
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    std::vector<float> x = random_floats(3 * kTokens * kModel, 61);
    std::fill(x.begin() + (kTokens + 4) * kModel, x.begin() + 2 * kTokens * kModel, NAN);
    KvCacheConfig config = layer.cache_config(3, 2 * kTokens);
    config.type = way.held;
    KvCache cache(config), other(config);
    const std::int64_t dim = config.head_dim;
    const ConstView input(x.data(), {kThree, kTokens, kModel});
    std::vector<float> y[2], rows(static_cast<std::size_t>(3 * kTokens * dim));
    std::vector<std::int64_t> positions(3 * kTokens);
    const LayerCall call{.lengths = {counts, {3}}};
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto b = static_cast<std::int64_t>(i) / kTokens;
        positions[i] = step * counts[b] + static_cast<std::int64_t>(i) % kTokens;
      }
      for (auto& each : y) each.assign(x.size(), NAN);
      layer.forward(input, cache, {y[0].data(), {kThree, kTokens, kModel}}, way.form, call);
      layer.latents(input, {rows.data(), {kThree, kTokens, dim}},
                    {positions.data(), {kThree, kTokens}});
      other.append({rows.data(), {kThree, kTokens, kOne, dim}}, {}, call.lengths);
      layer.forward(input, other.view(), {y[1].data(), {kThree, kTokens, kModel}}, way.form, call);
      expect_same_bits(y[1], y[0], way.name());
    }
    // Without lengths a view is full, here of the first sequence alone.
    KvView view = other.view();
    view.lengths = {};
    for (ConstView* part : {&view.k, &view.v, &view.k_scales, &view.v_scales}) {
      if (part->given()) part->layout.extents[0] = 1;
    }
    std::vector<float> full(kTokens * kModel, NAN);
    layer.forward({x.data(), {kOne, kTokens, kModel}}, view, {full.data(), {kOne, kTokens, kModel}},
                  way.form);
    expect_same_bits(full, {y[0].begin(), y[0].begin() + kTokens * kModel}, way.name());
  }
}

// The dim axis of a view may have any stride, and what lies in between is not read.
TEST(LatentView, TheExpandedFormTakesAnyStrides) {
  const Way way = kWays[0];
  const LatentAttention layer = layer_of(way);
  constexpr std::int64_t kTokens = 11, kDim = 40;
  const std::vector<float> x = random_floats(kTokens * kModel, 71);
  std::vector<float> held(kDim * kTokens * 2, NAN), y(x.size(), NAN);
  std::vector<std::int64_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  const detail::Layout rows{{kTokens, kDim}, {std::int64_t{2}, 2 * kTokens}};
  const ConstView input(x.data(), {kTokens, kModel});
  layer.latents(input, View(held.data(), f32, rows), {positions.data(), {kTokens}});
  KvView view;
  view.k = {held.data(), {kOne, kTokens, kOne, kDim}, {kOne, std::int64_t{2}, kOne, 2 * kTokens}};
  view.v = view.k;
  view.v.layout.extents[3] = 32;
  layer.forward(input, view, {y.data(), {kTokens, kModel}}, way.form);
  expect_same_bits(y, contiguous(layer, way, x), "transposed");
}

TEST(LatentView, RowsOfLatentsAreThoseOfTheCacheInAnyType) {
  const LatentAttention layer = layer_of(kWays[1]);  // bfloat16
  constexpr std::int64_t kTokens = 6, kDim = 40;
  const std::vector<float> x = random_floats(kTokens * kModel, 81);
  KvCache cache(layer.cache_config(1, kTokens));
  std::vector<float> y(x.size());
  const ConstView input(x.data(), {kTokens, kModel});
  layer.forward(input, cache, {y.data(), {kTokens, kModel}});
  const std::int32_t positions[] = {0, 1, 2, 3, 4, 5};
  std::vector<float> wide(kTokens * kDim, NAN);
  std::vector<bfloat16> same(kTokens * kDim);
  layer.latents(input, {wide.data(), {kTokens, kDim}}, {positions, {kTokens}});
  layer.latents(input, {same.data(), {kTokens, kDim}}, {positions, {kTokens}});
  const auto* const held = static_cast<const bfloat16*>(cache.keys().data);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(wide[i], to_float32(held[i])) << i;
    ASSERT_EQ(to_float32(same[i]), to_float32(held[i])) << i;
  }
}

TEST(LatentView, WithoutRopeThereAreNoPositions) {
  LatentConfig config = small_latent();
  config.rope_dim = 0;
  config.rope.reset();
  const LatentAttention layer(config, LatentModel(config).weights());
  constexpr std::int64_t kTokens = 4, kDim = 32;
  const std::vector<float> x = random_floats(kTokens * kModel, 91);
  std::vector<float> rows(kTokens * kDim), y(x.size(), NAN);
  const ConstView input(x.data(), {kTokens, kModel});
  const std::int64_t positions[] = {0, 1, 2, 3};
  expect_refusal(
      [&] {
        layer.latents(input, {rows.data(), {kTokens, kDim}}, {positions, {kTokens}});
      },
      "positions are given, but the layer has no rope");
  layer.latents(input, {rows.data(), {kTokens, kDim}});
  KvView view;
  view.k = view.v = {rows.data(), {kOne, kTokens, kOne, kDim}};
  for (const LatentForm form : kForms) {
    layer.forward(input, view, {y.data(), {kTokens, kModel}}, form);
    expect_same_bits(y, run(layer, x, 1, kTokens, form), "without rope");
  }
}

TEST(LatentView, RefusesWhatDoesNotFit) {
  const LatentAttention layer = layer_of(kWays[0]);
  constexpr std::int64_t kDim = 40;
  std::vector<float> x(3 * kModel, 0.5f), y(x.size(), 7.0f), held(8 * kDim, 0.25f);
  const std::int64_t enough[] = {5}, few[] = {2}, offsets[] = {0, 3};
  const std::int32_t table[] = {0}, beyond[] = {1};
  KvView good;
  good.k = {held.data(), {kOne, std::int64_t{8}, kOne, kDim}};
  good.v = {held.data(), {1, 8, 1, 32}, {8 * kDim, kDim, kDim, kOne}};
  good.page_table = {table, {1, 1}};
  good.lengths = {enough, {1}};
  const ConstView input(x.data(), {kThree, kModel});
  const View output(y.data(), {kThree, kModel});
  const auto message = [&](const auto& change, const LayerCall& call = {}) {
    std::string messages[2];
    for (const LatentForm form : kForms) {
      KvView view = good;
      change(view);
      messages[form == LatentForm::absorbed] =
          refusal_of([&] { layer.forward(input, view, output, form, call); });
      EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));
    }
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  };
  const std::string kForward = "LatentAttention::forward: ";
  EXPECT_EQ(
      message([&](KvView& kv) {
        kv.lengths = {few, {1}};
      }),
      kForward + "kv has 2 tokens of sequence 0, expected at least the 3 of x: they are its last");
  EXPECT_EQ(message([&](KvView& kv) {
              kv.page_table = {beyond, {1, 1}};
            }),
            kForward + "kv.page_table[0, 0] (1) is not within the pool's 0 .. 0");
  EXPECT_EQ(message([&](KvView& kv) { kv.lengths = {}; }),
            kForward + "kv.lengths is not given, expected [batch] beside kv.page_table");
  EXPECT_EQ(message([&](KvView& kv) {
              kv.k.layout.extents[2] = kv.v.layout.extents[2] = 2;
              kv.k.layout.strides[2] = kv.v.layout.strides[2] = 0;
            }),
            kForward + "kv.k: kv_heads is 2, expected 1");
  EXPECT_EQ(message([&](KvView& kv) { kv.v.layout.extents[3] = 31; }),
            kForward + "kv.v: value_dim is 31, expected 32");
  EXPECT_EQ(message([&](KvView& kv) { kv.v.data = held.data() + 8; }),
            kForward + "kv.v is not the beginning of kv.k, expected values_in_keys");
  EXPECT_EQ(message([&](KvView& kv) { kv.k.layout.extents[3] = 39; }),
            kForward + "kv.k: head_dim is 39, expected 40");
  EXPECT_NE(message([](KvView& kv) { kv = {}; }).find("kv.k"), std::string::npos);
  EXPECT_EQ(message([](KvView&) {}, {.context_lengths = {enough, {1}}}),
            kForward + "context_lengths are given, but kv has its own");
  EXPECT_NE(message([](KvView&) {}, {.lengths = {enough, {1}}, .offsets = {offsets, {2}}})
                .find("lengths and offsets are both given"),
            std::string::npos);
  EXPECT_EQ(message([](KvView&) {}, {.lse = {held.data(), {3, 3}}}),
            kForward + "lse overlaps kv.k (or cannot be shown not to)");
  expect_refusal([&] { layer.forward(input, good, {held.data() + 40, {kThree, kModel}}); }, "kv.k");

  const std::string kLatents = "LatentAttention::latents: ";
  std::vector<float> rows(3 * kDim, 7.0f);
  const std::int64_t positions[] = {0, 1, 2};
  const auto refused = [&](ConstView from, View to, ConstView at) {
    const std::string said = refusal_of([&] { layer.latents(from, to, at); });
    EXPECT_EQ(rows, std::vector<float>(rows.size(), 7.0f));
    return said;
  };
  EXPECT_EQ(refused(input, {rows.data(), {kThree, kDim}}, {}),
            kLatents +
                "positions are not given, expected those of x in its sequences: the layer "
                "has rope");
  EXPECT_EQ(refused(input, {rows.data(), {std::int64_t{2}, kDim}}, {positions, {3}}),
            kLatents + "rows has batch 1 and tokens 2, expected those of x, 1 and 3");
  EXPECT_NE(refused(input, {rows.data(), {kThree, kDim - 1}}, {positions, {3}}).find("rows"),
            std::string::npos);
  EXPECT_NE(refused(input, {rows.data(), {kThree, kDim}, {0, 1}}, {positions, {3}}).find("rows"),
            std::string::npos);
}

}  // namespace
}  // namespace polyhead::test
