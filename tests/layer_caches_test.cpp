// A layer after caches of every kind: the bits of the contiguous cache and of the whole, however
// tokens came.
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
using polyhead::PagedRoom;
using polyhead::SlidingPositions;
using Status = PagedCache::Status;

constexpr ElementType kFloat32 = ElementType::float32, kBfloat16 = ElementType::bfloat16;

/// Calls body(layer, type held, what) for weights and types of the cache.
template <class Body>
void for_each_held(Body body) {
  for (const ElementType weights : {kFloat32, kBfloat16}) {
    const Model model(decoder(weights));
    const MultiHeadAttention layer = model.layer(Isa::automatic);
    for (const ElementType held : kHeldTypes) {
      body(layer, held,
           std::string(polyhead::element_name(weights)) + " holding " +
               polyhead::element_name(held));
    }
  }
}

TEST(LayerCaches, PagesGiveTheBitsOfTheContiguousCacheAndOfTheWhole) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    Stream stream(kTokens, 1);
    const auto expected = contiguous(layer, held, stream.x);
    if (held == layer.activation_type()) expect_same_bits(expected, whole(layer, stream.x), what);
    LayerWorkspace workspace;
    for (const std::int64_t page_tokens : {8, 64}) {
      for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{37}, kTokens}) {
        PagedCache cache = pool_of(layer, held, page_tokens, kTokens / page_tokens + 1);
        const std::int64_t id = cache.create();
        std::ranges::fill(stream.y, std::nanf(""));
        for (std::int64_t at = 0; at < kTokens; at += chunk) {
          const std::int64_t n = std::min(chunk, kTokens - at);
          ASSERT_EQ(layer.forward(ConstView(stream.x.data() + at * kColumns, {n, kColumns}),
                                  {.cache = &cache, .sequences = {&id, 1}},
                                  View(stream.y.data() + at * kColumns, {n, kColumns}),
                                  {.workspace = &workspace}),
                    Status::ok);
          ASSERT_EQ(cache.length(id), at + n);
        }
        expect_same_bits(stream.y, expected,
                         what + ", pages of " + std::to_string(page_tokens) + ", chunks of " +
                             std::to_string(chunk));
      }
    }
  });
}

// Prompts of two sequences in chunks beside the steps of a third, and nothing of a fourth.
template <class Serve>
void serve_mix(std::span<Stream* const> all, const Serve& serve) {
  serve(all, std::vector<std::int64_t>{9, 1, 1, 5});
  for (int i = 0; i < 8; ++i) serve(all, std::vector<std::int64_t>{10, 5, 1, 0});
  serve(all, std::vector<std::int64_t>{1, 0, 1, 0});
}

constexpr std::int64_t kMix[] = {90, 41, 10, 5};  // tokens of each

TEST(LayerCaches, ARaggedMixGivesTheBitsOfEachAlone) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    for (const char* kind : {"pages", "contiguous", "ring"}) {
      Stream a(kMix[0], 11), b(kMix[1], 12), c(kMix[2], 13), d(kMix[3], 14);
      Stream* const all[] = {&a, &b, &c, &d};
      PagedCache pool = pool_of(layer, held, 16, 13);
      std::vector<std::int64_t> ids;
      for (int i = 0; i < 4; ++i) ids.push_back(pool.create());
      polyhead::KvCacheConfig config = layer.cache_config(4, 0, true);
      config.type = held;
      KvCache cache(config);
      auto ring_config = sized<polyhead::SlidingCacheConfig>(layer, held);
      ring_config.batch = 4;
      ring_config.window = 1000;  // everything
      ring_config.chunk = 10;
      SlidingCache ring(ring_config);
      LayerWorkspace workspace;
      serve_mix(all, [&](std::span<Stream* const> streams, std::span<const std::int64_t> counts) {
        step(streams, counts, [&](ConstView x, View y, LayerCall call) {
          call.workspace = &workspace;
          if (*kind == 'p') {
            ASSERT_EQ(layer.forward(x, {.cache = &pool, .sequences = ids}, y, call), Status::ok);
          } else if (*kind == 'c') {
            layer.forward(x, cache, y, call);
          } else {
            layer.forward(x, ring, y, call);
          }
        });
      });
      for (const Stream* stream : all) {
        ASSERT_EQ(stream->done, stream->tokens());
        expect_same_bits(stream->y, contiguous(layer, held, stream->x), what + ", " + kind);
      }
    }
  });
}

