// The paged cache against a plain model of it: random operations, thousands of them, and after each
// the invariants.
#include "polyhead/paged_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/effort.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

using Status = PagedCache::Status;

/// A sequence as the model has it: its tokens, and each token's row, which follows from the tokens
/// up to it as in a model.
struct Plain {
  std::uint64_t salt = 0;
  std::vector<std::int32_t> tokens;
};

/// What layer `layer` of a model would write for token `at`: a hash of everything before it.
float row_value(const Plain& sequence, std::size_t at, std::int64_t layer) {
  std::uint64_t h = 1469598103934665603u + static_cast<std::uint64_t>(layer) + sequence.salt * 77;
  for (std::size_t i = 0; i <= at; ++i)
    h = (h ^ static_cast<std::uint64_t>(static_cast<std::uint32_t>(sequence.tokens[i]))) *
        1099511628211u;
  return static_cast<float>(h >> 44);
}

constexpr std::int64_t kHeads = 2, kDim = 3, kValueDim = 2;

PagedCacheConfig config(std::int64_t pages, std::int64_t page_tokens, bool values_in_keys = false) {
  PagedCacheConfig c;
  c.pages = pages;
  c.page_tokens = page_tokens;
  c.layers = 2;
  c.kv_heads = kHeads;
  c.head_dim = kDim;
  c.values_in_keys = values_in_keys;
  if (values_in_keys) c.value_dim = kValueDim;
  return c;
}

class Twin {
 public:
  Twin(const PagedCacheConfig& config, std::uint64_t seed) : cache(config), random(seed) {}

  void create() { create(static_cast<std::uint64_t>(random.below(2))); }

  void create(std::uint64_t salt) {
    const std::int64_t id = cache.create(salt);
    EXPECT_EQ(model.count(id), 0u);
    model[id].salt = salt;
  }

