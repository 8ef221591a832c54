// What a layer refuses of a call after a cache, before the cache has changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "polyhead/layer.h"
#include "support/failing_executor.h"
#include "support/layer_streams.hpp"
#include "support/refusal.h"

namespace polyhead_test {
namespace {

using polyhead::PagedRoom;
using polyhead::SlidingPositions;
using polyhead::test::refusal_of;

constexpr ElementType kFloat32 = ElementType::float32;
const std::string kForward = "MultiHeadAttention::forward: ";

/// A layer, a pool of two layers with two sequences, and a ring of two, five tokens in each.
class LayerCacheRefusals : public ::testing::Test {
 protected:
  LayerCacheRefusals()
      : layer(Model(decoder(kFloat32)).layer(Isa::automatic)),
        x(random_floats(2 * 5 * kColumns, 1)),
        y(x.size(), 7.0f),
        pool(pool_of(layer, kFloat32, 8, 6, 2)),
        ring(ring_config(layer)) {
    for (std::int64_t& id : ids) id = pool.create();
    EXPECT_EQ(layer.forward(rows(), {.cache = &pool, .sequences = ids}, out()),
              PagedCache::Status::ok);
    layer.forward(rows(), ring, out());
    std::ranges::fill(y, 7.0f);
  }

  static polyhead::SlidingCacheConfig ring_config(const MultiHeadAttention& layer) {
    auto c = sized<polyhead::SlidingCacheConfig>(layer, kFloat32);
    c.batch = 2;
    c.window = 4;
    c.first_tokens = 1;
    c.chunk = 5;
    return c;
  }

  ConstView rows() const { return {x.data(), {2, 5, 64}}; }
  View out() { return {y.data(), {2, 5, 64}}; }

  void expect_unchanged() const {
    for (const std::int64_t id : ids) EXPECT_EQ(pool.length(id), 5);
    EXPECT_EQ(pool.free_pages(), 4);
    for (int b = 0; b < 2; ++b) {
      EXPECT_EQ(ring.length(b), 5);
      EXPECT_EQ(ring.oldest(b), 0);
    }
    EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));
  }

  std::string over_pages(PagedSequences pages, const LayerCall& call = {}) {
    if (pages.cache == nullptr) pages.cache = &pool;
    if (pages.sequences.empty()) pages.sequences = ids;
    const std::string said =
        refusal_of([&] { static_cast<void>(layer.forward(rows(), pages, out(), call)); });
    expect_unchanged();
    return said;
  }

  std::string over_ring(const LayerCall& call,
                        SlidingPositions positions = SlidingPositions::in_cache) {
    const std::string said =
        refusal_of([&] { layer.forward(rows(), ring, out(), positions, call); });
    expect_unchanged();
    return said;
  }

  MultiHeadAttention layer;
  std::vector<float> x, y;
  PagedCache pool;
  SlidingCache ring;
  std::int64_t ids[2] = {};
};

TEST_F(LayerCacheRefusals, SequencesOfAPool) {
  EXPECT_EQ(refusal_of([&] {
              static_cast<void>(layer.forward(rows(), PagedSequences{.sequences = ids}, out()));
            }),
            kForward + "pages.cache is null, expected a cache");
  const std::int64_t twice[] = {ids[0], ids[0]}, unknown[] = {ids[0], 99}, one[] = {ids[0]};
  EXPECT_EQ(over_pages({.sequences = twice}),
            kForward + "pages.sequences has 1 twice, expected each once");
  EXPECT_EQ(over_pages({.sequences = unknown}),
            kForward + "pages.sequences has 99, which was released or never created");
  EXPECT_EQ(over_pages({.sequences = one}),
            kForward + "pages.sequences has 1, expected 2, one for each of x");
  EXPECT_EQ(over_pages({.layer = 2}), kForward + "pages.layer (2) is not within 0 .. 1");
  EXPECT_EQ(over_pages({.room = static_cast<PagedRoom>(7)}),
            kForward + "pages.room (7) is not to_make or made");
  const std::int32_t numbers[10] = {};
  EXPECT_EQ(over_pages({.tokens = {numbers, 9}}),
            kForward + "pages.tokens has 9 numbers, expected 10, one for each row of x");
  EXPECT_EQ(over_pages({.room = PagedRoom::made, .tokens = numbers}),
            kForward +
                "pages.tokens are given, but extend() has been told those of room that is "
                "made");
  const std::int64_t fresh[] = {ids[0], pool.create()};
  EXPECT_EQ(over_pages({.sequences = fresh, .room = PagedRoom::made}),
            kForward + "sequence " + std::to_string(fresh[1]) +
                " has 0 tokens, expected at least the 5 of x, for which room is said to be made");
  auto c = sized<polyhead::PagedCacheConfig>(layer, kFloat32);
  c.pages = 1;
  c.kv_heads = 3;
  PagedCache other(c);
  EXPECT_EQ(over_pages({.cache = &other, .sequences = ids}),
            kForward + "pages.cache has kv_heads 3, expected 2");
  c.kv_heads = 2;
  c.values_in_keys = true;
  PagedCache latents(c);
  EXPECT_EQ(over_pages({.cache = &latents, .sequences = ids}),
            kForward + "pages.cache has values_in_keys, expected values of their own");
}

