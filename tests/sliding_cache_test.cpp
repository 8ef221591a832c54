// The sliding cache against one that keeps everything: the same bits under the same mask.
#include "polyhead/sliding_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/explain.h"
#include "polyhead/kv_cache.h"
#include "support/effort.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

struct Shape {
  std::int64_t window, first_tokens, chunk;
  ElementType type;
  bool values_in_keys = false;
  std::int64_t value_dim() const { return values_in_keys ? 32 : 24; }
};

SlidingCacheConfig config(const Shape& shape) {
  SlidingCacheConfig c;
  c.batch = 2;
  c.kv_heads = 2;
  c.head_dim = 40;
  c.value_dim = shape.value_dim();
  c.values_in_keys = shape.values_in_keys;
  c.type = shape.type;
  c.window = shape.window;
  c.first_tokens = shape.first_tokens;
  c.chunk = shape.chunk;
  return c;
}

/// Both caches, fed alike.
struct Pair {
  explicit Pair(const Shape& shape)
      : sliding(config(shape)), full([&] {
          KvCacheConfig c;
          c.batch = 2;
          c.kv_heads = 2;
          c.head_dim = 40;
          c.value_dim = shape.value_dim();
          c.values_in_keys = shape.values_in_keys;
          c.type = shape.type;
          c.growing = true;
          return c;
        }()) {}

  void append(std::int64_t tokens, const std::int32_t (&counts)[2], Random& random) {
    Tensor k(f32, {2, tokens, 2, 40}), v(f32, {2, tokens, 2, 24});
    k.fill_normal(random);
    v.fill_normal(random);
    const ConstView values = full.config().values_in_keys ? ConstView() : v.const_view();
    sliding.append(k.const_view(), values, ConstView(counts, {2}));
    full.append(k.const_view(), values, ConstView(counts, {2}));
  }

  /// Elements in which attention over the two differs, for the last `counts` queries of each.
  std::int64_t differing(std::int64_t tokens, const std::int32_t (&counts)[2], Isa isa,
                         Random& random) {
    const std::int64_t dim = full.config().value_dim;
    Tensor q(f32, {2, tokens, 4, 40}), a(f32, {2, tokens, 4, dim}), b(f32, {2, tokens, 4, dim});
    q.fill_normal(random);
    AttentionArguments call;
    call.q = q.const_view();
    call.mask = sliding.mask() & lengths({}, ConstView(counts, {2}));
    call.kv = sliding.view();
    call.out = a.view();
    attention(call, {.isa = isa});
    call.kv = full.view();
    call.out = b.view();
    attention(call, {.isa = isa});
    return differing_bits(a, b);
  }

  SlidingCache sliding;
  KvCache full;
};

TEST(SlidingCache, GivesTheBitsOfTheMaskOverEverything) {
  const int steps = effort() == Effort::smoke ? 20 : 80;
  for (const Shape& shape :
       {Shape{100, 0, 30, f32}, Shape{64, 4, 1, bf16}, Shape{1, 1, 70, f16},
        Shape{130, 70, 16, ElementType::int8}, Shape{90, 3, 20, ElementType::int4},
        Shape{1200, 5, 200, f32}, Shape{100, 3, 30, f32, true}, Shape{70, 0, 9, bf16, true},
        Shape{90, 4, 20, ElementType::int8, true}}) {
    for (Isa isa : isas()) {
      Pair pair(shape);
      Random random(static_cast<std::uint64_t>(shape.window));
      for (int i = 0; i < steps || pair.sliding.length(0) <= shape.window; ++i) {
        const std::int64_t tokens = 1 + random.below(shape.chunk);
        const std::int32_t counts[2] = {static_cast<std::int32_t>(tokens),
                                        static_cast<std::int32_t>(random.below(tokens + 1))};
        pair.append(tokens, counts, random);
        EXPECT_EQ(pair.differing(tokens, counts, isa, random), 0)
            << "window " << shape.window << " first " << shape.first_tokens << " step " << i << " "
            << isa_name(isa);
      }
    }
  }
}

