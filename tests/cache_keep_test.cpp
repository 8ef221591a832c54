// keep(): what is left of a draft lies as if it alone had been appended.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "polyhead/tree_mask.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

using Places = std::vector<std::int64_t>;
using Numbers = std::vector<std::int32_t>;
using Status = PagedCache::Status;

constexpr std::int64_t kHeads = 2, kDim = 40, kValueDim = 36, kLatent = 32, kTokens = 45;
constexpr std::int64_t kBatch = 2;
constexpr ElementType kTypes[] = {
    ElementType::float32, ElementType::float16,     ElementType::bfloat16,   ElementType::int8,
    ElementType::int4,    ElementType::float8_e4m3, ElementType::float8_e5m2};

/// What a cache may hold. Values in keys end where a block of codes does.
struct Kind {
  ElementType type;
  bool by_channel, values_in_keys;

  std::string name() const {
    return std::string(element_name(type)) + (by_channel ? " by channel" : "") +
           (values_in_keys ? ", values in keys" : "");
  }
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const ElementType type : kTypes) {
    all.push_back({type, false, false});
    all.push_back({type, false, true});
    if (type == ElementType::int8 || type == ElementType::int4) all.push_back({type, true, false});
  }
  return all;
}

/// Keys and values of kTokens tokens, and their rows one by one.
class Text {
 public:
  Text()
      : k_(f32, {1, kTokens, kHeads, kDim}),
        v_(f32, {1, kTokens, kHeads, kValueDim}),
        scales_(2 * kHeads * kDim) {
    Random random(11);
    for (Tensor* x : {&k_, &v_}) x->fill_normal(random);
    for (std::size_t i = 0; i < scales_.size(); ++i)
      scales_[i] = 0.02f + 0.001f * static_cast<float>(i);
  }

  ConstView k(std::int64_t token, bool batch) const { return row(k_, kDim, token, batch); }
  ConstView v(std::int64_t token, bool batch) const { return row(v_, kValueDim, token, batch); }
  ConstView scales(const Kind& kind, std::int64_t layers) const {
    if (!kind.by_channel) return {};
    if (layers == 0) return {scales_.data(), {kHeads, kDim}};
    return {scales_.data(), {layers, kHeads, kDim}};
  }

 private:
  static ConstView row(const Tensor& all, std::int64_t dim, std::int64_t token, bool batch) {
    const auto* const at = static_cast<const float*>(all.const_view().data) + token * kHeads * dim;
    if (batch) return {at, {std::int64_t{1}, std::int64_t{1}, kHeads, dim}};
    return {at, {std::int64_t{1}, kHeads, dim}};
  }

  Tensor k_, v_;
  std::vector<float> scales_;
};

template <class Config>
Config sized(const Kind& kind) {
  Config c;
  c.kv_heads = kHeads;
  c.head_dim = kDim;
  c.value_dim = kind.values_in_keys ? kLatent : kValueDim;
  c.type = kind.type;
  c.values_in_keys = kind.values_in_keys;
  return c;
}

KvCache contiguous(const Kind& kind, const Text& text) {
  auto c = sized<KvCacheConfig>(kind);
  c.batch = kBatch;
  c.growing = true;
  c.key_scales = text.scales(kind, 0);
  return KvCache(c);
}

/// Tokens of the text at the end of sequence 1; the other one keeps what it has.
template <class Cache>  // KvCache or SlidingCache
void append(Cache& cache, const Text& text, const Places& tokens) {
  const std::int64_t counts[] = {0, 1};
  for (const std::int64_t token : tokens) {
    ConstView k = text.k(token, true), v = text.v(token, true);
    k.layout.extents[0] = v.layout.extents[0] = kBatch;
    k.layout.strides[0] = v.layout.strides[0] = 0;
    cache.append(k, cache.config().values_in_keys ? ConstView() : v, {counts, {kBatch}});
  }
}

std::vector<std::byte> saved(const KvCache& cache) {
  std::vector<std::byte> bytes;
  cache.save(bytes);
  return bytes;
}

