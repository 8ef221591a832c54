// What a paged cache promises: which prefixes it shares and forgets, what a full pool leaves as it
// was, and what it refuses.
#include "polyhead/paged_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "support/refusal.h"

namespace polyhead::test {
namespace {

using Status = PagedCache::Status;

constexpr std::int64_t kHeads = 2, kDim = 3;

std::vector<float> ones(std::size_t n) { return std::vector<float>(n, 1.0f); }

/// Appends `tokens` to a sequence of a cache of one layer.
Status put(PagedCache& cache, std::int64_t id, const std::vector<std::int32_t>& tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::vector<float> rows = ones(tokens.size() * kHeads * kDim);
  const ConstView view(rows.data(), {n, kHeads, kDim});
  return cache.append(id, view, view, tokens);
}

PagedCacheConfig one_layer(std::int64_t pages) {
  PagedCacheConfig c;
  c.pages = pages;
  c.page_tokens = 8;
  c.kv_heads = kHeads;
  c.head_dim = kDim;
  return c;
}

std::vector<std::int32_t> counting(std::int32_t n) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(i);
  return tokens;
}

TEST(PagedCache, SharesAPrefixOfTheSameSaltUntilThePoolNeedsItsPages) {
  PagedCache cache(one_layer(6));
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(20)), Status::ok);
  const std::int64_t b = cache.create(), other = cache.create(1);
  EXPECT_EQ(cache.adopt_prefix(b, counting(30)), 16);
  EXPECT_EQ(cache.adopt_prefix(other, counting(30)), 0) << "another salt";
  EXPECT_EQ(cache.free_pages(), 3);
  std::vector<std::int32_t> differs = counting(30);
  differs[3] = 99;
  const std::int64_t c = cache.create();
  EXPECT_EQ(cache.adopt_prefix(c, differs), 0);
  cache.release(a);
  cache.release(b);
  EXPECT_EQ(cache.free_pages(), 6);
  EXPECT_EQ(cache.remembered_pages(), 2);
  // A prompt of just the remembered pages leaves its last token to be computed.
  EXPECT_EQ(cache.adopt_prefix(c, counting(16)), 8);
  EXPECT_EQ(put(cache, other, counting(40)), Status::ok);  // takes all but one page
  EXPECT_EQ(cache.remembered_pages(), 0);
  const std::int64_t d = cache.create();
  EXPECT_EQ(cache.adopt_prefix(d, counting(30)), 8);
  EXPECT_EQ(cache.free_pages(), 0);
}

TEST(PagedCache, TheLeastRecentlyUsedPrefixGoesFirst) {
  PagedCache cache(one_layer(4));
  std::vector<std::int32_t> first = counting(9), second = counting(9);
  second[0] = 7;
  for (const auto& prompt : {first, second}) {
    const std::int64_t id = cache.create();
    ASSERT_EQ(put(cache, id, prompt), Status::ok);
    cache.release(id);
  }
  std::int64_t id = cache.create();
  EXPECT_EQ(cache.adopt_prefix(id, first), 8);  // used again
  cache.release(id);
  id = cache.create();
  ASSERT_EQ(put(cache, id, counting(24)), Status::ok);  // two free pages and one of the others
  const std::int64_t probe = cache.create();
  EXPECT_EQ(cache.adopt_prefix(probe, second), 0);
  EXPECT_EQ(cache.adopt_prefix(probe, first), 8);
}

// The other way round the first page needed would take the whole prefix with it.
TEST(PagedCache, APrefixIsForgottenFromItsEnd) {
  PagedCache cache(one_layer(4));
  const std::int64_t id = cache.create();
  ASSERT_EQ(put(cache, id, counting(32)), Status::ok);
  cache.release(id);
  const auto found = [&] {
    const std::int64_t probe = cache.create();
    const std::int64_t adopted = cache.adopt_prefix(probe, counting(33));
    cache.release(probe);
    return adopted;
  };
  EXPECT_EQ(found(), 32);
  const std::int64_t other = cache.create();
  for (const std::int64_t left : {24, 16, 8, 0}) {
    ASSERT_EQ(cache.extend(other, 8), Status::ok);
    EXPECT_EQ(found(), left);
  }
}

TEST(PagedCache, ExhaustionLosesNothing) {
  PagedCache cache(one_layer(2));
  const std::int64_t a = cache.create(), b = cache.create();
  ASSERT_EQ(put(cache, a, counting(9)), Status::ok);
  EXPECT_EQ(put(cache, b, counting(1)), Status::exhausted);
  EXPECT_EQ(cache.length(b), 0);
  EXPECT_EQ(cache.length(a), 9);
  EXPECT_EQ(put(cache, a, counting(8)), Status::exhausted);
  EXPECT_EQ(put(cache, a, counting(7)), Status::ok);
  EXPECT_EQ(cache.extend(a, std::numeric_limits<std::int64_t>::max()), Status::exhausted);
  // A fork's copy on write needs a page too.
  cache.truncate(a, 12);
  const std::int64_t fork = cache.fork(a);
  EXPECT_EQ(put(cache, fork, counting(1)), Status::exhausted);
  cache.truncate(a, 8);
  EXPECT_EQ(put(cache, fork, counting(1)), Status::ok);
}

TEST(PagedCache, NoTokensCanBeAppendedWhereTheLastPageIsShared) {
  PagedCache cache(one_layer(4));
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(6)), Status::ok);
  const std::int64_t fork = cache.fork(a);
  const std::int64_t free = cache.free_pages();
  EXPECT_EQ(put(cache, fork, {}), Status::ok);
  EXPECT_EQ(cache.length(fork), 6);
  EXPECT_EQ(cache.free_pages(), free);  // no page was copied for it
}