// What attention itself refuses is known before any page is taken or any ring goes on.
TEST_F(LayerCacheRefusals, WhatAttentionRefuses) {
  const auto bias = random_floats(9, 5);
  const std::int64_t lengths[] = {3, 3};
  std::vector<float> lse(40);
  struct {
    LayerCall call;
    const char* expected;
  } const cases[] = {
      {{.bias = ConstView(bias.data(), {1, 1, 1, 9})}, "modifiers.bias: kv_len is 9, expected 10"},
      {{.mask = polyhead::lengths(ConstView(lengths, {2}))},
       "mask.kv_lengths are given, but the cache has lengths of its own"},
      {{.mask = polyhead::prefix(-1)}, "mask.prefix_length (-1) is negative"},
      {{.lse = View(lse.data(), {2, 4, 4})}, "lse: q_len is 4, expected 5"}};
  for (const auto& [call, expected] : cases) {
    for (const std::string& said :
         {over_pages({}, call), over_ring(call, SlidingPositions::original)}) {
      EXPECT_EQ(said.find(kForward + expected), 0u) << said;
    }
  }
  KvCache cache(layer.cache_config(2, 0, true));
  EXPECT_NE(refusal_of([&] {
              layer.forward(rows(), cache, out(), cases[1].call);
            }).find("mask.kv_lengths are given, but the cache has lengths of its own"),
            std::string::npos);
  EXPECT_EQ(cache.capacity(), 0);
}

TEST_F(LayerCacheRefusals, ARing) {
  const std::vector<float> more(2 * 6 * kColumns);
  std::vector<float> to(more.size());
  EXPECT_EQ(refusal_of([&] {
              layer.forward(ConstView(more.data(), {2, 6, 64}), ring, View(to.data(), {2, 6, 64}));
            }),
            kForward + "sequence 0 gets 6 tokens, expected at most the cache's chunk (5)");
  expect_unchanged();
  // The second of two would be too long: the first has not moved.
  const std::int32_t offsets[] = {0, 2, 9};
  EXPECT_EQ(refusal_of([&] {
              layer.forward(ConstView(more.data(), {9, 64}), ring, View(to.data(), {9, 64}),
                            {.offsets = ConstView(offsets, {3})});
            }),
            kForward + "sequence 1 gets 7 tokens, expected at most the cache's chunk (5)");
  expect_unchanged();
  EXPECT_EQ(over_ring({}, static_cast<SlidingPositions>(9)),
            kForward + "positions (9) is not original or in_cache");
}

TEST_F(LayerCacheRefusals, PositionsInTheCache) {
  const std::vector<std::int64_t> positions(10);
  const std::int64_t documents[10] = {};
  const auto bias = random_floats(10, 5);
  std::vector<float> entropy(40);
  polyhead::RowStatistics statistics;
  statistics.entropy = View(entropy.data(), {2, 5, 4});
  EXPECT_EQ(over_ring({.positions = ConstView(positions.data(), {2, 5})}),
            kForward + "positions are given, but they are those in the cache");
  EXPECT_EQ(over_ring({.statistics = statistics}),
            kForward + "statistics are given, expected none with positions in the cache");
  EXPECT_EQ(over_ring({.bias = ConstView(bias.data(), {1, 1, 1, 10})}),
            kForward +
                "modifiers has bias, expected scale, soft_cap, alibi and sink alone: the "
                "others go by positions in the sequence");
  EXPECT_EQ(over_ring({.mask = polyhead::documents(ConstView(documents, {2, 5}),
                                                   ConstView(documents, {2, 5}))}),
            kForward +
                "mask has documents, expected causality and the cache's window alone with "
                "positions in the cache");
  const std::int64_t one_each[] = {1, 1};
  polyhead::Mask padded;
  padded.q_lengths = ConstView(one_each, {2});
  EXPECT_EQ(
      over_ring({.mask = padded}),
      kForward +
          "mask.q_lengths are given, expected the call's lengths with positions in the cache");
  EXPECT_EQ(over_ring({.mask = polyhead::window_and_first(2, 0, 1)}),
            kForward +
                "mask has a window of (2, 0) and 1 first tokens, expected the cache's (3, 0) "
                "and 1 with positions in the cache");
  // The cache's own window is no other.
  layer.forward(rows(), ring, out(), SlidingPositions::in_cache,
                {.mask = polyhead::window_and_first(3, 0, 1)});
  EXPECT_EQ(ring.length(0), 10);
}

