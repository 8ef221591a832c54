// Latent attention that appends to pages and rings by itself: the bits of a contiguous cache, and
// what it refuses before anything has changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
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

constexpr std::int64_t kOne = 1, kTwo = 2;
const std::string kForward = "LatentAttention::forward: ";

TEST(LatentAfterCaches, ARaggedMixOverPagesGivesTheBitsOfEachAlone) {
  for (const Isa isa : available_isas()) {
    for (const Way& way : kWays) {
      const LatentAttention layer = layer_of(way, causal(Align::end), isa);
      for (const std::int64_t page_tokens : {8, 64}) {
        Stream a(90, 31), b(41, 32), c(8, 33), d(5, 34);
        Pool pool(layer, way, page_tokens, 176 / page_tokens + 4, Appends::layer);
        Stream* const all[] = {&a, &b, &c, &d};
        std::vector<std::int64_t> ids;
        for (int i = 0; i < 4; ++i) ids.push_back(pool.cache->create());
        pool.step(all, ids, std::vector<std::int64_t>{30, 1, 1, 5});
        for (int i = 0; i < 6; ++i) pool.step(all, ids, std::vector<std::int64_t>{10, 5, 1, 0});
        pool.step(all, ids, std::vector<std::int64_t>{0, 10, 1, 0});
        for (const Stream* stream : all) {
          ASSERT_EQ(stream->done, stream->tokens());
          expect_same_bits(
              stream->y, contiguous(layer, way, stream->x),
              way.name() + ", pages of " + std::to_string(page_tokens) + ", " + isa_name(isa));
        }
      }
    }
  }
}

// Padded batches, and two layers over one pool: the second finds the room that the first made.
TEST(LatentAfterCaches, LayersOfAModelShareAPoolsRoom) {
  constexpr std::int64_t kTokens = 9;
  const std::int64_t counts[] = {kTokens, std::int64_t{4}};
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    auto c = sized<PagedCacheConfig>(layer);
    c.type = way.held;
    c.page_tokens = 8;
    c.pages = 4;
    c.layers = 2;
    PagedCache cache(c);
    const std::int64_t ids[] = {cache.create(), cache.create()};
    const std::vector<float> x = random_floats(2 * kTokens * kModel, 61);
    std::vector<float> first(x.size(), NAN), second(x.size(), NAN);
    const ConstView input(x.data(), {kTwo, kTokens, kModel});
    const LayerCall call{.lengths = {counts, {2}}};
    ASSERT_EQ(layer.forward(input, {.cache = &cache, .sequences = ids},
                            {first.data(), {kTwo, kTokens, kModel}}, way.form, call),
              PagedCache::Status::ok);
    ASSERT_EQ(layer.forward(
                  input, {.cache = &cache, .sequences = ids, .layer = 1, .room = PagedRoom::made},
                  {second.data(), {kTwo, kTokens, kModel}}, way.form, call),
              PagedCache::Status::ok);
    for (int b = 0; b < 2; ++b) {
      EXPECT_EQ(cache.length(ids[b]), counts[b]);
      const auto at = x.begin() + b * kTokens * kModel;
      const std::vector<float> alone = contiguous(layer, way, {at, at + counts[b] * kModel});
      for (const auto& y : {first, second}) {
        const auto mine = y.begin() + b * kTokens * kModel;
        expect_same_bits(std::vector<float>(mine, mine + counts[b] * kModel), alone, way.name());
      }
    }
  }
}

TEST(LatentAfterCaches, ARingGivesTheBitsOfTheWindowOverEverything) {
  constexpr std::int64_t kTokens = 301, kWindow = 50, kChunk = 9;
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
      c.chunk = kChunk;
      SlidingCache cache(c);
      std::vector<float> y(x.size(), NAN);
      for (std::int64_t at = 0, turn = 0; at < kTokens; ++turn) {
        const std::int64_t count = std::min(turn % 3 == 0 ? kChunk : turn % 4 + 1, kTokens - at);
        layer.forward({x.data() + at * kModel, {kOne, count, kModel}}, cache,
                      {y.data() + at * kModel, {kOne, count, kModel}}, way.form);
        at += count;
      }
      expect_same_bits(y, contiguous(windowed, way, x),
                       way.name() + ", first tokens " + std::to_string(first_tokens));
    }
  }
}

/// A pool of two sequences and a ring of two, five tokens in each.
class LatentCacheRefusals : public ::testing::Test {
 protected:
  LatentCacheRefusals()
      : layer(layer_of(kWays[0])),
        x(random_floats(2 * kTokens * kModel, 71)),
        y(x.size(), 7.0f),
        pool(pool_config()),
        ring(ring_config()) {
    for (std::int64_t& id : ids) id = pool.create();
    EXPECT_EQ(layer.forward(rows(), {.cache = &pool, .sequences = ids}, out()),
              PagedCache::Status::ok);
    layer.forward(rows(), ring, out());
    std::ranges::fill(y, 7.0f);
  }