MultiHeadAttention windowed(const MultiHeadAttention& like, const polyhead::Mask& mask) {
  LayerConfig config = decoder(like.config().weight_type);
  config.mask = mask;
  return Model(config).layer(Isa::automatic);
}

TEST(LayerCaches, ARingGivesTheBitsOfThePlainWindow) {
  static constexpr std::int64_t kAll = 301, kWindow = 50, kChunk = 9;
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    for (const std::int64_t first_tokens : {0, 5}) {
      const MultiHeadAttention plain = windowed(
          layer, polyhead::causal() & polyhead::window_and_first(kWindow - 1, 0, first_tokens));
      Stream stream(kAll, 21);
      auto c = sized<polyhead::SlidingCacheConfig>(layer, held);
      c.window = kWindow;
      c.first_tokens = first_tokens;
      c.chunk = kChunk;
      SlidingCache cache(c);
      Stream* const one[] = {&stream};
      for (std::int64_t turn = 0; stream.done < kAll; ++turn) {
        const std::int64_t n = std::min(turn % 3 == 0 ? kChunk : turn % 4 + 1, kAll - stream.done);
        step(one, {&n, 1}, [&](ConstView x, View y, LayerCall) { layer.forward(x, cache, y); });
      }
      EXPECT_EQ(cache.length(0), kAll);
      expect_same_bits(stream.y, contiguous(plain, held, stream.x),
                       what + ", first tokens " + std::to_string(first_tokens));
    }
  });
}

/// What steps give by hand: q of a layer without rope into attend_in_cache.
std::vector<float> in_cache_by_hand(const MultiHeadAttention& layer, SlidingCache& cache,
                                    const std::vector<float>& x, std::int64_t chunk) {
  LayerConfig still = decoder(kFloat32);
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
    layer.project(part, rows, ConstView(positions.data(), {n}));
    plain.project(part, still_rows);
    const polyhead::LayerHeads split = layer.split(rows);
    cache.append(split.k, split.v);
    const View out(heads.data(), {std::int64_t{1}, n, std::int64_t{4}, std::int64_t{16}});
    polyhead::attend_in_cache(cache, plain.split(still_rows).q, *layer.config().rope, out,
                              layer.config().modifiers);
    layer.output(layer.concat(out), View(y.data() + at * kColumns, {n, kColumns}));
  }
  return y;
}

SlidingCache ring_of(const MultiHeadAttention& layer, ElementType held, std::int64_t first_tokens,
                     std::int64_t batch = 1) {
  auto c = sized<polyhead::SlidingCacheConfig>(layer, held);
  c.batch = batch;
  c.window = 40;
  c.first_tokens = first_tokens;
  c.chunk = 30;
  return SlidingCache(c);
}

TEST(LayerCaches, PositionsInTheCacheAreAttendInCache) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
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

