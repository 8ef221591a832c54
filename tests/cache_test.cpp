// The contiguous key-value cache: what goes in comes out, at each sequence's own length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/isa.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/refusal.h"

namespace {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::KvCache;
using polyhead::KvCacheConfig;

template <class T>
T element(const ConstView& view, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
  const auto& s = view.layout.strides;
  return static_cast<const T*>(view.data)[b * s[0] + t * s[1] + h * s[2] + d * s[3]];
}

/// [batch, tokens, heads, dim] of distinct numbers.
std::vector<float> numbered(std::size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

KvCacheConfig small(std::int64_t capacity, bool growing = false) {
  KvCacheConfig config;
  config.batch = 2;
  config.kv_heads = 3;
  config.head_dim = 4;
  config.value_dim = 2;
  config.capacity = capacity;
  config.growing = growing;
  return config;
}

TEST(KvCache, HoldsWhatWasAppendedAtEachSequencesLength) {
  for (const bool growing : {false, true}) {
    KvCache cache(small(growing ? 0 : 200, growing));
    std::vector<std::vector<float>> expected_k(2),
        expected_v(2);  // a sequence's [token][head][dim]
    float next = 0;
    for (const std::int64_t tokens : {3, 1, 0, 70, 1, 60}) {
      const auto n = static_cast<std::size_t>(tokens);
      const auto k = numbered(2 * n * 12, next), v = numbered(2 * n * 6, next + 0.5f);
      next += static_cast<float>(2 * n * 12);
      const std::int32_t counts[] = {static_cast<std::int32_t>(tokens),
                                     static_cast<std::int32_t>(tokens / 2)};
      cache.append(ConstView(k.data(), {std::int64_t{2}, tokens, std::int64_t{3}, std::int64_t{4}}),
                   ConstView(v.data(), {std::int64_t{2}, tokens, std::int64_t{3}, std::int64_t{2}}),
                   ConstView(counts, {2}));
      for (std::size_t b = 0; b < 2; ++b) {
        const auto count = static_cast<std::size_t>(counts[b]);
        expected_k[b].insert(expected_k[b].end(), k.begin() + static_cast<long>(b * n * 12),
                             k.begin() + static_cast<long>((b * n + count) * 12));
        expected_v[b].insert(expected_v[b].end(), v.begin() + static_cast<long>(b * n * 6),
                             v.begin() + static_cast<long>((b * n + count) * 6));
      }
    }
    EXPECT_EQ(cache.length(0), 135);
    EXPECT_EQ(cache.length(1), 66);
    EXPECT_EQ(cache.max_length(), 135);
    EXPECT_EQ(cache.keys().layout.extents[1], 135);
    EXPECT_EQ(static_cast<const std::int64_t*>(cache.lengths().data)[1], 66);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < cache.length(b); ++t) {
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t d = 0; d < 4; ++d) {
            ASSERT_EQ(element<float>(cache.keys(), b, t, h, d),
                      expected_k[static_cast<std::size_t>(b)]
                                [static_cast<std::size_t>((t * 3 + h) * 4 + d)]);
          }
          for (std::int64_t d = 0; d < 2; ++d) {
            ASSERT_EQ(element<float>(cache.values(), b, t, h, d),
                      expected_v[static_cast<std::size_t>(b)]
                                [static_cast<std::size_t>((t * 3 + h) * 2 + d)]);
          }
        }
      }
    }
  }
}

TEST(KvCache, TakesRowsOfItsOwnWhileItGrows) {
  KvCacheConfig config;
  config.kv_heads = 2;  // large enough that memory given back is gone
  config.head_dim = 512;
  config.capacity = 64;
  config.growing = true;
  KvCache cache(config);
  const auto rows = numbered(64 * 1024, 1.0f);
  const ConstView all(rows.data(), {1, 64, 2, 512});
  cache.append(all, all);
  cache.append(cache.keys(), cache.values());
  ASSERT_EQ(cache.length(0), 128);
  for (const ConstView& held : {cache.keys(), cache.values()}) {
    for (std::int64_t t = 0; t < 128; ++t)
      ASSERT_EQ(element<float>(held, 0, t, 0, 7), rows[static_cast<std::size_t>(t % 64 * 1024 + 7)])
          << t;
  }
}