TEST(PagedCache, RefusesByName) {
  PagedCache cache(one_layer(4));
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(12)), Status::ok);
  const std::int64_t b = cache.fork(a);
  const auto rows = ones(kHeads * kDim);
  const ConstView row(rows.data(), {std::int64_t{1}, kHeads, kDim});
  EXPECT_EQ(refusal_of([&] { (void)cache.write(a, 0, 12, row, row); }),
            "PagedCache::write: tokens 12 to 12 + 1 are not among the 12 of sequence 0");
  EXPECT_EQ(refusal_of([&] { (void)cache.write(a, 1, 3, row, row); }),
            "PagedCache::write: layer (1) is not within 0 .. 0");
  EXPECT_EQ(refusal_of([&] { (void)cache.holders(-1); }),
            "PagedCache::holders: page (-1) is not within 0 .. 3");
  PagedBatch none;
  EXPECT_EQ(refusal_of([&] { (void)cache.view(-1, none); }),
            "PagedCache::view: layer (-1) is not within 0 .. 0");
  EXPECT_EQ(refusal_of([&] { (void)cache.append(a, row, {}); }),
            "PagedCache::append: v is not given, expected [tokens, 2, 3]");
  EXPECT_EQ(refusal_of([&] { (void)cache.append(a, row, row, counting(2)); }),
            "PagedCache::append: tokens has 2 numbers, expected 1");
  EXPECT_EQ(refusal_of([&] { cache.truncate(a, 13); }),
            "PagedCache::truncate: length (13) is not within 0 .. 12, the length of sequence 0");
  EXPECT_EQ(refusal_of([&] { (void)cache.extend(a, -1); }),
            "PagedCache::extend: count (-1) is negative");
  EXPECT_EQ(refusal_of([&] { (void)cache.extend(a, 2, counting(3)); }),
            "PagedCache::extend: tokens has 3 numbers, expected 2");
  EXPECT_EQ(refusal_of([&] { cache.adopt_prefix(a, counting(3)); }),
            "PagedCache::adopt_prefix: sequence 0 holds 12 tokens, expected none");
  cache.release(b);
  EXPECT_EQ(refusal_of([&] { cache.release(b); }),
            "PagedCache::release: sequence 1 was released or never created");
  PagedBatch batch;
  const std::int64_t ids[] = {a, b};
  EXPECT_EQ(refusal_of([&] { cache.batch(ids, batch); }),
            "PagedCache::batch: sequence 1 was released or never created");
  cache.batch({ids, 1}, batch);
  for (const std::int64_t pages : {std::int64_t{3}, std::int64_t{-1}, std::int64_t{1} << 62}) {
    PagedBatch wrong = batch;
    wrong.pages_a_sequence = pages;
    wrong.lengths.resize(4);
    EXPECT_EQ(refusal_of([&] { (void)cache.view(0, wrong); }),
              "PagedCache::view: batch.table has 2 entries, expected 4 lengths times "
              "pages_a_sequence (" +
                  std::to_string(pages) + ")");
  }
  PagedCacheConfig bad = one_layer(1);
  bad.page_tokens = 24;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: page_tokens (24) is not a power of two from 8 to 256");
  bad = one_layer(-1);
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: pages (-1) is not within 0 .. 2147483647");
  bad = one_layer(1);
  bad.type = ElementType::int32;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: type is int32, expected float32, float16, bfloat16, int8, int4, "
            "float8_e4m3 or float8_e5m2");
  bad.values_in_keys = true;
  bad.type = ElementType::int8;
  bad.head_dim = 40;
  bad.value_dim = 41;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: value_dim (41) exceeds head_dim (40), expected at most that with "
            "values_in_keys");
  bad.value_dim = 24;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: value_dim (24) is not a multiple of 32, expected that or head_dim (40) of "
            "values_in_keys as int8");
  bad.value_dim = 32;
  const std::vector<float> scales(kHeads * 40, 0.5f);
  bad.key_scales = ConstView(scales.data(), {std::int64_t{1}, kHeads, std::int64_t{40}});
  EXPECT_EQ(
      refusal_of([&] { PagedCache{bad}; }),
      "PagedCache: key_scales are given, expected scales by token with values_in_keys: values "
      "have none by channel");
  PagedCacheConfig values_in_keys = one_layer(4);
  values_in_keys.values_in_keys = true;
  values_in_keys.value_dim = kDim - 1;
  PagedCache latents(values_in_keys);
  const std::int64_t c = latents.create();
  ASSERT_EQ(latents.extend(c, 1), Status::ok);
  EXPECT_EQ(refusal_of([&] { (void)latents.write(c, 0, 0, row, row); }),
            "PagedCache::write: v is given, but values are in the keys");
  EXPECT_EQ(refusal_of([&] { (void)cache.write(a, 0, 0, row, {}); }),
            "PagedCache::write: v is not given, expected [tokens, 2, 3]");
  bad = one_layer(1);
  bad.type = ElementType::float16;
  bad.key_scales = row;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: key_scales are given, but float16 has no scales");
  bad.type = ElementType::int8;
  bad.layers = 2;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: key_scales are float32 [1, 2, 3], expected float32 [2, 2, 3]: layers, "
            "kv_heads, head_dim");
  EXPECT_EQ(refusal_of([&] { (void)key_scales_by_channel(row, ElementType::int8); }),
            "key_scales_by_channel: k is float32 [1, 2, 3], expected float32, float16 or bfloat16 "
            "[batch, tokens, kv_heads, head_dim]");
}

}  // namespace
}  // namespace polyhead::test