TEST_F(LayerCacheRefusals, ACacheWithoutRoom) {
  KvCache cache(layer.cache_config(2, 4));
  const std::int32_t offsets[] = {0, 2, 7};
  const LayerCall ragged{.offsets = ConstView(offsets, {3})};
  EXPECT_EQ(refusal_of([&] {
              layer.forward(ConstView(x.data(), {7, 64}), cache, View(y.data(), {7, 64}), ragged);
            }),
            kForward + "sequence 1 holds 0 tokens; 5 more exceed the capacity (4)");
  EXPECT_EQ(refusal_of([&] { layer.forward(rows(), cache, out()); }),
            kForward + "sequence 0 holds 0 tokens; 5 more exceed the capacity (4)");
  for (int b = 0; b < 2; ++b) EXPECT_EQ(cache.length(b), 0);
  expect_unchanged();
}

// Over all other caches a mask's q_lengths hide queries, whose tokens are appended all the same.
TEST_F(LayerCacheRefusals, LengthsOfQueriesInAMaskAreNoneOfTheCache) {
  KvCache cache(layer.cache_config(2, 5)), other(layer.cache_config(2, 5));
  const std::int64_t one_each[] = {1, 1};
  LayerCall call;
  call.mask.q_lengths = ConstView(one_each, {2});
  std::vector<float> all(y.size());
  layer.forward(rows(), other, View(all.data(), {2, 5, 64}));
  const auto expect_first_rows = [&] {
    for (const std::size_t first : {0, 5 * 64}) {
      const auto at = static_cast<std::ptrdiff_t>(first);
      EXPECT_TRUE(std::equal(y.begin() + at, y.begin() + at + 64, all.begin() + at));
      EXPECT_FALSE(std::equal(y.begin() + at + 64, y.begin() + at + 128, all.begin() + at + 64));
    }
  };
  layer.forward(rows(), cache, out(), call);
  expect_first_rows();
  EXPECT_EQ(cache.length(1), 5);
  const std::int64_t fresh[] = {pool.create(), pool.create()};
  ASSERT_EQ(layer.forward(rows(), {.cache = &pool, .sequences = fresh}, out(), call),
            PagedCache::Status::ok);
  expect_first_rows();
  EXPECT_EQ(pool.length(fresh[1]), 5);
  ring.clear();
  layer.forward(rows(), ring, out(), call);
  expect_first_rows();
  EXPECT_EQ(ring.length(1), 5);
}

/// Nor may an output lie over rows that the call is about to add.
TEST_F(LayerCacheRefusals, OutputsOverACache) {
  const auto over = [](const ConstView& rows, std::int64_t from) {
    return static_cast<float*>(const_cast<void*>(rows.data)) + from;
  };
  const polyhead::KvView held = ring.view();
  const auto forward = [&](auto&& cache, float* to, const LayerCall& call = {}) {
    return refusal_of([&] {
      static_cast<void>(layer.forward(rows(), cache, View(to, {2, 5, 64}), call));
    });
  };
  EXPECT_EQ(forward(ring, over(held.k, 0)),
            kForward + "y overlaps the cache's keys (or cannot be shown not to)");
  EXPECT_EQ(forward(ring, over(held.v, 7)),
            kForward + "y overlaps the cache's values (or cannot be shown not to)");
  LayerCall with_lse;
  with_lse.lse = View(over(held.k, 0), {2, 5, 4});
  EXPECT_EQ(forward(ring, y.data(), with_lse),
            kForward + "lse overlaps the cache's keys (or cannot be shown not to)");
  const polyhead::KvView pages = pool.view(0, {});
  EXPECT_EQ(forward(PagedSequences{.cache = &pool, .sequences = ids}, over(pages.k, 0)),
            kForward + "y overlaps the cache's keys (or cannot be shown not to)");
  polyhead::KvCacheConfig config = layer.cache_config(2, 64);
  for (const ElementType type : {kFloat32, ElementType::int4}) {
    config.type = type;
    KvCache cache(config);
    layer.forward(rows(), cache, out());
    std::ranges::fill(y, 7.0f);
    const ConstView keys = cache.view().k;
    // Rows 8 of sequence 1 and on, which nothing has filled yet.
    const std::int64_t elements = keys.layout.strides[0] + 8 * keys.layout.strides[1];
    const std::int64_t floats = type == kFloat32 ? elements : elements / 8;
    EXPECT_EQ(forward(cache, over(keys, floats)),
              kForward + "y overlaps the cache's keys (or cannot be shown not to)");
    EXPECT_EQ(cache.length(0), 5);
  }
  expect_unchanged();
}

