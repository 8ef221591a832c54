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
#include "support/layer_streams.hpp"

namespace polyhead_test {
namespace {

using polyhead::LayerWorkspace;
using polyhead::PagedRoom;
using Status = PagedCache::Status;

constexpr ElementType kFloat32 = ElementType::float32;

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

// Rows after the last sequence of a ragged call are read by none and belong to none.
TEST(LayerCaches, RowsOfNoSequenceAreTheOutputsBias) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  Stream stream(30, 63);
  const auto expected = contiguous(layer, kFloat32, {stream.x.begin(), stream.x.end() - 2 * 64});
  std::fill(stream.x.end() - 2 * kColumns, stream.x.end(), std::nanf(""));
  const std::int32_t offsets[] = {0, 0, 28};
  const ConstView x(stream.x.data(), {30, 64});
  const View y(stream.y.data(), {30, 64});
  const LayerCall call{.offsets = ConstView(offsets, {3})};
  for (int way = 0; way < 4; ++way) {
    std::ranges::fill(stream.y, std::nanf(""));
    PagedCache pool = pool_of(layer, kFloat32, 8, 4);
    const std::int64_t ids[] = {pool.create(), pool.create()};
    KvCache cache(layer.cache_config(2, 28));
    SlidingCache ring = ring_of(layer, kFloat32, 4, 2);
    if (way == 0) {
      ASSERT_EQ(layer.forward(x, {.cache = &pool, .sequences = ids}, y, call), Status::ok);
    } else if (way == 1) {
      layer.forward(x, cache, y, call);
    } else {
      using polyhead::SlidingPositions;
      layer.forward(x, ring, y, way == 2 ? SlidingPositions::original : SlidingPositions::in_cache,
                    call);
    }
    for (std::size_t i = 28 * kColumns; i < stream.y.size(); ++i)
      ASSERT_EQ(stream.y[i], model.b_o[i % kColumns]) << way;
    if (way == 3) continue;  // merge_partials rounds what one pass does not
    expect_same_bits({stream.y.begin(), stream.y.end() - 2 * kColumns}, expected,
                     "way " + std::to_string(way));
  }
}

TEST(LayerCaches, NoTokensAndNoSequencesChangeNothing) {
  const Model model(decoder(kFloat32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  Stream stream(5, 64);
  PagedCache pool = pool_of(layer, kFloat32, 8, 2);
  const std::int64_t id = pool.create();
  SlidingCache ring = ring_of(layer, kFloat32, 4), none = ring_of(layer, kFloat32, 4, 0);
  const PagedSequences pages{.cache = &pool, .sequences = {&id, 1}};
  for (const std::int64_t n : {0, 5, 0}) {
    const ConstView x(stream.x.data(), {n, kColumns});
    const View y(stream.y.data(), {n, kColumns});
    ASSERT_EQ(layer.forward(x, pages, y), Status::ok);
    layer.forward(x, ring, y);
    layer.forward(x, ring, y, polyhead::SlidingPositions::in_cache);
  }
  EXPECT_EQ(pool.length(id), 5);
  EXPECT_EQ(ring.length(0), 10);
  const ConstView x(stream.x.data(), {std::int64_t{0}, std::int64_t{3}, kColumns});
  const View y(stream.y.data(), {std::int64_t{0}, std::int64_t{3}, kColumns});
  ASSERT_EQ(layer.forward(x, {.cache = &pool}, y), Status::ok);
  layer.forward(x, none, y);
  layer.forward(x, none, y, polyhead::SlidingPositions::in_cache);
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

// To what the longest sequence needs, and not to twice what the one before it needed.
TEST(LayerCaches, ARaggedCallGrowsACacheOnce) {
  const MultiHeadAttention layer = Model(decoder(ElementType::float32)).layer(Isa::automatic);
  KvCache cache(layer.cache_config(3, 0, true));
  const auto x = random_floats(205 * kColumns, 61);
  std::vector<float> y(x.size());
  const std::int32_t offsets[] = {0, 65, 135, 205};
  layer.forward(ConstView(x.data(), {205, 64}), cache, View(y.data(), {205, 64}),
                {.offsets = ConstView(offsets, {4})});
  EXPECT_EQ(cache.capacity(), 70);
  for (const auto& [b, length] : {std::pair{0, 65}, {1, 70}, {2, 70}})
    EXPECT_EQ(cache.length(b), length);
}

}  // namespace
}  // namespace polyhead_test
