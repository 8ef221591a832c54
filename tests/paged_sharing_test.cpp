// Who sees which rows of a paged cache: rows that come in any order, pages that are copied before
// they are written, equal pages, and calls that change nothing because they fail.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "polyhead/paged_cache.h"
#include "support/failing_allocation.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

using Status = PagedCache::Status;

constexpr std::int64_t kDim = 8, kPage = 8;  // tokens

PagedCache cache_of(std::int64_t pages, std::int64_t layers = 1, bool values_in_keys = false) {
  PagedCacheConfig c;
  c.pages = pages;
  c.page_tokens = kPage;
  c.layers = layers;
  c.head_dim = kDim;
  c.values_in_keys = values_in_keys;
  return PagedCache(c);
}

std::vector<std::int32_t> counting(std::int64_t count, std::int32_t from = 0) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(from + static_cast<std::int32_t>(i));
  return tokens;
}

/// Rows for tokens [first, first + count), all elements of them `value`.
Status write(PagedCache& cache, std::int64_t sequence, std::int64_t first, std::int64_t count,
             float value, std::int64_t layer = 0) {
  const std::vector<float> rows(static_cast<std::size_t>(count * kDim), value);
  const ConstView view(rows.data(), {count, std::int64_t{1}, kDim});
  return cache.write(sequence, layer, first, view,
                     cache.config().values_in_keys ? ConstView() : view);
}

Status put(PagedCache& cache, std::int64_t sequence, std::span<const std::int32_t> tokens,
           float value = 1) {
  const std::int64_t first = cache.length(sequence);
  const Status status = cache.extend(sequence, std::ssize(tokens), tokens);
  if (status != Status::ok) return status;
  for (std::int64_t layer = 0; layer < cache.config().layers; ++layer)
    EXPECT_EQ(write(cache, sequence, first, std::ssize(tokens), value, layer), Status::ok);
  return status;
}

/// A sequence of `tokens` that was released: its full pages are remembered.
void remember(PagedCache& cache, std::span<const std::int32_t> tokens) {
  const std::int64_t sequence = cache.create();
  ASSERT_EQ(put(cache, sequence, tokens), Status::ok);
  cache.release(sequence);
}

/// How many of `tokens` a new sequence finds.
std::int64_t found(PagedCache& cache, std::vector<std::int32_t> tokens) {
  tokens.push_back(-1);  // one has to be computed
  const std::int64_t probe = cache.create();
  const std::int64_t adopted = cache.adopt_prefix(probe, tokens);
  cache.release(probe);
  return adopted;
}

std::int64_t page_of(const PagedCache& cache, std::int64_t sequence, std::int64_t token) {
  PagedBatch batch;
  cache.batch({&sequence, 1}, batch);
  return batch.table[static_cast<std::size_t>(token / kPage)];
}

/// The first element of each token's key in one layer.
std::vector<float> keys(const PagedCache& cache, std::int64_t sequence, std::int64_t layer = 0) {
  PagedBatch batch;
  cache.batch({&sequence, 1}, batch);
  const ConstView k = cache.view(layer, batch).k;
  std::vector<float> values;
  for (std::int64_t t = 0; t < batch.lengths[0]; ++t) {
    const std::int64_t page = batch.table[static_cast<std::size_t>(t / kPage)];
    values.push_back(static_cast<const float*>(
        k.data)[page * k.layout.strides[0] + t % kPage * k.layout.strides[1]]);
  }
  return values;
}

std::vector<float> repeated(std::int64_t count, float value) {
  return std::vector<float>(static_cast<std::size_t>(count), value);
}

/// The tokens that a save of the sequence holds, as a cache of the same kind loads them.
std::int64_t saved_tokens(const PagedCache& cache, std::int64_t sequence) {
  std::vector<std::byte> bytes;
  cache.save(sequence, bytes);
  std::span<const std::byte> rest = bytes;
  PagedCache other = cache_of(8, cache.config().layers);
  return other.length(other.load(rest).sequence);
}

TEST(PagedSharing, SeveralSequencesAreExtendedOrNone) {
  PagedCache cache = cache_of(6);
  const auto prompt = counting(32);
  remember(cache, prompt);
  const std::int64_t a = cache.create(), b = cache.create();
  const PagedCache::Extension parts[] = {{a, 40}, {b, 16}};
  EXPECT_EQ(cache.extend(parts), Status::exhausted);
  EXPECT_EQ(cache.length(a), 0);
  EXPECT_EQ(found(cache, prompt), 32);
  EXPECT_EQ(refusal_of([&] {
              (void)cache.extend({{parts[0], parts[0]}});
            }),
            "PagedCache::extend: sequence 1 is given twice");
  EXPECT_EQ(refusal_of([&] {
              (void)cache.extend({{parts[0], {b, -1}}});
            }),
            "PagedCache::extend: count (-1) is negative");
  EXPECT_EQ(cache.length(a), 0);
  const PagedCache::Extension fits[] = {{a, 32, prompt}, {b, 16}};
  EXPECT_EQ(cache.extend(fits), Status::ok);
  EXPECT_EQ(cache.length(a), 32);
  EXPECT_EQ(cache.free_pages(), 0);
}