Places from_to(std::int64_t first, std::int64_t end) {
  Places places;
  for (; first < end; ++first) places.push_back(first);
  return places;
}

/// The first tokens, then those that are kept.
Places left(std::int64_t first, const Places& places) {
  Places all = from_to(0, first);
  all.insert(all.end(), places.begin(), places.end());
  return all;
}

/// Nothing, all, the first, the last, some with gaps.
const std::pair<std::int64_t, Places> kCases[] = {{45, {}},
                                                  {17, {}},
                                                  {0, from_to(0, 45)},
                                                  {30, {30, 31, 32}},
                                                  {30, {44}},
                                                  {5, {6, 8, 9, 31, 43}},
                                                  {12, {12, 13, 20, 21, 40, 44}}};

TEST(KeepOfACache, LeavesTheRowsAsIfTheyAloneHadBeenAppended) {
  const Text text;
  for (const Kind& kind : kinds()) {
    for (const auto& [first, places] : kCases) {
      KvCache cache = contiguous(kind, text), expected = contiguous(kind, text);
      append(cache, text, from_to(0, kTokens));
      append(expected, text, left(first, places));
      cache.keep(1, first, places);
      EXPECT_EQ(saved(cache), saved(expected)) << kind.name() << ", from " << first;
      // And goes on from there.
      append(cache, text, {3, 4});
      append(expected, text, {3, 4});
      EXPECT_EQ(saved(cache), saved(expected)) << kind.name() << ", from " << first;
    }
  }
}

constexpr std::int64_t kWindow = 20, kChunk = 12;

SlidingCache ring(const Kind& kind, const Text& text) {
  auto c = sized<SlidingCacheConfig>(kind);
  c.batch = kBatch;
  c.window = kWindow;
  c.first_tokens = 3;
  c.chunk = kChunk;
  c.key_scales = text.scales(kind, 0);
  return SlidingCache(c);
}

/// What sequence 1 of a ring holds.
std::vector<std::byte> rows(const SlidingCache& cache) {
  const SlidingCacheConfig& c = cache.config();
  const std::int64_t held = cache.held(1);
  Tensor k(f32, {held, c.kv_heads, c.head_dim}), v(f32, {held, c.kv_heads, c.value_dim});
  cache.read(1, k.view(), v.view());
  std::vector<std::byte> all(k.bytes().begin(), k.bytes().end());
  all.insert(all.end(), v.bytes().begin(), v.bytes().end());
  return all;
}

// Around the ring, whose pages have 64 tokens: a draft on a page that was written over, over a
// page's end, from its end on.
TEST(KeepOfARing, LeavesTheRowsAsIfTheyAloneHadBeenAppended) {
  const Text text;
  const std::pair<std::int64_t, Places> cases[] = {
      {0, {}}, {0, {0, 1, 2}}, {1, {11}}, {4, {5, 6, 8, 11}}, {0, from_to(0, kChunk)}};
  for (const Kind& kind : kinds()) {
    for (const std::int64_t held : {0, 150, 186, 192}) {
      SlidingCache cache = ring(kind, text), expected = ring(kind, text);
      for (std::int64_t token = 0; token < held; ++token) {
        append(cache, text, {token % kTokens});
        append(expected, text, {token % kTokens});
      }
      for (const auto& [first, kept] : cases) {
        append(cache, text, from_to(20, 20 + kChunk));
        append(expected, text, from_to(20, 20 + first));
        Places places;
        for (const std::int64_t i : kept) {
          places.push_back(held + i);
          append(expected, text, {20 + i});
        }
        cache.keep(1, held + first, places);
        EXPECT_EQ(cache.length(1), expected.length(1));
        EXPECT_EQ(rows(cache), rows(expected)) << kind.name() << ", " << held << " + " << first;
        cache.truncate(1, held);
        expected.truncate(1, held);
      }
    }
  }
}

constexpr Kind kPlain{ElementType::float32, false, false};