// Nothing moves closer where no first tokens are kept, so that both kinds of positions agree; with
// bfloat16 weights q is rounded once, after it has turned, in either.
TEST(LayerCaches, WithoutFirstTokensPositionsInTheCacheAreTheOriginal) {
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

TEST(LayerCaches, PositionsInTheCacheRaggedAndPaddedGiveTheBitsOfEachAlone) {
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

// A window's LSE, and one joined of the two parts, are those that attention over the row gives.
TEST(LayerCaches, PositionsInTheCacheGiveAnLse) {
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

TEST(LayerCaches, AnExhaustedPoolIsAStatusAndNothingIsLost) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  Stream a(40, 61), b(40, 62);
  PagedCache cache = pool_of(layer, kFloat32, 8, 6);
  const std::int64_t ids[] = {cache.create(), cache.create()};
  Stream* const all[] = {&a, &b};
  const auto serve = [&](std::int64_t n, std::int64_t m, Status expected) {
    const std::int64_t counts[] = {n, m};
    step(all, counts, [&](ConstView x, View y, const LayerCall& call) {
      ASSERT_EQ(layer.forward(x, {.cache = &cache, .sequences = ids}, y, call), expected);
      if (expected == Status::ok) return;
      for (std::int64_t i = 0; i < (n + m) * kColumns; ++i)
        ASSERT_TRUE(std::isnan(static_cast<float*>(y.data)[i]));
    });
  };
  serve(20, 20, Status::ok);
  const std::int64_t free = cache.free_pages();
  serve(1, 5, Status::exhausted);
  EXPECT_EQ(cache.length(ids[0]), 20);
  EXPECT_EQ(cache.length(ids[1]), 20);
  EXPECT_EQ(cache.free_pages(), free);
  a.done = b.done = 20;
  serve(4, 4, Status::ok);
  cache.release(ids[1]);
  while (a.done < 40) {
    Stream* const one[] = {&a};
    const std::int64_t n = 4;
    step(one, {&n, 1}, [&](ConstView x, View y, const LayerCall& call) {
      ASSERT_EQ(layer.forward(x, {.cache = &cache, .sequences = {ids, 1}}, y, call), Status::ok);
    });
  }
  expect_same_bits(a.y, contiguous(layer, kFloat32, a.x), "after exhaustion");
  const auto half = contiguous(layer, kFloat32, {b.x.begin(), b.x.begin() + 24 * kColumns});
  expect_same_bits({b.y.begin(), b.y.begin() + 24 * kColumns}, half, "the other");
}

// Room is made once, by the first layer's call, and all layers write into it.
TEST(LayerCaches, LayersOfOneModelShareTheRoomOfAPool) {
  const Model models[] = {Model(decoder(kFloat32)), Model(decoder(kFloat32))};
  const MultiHeadAttention layer = models[0].layer(Isa::automatic);
  Stream first(50, 71), second(50, 72);
  PagedCache cache = pool_of(layer, ElementType::int8, 8, 8, 2);
  const std::int64_t id = cache.create();
  std::vector<std::int32_t> numbers(50);
  std::iota(numbers.begin(), numbers.end(), 5);
  for (std::int64_t at = 0; at < 50; at += 10) {
    for (std::int64_t l = 0; l < 2; ++l) {
      Stream& stream = l == 0 ? first : second;
      PagedSequences pages{.cache = &cache, .sequences = {&id, 1}, .layer = l};
      if (l == 0) pages.tokens = std::span<const std::int32_t>(numbers).subspan(at, 10);
      if (l == 1) pages.room = PagedRoom::made;
      ASSERT_EQ(layer.forward(ConstView(stream.x.data() + at * kColumns, {10, 64}), pages,
                              View(stream.y.data() + at * kColumns, {10, 64})),
                Status::ok);
      ASSERT_EQ(cache.length(id), at + 10);
    }
  }
  expect_same_bits(first.y, contiguous(layer, ElementType::int8, first.x), "layer 0");
  expect_same_bits(second.y, contiguous(layer, ElementType::int8, second.x), "layer 1");
  // Its tokens have numbers: another sequence begins with its pages.
  const std::int64_t other = cache.create();
  EXPECT_EQ(cache.adopt_prefix(other, numbers), 48);
  const std::vector<float> before = first.y;
  for (std::int64_t l = 0; l < 2; ++l) {
    Stream& stream = l == 0 ? first : second;
    std::vector<float> y(2 * kColumns, std::nanf(""));
    ASSERT_EQ(layer.forward(ConstView(stream.x.data() + 48 * kColumns, {2, 64}),
                            {.cache = &cache,
                             .sequences = {&other, 1},
                             .layer = l,
                             .room = l == 0 ? PagedRoom::to_make : PagedRoom::made},
                            View(y.data(), {2, 64})),
              Status::ok);
    expect_same_bits(y, {stream.y.end() - 2 * kColumns, stream.y.end()}, "adopted");
  }
}

// Room that a fork came to share after it was made is copied when it is written, or is exhausted
// before anything is.
TEST(LayerCaches, RoomThatForksShareIsCountedBeforeItIsWritten) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  {
    // Each writes its last 8 tokens, on the 2nd and 3rd page: 3 writers of 2 pages, 4 copies.
    PagedCache cache = pool_of(layer, kFloat32, 8, 6);
    const std::int64_t first = cache.create();
    ASSERT_EQ(cache.extend(first, 20), Status::ok);
    const std::int64_t ids[] = {first, cache.fork(first), cache.fork(first)};
    const auto x = random_floats(3 * 8 * kColumns, 75);
    std::vector<float> y(x.size(), std::nanf(""));
    EXPECT_EQ(layer.forward(ConstView(x.data(), {3, 8, 64}),
                            {.cache = &cache, .sequences = ids, .room = PagedRoom::made},
                            View(y.data(), {3, 8, 64})),
              Status::exhausted);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(cache.free_pages(), 3);
  }
  PagedCache cache = pool_of(layer, kFloat32, 8, 7);
  const std::int64_t first = cache.create();
  ASSERT_EQ(cache.extend(first, 16), Status::ok);
  const std::int64_t ids[] = {first, cache.fork(first), cache.fork(first)};
  Stream streams[] = {{16, 76}, {16, 77}, {16, 78}};
  Stream* const all[] = {&streams[0], &streams[1], &streams[2]};
  const std::int64_t counts[] = {16, 16, 16};
  step(all, counts, [&](ConstView x, View y, const LayerCall& call) {
    ASSERT_EQ(
        layer.forward(x, {.cache = &cache, .sequences = ids, .room = PagedRoom::made}, y, call),
        Status::ok);
  });
  EXPECT_EQ(cache.free_pages(), 1);
  for (const Stream& each : streams)
    expect_same_bits(each.y, contiguous(layer, kFloat32, each.x), "forked room");
}

TEST(LayerCaches, AStepOfAttentionOverAViewGivesTheBitsOfTheCall) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    if (layer.activation_type() != kFloat32) return;  // project() rounds to what it is given
    Stream stream(60, 81);
    const auto expected = contiguous(layer, held, stream.x);
    PagedCache cache = pool_of(layer, held, 16, 5);
    const std::int64_t id = cache.create();
    std::vector<float> packed(static_cast<std::size_t>(60 * layer.packed_dim()));
    const View rows(packed.data(), {std::int64_t{60}, layer.packed_dim()});
    layer.project(ConstView(stream.x.data(), {60, 64}), rows);
    polyhead::LayerHeads split = layer.split(rows);
    const auto ragged = [](View view) {  // without its batch of one
      auto& layout = view.layout;
      std::copy(layout.extents.begin() + 1, layout.extents.end(), layout.extents.begin());
      std::copy(layout.strides.begin() + 1, layout.strides.end(), layout.strides.begin());
      --layout.axes;
      return view;
    };
    ASSERT_EQ(cache.append(id, ragged(split.k), ragged(split.v)), Status::ok);
    polyhead::PagedBatch batch;
    cache.batch({&id, 1}, batch);
    // The last 20 rows alone are the sequence's last tokens, also ragged.
    for (const bool offsets_too : {false, true}) {
      View q = split.q;
      q.layout.extents[1] = 20;
      q.data = packed.data() + 40 * layer.packed_dim();
      std::vector<float> heads(20 * kColumns, std::nanf("")), y(heads);
      const View out(heads.data(), {1, 20, 4, 16});
      const std::int32_t offsets[] = {0, 20};
      if (offsets_too) {
        layer.attend(ragged(q), cache.view(0, batch), ragged(out),
                     {.offsets = ConstView(offsets, {2})});
      } else {
        layer.attend(q, cache.view(0, batch), out);
      }
      layer.output(layer.concat(out), View(y.data(), {20, 64}));
      expect_same_bits(y, {expected.end() - 20 * kColumns, expected.end()}, what);
    }
  });
}