// Of three that hold a page, the last to go on has it alone: two copies, not three.
TEST(PagedSharing, SeveralForksAreExtendedWithNoPageToSpare) {
  PagedCache cache = cache_of(3);
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(4), 3), Status::ok);
  const std::int64_t b = cache.fork(a), c = cache.fork(a);
  const PagedCache::Extension all[] = {{a, 4}, {b, 4}, {c, 4}};
  EXPECT_EQ(cache.extend(all), Status::ok);
  for (const std::int64_t sequence : {a, b, c}) {
    EXPECT_EQ(cache.holders(page_of(cache, sequence, 0)), 1);
    const std::vector<float> rows = keys(cache, sequence);
    EXPECT_EQ(std::vector(rows.begin(), rows.begin() + 4), repeated(4, 3));
  }
}

// The first of two parts could go on with an idle page that equals its own, while a fork keeps its
// own: the second was told that it can take the idle one.
TEST(PagedSharing, PagesThatOnePartIsPromisedAreNotHeldByAnother) {
  PagedCache cache = cache_of(5);
  const std::int64_t first = cache.create(), a = cache.create();
  ASSERT_EQ(put(cache, first, counting(8)), Status::ok);
  ASSERT_EQ(put(cache, a, counting(8)), Status::ok);
  cache.release(first);
  const std::int64_t b = cache.fork(a), other = cache.create();
  ASSERT_EQ(cache.free_pages(), 4);
  const PagedCache::Extension parts[] = {{a, 8}, {other, 24}};
  EXPECT_EQ(cache.extend(parts), Status::ok);
  EXPECT_EQ(cache.free_pages(), 0);
  EXPECT_EQ(page_of(cache, a, 0), page_of(cache, b, 0));
  std::int64_t held = 0;
  for (std::int64_t page = 0; page < 5; ++page) held += cache.holders(page);
  EXPECT_EQ(held, 6) << "each by one, and one by the fork too";
  EXPECT_EQ(keys(cache, b), repeated(8, 1));
}

TEST(PagedSharing, RowsComeInAnyOrder) {
  PagedCache cache = cache_of(8);
  const std::int64_t a = cache.create();
  ASSERT_EQ(cache.extend(a, 24, counting(24)), Status::ok);
  ASSERT_EQ(write(cache, a, 20, 4, 1), Status::ok);
  ASSERT_EQ(write(cache, a, 8, 9, 1), Status::ok);
  EXPECT_EQ(found(cache, counting(24)), 0);
  ASSERT_EQ(write(cache, a, 0, 8, 1), Status::ok);
  EXPECT_EQ(saved_tokens(cache, a), 17);
  EXPECT_EQ(found(cache, counting(24)), 16);
  ASSERT_EQ(write(cache, a, 17, 3, 1), Status::ok);
  EXPECT_EQ(saved_tokens(cache, a), 24);
  EXPECT_EQ(found(cache, counting(24)), 24);
}

TEST(PagedSharing, ATokenIsWrittenWhenAllItsLayersAre) {
  PagedCache cache = cache_of(8, 3);
  const std::int64_t a = cache.create();
  ASSERT_EQ(cache.extend(a, 16, counting(16)), Status::ok);
  ASSERT_EQ(write(cache, a, 0, 16, 1, 2), Status::ok);
  ASSERT_EQ(write(cache, a, 0, 16, 1, 0), Status::ok);
  ASSERT_EQ(write(cache, a, 0, 9, 1, 1), Status::ok);
  EXPECT_EQ(found(cache, counting(16)), 8);
  EXPECT_EQ(saved_tokens(cache, a), 9);
  // What is cut off has to be written again.
  cache.truncate(a, 5);
  ASSERT_EQ(cache.extend(a, 11, counting(11, 50)), Status::ok);
  EXPECT_EQ(saved_tokens(cache, a), 5);
}