TEST(KeepOfARing, RefusesToTakeBackMoreThanAChunk) {
  const Text text;
  SlidingCache cache = ring(kPlain, text);
  append(cache, text, from_to(0, 40));
  cache.keep(1, 10, Places{12, 30});  // nothing was written over
  EXPECT_EQ(cache.length(1), 12);
  for (std::int64_t token = 12; token < 300; ++token) append(cache, text, {token % kTokens});
  const std::vector<std::byte> before = rows(cache);
  EXPECT_EQ(refusal_of([&] {
              cache.keep(1, 287, Places{288, 299});
            }),
            "SlidingCache::keep: first (287) is more than chunk (12) before the 300 tokens of "
            "sequence 1 that were written");
  EXPECT_EQ(rows(cache), before);
  EXPECT_EQ(refusal_of([&] { cache.keep(1, 290, Places{300}); }),
            "SlidingCache::keep: places[0] (300) is not within 290 .. 299, ascending from first "
            "(290) among the 300 tokens of sequence 1");
}

constexpr std::int64_t kLayers = 2;

PagedCache pool(const Kind& kind, const Text& text, std::int64_t pages) {
  auto c = sized<PagedCacheConfig>(kind);
  c.pages = pages;
  c.page_tokens = 8;
  c.layers = kLayers;
  c.key_scales = text.scales(kind, kLayers);
  return PagedCache(c);
}

/// Tokens of the text at a sequence's end, with their places in it as numbers where told.
Status append(PagedCache& cache, const Text& text, std::int64_t sequence, const Places& tokens,
              bool told) {
  const std::int64_t first = cache.length(sequence);
  const Numbers numbers(tokens.begin(), tokens.end());
  const Status status = cache.extend(sequence, std::ssize(tokens), told ? numbers : Numbers());
  if (status != Status::ok) return status;
  for (std::int64_t i = 0; i < std::ssize(tokens); ++i) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      // Layers hold different rows.
      const std::int64_t row = (tokens[static_cast<std::size_t>(i)] + layer) % kTokens;
      EXPECT_EQ(cache.write(sequence, layer, first + i, text.k(row, false),
                            cache.config().values_in_keys ? ConstView() : text.v(row, false)),
                Status::ok);
    }
  }
  return status;
}

/// Rows, scales and numbers.
std::vector<std::byte> saved(const PagedCache& cache, std::int64_t sequence) {
  std::vector<std::byte> bytes;
  cache.save(sequence, bytes);
  return bytes;
}

TEST(KeepOfPages, LeavesTheRowsAsIfTheyAloneHadBeenAppended) {
  const Text text;
  for (const Kind& kind : kinds()) {
    for (const auto& [first, places] : kCases) {
      for (const bool told : {false, true}) {
        PagedCache cache = pool(kind, text, 20);
        const std::int64_t whole = cache.create(), expected = cache.create(1);
        ASSERT_EQ(append(cache, text, whole, from_to(0, kTokens), told), Status::ok);
        ASSERT_EQ(append(cache, text, expected, left(first, places), told), Status::ok);
        const std::int64_t kept = cache.fork(whole);
        const std::vector<std::byte> before = saved(cache, whole);
        ASSERT_EQ(cache.keep(kept, first, places), Status::ok);
        EXPECT_EQ(saved(cache, kept), saved(cache, expected)) << kind.name() << ", from " << first;
        EXPECT_EQ(saved(cache, whole), before) << kind.name() << ", who it was forked from";
        ASSERT_EQ(append(cache, text, kept, {3, 4}, told), Status::ok);
        ASSERT_EQ(append(cache, text, expected, {3, 4}, told), Status::ok);
        EXPECT_EQ(saved(cache, kept), saved(cache, expected)) << kind.name() << ", from " << first;
        for (const std::int64_t id : {whole, kept, expected}) cache.release(id);
        EXPECT_EQ(cache.free_pages(), 20);
      }
    }
  }
}