  /// A prompt of one of few stems, so that prefixes meet; adopts what is remembered.
  void prompt() {
    create();
    const std::int64_t id = newest();
    Plain& plain = model[id];
    std::vector<std::int32_t> tokens;
    const std::int64_t stem = random.below(3), count = 1 + random.below(60);
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<std::int32_t>(i < 40 ? stem * 1000 + i : random.below(4)));
    const std::int64_t adopted = cache.adopt_prefix(id, tokens);
    EXPECT_EQ(adopted % cache.config().page_tokens, 0);
    EXPECT_LT(adopted, count);
    adopted_tokens += adopted;
    plain.tokens.assign(tokens.begin(), tokens.begin() + adopted);
    append(id, {tokens.begin() + adopted, tokens.end()});
  }

  std::int64_t newest() const { return std::prev(model.end())->first; }

  void fork(std::int64_t id) {
    const Plain copy = model[id];
    model[cache.fork(id)] = copy;
  }

  void release(std::int64_t id) {
    cache.release(id);
    model.erase(id);
    released.push_back(id);
  }

  /// Two that compute the same pages side by side: one is gone then, the other has a fork.
  void twins() {
    const std::int64_t stem = random.below(3), count = 8 * (1 + random.below(4));
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<std::int32_t>(stem * 1000 + i));
    create();
    const std::int64_t a = newest();
    create(model[a].salt);
    const std::int64_t b = newest();
    const PagedCache::Extension parts[] = {{a, count, tokens}, {b, count, tokens}};
    if (cache.extend(parts) == Status::exhausted) {
      for (const std::int64_t id : {a, b}) release(id);
      return;
    }
    for (const std::int64_t id : {a, b}) model[id].tokens = tokens;
    for (const std::int64_t id : {a, b}) fill(id, 0, -1);
    release(random.chance(0.5) ? a : b);
    fork(newest());
  }

  /// Some at once, sometimes with one that takes every page that is left.
  void together() {
    std::map<std::int64_t, std::vector<std::int32_t>> more;
    for (const auto& [id, plain] : model) {
      if (more.count(id) > 0 || !random.chance(0.3)) continue;
      more[id].resize(static_cast<std::size_t>(random.below(24)), 3);
    }
    const std::int64_t free = cache.free_pages(), size = cache.config().page_tokens;
    std::int64_t filler = -1;
    if (random.chance(0.5)) {
      create();
      filler = newest();
      more[filler].resize(static_cast<std::size_t>(free * size), 9);
    }
    for (;;) {
      std::vector<PagedCache::Extension> parts;
      for (const auto& [id, tokens] : more) parts.push_back({id, std::ssize(tokens), tokens});
      if (cache.extend(parts) == Status::ok) break;
      ++exhausted_together;
      EXPECT_EQ(cache.free_pages(), free);
      if (filler < 0) return;
      if (more[filler].empty()) return release(filler);
      more[filler].resize(more[filler].size() - static_cast<std::size_t>(size));
    }
    extended_together += std::ssize(more) > 1;
    std::map<std::int64_t, std::int64_t> first;
    for (const auto& [id, tokens] : more) {
      std::vector<std::int32_t>& held = model[id].tokens;
      first[id] = std::ssize(held);
      held.insert(held.end(), tokens.begin(), tokens.end());
    }
    for (const auto& [id, from] : first) {
      if (!more[id].empty()) fill(id, from, -1);
    }
    if (filler >= 0) release(filler);
  }

  void append(std::int64_t id, const std::vector<std::int32_t>& tokens) {
    Plain& plain = model[id];
    const std::int64_t free = cache.free_pages(), length = cache.length(id);
    const bool told = !random.chance(0.2);
    const Status status = cache.extend(
        id, static_cast<std::int64_t>(tokens.size()),
        told ? std::span<const std::int32_t>(tokens) : std::span<const std::int32_t>());
    if (status == Status::exhausted) {
      ++exhausted;
      EXPECT_EQ(cache.free_pages(), free);
      EXPECT_EQ(cache.length(id), length);
      return;
    }
    const auto first = static_cast<std::int64_t>(plain.tokens.size());
    plain.tokens.insert(plain.tokens.end(), tokens.begin(), tokens.end());
    // Sometimes a fork is made of room that is filled only then.
    const std::int64_t fork = random.chance(0.2) ? cache.fork(id) : -1;
    if (fork >= 0) {
      model[fork] = plain;
      fill(fork, first, fork);
    }
    fill(id, first, model.count(fork) > 0 ? fork : -1);
  }

  /// The rows from `first` on, in two pieces, the later one first; then some of them once more.
  /// Where the pool has no page to copy to, `spare` is released.
  void fill(std::int64_t id, std::int64_t first, std::int64_t spare) {
    const std::int64_t end = cache.length(id), middle = first + random.below(end - first + 1);
    const std::int64_t again = random.chance(0.1) ? random.below(end) : end;
    const std::int64_t layer = random.below(2);
    for (const auto& [from, to] : {std::pair{middle, end}, {first, middle}, {again, end}}) {
      if (write(id, layer, from, to) && write(id, 1 - layer, from, to)) continue;
      ++exhausted_writes;
      if (spare < 0) break;
      cache.release(spare);
      model.erase(spare);
      if (spare == id) return;
      return fill(id, first, -1);
    }
  }

  bool write(std::int64_t id, std::int64_t layer, std::int64_t first, std::int64_t end) {
    std::vector<float> k, v;
    for (std::int64_t at = first; at < end; ++at) {
      for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
        k.push_back(row_value(model[id], static_cast<std::size_t>(at), layer) +
                    static_cast<float>(i));
        v.push_back(-k.back());
      }
    }
    ConstView values(v.data(), {end - first, kHeads, kDim});
    if (cache.config().values_in_keys) values = {};
    return cache.write(id, layer, first, ConstView(k.data(), {end - first, kHeads, kDim}),
                       values) == Status::ok;
  }

  std::int64_t any() {
    auto at = model.begin();
    std::advance(at, random.below(static_cast<std::int64_t>(model.size())));
    return at->first;
  }

  void step() {
    const std::int64_t what = model.empty() ? 0 : random.below(14);
    if (what <= 1) return prompt();
    if (what == 10) return together();
    if (what == 11) return twins();
    const std::int64_t id = any();
    if (what <= 4) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = 0; i < 1 + random.below(what == 2 ? 30 : 3); ++i)
        tokens.push_back(static_cast<std::int32_t>(random.below(4)));
      return append(id, tokens);
    }
    if (what == 5) {
      fork(id);
    } else if (what <= 7) {
      const std::int64_t length =
          random.below(static_cast<std::int64_t>(model[id].tokens.size()) + 1);
      cache.truncate(id, length);
      model[id].tokens.resize(static_cast<std::size_t>(length));
    } else {
      release(id);
    }
  }

  /// Rows are what the model says, counts are right, nothing is lost or shared by mistake.
  void check(bool rows) {
    EXPECT_EQ(cache.sequences(), static_cast<std::int64_t>(model.size()));
    const std::int64_t size = cache.config().page_tokens;
    std::vector<std::int64_t> ids;
    for (const auto& [id, plain] : model) ids.push_back(id);
    PagedBatch batch;
    cache.batch(ids, batch);
    std::map<std::int64_t, std::int64_t> holders;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Plain& plain = model[ids[i]];
      ASSERT_EQ(batch.lengths[i], static_cast<std::int64_t>(plain.tokens.size()));
      ASSERT_EQ(cache.length(ids[i]), batch.lengths[i]);
      std::set<std::int32_t> own;
      for (std::int64_t page = 0; page * size < batch.lengths[i]; ++page) {
        const std::int32_t at = batch.table[i * static_cast<std::size_t>(batch.pages_a_sequence) +
                                            static_cast<std::size_t>(page)];
        ++holders[at];
        EXPECT_TRUE(own.insert(at).second) << "one page twice in a sequence";
      }
      if (rows) check_rows(i, plain, batch);
    }
    std::int64_t held = 0;
    for (std::int64_t page = 0; page < cache.config().pages; ++page) {
      ASSERT_EQ(cache.holders(page), holders[page]);
      held += holders[page] > 0;
    }
    ASSERT_EQ(cache.free_pages(), cache.config().pages - held);
    EXPECT_LE(cache.remembered_pages(), cache.free_pages());
  }

  void check_rows(std::size_t i, const Plain& plain, const PagedBatch& batch) {
    const std::int64_t size = cache.config().page_tokens;
    const float sign = cache.config().values_in_keys ? 1.0f : -1.0f;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const KvView view = cache.view(layer, batch);
      const auto& strides = view.k.layout.strides;
      ASSERT_EQ(view.v.layout.strides, strides);
      const std::int64_t value_dim = view.v.layout.extents[3];
      ASSERT_EQ(value_dim, cache.config().value_dim);
      for (std::size_t at = 0; at < plain.tokens.size(); ++at) {
        const auto t = static_cast<std::int64_t>(at);
        const std::int64_t page = batch.table[i * static_cast<std::size_t>(batch.pages_a_sequence) +
                                              static_cast<std::size_t>(t / size)];
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const std::int64_t offset = page * strides[0] + t % size * strides[1] + h * strides[2];
          for (std::int64_t d = 0; d < kDim; ++d) {
            const float expected = row_value(plain, at, layer) + static_cast<float>(h * kDim + d);
            ASSERT_EQ(static_cast<const float*>(view.k.data)[offset + d], expected);
            if (d < value_dim) {
              ASSERT_EQ(static_cast<const float*>(view.v.data)[offset + d], sign * expected);
            }
          }
        }
      }
    }
  }

  PagedCache cache;
  Random random;
  std::map<std::int64_t, Plain> model;
  std::vector<std::int64_t> released;
  std::int64_t adopted_tokens = 0, exhausted = 0, exhausted_writes = 0;
  std::int64_t extended_together = 0, exhausted_together = 0;
};