// Also where one of its lengths stands for every sequence's count.
TEST(KvCache, TakesItsOwnLengthsAsCounts) {
  const std::vector<float> rows(2 * 3, 1.0f);
  const std::int64_t first[] = {3, 1};
  const ConstView x(rows.data(), {2, 3, 1, 1}), counts(first, {2});
  KvCache cache({.batch = 2, .kv_heads = 1, .head_dim = 1, .capacity = 6});
  polyhead::SlidingCache ring({.batch = 2, .kv_heads = 1, .head_dim = 1, .window = 9, .chunk = 3});
  cache.append(x, x, counts);
  ring.append(x, x, counts);
  const auto each = [](const ConstView& lengths) {
    return ConstView(static_cast<const std::int64_t*>(lengths.data), {2}, {0});
  };
  cache.append(x, x, each(cache.lengths()));
  ring.append(x, x, each(ring.view().lengths));
  EXPECT_EQ(cache.length(0), 6);
  EXPECT_EQ(cache.length(1), 4);
  EXPECT_EQ(ring.length(0), 6);
  EXPECT_EQ(ring.length(1), 4);
}

TEST(KvCache, ConvertsToItsType) {
  KvCacheConfig config;
  config.head_dim = 2;
  config.capacity = 4;
  const float values[] = {1.0f + 0x1p-8f, 3.0f};  // the first lies halfway: ties to even
  for (const ElementType type : {ElementType::bfloat16, ElementType::float16}) {
    config.type = type;
    KvCache cache(config);
    cache.append(ConstView(values, {1, 1, 1, 2}), ConstView(values, {1, 1, 1, 2}));
    if (type == ElementType::bfloat16) {
      EXPECT_EQ(to_float32(element<polyhead::bfloat16>(cache.keys(), 0, 0, 0, 0)), 1.0f);
      EXPECT_EQ(to_float32(element<polyhead::bfloat16>(cache.values(), 0, 0, 0, 1)), 3.0f);
    } else {
      EXPECT_EQ(to_float32(element<polyhead::float16>(cache.keys(), 0, 0, 0, 0)), 1.0f + 0x1p-8f);
    }
  }
}

TEST(KvCache, TakesAnyStrides) {
  KvCacheConfig config = small(4);
  config.batch = 1;
  config.value_dim = 4;
  KvCache cache(config);
  const auto packed = numbered(3 * 4 * 2, 0);  // [head][dim][token]
  const ConstView view(packed.data(), {1, 2, 3, 4}, {7, 1, 8, 2});
  cache.append(view, view);
  for (std::int64_t h = 0; h < 3; ++h) {
    EXPECT_EQ(element<float>(cache.keys(), 0, 1, h, 3), static_cast<float>(h * 8 + 3 * 2 + 1));
  }
}

TEST(KvCache, RefusesToOverflowAndChangesNothing) {
  KvCache cache(small(4));
  const auto k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
  const ConstView k_view(k.data(), {2, 3, 3, 4}), v_view(v.data(), {2, 3, 3, 2});
  const std::int64_t counts[] = {1, 3};
  cache.append(k_view, v_view, ConstView(counts, {2}));
  const std::int64_t more[] = {1, 2};
  try {
    cache.append(k_view, v_view, ConstView(more, {2}));
    FAIL();
  } catch (const polyhead::InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "KvCache::append: sequence 1 holds 3 tokens; 2 more exceed the capacity (4)");
  }
  EXPECT_EQ(cache.length(0), 1);
  EXPECT_EQ(cache.length(1), 3);
  EXPECT_EQ(element<float>(cache.keys(), 0, 0, 0, 0), 1.0f);
}