  static constexpr std::int64_t kTokens = 5;

  PagedCacheConfig pool_config() const {
    auto c = sized<PagedCacheConfig>(layer);
    c.page_tokens = 8;
    c.pages = 3;
    return c;
  }
  SlidingCacheConfig ring_config() const {
    auto c = sized<SlidingCacheConfig>(layer);
    c.batch = 2;
    c.window = 4;
    c.first_tokens = 1;
    c.chunk = kTokens;
    return c;
  }
  ConstView rows() const { return {x.data(), {kTwo, kTokens, kModel}}; }
  View out() { return {y.data(), {kTwo, kTokens, kModel}}; }

  void expect_unchanged() const {
    for (const std::int64_t id : ids) EXPECT_EQ(pool.length(id), kTokens);
    EXPECT_EQ(pool.free_pages(), 1);
    for (int b = 0; b < 2; ++b) {
      EXPECT_EQ(ring.length(b), kTokens);
      EXPECT_EQ(ring.oldest(b), 0);
    }
    EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));
  }

  std::string over_pages(const LayerCall& call, LatentForm form = LatentForm::configured) {
    const std::string said = refusal_of([&] {
      static_cast<void>(
          layer.forward(rows(), {.cache = &pool, .sequences = ids}, out(), form, call));
    });
    expect_unchanged();
    return said;
  }
  std::string over_ring(const LayerCall& call, LatentForm form = LatentForm::configured) {
    const std::string said = refusal_of([&] { layer.forward(rows(), ring, out(), form, call); });
    expect_unchanged();
    return said;
  }

  LatentAttention layer;
  std::vector<float> x, y;
  PagedCache pool;
  SlidingCache ring;
  std::int64_t ids[2] = {};
};

TEST_F(LatentCacheRefusals, APoolWithTooFewPagesIsAStatus) {
  for (const LatentForm form : kForms) {
    EXPECT_EQ(layer.forward(rows(), {.cache = &pool, .sequences = ids}, out(), form),
              PagedCache::Status::exhausted);
    expect_unchanged();
  }
}

TEST_F(LatentCacheRefusals, WhatAttentionRefusesIsRefusedBeforeTheCacheGrows) {
  const std::int64_t lengths[] = {3, 3};
  const std::vector<std::uint8_t> seen(4, 1);
  LayerCall keys, visible;
  keys.mask = polyhead::lengths({lengths, {2}});
  visible.mask = boolean({seen.data(), {kOne, kOne, kTwo, kTwo}});
  for (const auto& said : {over_pages(keys), over_ring(keys)})
    EXPECT_NE(said.find("kv_lengths"), std::string::npos) << said;
  for (const LatentForm way : kForms) {
    for (const auto& said : {over_pages(visible, way), over_ring(visible, way)})
      EXPECT_EQ(said.find(kForward), 0U) << said;
  }
  EXPECT_EQ(over_pages({}, static_cast<LatentForm>(9)),
            kForward + "form (9) is not expanded or absorbed");
}

TEST_F(LatentCacheRefusals, CachesThatHoldSomethingElse) {
  auto c = pool_config();
  c.type = ElementType::int8;
  PagedCache codes(c);
  const std::int64_t two[] = {codes.create(), codes.create()};
  EXPECT_EQ(refusal_of([&] {
              static_cast<void>(layer.forward(rows(), {.cache = &codes, .sequences = two}, out(),
                                              LatentForm::expanded));
            }),
            kForward + "pages.cache is int8, expected float32 for the expanded form");
  c.values_in_keys = false;
  PagedCache apart(c);
  EXPECT_EQ(refusal_of([&] {
              static_cast<void>(layer.forward(rows(), {.cache = &apart, .sequences = two}, out()));
            }),
            kForward + "pages.cache stores values apart, expected values_in_keys (cache_config)");
  auto r = ring_config();
  r.batch = 3;
  SlidingCache three(r);
  EXPECT_EQ(refusal_of([&] { layer.forward(rows(), three, out()); }),
            kForward + "cache has batch 3, expected 2");
  r.batch = 2;
  r.chunk = 4;
  SlidingCache narrow(r);
  EXPECT_EQ(refusal_of([&] { layer.forward(rows(), narrow, out()); }),
            kForward + "sequence 0 gets 5 tokens, expected at most the cache's chunk (4)");
  expect_unchanged();
}

}  // namespace
}  // namespace polyhead::test
