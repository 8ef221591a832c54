// The paged cache against a plain model of it: random operations, thousands of them, and after each
// the invariants.
#include "polyhead/paged_cache.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "polyhead/tree_mask.h"
#include "support/effort.h"
#include "support/random.h"

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
    return write(id, layer, first, end, [&](std::int64_t at) {
      return row_value(model[id], static_cast<std::size_t>(at), layer);
    });
  }

  template <class Value>
  bool write(std::int64_t id, std::int64_t layer, std::int64_t first, std::int64_t end,
             const Value& value) {
    std::vector<float> k, v;
    for (std::int64_t at = first; at < end; ++at) {
      for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
        k.push_back(value(at) + static_cast<float>(i));
        v.push_back(-k.back());
      }
    }
    ConstView values(v.data(), {end - first, kHeads, kDim});
    if (cache.config().values_in_keys) values = {};
    return cache.write(id, layer, first, ConstView(k.data(), {end - first, kHeads, kDim}),
                       values) == Status::ok;
  }

  /// A tree of drafted tokens of which one branch is kept; a fork keeps the tree.
  void draft(std::int64_t id) {
    const Plain base = model[id];
    const std::int64_t held = std::ssize(base.tokens), count = 1 + random.below(20);
    if (cache.extend(id, count) == Status::exhausted) {
      ++exhausted;
      return;
    }
    std::vector<std::int32_t> parents, numbers;
    for (std::int64_t i = 0; i < count; ++i) {
      parents.push_back(static_cast<std::int32_t>(random.below(i + 1) - 1));
      numbers.push_back(static_cast<std::int32_t>(random.below(3)));
    }
    const DraftTree tree{held, parents};
    const auto text_to = [&](std::int64_t last) {
      Plain text = base;
      for (const std::int64_t place : tree.branch(last))
        text.tokens.push_back(numbers[static_cast<std::size_t>(place - held)]);
      return text;
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const Plain text = text_to(i);
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        EXPECT_TRUE(write(id, layer, held + i, held + i + 1, [&](std::int64_t) {
          return row_value(text, text.tokens.size() - 1, layer);
        }));
      }
    }
    const std::int64_t fork = random.chance(0.5) ? cache.fork(id) : -1;
    std::vector<std::byte> before, after;
    if (fork >= 0) cache.save(fork, before);
    const std::int64_t last = random.below(count + 1) - 1;
    Plain kept = text_to(last);
    std::vector<std::int32_t> told(kept.tokens.begin() + held, kept.tokens.end());
    if (random.chance(0.2)) told.clear();
    if (cache.keep(id, held, tree.branch(last), told) == Status::ok) {
      model[id] = std::move(kept);
      branches += last >= 0;
    } else {
      ++exhausted_writes;
      EXPECT_EQ(cache.length(id), held + count);
      cache.truncate(id, held);
    }
    if (fork < 0) return;
    cache.save(fork, after);
    EXPECT_EQ(before, after);
    cache.release(fork);
  }

  std::int64_t any() {
    auto at = model.begin();
    std::advance(at, random.below(static_cast<std::int64_t>(model.size())));
    return at->first;
  }

  void step() {
    const std::int64_t what = model.empty() ? 0 : random.below(15);
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
    if (what == 14) {
      draft(id);
    } else if (what == 5) {
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
  std::int64_t extended_together = 0, exhausted_together = 0, branches = 0;
};

class PagedCacheModel : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ValuesInKeys, PagedCacheModel, testing::Bool());

TEST_P(PagedCacheModel, RandomOperationsAgree) {
  const bool values_in_keys = GetParam();
  const int steps = effort() == Effort::smoke ? 1000 : 3000;
  for (const auto& [pages, page_tokens] :
       {std::pair<std::int64_t, std::int64_t>{24, 8}, {9, 16}, {200, 8}, {320, 8}, {3, 32}}) {
    Twin twin(config(pages, page_tokens, values_in_keys), static_cast<std::uint64_t>(pages));
    for (int i = 0; i < steps; ++i) {
      twin.step();
      twin.check(i % 16 == 0);
      if (HasFatalFailure()) FAIL() << "after step " << i << " with " << pages << " pages";
    }
    if (pages >= 9) {
      EXPECT_GT(twin.adopted_tokens, 0) << pages;
      EXPECT_GT(twin.extended_together, 0) << pages;
      EXPECT_GT(twin.branches, 0) << pages;
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

}  // namespace
}  // namespace polyhead::test
