// Where pages lie: a sequence's follow each other as long as there is room, and a head's rows on
// them are one piece of memory. Which of them spell what is looked for.
#include "cache/page_pool.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "polyhead/paged_cache.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

using cache::kNoPage;
using cache::PagePool;
using Pages = std::vector<std::int32_t>;

void grow(PagePool& pool, Pages& pages, int count = 1) {
  for (; count > 0; --count) pages.push_back(pool.take(pages.empty() ? kNoPage : pages.back()));
}

void let_go(PagePool& pool, const Pages& pages) {
  for (const std::int32_t page : pages) pool.let_go(page);
}

/// Pieces that pages are of, which follow each other.
int pieces_of(const Pages& pages) {
  int pieces = pages.empty() ? 0 : 1;
  for (std::size_t i = 1; i < pages.size(); ++i) pieces += pages[i] != pages[i - 1] + 1;
  return pieces;
}

TEST(PagePool, OneSequenceIsOnePiece) {
  for (const std::int64_t size : {1, 5, 63, 64, 65, 128, 200}) {
    PagePool pool(size, 8);
    Pages pages;
    grow(pool, pages, static_cast<int>(size));
    EXPECT_EQ(pages.front(), 0) << size;
    EXPECT_EQ(pieces_of(pages), 1) << size;
    EXPECT_EQ(pool.available(), 0);
  }
}

// Page by page in turns: each has an eighth of the pool to itself before another one is met.
TEST(PagePool, SequencesThatGrowTogetherKeepApart) {
  constexpr int kSequences = 8, kEach = 32;
  PagePool pool(kSequences * kEach, 8);
  std::vector<Pages> sequences(kSequences);
  for (int i = 0; i < kEach; ++i) {
    for (Pages& pages : sequences) grow(pool, pages);
  }
  EXPECT_EQ(pool.available(), 0);
  for (const Pages& pages : sequences) EXPECT_EQ(pieces_of(pages), 1);
}

TEST(PagePool, WhatWasGivenBackIsOnePieceAgain) {
  PagePool pool(100, 8);
  Pages first, second, third;
  grow(pool, first, 30);
  grow(pool, second, 30);
  grow(pool, third, 40);
  let_go(pool, second);
  Pages again;
  grow(pool, again, 30);
  EXPECT_EQ(pieces_of(third), 4);
  EXPECT_EQ(pieces_of(again), 2) << "begun in the middle: the one before may grow too";
  let_go(pool, first);
  let_go(pool, again);
  Pages longer;
  grow(pool, longer, 60);
  EXPECT_EQ(pieces_of(longer), 3) << "there is none of 60, and room is left where third may grow";
}

// One sequence ends where another one begins, and goes on behind it: not right behind it.
TEST(PagePool, WhoGoesOnElsewhereLeavesRoom) {
  PagePool pool(400, 8);
  Pages first, second;
  grow(pool, first);
  grow(pool, second);
  EXPECT_EQ(second.front(), 200);
  grow(pool, first, 300);
  EXPECT_EQ(first[199], 199);
  EXPECT_EQ(first[200], 201 + 8);
  EXPECT_EQ(pieces_of(first), 2);
  grow(pool, second, 8);
  EXPECT_EQ(pieces_of(second), 1);
}

// A thousand steps of who takes and who gives back, against a set of who holds what.
TEST(PagePool, NoPageIsGivenTwice) {
  constexpr std::int64_t kSize = 150;
  PagePool pool(kSize, 8);
  Random random(7);
  std::vector<Pages> sequences(6);
  std::set<std::int32_t> taken;
  for (int step = 0; step < 1000; ++step) {
    Pages& pages = sequences[static_cast<std::size_t>(random.below(6))];
    if (random.below(40) == 0) {
      let_go(pool, pages);
      for (const std::int32_t page : pages) taken.erase(page);
      pages.clear();
    } else if (pool.available() > 0) {
      grow(pool, pages);
      EXPECT_TRUE(pages.back() >= 0 && pages.back() < kSize);
      EXPECT_TRUE(taken.insert(pages.back()).second) << pages.back();
    }
    ASSERT_EQ(pool.available(), kSize - static_cast<std::int64_t>(taken.size()));
  }
}

/// Grows a sequence by a page that is remembered, as no other one is.
void grow_remembered(PagePool& pool, Pages& pages) {
  static std::int32_t token = 0;
  const std::vector<std::int32_t> spelled(8, ++token);
  const cache::PageStamp parent = pages.empty() ? cache::PageStamp{} : pool.stamp(pages.back());
  grow(pool, pages);
  pool.remember(pages.back(), parent, 0, spelled);
}

void let_go_last_first(PagePool& pool, const Pages& pages) {
  for (std::size_t i = pages.size(); i-- > 0;) pool.let_go(pages[i]);
}

/// All pages of a pool, remembered and given back in no order: the least recently used one first.
Pages all_idle(PagePool& pool) {
  Pages idle;
  while (pool.available() > 0) {
    Pages single;
    grow_remembered(pool, single);
    idle.push_back(single[0]);
  }
  Random random(5);
  for (std::size_t i = idle.size(); i > 1; --i)
    std::swap(idle[i - 1], idle[static_cast<std::size_t>(random.below(static_cast<long>(i)))]);
  let_go(pool, idle);
  return idle;
}