TEST(KvCache, RefusesViewsThatAttentionWouldRefuse) {
  KvCacheConfig config = small(8);
  config.growing = true;
  KvCache cache(config);
  const auto k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
  const ConstView k_view(k.data(), {2, 3, 3, 4}), v_view(v.data(), {2, 3, 3, 2});
  const auto message = [&](auto change) {
    ConstView keys = k_view, values = v_view, counts;
    change(keys, values, counts);
    const std::string said =
        polyhead::test::refusal_of([&] { cache.append(keys, values, counts); });
    EXPECT_EQ(cache.max_length(), 0);
    return said;
  };
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_EQ(message([](auto& keys, auto&, auto&) { keys.layout.strides[1] = kFar; }),
            "KvCache::append: k: extents times strides overflow 64 bits (axis 1)");
  EXPECT_EQ(message([](auto& keys, auto&, auto&) { keys.layout.extents[1] = -1; }),
            "KvCache::append: k has tokens -1; expected at least 0");
  EXPECT_EQ(message([](auto&, auto& values, auto&) { values.data = nullptr; }),
            "KvCache::append: v: data is null, but the view has elements");
  static const std::int64_t two[3] = {1, 1, 1};
  EXPECT_EQ(message([](auto&, auto&, auto& counts) {
              counts = ConstView(two, {2});
              counts.data = reinterpret_cast<const char*>(two) + 1;
            }),
            "KvCache::append: counts: data is not aligned to its element type int64");
  // Rows of no dims: any number of them lies nowhere, but a sequence has its bounds.
  config.head_dim = config.value_dim = 0;
  KvCache empty(config);
  const std::int64_t many = std::int64_t{1} << 48;
  const float row = 0;
  const ConstView nothing(&row, {std::int64_t{2}, many, std::int64_t{3}, std::int64_t{0}});
  EXPECT_NE(polyhead::test::refusal_of([&] {
              empty.append(ConstView(&row, {2, 1, 3, 0}), ConstView(&row, {2, 1, 3, 0}));
              empty.append(nothing, nothing);
            }).find("grows beyond 2^48 tokens"),
            std::string::npos);
}

TEST(KvCache, RoundsAsAlwaysWhateverTheCallersMode) {
  for (const ElementType type : {ElementType::int8, ElementType::int4, ElementType::float8_e4m3,
                                 ElementType::float16, ElementType::bfloat16}) {
    std::vector<std::byte> saved[2];
    for (const int mode : {FE_TONEAREST, FE_UPWARD}) {
      KvCacheConfig config = small(8);
      config.type = type;
      KvCache cache(config);
      std::vector<float> k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
      for (float& x : k) x /= 7.0f;
      for (float& x : v) x /= 3.0f;
      std::fesetround(mode);
      cache.append(ConstView(k.data(), {2, 3, 3, 4}), ConstView(v.data(), {2, 3, 3, 2}));
      EXPECT_EQ(std::fegetround(), mode);
      std::fesetround(FE_TONEAREST);
      cache.save(saved[mode == FE_UPWARD]);
    }
    EXPECT_EQ(saved[0], saved[1]) << element_name(type);
  }
}

TEST(KvCache, LengthsAndConfigOutliveALoad) {
  KvCacheConfig config = small(8);
  config.type = ElementType::int8;
  config.growing = true;
  const std::vector<float> scales(12, 0.5f);
  config.key_scales = ConstView(scales.data(), {3, 4});
  KvCache full(config), cache(config);
  const auto k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
  full.append(ConstView(k.data(), {2, 3, 3, 4}), ConstView(v.data(), {2, 3, 3, 2}));
  const ConstView lengths = cache.lengths(), key_scales = cache.config().key_scales;
  std::vector<std::byte> bytes;
  full.save(bytes);
  std::span<const std::byte> rest = bytes;
  std::string wrong;
  ASSERT_TRUE(cache.load(rest, wrong)) << wrong;
  EXPECT_EQ(cache.lengths().data, lengths.data);
  EXPECT_EQ(static_cast<const std::int64_t*>(lengths.data)[1], 3);
  EXPECT_EQ(cache.config().key_scales.data, key_scales.data);
  EXPECT_EQ(static_cast<const float*>(key_scales.data)[0], 0.5f);
}

TEST(KvCache, TruncatesAndClears) {
  KvCache cache(small(8));
  const auto k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
  cache.append(ConstView(k.data(), {2, 3, 3, 4}), ConstView(v.data(), {2, 3, 3, 2}));
  cache.truncate(0, 1);
  EXPECT_EQ(cache.length(0), 1);
  EXPECT_EQ(cache.length(1), 3);
  EXPECT_THROW(cache.truncate(0, 2), polyhead::InvalidArgument);
  EXPECT_THROW(cache.truncate(2, 0), polyhead::InvalidArgument);
  cache.clear();
  EXPECT_EQ(cache.max_length(), 0);
  EXPECT_EQ(cache.capacity(), 8);
}