TEST(PagedSharing, APrefixComputedTwiceOutlivesOneOfThem) {
  PagedCache cache = cache_of(6);
  const std::int64_t a = cache.create(), b = cache.create();
  for (const std::int64_t sequence : {a, b})
    ASSERT_EQ(put(cache, sequence, counting(8)), Status::ok);
  EXPECT_EQ(cache.free_pages(), 4);
  ASSERT_EQ(put(cache, b, counting(8, 8)), Status::ok);
  EXPECT_EQ(cache.free_pages(), 4) << "the first page is one page now";
  cache.release(a);
  const std::int64_t needy = cache.create();
  ASSERT_EQ(cache.extend(needy, 32), Status::ok);  // all that nobody holds
  cache.release(needy);
  ASSERT_EQ(put(cache, b, counting(8, 16)), Status::ok);
  cache.release(b);
  EXPECT_EQ(cache.remembered_pages(), 3);
  EXPECT_EQ(found(cache, counting(24)), 24);
}

// Two computed the same pages in one go; one's are evicted before the other is changed.
TEST(PagedSharing, PagesAreRememberedAgainAfterTheirEqualsAreGone) {
  PagedCache cache = cache_of(6);
  const std::int64_t a = cache.create(), b = cache.create();
  ASSERT_EQ(put(cache, a, counting(8)), Status::ok);
  ASSERT_EQ(put(cache, b, counting(16)), Status::ok);
  const std::int64_t c = cache.fork(b);
  ASSERT_EQ(put(cache, c, counting(1, 16)), Status::ok);  // goes on with a's first page
  EXPECT_EQ(page_of(cache, c, 0), page_of(cache, a, 0));
  EXPECT_EQ(page_of(cache, c, 8), page_of(cache, b, 8));
  cache.release(a);
  cache.release(c);
  const std::int64_t needy = cache.create();
  ASSERT_EQ(cache.extend(needy, 32), Status::ok);
  cache.release(needy);
  cache.release(b);
  EXPECT_EQ(found(cache, counting(16)), 16);
  EXPECT_EQ(cache.remembered_pages(), 2);
  // The index has each of them once: looking for others ends, and they can all be evicted.
  for (std::int32_t from = 100; from <= 4000; from += 100)
    EXPECT_EQ(found(cache, counting(8, from)), 0);
  for (std::int32_t from = 100; from <= 1000; from += 100) remember(cache, counting(48, from));
  EXPECT_EQ(found(cache, counting(48, 1000)), 48);
  EXPECT_EQ(found(cache, counting(16)), 0);
}

TEST(PagedSharing, EqualTokensWithOtherRowsKeepThem) {
  for (const bool values_in_keys : {false, true}) {
    PagedCache cache = cache_of(6, 1, values_in_keys);
    const std::int64_t a = cache.create(), b = cache.create(), c = cache.create();
    ASSERT_EQ(put(cache, a, counting(8), 1), Status::ok);
    ASSERT_EQ(put(cache, b, counting(8), 2), Status::ok);
    ASSERT_EQ(put(cache, b, counting(8, 8), 2), Status::ok);
    EXPECT_EQ(keys(cache, b), repeated(16, 2));
    EXPECT_EQ(found(cache, counting(16)), 8);
    ASSERT_EQ(put(cache, c, counting(8), 1), Status::ok);
    ASSERT_EQ(put(cache, c, counting(1, 8), 1), Status::ok);
    EXPECT_EQ(page_of(cache, c, 0), page_of(cache, a, 0)) << "with the same rows they share one";
  }
}

/// Eight tokens, all elements of their keys one number and of their values another.
void append(PagedCache& cache, std::int64_t sequence, std::int32_t first, float key, float value) {
  const std::vector<float> k(kPage * kDim, key), v(kPage * kDim, value);
  ASSERT_EQ(cache.append(sequence, ConstView(k.data(), {kPage, 1, kDim}),
                         ConstView(v.data(), {kPage, 1, kDim}), counting(kPage, first)),
            Status::ok);
}

// Rows of one number have the same codes as int8, whatever it is: only their scales differ.
TEST(PagedSharing, PagesAreOneOnlyIfKeysValuesAndScalesAre) {
  for (const ElementType type : {ElementType::float32, ElementType::int8}) {
    for (const auto& [key, value] : {std::pair{1.0f, 1.0f}, {2.0f, 1.0f}, {1.0f, 2.0f}}) {
      PagedCache cache({.pages = 6, .page_tokens = kPage, .head_dim = kDim, .type = type});
      const std::int64_t a = cache.create(), b = cache.create();
      append(cache, a, 0, 1, 1);
      append(cache, b, 0, key, value);
      append(cache, b, 8, key, value);  // goes on with a's page if it has the same rows
      EXPECT_EQ(page_of(cache, b, 0) == page_of(cache, a, 0), key == 1 && value == 1)
          << element_name(type) << ", " << key << ", " << value;
    }
  }
}