TEST(LayerCaches, ARowOverAViewIsThatOfTheWhole) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  Stream stream(60, 91);
  const polyhead::RowTrace expected =
      layer.explain(ConstView(stream.x.data(), {60, 64}), {.query = 57});
  PagedCache cache = pool_of(layer, kFloat32, 8, 10);
  const std::int64_t id = cache.create();
  ASSERT_EQ(
      layer.forward(ConstView(stream.x.data(), {60, 64}), {.cache = &cache, .sequences = {&id, 1}},
                    View(stream.y.data(), {60, 64})),
      Status::ok);
  polyhead::PagedBatch batch;
  cache.batch({&id, 1}, batch);
  const polyhead::RowTrace found = layer.explain(
      ConstView(stream.x.data() + 50 * kColumns, {10, 64}), cache.view(0, batch), {.query = 7});
  EXPECT_EQ(found.q_pos, 57);
  EXPECT_EQ(found.input, expected.input);
  EXPECT_EQ(found.projected, expected.projected);
  ASSERT_EQ(found.heads.size(), expected.heads.size());
  for (std::size_t h = 0; h < found.heads.size(); ++h) {
    EXPECT_EQ(found.heads[h].q, expected.heads[h].q);
    EXPECT_EQ(found.heads[h].k, expected.heads[h].k);
    EXPECT_EQ(found.heads[h].weights, expected.heads[h].weights);
  }
}

