// Latent attention that appends to caches by itself: shared, ragged and forked ones, what it
// refuses before anything has changed, and what it takes back. latent_view_test.cpp has the plain
// cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/latent.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/failing_executor.h"
#include "support/latent_serving.h"
#include "support/refusal.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kOne = 1, kTwo = 2;
const std::string kForward = "LatentAttention::forward: ";

PagedCacheConfig pool_config(const LatentAttention& layer, std::int64_t pages) {
  auto c = sized<PagedCacheConfig>(layer);
  c.page_tokens = 8;
  c.pages = pages;
  return c;
}

SlidingCacheConfig ring_config(const LatentAttention& layer, std::int64_t batch = 1) {
  auto c = sized<SlidingCacheConfig>(layer);
  c.batch = batch;
  c.window = 4;
  c.chunk = 5;
  return c;
}

// Padded batches, and two layers over one pool: the second finds the room that the first made.
TEST(LatentAfterCaches, LayersOfAModelShareAPoolsRoom) {
  constexpr std::int64_t kTokens = 9;
  const std::int64_t counts[] = {kTokens, std::int64_t{4}};
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    auto c = pool_config(layer, 4);
    c.type = way.held;
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

/// A pool of two sequences and a ring of two, five tokens in each.
class LatentCacheRefusals : public ::testing::Test {
 protected:
  LatentCacheRefusals()
      : layer(layer_of(kWays[0])),
        x(random_floats(2 * kTokens * kModel, 71)),
        y(x.size(), 7.0f),
        pool(pool_config(layer, 3)),
        ring(ring_config(layer, 2)) {
    for (std::int64_t& id : ids) id = pool.create();
    EXPECT_EQ(layer.forward(rows(), {.cache = &pool, .sequences = ids}, out()),
              PagedCache::Status::ok);
    layer.forward(rows(), ring, out());
    std::ranges::fill(y, 7.0f);
  }

  static constexpr std::int64_t kTokens = 5;

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

// Before the cache grows: a ring that has wrapped would have lost what was written over, a growing
// cache would have room, and a pool as well.
TEST(LatentAfterCaches, WhatAttentionRefusesLeavesTheCacheAsItWas) {
  constexpr std::int64_t kTokens = 5;
  const LatentAttention layer = layer_of(kWays[0]);
  SlidingCache ring(ring_config(layer));
  PagedCache pool(pool_config(layer, 3));
  const std::int64_t id = pool.create();
  KvCache cache(layer.cache_config(1, 0, true));
  const std::vector<float> x = random_floats(kTokens * kModel, 81);
  std::vector<float> y(x.size(), NAN);
  const ConstView rows(x.data(), {kTokens, kModel});
  const View out(y.data(), {kTokens, kModel});
  for (int i = 0; i < 60; ++i) layer.forward(rows, ring, out);
  const std::int64_t length = ring.length(0), oldest = ring.oldest(0);
  ASSERT_GT(oldest, 0);
  std::ranges::fill(y, 7.0f);

  const std::int64_t lengths[] = {3};
  const std::vector<std::uint8_t> seen(4, 1);
  LayerCall keys, visible;
  keys.mask = polyhead::lengths({lengths, {kOne}});
  visible.mask = boolean({seen.data(), {kOne, kOne, kTwo, kTwo}});
  const std::pair<const LayerCall*, std::string> calls[] = {
      {&keys, "mask.kv_lengths are given, but the cache has lengths of its own"},
      {&visible, "mask.visible"}};
  for (const LatentForm form : kForms) {
    for (const auto& [call, said] : calls) {
      expect_refusal([&, c = call] { layer.forward(rows, ring, out, form, *c); }, kForward + said);
      expect_refusal([&, c = call] { layer.forward(rows, cache, out, form, *c); }, kForward + said);
      expect_refusal(
          [&, c = call] {
            static_cast<void>(
                layer.forward(rows, {.cache = &pool, .sequences = {&id, 1}}, out, form, *c));
          },
          kForward + said);
    }
  }
  EXPECT_EQ(ring.length(0), length);
  EXPECT_EQ(ring.oldest(0), oldest);
  EXPECT_EQ(cache.capacity(), 0);
  EXPECT_EQ(pool.length(id), 0);
  EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));
}