// What is told of an accepted branch is what later prompts share.
TEST(KeepOfPages, NumbersToldThenAreSharedWithLaterPrompts) {
  const Text text;
  PagedCache cache = pool(kPlain, text, 20);
  const std::int64_t first = cache.create();
  ASSERT_EQ(append(cache, text, first, from_to(0, 10), true), Status::ok);
  ASSERT_EQ(append(cache, text, first, from_to(10, 45), false), Status::ok);
  const Places places = {10, 12, 14, 16, 18, 20, 30, 31};
  const Numbers numbers = {10, 11, 12, 13, 14, 15, 16, 17};
  ASSERT_EQ(cache.keep(first, 10, places, numbers), Status::ok);
  EXPECT_EQ(cache.length(first), 18);
  Numbers prompt;
  for (std::int32_t i = 0; i < 40; ++i) prompt.push_back(i);
  const std::int64_t second = cache.create();
  EXPECT_EQ(cache.adopt_prefix(second, prompt), 16);
  prompt[12] = 99;
  const std::int64_t third = cache.create();
  EXPECT_EQ(cache.adopt_prefix(third, prompt), 8);

  // Other numbers for rows that others hold: the others' stay what they are.
  const Numbers others = {20, 21, 22, 23, 24, 25};
  ASSERT_EQ(cache.keep(second, 10, from_to(10, 16), others), Status::ok);
  prompt[12] = 12;
  const std::int64_t fourth = cache.create();
  EXPECT_EQ(cache.adopt_prefix(fourth, prompt), 16);
  for (std::size_t i = 0; i < others.size(); ++i) prompt[10 + i] = others[i];
  const std::int64_t fifth = cache.create();
  EXPECT_EQ(cache.adopt_prefix(fifth, prompt), 16);
  EXPECT_EQ(saved(cache, fifth), saved(cache, second));
}

// Told the number that was where it comes to lie, as a sibling in a draft may have the same one.
TEST(KeepOfPages, ARowMovesWhateverItsNumber) {
  const Text text;
  PagedCache cache = pool(kPlain, text, 20);
  const std::int64_t sequence = cache.create(), expected = cache.create(1);
  ASSERT_EQ(append(cache, text, sequence, from_to(0, 20), true), Status::ok);
  ASSERT_EQ(append(cache, text, expected, from_to(0, 10), true), Status::ok);
  const Places places = {12};
  const Numbers numbers = {10};
  ASSERT_EQ(cache.keep(sequence, 10, places, numbers), Status::ok);
  ASSERT_EQ(cache.extend(expected, 1, numbers), Status::ok);
  for (std::int64_t layer = 0; layer < kLayers; ++layer)
    ASSERT_EQ(
        cache.write(expected, layer, 10, text.k(12 + layer, false), text.v(12 + layer, false)),
        Status::ok);
  EXPECT_EQ(saved(cache, sequence), saved(cache, expected));
}

TEST(KeepOfPages, ExhaustionChangesNothing) {
  const Text text;
  PagedCache cache = pool(kPlain, text, 6);
  const std::int64_t sequence = cache.create();
  ASSERT_EQ(append(cache, text, sequence, from_to(0, 45), false), Status::ok);
  const std::int64_t fork = cache.fork(sequence);
  ASSERT_EQ(cache.free_pages(), 0);
  const std::vector<std::byte> before = saved(cache, sequence);
  const Places places = {20, 30, 44};
  EXPECT_EQ(cache.keep(sequence, 18, places), Status::exhausted);
  EXPECT_EQ(saved(cache, sequence), before);
  EXPECT_EQ(saved(cache, fork), before);
  EXPECT_EQ(cache.length(sequence), 45);
  // Where no row moves, no page is needed.
  EXPECT_EQ(cache.keep(sequence, 18, from_to(18, 30)), Status::ok);
  EXPECT_EQ(cache.length(sequence), 30);
  EXPECT_EQ(saved(cache, fork), before);
}