TEST(PagedSharing, RoomMadeBeforeAForkIsFilledByBoth) {
  PagedCache cache = cache_of(4, 2);
  const std::int64_t a = cache.create();
  ASSERT_EQ(cache.extend(a, 12, counting(12)), Status::ok);
  ASSERT_EQ(write(cache, a, 0, 4, 1, 0), Status::ok);
  const std::int64_t b = cache.fork(a);
  ASSERT_EQ(write(cache, b, 4, 8, 3, 0), Status::ok);
  ASSERT_EQ(write(cache, b, 0, 12, 3, 1), Status::ok);
  ASSERT_EQ(write(cache, a, 4, 8, 2, 0), Status::ok);
  EXPECT_EQ(cache.free_pages(), 0);
  std::vector<float> expected = repeated(4, 1);
  expected.resize(12, 2);
  EXPECT_EQ(keys(cache, a), expected);
  std::ranges::fill(expected.begin() + 4, expected.end(), 3.0f);
  EXPECT_EQ(keys(cache, b), expected);
  EXPECT_EQ(keys(cache, b, 1), repeated(12, 3));
}

TEST(PagedSharing, APoolWithoutPagesToCopyToWritesNothing) {
  PagedCache cache = cache_of(3);
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(16), 1), Status::ok);
  const std::int64_t b = cache.fork(a);
  EXPECT_EQ(write(cache, b, 0, 16, 2), Status::exhausted);
  EXPECT_EQ(keys(cache, b), repeated(16, 1));
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_EQ(write(cache, b, 8, 8, 2), Status::ok);
  EXPECT_EQ(keys(cache, a), repeated(16, 1));
  cache.release(a);
  EXPECT_EQ(write(cache, b, 0, 8, 2), Status::ok);
  EXPECT_EQ(keys(cache, b), repeated(16, 2));
}

TEST(PagedSharing, RowsWrittenAnewAreNotForOthers) {
  PagedCache cache = cache_of(8);
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(16), 1), Status::ok);
  cache.truncate(a, 12);
  ASSERT_EQ(write(cache, a, 8, 4, 2), Status::ok);
  EXPECT_EQ(found(cache, counting(16)), 8) << "a page that was written over";
  ASSERT_EQ(put(cache, a, counting(4, 12), 2), Status::ok);
  EXPECT_EQ(found(cache, counting(16)), 8) << "rows that are not the tokens'";
  // Where others hold the pages, they and later ones keep the old rows.
  remember(cache, counting(24, 100));
  const std::int64_t b = cache.create();
  ASSERT_EQ(cache.adopt_prefix(b, counting(25, 100)), 24);
  const std::int64_t c = cache.fork(b);
  ASSERT_EQ(write(cache, c, 0, 1, 5), Status::ok);
  EXPECT_EQ(keys(cache, b), repeated(24, 1));
  EXPECT_EQ(found(cache, counting(24, 100)), 24);
  cache.release(b);
  EXPECT_EQ(found(cache, counting(24, 100)), 24);
  cache.release(a);
  cache.release(c);
  EXPECT_EQ(cache.remembered_pages(), 4);
  // Where nobody else does, what lies behind the page is not to be had either.
  const std::int64_t d = cache.create();
  ASSERT_EQ(put(cache, d, counting(24, 200), 1), Status::ok);
  ASSERT_EQ(write(cache, d, 0, 1, 5), Status::ok);
  EXPECT_EQ(found(cache, counting(24, 200)), 0);
  cache.release(d);
  EXPECT_EQ(cache.remembered_pages(), 4);
}

TEST(PagedSharing, WhatSpellsOnFromAPageThatIsWrittenIsFree) {
  PagedCache cache = cache_of(8);
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(16)), Status::ok);
  for (const std::int32_t from : {100, 200}) {  // two that go on from there, each by two pages
    const std::int64_t c = cache.create();
    std::vector<std::int32_t> tokens = counting(16);
    for (const std::int32_t token : counting(17, from)) tokens.push_back(token);
    ASSERT_EQ(cache.adopt_prefix(c, tokens), 16);
    ASSERT_EQ(put(cache, c, std::span(tokens).subspan(16)), Status::ok);
    cache.release(c);
  }
  cache.truncate(a, 8);
  EXPECT_EQ(cache.remembered_pages(), 5);
  EXPECT_EQ(cache.free_pages(), 7);
  cache.truncate(a, 4);
  ASSERT_EQ(cache.extend(a, 1), Status::ok);  // writes on on its only page, the first of all
  EXPECT_EQ(cache.remembered_pages(), 0);
  EXPECT_EQ(cache.free_pages(), 7);
  EXPECT_EQ(found(cache, counting(16)), 0);
  const std::int64_t all = cache.create();
  EXPECT_EQ(cache.extend(all, 56), Status::ok);
}