TEST(LatentAfterCaches, WhatAFailedCallAppendedIsTakenBack) {
  constexpr std::int64_t kTokens = 5;
  FailingExecutor executor;
  LatentConfig config = small_latent();
  config.mask = causal(Align::end);
  const LatentAttention layer(config, LatentModel(config).weights(), {.executor = &executor});
  const std::vector<float> x = random_floats(kTokens * kModel, 91);
  std::vector<float> y(x.size(), NAN);
  const ConstView rows(x.data(), {kTokens, kModel});
  const View out(y.data(), {kTokens, kModel});
  for (const LatentForm form : kForms) {
    SlidingCache ring(ring_config(layer));
    PagedCache pool(pool_config(layer, 1));
    const std::int64_t id = pool.create();
    KvCache cache(layer.cache_config(1, kTokens));
    const auto each = [&](int way) {
      if (way == 0)
        static_cast<void>(layer.forward(rows, {.cache = &pool, .sequences = {&id, 1}}, out, form));
      else if (way == 1)
        layer.forward(rows, ring, out, form);
      else
        layer.forward(rows, cache, out, form);
    };
    for (int way = 0; way < 3; ++way) {
      int failures = 0;
      for (int at = 1;; ++at) {
        executor.left = at;
        const std::string said = refusal_of<std::runtime_error>([&] { each(way); });
        if (said == "accepted") break;
        ++failures;
        ASSERT_EQ(pool.length(id), way > 0 ? kTokens : 0) << at;
        ASSERT_EQ(ring.length(0), way > 1 ? kTokens : 0) << at;
        ASSERT_EQ(cache.length(0), 0) << at;
      }
      EXPECT_GE(failures, 2) << way;  // in the projections and in attention
    }
  }
}

// Rings of two sequences in ragged batches; a pool whose pages are shared by what they hold and
// copied when they are written.
TEST(LatentAfterCaches, RaggedRingsAndSharedPagesGiveTheBitsOfEachAlone) {
  constexpr std::int64_t kTokens = 12;
  for (const Way& way : kWays) {
    const LatentAttention layer = layer_of(way);
    const std::vector<float> x = random_floats(kTokens * kModel, 95);
    const std::vector<float> expected = contiguous(layer, way, x);
    auto r = ring_config(layer, 2);
    r.type = way.held;
    r.window = kTokens;
    r.chunk = kTokens;
    SlidingCache ring(r);
    // The same tokens for both: all of the first, then all of the second in two pieces.
    for (const auto& [first, second] : {std::pair{kTokens, std::int64_t{5}}, {0, kTokens - 5}}) {
      const std::int64_t done = ring.length(1);
      const std::int32_t offsets[] = {0, static_cast<std::int32_t>(first),
                                      static_cast<std::int32_t>(first + second)};
      std::vector<float> in(x.begin(), x.begin() + first * kModel);
      in.insert(in.end(), x.begin() + done * kModel, x.begin() + (done + second) * kModel);
      std::vector<float> want(expected.begin(), expected.begin() + first * kModel);
      want.insert(want.end(), expected.begin() + done * kModel,
                  expected.begin() + (done + second) * kModel);
      std::vector<float> y(in.size(), NAN);
      layer.forward({in.data(), {first + second, kModel}}, ring,
                    {y.data(), {first + second, kModel}}, way.form, {.offsets = {offsets, {3}}});
      expect_same_bits(y, want, way.name() + ", rings");
    }

    auto c = pool_config(layer, 4);
    c.type = way.held;
    PagedCache pool(c);
    const std::int64_t one = pool.create();
    std::vector<float> y(x.size(), NAN);
    const ConstView rows(x.data(), {kTokens, kModel});
    const View out(y.data(), {kTokens, kModel});
    const std::vector<std::int32_t> numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    ASSERT_EQ(layer.forward(rows, {.cache = &pool, .sequences = {&one, 1}, .tokens = numbers}, out,
                            way.form),
              PagedCache::Status::ok);
    expect_same_bits(y, expected, way.name() + ", pages");
    // A fork's last token once more, into room that is made: its page is copied first.
    const std::int64_t fork = pool.fork(one);
    std::vector<float> last(kModel, NAN);
    const ConstView end(x.data() + (kTokens - 1) * kModel, {kOne, kModel});
    ASSERT_EQ(layer.forward(end, {.cache = &pool, .sequences = {&fork, 1}, .room = PagedRoom::made},
                            {last.data(), {kOne, kModel}}, way.form),
              PagedCache::Status::ok);
    EXPECT_EQ(pool.free_pages(), 1);
    expect_same_bits(last, {expected.end() - kModel, expected.end()}, way.name() + ", a fork");
  }
}

TEST_F(LatentCacheRefusals, CachesThatHoldSomethingElse) {
  auto c = pool_config(layer, 3);
  const std::int64_t two[] = {0, 1};
  c.values_in_keys = false;
  PagedCache apart(c);
  EXPECT_EQ(refusal_of([&] {
              static_cast<void>(layer.forward(rows(), {.cache = &apart, .sequences = two}, out()));
            }),
            kForward + "pages.cache stores values apart, expected values_in_keys (cache_config)");
  auto r = ring_config(layer, 2);
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