// Rows that are not yet written in all layers are not where they come to lie either.
TEST(KeepOfPages, RoomThatIsNotWrittenStaysSo) {
  const Text text;
  PagedCache cache = pool(kPlain, text, 6);
  const std::int64_t sequence = cache.create();
  ASSERT_EQ(append(cache, text, sequence, from_to(0, 6), false), Status::ok);
  ASSERT_EQ(cache.extend(sequence, 4), Status::ok);
  for (const std::int64_t token : {7, 9}) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (token == 9 && layer == 1) continue;
      ASSERT_EQ(cache.write(sequence, layer, token, text.k(token + layer, false),
                            text.v(token + layer, false)),
                Status::ok);
    }
  }
  const Places places = {1, 3, 7, 9};
  ASSERT_EQ(cache.keep(sequence, 0, places), Status::ok);
  const std::int64_t expected = cache.create();
  ASSERT_EQ(append(cache, text, expected, {1, 3, 7}, false), Status::ok);
  EXPECT_EQ(cache.length(sequence), 4);
  EXPECT_EQ(saved(cache, sequence), saved(cache, expected));  // the first three
}

TEST(Keep, RefusesPlacesThatAreNotAscendingTokens) {
  const Text text;
  KvCache cache = contiguous(kPlain, text);
  append(cache, text, from_to(0, 10));
  PagedCache pages = pool(kPlain, text, 6);
  pages.create();
  const std::int64_t one = pages.create();
  ASSERT_EQ(one, 1);  // as messages of both have it
  ASSERT_EQ(append(pages, text, one, from_to(0, 10), true), Status::ok);
  const std::vector<std::byte> held = saved(cache), of_pages = saved(pages, one);
  const auto refused = [&](std::int64_t first, const Places& places) {
    const std::string all = refusal_of([&] { cache.keep(1, first, places); });
    const std::string said = all.substr(std::string("KvCache::keep: ").size());
    EXPECT_EQ(all, "KvCache::keep: " + said);
    EXPECT_EQ(refusal_of([&] { static_cast<void>(pages.keep(1, first, places)); }),
              "PagedCache::keep: " + said);
    EXPECT_EQ(saved(cache), held);
    EXPECT_EQ(saved(pages, one), of_pages);
    return said;
  };
  EXPECT_EQ(refused(11, {}), "first (11) is not within 0 .. 10, the length of sequence 1");
  EXPECT_EQ(refused(-1, {}), "first (-1) is not within 0 .. 10, the length of sequence 1");
  const std::string tail = ", ascending from first (4) among the 10 tokens of sequence 1";
  EXPECT_EQ(refused(4, {3}), "places[0] (3) is not within 4 .. 9" + tail);
  EXPECT_EQ(refused(4, {5, 10}), "places[1] (10) is not within 6 .. 9" + tail);
  EXPECT_EQ(refused(4, {6, 6}), "places[1] (6) is not within 7 .. 9" + tail);
  EXPECT_EQ(refused(4, {9, 8}), "places[1] (8) is not within 10 .. 9" + tail);
  const Places two = {4, 5};
  const Numbers three = {1, 2, 3};
  EXPECT_EQ(refusal_of([&] { static_cast<void>(pages.keep(1, 4, two, three)); }),
            "PagedCache::keep: tokens has 3 numbers, expected 2");
  EXPECT_EQ(refusal_of([&] { cache.keep(2, 0, {}); }).substr(0, 15), "KvCache::keep: ");
  expect_refusal([&] { static_cast<void>(pages.keep(7, 0, {})); }, "sequence 7 was released");
}

TEST(Keep, TakesABranchOfATree) {
  const Numbers parents = {-1, 0, 0, -1, 3, 2, 5, 1};
  const DraftTree tree{20, parents};
  EXPECT_EQ(tree.branch(-1), Places());
  EXPECT_EQ(tree.branch(0), Places({20}));
  EXPECT_EQ(tree.branch(4), Places({23, 24}));
  EXPECT_EQ(tree.branch(6), Places({20, 22, 25, 26}));
  EXPECT_EQ(refusal_of([&] { tree.branch(8); }),
            "DraftTree::branch: last (8) is not within -1 .. 7");
  EXPECT_EQ(refusal_of([&] { tree.branch(-2); }),
            "DraftTree::branch: last (-2) is not within -1 .. 7");
  const Numbers later = {-1, 1};
  EXPECT_EQ(refusal_of([&] {
              DraftTree{20, later}.branch(0);
            }),
            "DraftTree::branch: parents[1] (1) is not within -1 .. 0");
}

}  // namespace
}  // namespace polyhead::test