class PagedCacheModel : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ValuesInKeys, PagedCacheModel, testing::Bool());

TEST_P(PagedCacheModel, RandomOperationsAgree) {
  const bool values_in_keys = GetParam();
  const int steps = effort() == Effort::smoke ? 1500 : 3000;
  for (const auto& [pages, page_tokens] :
       {std::pair<std::int64_t, std::int64_t>{24, 8}, {9, 16}, {200, 8}, {400, 8}, {3, 32}}) {
    Twin twin(config(pages, page_tokens, values_in_keys), static_cast<std::uint64_t>(pages));
    for (int i = 0; i < steps; ++i) {
      twin.step();
      twin.check(i % 16 == 0);
      if (HasFatalFailure()) FAIL() << "after step " << i << " with " << pages << " pages";
    }
    if (pages >= 9) {
      EXPECT_GT(twin.adopted_tokens, 0) << pages;
      EXPECT_GT(twin.extended_together, 0) << pages;
    }
    EXPECT_GT(twin.exhausted, 0) << pages;
    EXPECT_GT(twin.exhausted_writes, 0) << pages;
    EXPECT_GT(twin.exhausted_together, 0) << pages;
    while (!twin.model.empty()) {
      twin.cache.release(twin.model.begin()->first);
      twin.model.erase(twin.model.begin());
    }
    EXPECT_EQ(twin.cache.free_pages(), pages);
  }
}

std::vector<float> ones(std::size_t n) { return std::vector<float>(n, 1.0f); }

/// Appends `tokens` to a sequence of a cache of one layer.
Status put(PagedCache& cache, std::int64_t id, const std::vector<std::int32_t>& tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::vector<float> rows = ones(tokens.size() * kHeads * kDim);
  const ConstView view(rows.data(), {n, kHeads, kDim});
  return cache.append(id, view, view, tokens);
}

PagedCacheConfig one_layer(std::int64_t pages) {
  PagedCacheConfig c = config(pages, 8);
  c.layers = 1;
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
            "PagedCache::append: v is [], expected [1, 2, 3]: tokens, kv_heads, dim");
  EXPECT_EQ(refusal_of([&] { (void)cache.append(a, row, row, counting(2)); }),
            "PagedCache::append: tokens has 2 numbers, expected 1");
  EXPECT_EQ(refusal_of([&] { cache.truncate(a, 13); }),
            "PagedCache::truncate: length (13) is not within 0 .. 12, what sequence 0 holds");
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
            "PagedCache: pages (-1) is not within 0 .. 2^31 - 1");
  bad = one_layer(1);
  bad.type = ElementType::int32;
  EXPECT_EQ(refusal_of([&] { PagedCache{bad}; }),
            "PagedCache: type (int32) is not one a cache holds");
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
  PagedCache latents(config(4, 8, true));
  const std::int64_t c = latents.create();
  ASSERT_EQ(latents.extend(c, 1), Status::ok);
  EXPECT_EQ(refusal_of([&] { (void)latents.write(c, 0, 0, row, row); }),
            "PagedCache::write: v is given, but values are in the keys");
  EXPECT_EQ(refusal_of([&] { (void)cache.write(a, 0, 0, row, {}); }),
            "PagedCache::write: v is [], expected [1, 2, 3]: tokens, kv_heads, dim");
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