TEST(KvCache, RefusesWhatDoesNotFit) {
  KvCacheConfig config = small(8);
  config.type = ElementType::int32;
  EXPECT_THROW(KvCache{config}, polyhead::InvalidArgument);
  config = small(-1);
  EXPECT_THROW(KvCache{config}, polyhead::InvalidArgument);
  config = small(8);
  config.batch = std::int64_t{1} << 62;
  EXPECT_THROW(KvCache{config}, polyhead::InvalidArgument);
  config = small(8);
  config.type = ElementType::int8;
  for (const float scale : {0.0f, -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::vector<float> scales(12, scale);
    config.key_scales = ConstView(scales.data(), {3, 4});
    EXPECT_THROW(KvCache{config}, polyhead::InvalidArgument) << scale;
  }
  config = small(std::int64_t{1} << 61);
  EXPECT_THROW(KvCache{config}, polyhead::InvalidArgument);
  KvCache cache(small(8));
  const auto k = numbered(2 * 3 * 12, 1), v = numbered(2 * 3 * 6, 1);
  EXPECT_THROW(cache.append(ConstView(k.data(), {2, 3, 3, 4}), ConstView(v.data(), {2, 2, 3, 2})),
               polyhead::InvalidArgument);
  EXPECT_THROW(cache.append(ConstView(k.data(), {1, 3, 3, 4}), ConstView(v.data(), {1, 3, 3, 2})),
               polyhead::InvalidArgument);
  EXPECT_EQ(cache.max_length(), 0);
}

// Each infinity keeps its sign, and takes the finite values of its block along, each with its own.
TEST(KvCache, InfinitiesOfAScaleByTokenKeepTheirSigns) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const ElementType type : {ElementType::int8, ElementType::int4}) {
    for (const float broken : {kInfinite, -kInfinite}) {
      KvCacheConfig config;
      config.head_dim = 40;
      config.type = type;
      config.capacity = 1;
      KvCache cache(config);
      const std::vector<float> k(40, 0.0f), q(40, 1.0f);
      std::vector<float> v(40, 2.0f), out(40);
      v[3] = broken;
      v[20] = -broken;
      v[21] = -3.0f;
      cache.append(ConstView(k.data(), {1, 1, 1, 40}), ConstView(v.data(), {1, 1, 1, 40}));
      polyhead::AttentionArguments call;
      call.kv = cache.view();
      call.q = ConstView(q.data(), {1, 1, 1, 40});
      call.out = polyhead::View(out.data(), {1, 1, 1, 40});
      for (const polyhead::Isa isa : polyhead::available_isas()) {
        std::fill(out.begin(), out.end(), std::nanf(""));
        polyhead::attention(call, {.isa = isa});
        EXPECT_EQ(out[3], broken) << polyhead::element_name(type) << polyhead::isa_name(isa);
        EXPECT_EQ(out[20], -broken) << polyhead::element_name(type) << polyhead::isa_name(isa);
        EXPECT_EQ(out[0], kInfinite);
        EXPECT_EQ(out[21], -kInfinite);
        EXPECT_EQ(out[32], 2.0f) << "another block";
      }
    }
  }
}

// No code under a scale that was fixed before is a NaN or an infinity.
TEST(KvCache, UnderAScaleByChannelNaNsAreZeroAndInfinitiesClamped) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::vector<float> scales = {1.0f, 1.0f, -1.0f, -1.0f};
  const std::vector<float> k = {std::nanf(""), kInfinite, kInfinite, -kInfinite};
  const std::vector<std::int8_t> expected = {0, 127, -127, 127};
  KvCacheConfig config;
  config.head_dim = 4;
  config.type = ElementType::int8;
  config.capacity = 1;
  config.key_scales = ConstView(scales.data(), {1, 4});
  KvCache cache(config);
  const ConstView row(k.data(), {1, 1, 1, 4});
  cache.append(row, row);
  const auto* codes = static_cast<const std::int8_t*>(cache.view().k.data);
  EXPECT_EQ(std::vector(codes, codes + 4), expected);
  // So none is calibrated on.
  const std::vector<float> key = {0, 1, 2, 3, 4, 5, kInfinite, 7};
  EXPECT_EQ(polyhead::test::refusal_of([&] {
              polyhead::key_scales_by_channel(ConstView(key.data(), {1, 1, 2, 4}), config.type);
            }),
            "key_scales_by_channel: k has inf in head 1, dim 2, expected finite numbers");
  EXPECT_NE(polyhead::test::refusal_of([&] {
              polyhead::key_scales_by_channel(row, config.type);
            }).find("k has nan in head 0, dim 0"),
            std::string::npos);
}