TEST_F(LayerCacheRefusals, Views) {
  polyhead::PagedBatch batch;
  pool.batch(ids, batch);
  const polyhead::KvView view = pool.view(0, batch);
  const std::int64_t lengths[] = {3, 3};
  const LayerCall by_mask{.mask = polyhead::lengths(ConstView(lengths, {2}))};
  const LayerCall by_context{.context_lengths = ConstView(lengths, {2})};
  const auto q = random_floats(2 * 5 * 4 * 16, 9);
  const ConstView heads(q.data(), {2, 5, 4, 16});
  View to = out();
  to.layout = {2, 5, 4, 16};
  EXPECT_EQ(refusal_of([&] { layer.attend(heads, view, to, by_mask); }),
            "MultiHeadAttention::attend: mask.kv_lengths are given, but kv has lengths of its own");
  EXPECT_EQ(refusal_of([&] { layer.attend(heads, view, to, by_context); }),
            "MultiHeadAttention::attend: context_lengths are given, but kv has its own");
  EXPECT_EQ(refusal_of([&] { layer.cross(rows(), view, out(), by_mask); }),
            "MultiHeadAttention::cross: mask.kv_lengths are given, but context has lengths of its "
            "own");
  EXPECT_EQ(refusal_of([&] { layer.cross(rows(), view, out(), by_context); }),
            "MultiHeadAttention::cross: context_lengths are given, but context has its own");
  EXPECT_EQ(
      refusal_of([&] { layer.explain(rows(), view, {}, by_mask); }),
      "MultiHeadAttention::explain: mask.kv_lengths are given, but kv has lengths of its own");
  polyhead::KvView few = view;
  few.lengths = ConstView(lengths, {2});
  EXPECT_EQ(
      refusal_of([&] { layer.explain(rows(), few, {}); }),
      "MultiHeadAttention::explain: kv has 3 tokens of sequence 0, expected at least the 5 of "
      "x: they are its last");
  polyhead::KvView other = view;
  other.k.layout.extents[2] = other.v.layout.extents[2] = 1;
  EXPECT_EQ(refusal_of([&] { layer.cross(rows(), other, out()); }),
            "MultiHeadAttention::cross: kv.k: kv_heads is 1, expected 2");
  expect_unchanged();
}

TEST(LayerCacheFailures, WhatACallAppendedIsTakenBack) {
  polyhead::test::FailingExecutor executor;
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer(model.config, model.weights(), {.executor = &executor});
  const auto x = random_floats(5 * kColumns, 3);
  std::vector<float> y(x.size());
  PagedCache pool = pool_of(layer, kFloat32, 8, 4);
  const std::int64_t id = pool.create();
  SlidingCache ring([&] {
    auto c = sized<polyhead::SlidingCacheConfig>(layer, kFloat32);
    c.first_tokens = 2;
    c.window = 4;
    c.chunk = 5;
    return c;
  }());
  KvCache cache(layer.cache_config(1, 10));
  const ConstView rows(x.data(), {5, 64});
  const View out(y.data(), {5, 64});
  const auto each = [&](int way) {
    if (way == 0) {
      static_cast<void>(layer.forward(rows, {.cache = &pool, .sequences = {&id, 1}}, out));
    } else if (way == 1) {
      layer.forward(rows, ring, out);
    } else if (way == 2) {
      layer.forward(rows, ring, out, SlidingPositions::in_cache);
    } else {
      layer.forward(rows, cache, out);
    }
  };
  for (int way = 0; way < 4; ++way) {
    int failures = 0;
    for (int at = 1;; ++at) {
      executor.left = at;
      const std::string said = refusal_of<std::runtime_error>([&] { each(way); });
      if (said == "accepted") break;
      ++failures;
      ASSERT_EQ(pool.length(id), way > 0 ? 5 : 0) << at;
      ASSERT_EQ(ring.length(0), way > 2 ? 10 : way > 1 ? 5 : 0) << way << " " << at;
      ASSERT_EQ(cache.length(0), 0);
    }
    EXPECT_GE(failures, 2) << way;  // in the projections and in attention
  }
}

}  // namespace
}  // namespace polyhead_test