// Where every page is remembered, the oldest ones lie anywhere.
TEST(PagePool, AFullPoolKeepsSequencesInPieces) {
  constexpr int kSequences = 16, kLongest = 120;
  PagePool pool(2048, 8);
  Random random(3);
  std::vector<Pages> sequences(kSequences);
  std::vector<int> lengths(kSequences, 0);
  std::int64_t pages = 0, pieces = 0;
  for (int step = 0; step < 4000; ++step) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Pages& held = sequences[i];
      if (std::ssize(held) == lengths[i]) {
        if (step > 2000) pages += std::ssize(held), pieces += pieces_of(held);
        let_go_last_first(pool, held);
        held.clear();
        lengths[i] = static_cast<int>(4 + random.below(kLongest - 4));
        while (std::ssize(held) < lengths[i] / 2) grow_remembered(pool, held);
      } else {
        grow_remembered(pool, held);
      }
    }
  }
  EXPECT_GT(pages, 12 * pieces);
}

TEST(PagePool, WhatWasUsedLatelyIsNotForgotten) {
  constexpr std::int64_t kSize = 640;
  PagePool pool(kSize, 8);
  const Pages idle = all_idle(pool);
  std::set<std::int32_t> newer;
  for (std::size_t i = kSize * 3 / 4; i < kSize; ++i) newer.insert(idle[i]);
  std::vector<Pages> sequences(10);
  for (int i = 0; i < kSize / 2; ++i) {
    Pages& pages = sequences[static_cast<std::size_t>(i % 10)];
    grow(pool, pages);
    EXPECT_EQ(newer.count(pages.back()), 0u) << i;
  }
}

TEST(PagePool, ASmallPoolForgetsTheLeastRecentlyUsedPage) {
  constexpr std::int64_t kSize = 100;
  PagePool pool(kSize, 8);
  const Pages idle = all_idle(pool);
  Pages pages;
  grow(pool, pages, kSize);
  EXPECT_EQ(pages, idle);
}

// Two first pages with one hash under salt 0. Found by trying seventh tokens until the hashes of
// two had the same upper half, after some 96,000; an eighth makes the lower one the same.
const std::vector<std::int32_t> kPage = {5, 5, 5, 5, 5, 5, 9118, 9};
const std::vector<std::int32_t> kSameHash = {5, 5, 5, 5, 5, 5, 95741, -1914034529};

TEST(PagePool, PagesOfOneHashAreToldApart) {
  PagePool pool(4, 8);
  ASSERT_EQ(pool.hash({}, 0, kPage), pool.hash({}, 0, kSameHash)) << "two others are needed";
  const std::int32_t page = pool.take();
  pool.remember(page, {}, 0, kPage);
  EXPECT_EQ(pool.find({}, 0, kPage), page);
  EXPECT_EQ(pool.find({}, 0, kSameHash), kNoPage);
  // What comes after them has one hash too, and the same tokens.
  const std::int32_t other = pool.take(), behind = pool.take();
  pool.remember(other, {}, 0, kSameHash);
  pool.remember(behind, pool.stamp(page), 0, kPage);
  EXPECT_EQ(pool.find({}, 0, kSameHash), other);
  EXPECT_EQ(pool.find(pool.stamp(page), 0, kPage), behind);
  EXPECT_EQ(pool.find(pool.stamp(other), 0, kPage), kNoPage);
}

// First pages of other salts have other hashes; those behind them have their parents' alone.
TEST(PagePool, SaltsAreToldApartBehindOnePage) {
  PagePool pool(2, 8);
  const std::int32_t page = pool.take(), behind = pool.take();
  pool.remember(page, {}, 0, kPage);
  pool.remember(behind, pool.stamp(page), 0, kPage);
  EXPECT_NE(pool.hash({}, 1, kPage), pool.hash({}, 0, kPage));
  EXPECT_EQ(pool.hash(pool.stamp(page), 1, kPage), pool.hash(pool.stamp(page), 0, kPage));
  EXPECT_EQ(pool.find(pool.stamp(page), 0, kPage), behind);
  EXPECT_EQ(pool.find(pool.stamp(page), 1, kPage), kNoPage);
  EXPECT_EQ(pool.find({}, 1, kPage), kNoPage);
}

TEST(PagePool, APromptThatHasAnothersHashAdoptsNothing) {
  PagedCache cache({.pages = 4, .page_tokens = 8, .head_dim = 4});
  const std::vector<float> rows(8 * 4, 1.0f);
  const ConstView view(rows.data(), {8, 1, 4});
  ASSERT_EQ(cache.append(cache.create(), view, view, kPage), PagedCache::Status::ok);
  const auto adopted = [&](std::vector<std::int32_t> prompt) {
    prompt.push_back(1);  // one has to be computed
    return cache.adopt_prefix(cache.create(), prompt);
  };
  EXPECT_EQ(adopted(kSameHash), 0);
  EXPECT_EQ(adopted(kPage), 8);
}

TEST(PagePool, AHeadsRowsOnPagesThatFollowAreOnePiece) {
  for (const ElementType type : {f32, bf16, ElementType::int8, ElementType::int4}) {
    const PagedCache cache({.pages = 6,
                            .page_tokens = 16,
                            .kv_heads = 3,
                            .head_dim = 40,
                            .value_dim = 24,
                            .type = type});
    const KvView view = cache.view(0, {});
    for (const ConstView& rows : {view.k, view.v}) {
      const auto& strides = rows.layout.strides;
      EXPECT_EQ(strides[0], 16 * strides[1]) << element_name(type);
      EXPECT_EQ(strides[2], 6 * strides[0]) << element_name(type);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