TEST(KvCache, RowsWithoutDimsAreReadInEveryType) {
  for (const ElementType type :
       {ElementType::float32, ElementType::int8, ElementType::int4, ElementType::float8_e4m3}) {
    KvCacheConfig config;
    config.head_dim = 0;
    config.type = type;
    config.capacity = 4;
    KvCache cache(config);
    float none[1] = {};
    const ConstView rows(none, {1, 2, 1, 0});
    cache.append(rows, rows);
    polyhead::AttentionArguments call;
    call.kv = cache.view();
    call.q = ConstView(none, {1, 1, 1, 0});
    call.out = polyhead::View(none, {1, 1, 1, 0});
    EXPECT_NO_THROW(polyhead::attention(call)) << polyhead::element_name(type);
  }
}

TEST(KvCache, RefusesByName) {
  KvCache cache(small(8));
  EXPECT_EQ(polyhead::test::refusal_of([&] { (void)cache.length(-1); }),
            "KvCache::length: sequence (-1) is not within 0 .. 1");
  EXPECT_EQ(polyhead::test::refusal_of([&] { cache.truncate(2, 0); }),
            "KvCache::truncate: sequence (2) is not within 0 .. 1");
  const auto k = numbered(2 * 12, 1), v = numbered(2 * 6, 1);
  const std::int64_t counts[3] = {};
  EXPECT_EQ(polyhead::test::refusal_of([&] {
              cache.append(ConstView(k.data(), {2, 1, 3, 4}), ConstView(v.data(), {2, 1, 3, 2}),
                           ConstView(counts, {3}));
            }),
            "KvCache::append: counts are [3], expected [2]: batch");
  KvCacheConfig config = small(8);
  config.type = ElementType::int8;
  config.key_scales = ConstView(k.data(), {2, 4});
  EXPECT_EQ(polyhead::test::refusal_of([&] { KvCache{config}; }),
            "KvCache: key_scales are float32 [2, 4], expected float32 [3, 4]: kv_heads, head_dim");
  config.key_scales = ConstView(k.data(), {3, 4}, {4});  // a stride forgotten
  EXPECT_EQ(polyhead::test::refusal_of([&] { KvCache{config}; }),
            "KvCache: key_scales are float32 of too many axes, expected float32 [3, 4]: kv_heads, "
            "head_dim");
  config = small(8);
  config.capacity = std::int64_t{1} << 48;
  config.kv_heads = std::int64_t{1} << 20;
  EXPECT_EQ(
      polyhead::test::refusal_of([&] { KvCache{config}; }),
      "KvCache: the bytes of rows [2, 1048576, 281474976710656, 4] (batch or pages, kv_heads, "
      "tokens, dim) of float32 overflow 64 bits");
  config = small(8);
  config.head_dim = 769;
  EXPECT_EQ(polyhead::test::refusal_of([&] { KvCache{config}; }),
            "KvCache: head_dim (769) is not within 0 .. 768");
  config = small(8);
  config.batch = 0;
  const KvCache empty(config);
  EXPECT_EQ(polyhead::test::refusal_of([&] { (void)empty.length(0); }),
            "KvCache::length: sequence (0) is given, but there is none");
}

TEST(KvCache, RefusesCodesOfKeysThatValuesCannotShare) {
  KvCacheConfig config = small(8);
  config.values_in_keys = true;
  config.type = ElementType::int8;
  config.head_dim = 40;
  config.value_dim = 24;
  EXPECT_EQ(polyhead::test::refusal_of([&] { KvCache{config}; }),
            "KvCache: value_dim (24) is not a multiple of 32, expected that or head_dim (40) of "
            "values_in_keys as int8");
  config.value_dim = 32;
  const std::vector<float> scales(static_cast<std::size_t>(config.kv_heads * 40), 0.1f);
  config.key_scales = ConstView(scales.data(), {config.kv_heads, std::int64_t{40}});
  EXPECT_EQ(polyhead::test::refusal_of([&] { KvCache{config}; }),
            "KvCache: key_scales are given, expected scales by token with values_in_keys: values "
            "have none by channel");
}

}  // namespace