TEST(SlidingCache, TakesBackUpToAChunk) {
  for (const bool values_in_keys : {false, true}) {
    Pair pair({50, 2, 9, f32, values_in_keys});
    Random random(3);
    for (int i = 0; i < 60; ++i) {
      const std::int32_t counts[2] = {9, 9};
      pair.append(9, counts, random);
      const std::int64_t back = random.below(10);
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t length = pair.sliding.length(b) - back;
        pair.sliding.truncate(b, length);
        pair.full.truncate(b, length);
      }
      if (pair.sliding.length(0) == 0) continue;
      const std::int32_t one[2] = {1, 1};
      EXPECT_EQ(pair.differing(1, one, Isa::automatic, random), 0) << i;
    }
  }
}

// However many queries come, before or after a truncation: each sees its window or is refused.
TEST(SlidingCache, RefusesQueriesWhoseWindowsWereWrittenOver) {
  const Shape shape{50, 2, 60, f32};
  Pair pair(shape);
  Random random(4);
  int refused = 0, served = 0;
  for (int i = 0; i < 120; ++i) {
    const std::int32_t counts[2] = {1 + static_cast<std::int32_t>(random.below(shape.chunk)), 3};
    pair.append(shape.chunk, counts, random);
    if (i % 3 == 0) {
      const std::int64_t length = pair.sliding.length(0) - random.below(counts[0] + 1);
      pair.sliding.truncate(0, length);
      pair.full.truncate(0, length);
    }
    const std::int64_t length = pair.sliding.length(0);
    if (length == 0) continue;
    const std::int64_t queries = 1 + random.below(std::min(length, 2 * shape.chunk + 70));
    const std::int32_t asked[2] = {static_cast<std::int32_t>(queries), 1};
    const std::int64_t first = std::max<std::int64_t>(length - queries - 49, 2);
    if (first >= pair.sliding.oldest(0)) {
      ++served;
      EXPECT_EQ(pair.differing(queries, asked, Isa::automatic, random), 0) << i;
    } else {
      ++refused;
      EXPECT_EQ(refusal_of([&] { pair.differing(queries, asked, Isa::automatic, random); }),
                "attention: query 0 of sequence 0 sees key " + std::to_string(first) +
                    ", but kv holds its keys from " + std::to_string(pair.sliding.oldest(0)) +
                    " on (kv.oldest) and the first 2 alone");
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(served, 20);
}

TEST(SlidingCache, RefusesMasksThatSeeWhatWasWrittenOver) {
  Pair pair({50, 2, 3, f32});
  Random random(5);
  for (int i = 0; i < 80; ++i) pair.append(3, {3, 1}, random);
  std::vector<std::byte> bytes;
  pair.sliding.save(bytes);
  SlidingCache loaded(config({50, 2, 3, f32}));
  std::span<const std::byte> rest = bytes;
  std::string wrong;
  ASSERT_TRUE(loaded.load(rest, wrong)) << wrong;
  Tensor q(f32, {2, 1, 4, 40}), out(f32, {2, 1, 4, 24});
  q.fill_normal(random);
  const std::vector<std::byte> before = out.bytes();
  for (const SlidingCache* cache : {&pair.sliding, &loaded}) {
    AttentionArguments call;
    call.q = q.const_view();
    call.kv = cache->view();
    call.out = out.view();
    const std::string rest_of_it =
        ", but kv holds its keys from 128 on (kv.oldest) and the first 2 alone";
    const auto refused = [&](const Mask& mask) {
      call.mask = mask;
      return refusal_of([&] { attention(call); });
    };
    EXPECT_EQ(refused({}), "attention: query 0 of sequence 0 sees key 2" + rest_of_it);
    EXPECT_EQ(refused(causal(Align::end)),
              "attention: query 0 of sequence 0 sees key 2" + rest_of_it);
    EXPECT_EQ(refused(window(112, 0, Align::end)),
              "attention: query 0 of sequence 0 sees key 127" + rest_of_it);
    EXPECT_EQ(refused(window_and_first(49, 0, 3, Align::end)),
              "attention: query 0 of sequence 0 sees key 2" + rest_of_it);
    EXPECT_EQ(refused(prefix(9, Align::end) & window(240, 0, Align::end)),
              "attention: query 0 of sequence 0 sees key 2" + rest_of_it);
    EXPECT_EQ(out.bytes(), before);
    EXPECT_EQ(refused(window(111, 0, Align::end)), "accepted");
    std::copy(before.begin(), before.end(), static_cast<std::byte*>(out.view().data));
    call.mask = cache->mask();
    EXPECT_EQ(refusal_of([&] { attention(call); }), "accepted");
    const RowTrace row = explain(call);
    EXPECT_TRUE(std::isnan(row.heads[0].k[127][0])) << "written over";
    EXPECT_EQ(row.heads[0].weights[127], 0.0);
    EXPECT_FALSE(std::isnan(row.heads[0].k[1][0])) << "one of the first tokens";
    for (std::int64_t i = 0; i < 4 * 24; ++i) {
      // float32 sums of 52 terms of order 1 against double.
      EXPECT_NEAR(row.concatenated[static_cast<std::size_t>(i)], out.get({0, 0, i / 24, i % 24}),
                  1e-5);
    }
    std::copy(before.begin(), before.end(), static_cast<std::byte*>(out.view().data));
  }
  pair.sliding.clear();
  pair.full.clear();
  pair.append(1, {1, 1}, random);
  EXPECT_EQ(pair.differing(1, {1, 1}, Isa::automatic, random), 0);
}

TEST(SlidingCache, ReadsWhatItHoldsInOrder) {
  SlidingCacheConfig c;
  c.head_dim = c.value_dim = 1;
  c.window = 5;
  c.first_tokens = 2;
  SlidingCache cache(c);
  for (int i = 0; i < 400; ++i) {
    const float k = static_cast<float>(i), v = -k;
    cache.append(ConstView(&k, {1, 1, 1, 1}), ConstView(&v, {1, 1, 1, 1}));
    std::vector<float> expected;
    for (int t = 0; t <= i; ++t) {
      if (t < 2 || t > i - 5) expected.push_back(static_cast<float>(t));
    }
    ASSERT_EQ(cache.held(0), static_cast<std::int64_t>(expected.size()));
    std::vector<float> keys(expected.size()), values(expected.size());
    cache.read(0, View(keys.data(), {cache.held(0), std::int64_t{1}, std::int64_t{1}}),
               View(values.data(), {cache.held(0), std::int64_t{1}, std::int64_t{1}}));
    EXPECT_EQ(keys, expected);
    EXPECT_EQ(values.back(), v);
  }
}

TEST(SlidingCache, ValuesInKeysAreReadFromThemAndTakeNoMemory) {
  SlidingCacheConfig c;
  c.head_dim = 3;
  c.value_dim = 2;
  c.window = 5;
  c.chunk = 2;
  SlidingCache apart(c);
  c.values_in_keys = true;
  SlidingCache cache(c);
  EXPECT_EQ(cache.bytes() * 5, apart.bytes() * 3);
  const float rows[] = {1, 2, 3, 4, 5, 6};
  cache.append(ConstView(rows, {1, 2, 1, 3}), {});
  const KvView view = cache.view();
  EXPECT_EQ(view.v.data, view.k.data);
  EXPECT_EQ(view.v.layout.strides, view.k.layout.strides);
  EXPECT_EQ(view.v.layout.extents[3], 2);
  float keys[6] = {}, values[4] = {};
  cache.read(0, View(keys, {2, 1, 3}), {});
  EXPECT_EQ(std::vector(keys, keys + 6), std::vector(rows, rows + 6));
  cache.read(0, View(keys, {2, 1, 3}), View(values, {2, 1, 2}));
  EXPECT_EQ(std::vector(values, values + 4), (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(refusal_of([&] {
              cache.read(0, View(keys, {2, 1, 3}), View(values, {1, 1, 2}));
            }),
            "SlidingCache::read: v is float32 [1, 1, 2], expected float32 [2, 1, 2]: held, "
            "kv_heads, dim");
  EXPECT_EQ(refusal_of([&] {
              apart.read(0, View(keys, {0, 1, 3}), {});
            }),
            "SlidingCache::read: v is float32 [], expected float32 [0, 1, 2]: held, kv_heads, dim");
  EXPECT_EQ(refusal_of([&] {
              cache.append(ConstView(rows, {1, 1, 1, 3}), ConstView(rows, {1, 1, 1, 2}));
            }),
            "SlidingCache::append: v is given, but values are in the keys");
  c.type = ElementType::int8;
  EXPECT_EQ(refusal_of([&] { SlidingCache{c}; }),
            "SlidingCache: value_dim (2) is not a multiple of 32, expected that or head_dim (3) of "
            "values_in_keys as int8");
}

TEST(SlidingCache, IsReadAsAlwaysWhateverTheCallersMode) {
  for (const ElementType type : {ElementType::int8, ElementType::int4, ElementType::float8_e4m3}) {
    SlidingCache ring({.head_dim = 96, .type = type, .window = 20});
    Tensor rows(f32, {1, 20, 1, 96});
    Random random(9);
    rows.fill_normal(random);
    for (std::int64_t t = 0; t < 20; ++t) {
      const ConstView row(reinterpret_cast<const float*>(rows.address({0, t, 0, 0})),
                          {1, 1, 1, 96});
      ring.append(row, row);
    }
    std::vector<float> read[2];
    for (const int mode : {FE_TONEAREST, FE_UPWARD}) {
      std::vector<float> k(20 * 96), v(k);
      std::fesetround(mode);
      ring.read(0, {k.data(), {20, 1, 96}}, {v.data(), {20, 1, 96}});
      std::fesetround(FE_TONEAREST);
      read[mode == FE_UPWARD] = k;
      EXPECT_EQ(k, v);
    }
    EXPECT_EQ(read[0], read[1]) << element_name(type);
  }
}

TEST(SlidingCache, RefusesByName) {
  Pair pair({50, 2, 3, f32});
  Random random(1);
  for (int i = 0; i < 80; ++i) pair.append(3, {3, 1}, random);
  Tensor k(f32, {2, 4, 2, 40}), v(f32, {2, 4, 2, 24});
  EXPECT_EQ(refusal_of([&] { pair.sliding.append(k.const_view(), v.const_view()); }),
            "SlidingCache::append: sequence 0 gets 4 tokens, expected at most chunk (3)");
  EXPECT_EQ(refusal_of([&] { pair.sliding.truncate(0, 236); }),
            "SlidingCache::truncate: length (236) is more than chunk (3) before the 240 tokens of "
            "sequence 0 that were written");
  EXPECT_EQ(refusal_of([&] { pair.sliding.truncate(2, 1); }),
            "SlidingCache::truncate: sequence (2) is not within 0 .. 1");
  EXPECT_EQ(refusal_of([&] {
              SlidingCache{config({0, 0, 1, f32})};
            }),
            "SlidingCache: window (0) is not within 1 .. 68719476736");
  EXPECT_EQ(refusal_of([&] {
              SlidingCache{config({1, 0, 1, ElementType::bit})};
            }),
            "SlidingCache: type is bit, expected float32, float16, bfloat16, int8, int4, "
            "float8_e4m3 or float8_e5m2");
  SlidingCacheConfig many = config({100, 3, 20, f32});
  many.batch = std::int64_t{1} << 30;
  EXPECT_EQ(refusal_of([&] { SlidingCache{many}; }),
            "SlidingCache: batch (1073741824) times the 4 pages of window (100), first_tokens (3) "
            "and chunk (20) is more than 2^31 - 1 pages");
}

}  // namespace
}  // namespace polyhead::test