// Who wrote a page anew holds the old ones behind it still; nobody finds them when the page that
// they spell on from is gone.
TEST(PagedSharing, WhatSpellsOnFromAnEvictedPageIsFreeWhenItIsReleased) {
  PagedCache cache = cache_of(4);
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(16), 1), Status::ok);
  const std::int64_t b = cache.fork(a);
  ASSERT_EQ(write(cache, b, 0, 1, 5), Status::ok);
  cache.release(a);
  EXPECT_EQ(cache.remembered_pages(), 1);
  const std::int64_t needy = cache.create();
  ASSERT_EQ(cache.extend(needy, 16), Status::ok);
  cache.release(needy);
  cache.release(b);
  EXPECT_EQ(cache.remembered_pages(), 0);
  EXPECT_EQ(cache.free_pages(), 4);
}

// The page that is written over is copied, as another sequence holds it too. What follows it has
// the rows it had, after the page as that other one keeps it.
TEST(PagedSharing, WhatSpellsOnFromAPageThatIsCopiedIsFoundAsLongAsThatPageIs) {
  PagedCache cache = cache_of(5);
  const std::int64_t a = cache.create(), b = cache.create();
  ASSERT_EQ(put(cache, a, counting(24), 1), Status::ok);
  ASSERT_EQ(cache.adopt_prefix(b, counting(9)), 8);
  ASSERT_EQ(write(cache, a, 0, 1, 5), Status::ok);
  const std::int64_t c = cache.create();
  ASSERT_EQ(cache.adopt_prefix(c, counting(25)), 24);
  EXPECT_EQ(keys(cache, c), repeated(24, 1));
  cache.release(c);
  ASSERT_EQ(write(cache, a, 16, 1, 5), Status::ok);
  EXPECT_EQ(found(cache, counting(24)), 16);
  ASSERT_EQ(write(cache, b, 0, 1, 5), Status::ok);
  EXPECT_EQ(found(cache, counting(24)), 0);
}

/// What a failed call may not change.
struct Seen {
  std::int64_t sequences, free, remembered, prefix;
  explicit Seen(PagedCache& cache)
      : sequences(cache.sequences()),
        free(cache.free_pages()),
        remembered(cache.remembered_pages()),
        prefix(found(cache, counting(16))) {}
  bool operator==(const Seen&) const = default;
};

TEST(PagedSharing, NothingIsLostWhereMemoryIsNotThere) {
  PagedCache cache = cache_of(8);
  remember(cache, counting(16));
  const std::int64_t a = cache.create();
  ASSERT_EQ(put(cache, a, counting(12, 50)), Status::ok);
  std::vector<std::byte> saved;
  cache.save(a, saved);
  const auto check_each = [&](const char* what, const auto& call) {
    const Seen before(cache);
    std::vector<std::int64_t> made;
    const int failures = failing_each_allocation([&] { call(made); },
                                                 [&] {
                                                   EXPECT_TRUE(Seen(cache) == before) << what;
                                                   EXPECT_EQ(cache.length(a), 12) << what;
                                                 });
    EXPECT_GT(failures, 0) << what;
    for (const std::int64_t sequence : made) cache.release(sequence);
    cache.truncate(a, 12);
  };
  const auto tokens = counting(17);
  const std::int64_t empty = cache.create();
  check_each("create", [&](auto& made) {
    made.reserve(1);
    made.push_back(cache.create());
  });
  check_each("fork", [&](auto& made) {
    made.reserve(1);
    made.push_back(cache.fork(a));
  });
  check_each("load", [&](auto& made) {
    made.reserve(1);
    std::span<const std::byte> rest = saved;
    made.push_back(cache.load(rest).sequence);
  });
  check_each("extend", [&](auto&) { EXPECT_EQ(cache.extend(a, 20), Status::ok); });
  const std::vector<float> rows(5 * kDim, 1.0f);
  const ConstView five(rows.data(), {std::int64_t{5}, std::int64_t{1}, kDim});
  check_each("append", [&](auto&) { EXPECT_EQ(cache.append(a, five, five), Status::ok); });
  check_each("adopt_prefix", [&](auto&) { EXPECT_EQ(cache.adopt_prefix(empty, tokens), 16); });
}

}  // namespace
}  // namespace polyhead::test