// Cross attention over the pages of a context gives the bits of a contiguous cache of it.
TEST(LayerCaches, CrossAttentionReadsAnyView) {
  for_each_held([](const MultiHeadAttention& layer, ElementType held, const std::string& what) {
    Stream context(50, 95);
    const auto x = random_floats(12 * kColumns, 96);
    polyhead::KvCacheConfig config = layer.cache_config(1, 50);
    config.type = held;
    KvCache cache(config);
    layer.project_context(ConstView(context.x.data(), {50, 64}), cache);
    PagedCache pool = pool_of(layer, held, 8, 8);
    const std::int64_t id = pool.create();
    ASSERT_EQ(
        layer.forward(ConstView(context.x.data(), {50, 64}),
                      {.cache = &pool, .sequences = {&id, 1}}, View(context.y.data(), {50, 64})),
        Status::ok);
    polyhead::PagedBatch batch;
    pool.batch({&id, 1}, batch);
    const std::int32_t offsets[] = {0, 12};
    const polyhead::Mask end{.align = polyhead::Align::end};
    std::vector<float> y[3];
    for (auto& each : y) each.assign(x.size(), std::nanf(""));
    const ConstView rows(x.data(), {12, 64});
    layer.cross(rows, cache, View(y[0].data(), {12, 64}), {.mask = end});
    layer.cross(rows, pool.view(0, batch), View(y[1].data(), {12, 64}), {.mask = end});
    layer.cross(rows, pool.view(0, batch), View(y[2].data(), {12, 64}),
                {.mask = end, .offsets = ConstView(offsets, {2})});
    expect_same_bits(y[1], y[0], what);
    expect_same_bits(y[2], y[0], what + ", ragged");
  });
}

}  // namespace
}  // namespace polyhead_test
