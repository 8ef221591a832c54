// The paged cache against a plain model of it: random operations, thousands of them, over every way
// to store rows, and after each the invariants.
#include "polyhead/paged_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/codes.hpp"
#include "polyhead/tree_mask.h"
#include "support/effort.h"
#include "support/exact_rows.h"
#include "support/held.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

using Status = PagedCache::Status;

/// A sequence as the model has it: its tokens, and each token's row, which follows from the tokens
/// up to it as in a model.
struct Plain {
  std::uint64_t salt = 0;
  std::vector<std::int32_t> tokens;
};

/// What layer `layer` of a model would write for each token: a hash of everything up to it.
std::vector<std::uint64_t> row_numbers(const Plain& sequence, std::int64_t layer) {
  std::uint64_t h = 1469598103934665603u + static_cast<std::uint64_t>(layer) + sequence.salt * 77;
  std::vector<std::uint64_t> numbers;
  numbers.reserve(sequence.tokens.size());
  for (const std::int32_t token : sequence.tokens) {
    h = (h ^ static_cast<std::uint64_t>(static_cast<std::uint32_t>(token))) * 1099511628211u;
    numbers.push_back(h);
  }
  return numbers;
}

constexpr std::int64_t kHeads = 2, kLayers = 2;

struct Kind {
  StoredForm form;
  bool values_in_keys = false;
};

/// Codes have blocks that are full and blocks that are not, and both halves of a block of int4.
PagedCacheConfig config(const Kind& kind, std::int64_t pages, std::int64_t page_tokens) {
  const bool codes = base::is_code(kind.form.type);
  PagedCacheConfig c;
  c.pages = pages;
  c.page_tokens = page_tokens;
  c.layers = kLayers;
  c.kv_heads = kHeads;
  c.head_dim = codes ? 35 : 3;
  c.type = kind.form.type;
  c.values_in_keys = kind.values_in_keys;
  if (kind.values_in_keys)
    c.value_dim = codes ? 32 : 2;  // a block's end
  else
    c.value_dim = codes ? 20 : 3;
  return c;
}

class Twin {
 public:
  Twin(const Kind& kind, PagedCacheConfig config, std::uint64_t seed)
      : key_scales(scales_of(kind, config)), cache(config), random(seed) {}

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
    const std::vector<std::uint64_t> numbers = row_numbers(model[id], layer);
    return write(id, layer, first,
                 std::span(numbers).subspan(static_cast<std::size_t>(first),
                                            static_cast<std::size_t>(end - first)));
  }

  bool write(std::int64_t id, std::int64_t layer, std::int64_t first,
             std::span<const std::uint64_t> numbers) {
    std::vector<float> k, v;
    for (const std::uint64_t number : numbers) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        make_key(number, layer, h);
        k.insert(k.end(), row.values.begin(), row.values.end());
        make_value(number, h);
        v.insert(v.end(), row.values.begin(), row.values.end());
      }
    }
    const PagedCacheConfig& c = cache.config();
    ConstView values(v.data(), {std::ssize(numbers), kHeads, c.value_dim});
    if (c.values_in_keys) values = {};
    return cache.write(id, layer, first,
                       ConstView(k.data(), {std::ssize(numbers), kHeads, c.head_dim}),
                       values) == Status::ok;
  }

  /// The row of a head, from the number of its token.
  void make_key(std::uint64_t number, std::int64_t layer, std::int64_t head) {
    const PagedCacheConfig& c = cache.config();
    row.make(c.type, c.head_dim, number + static_cast<std::uint64_t>(head),
             channels_of(layer, head));
  }
  /// Its scales by channel, where keys have those.
  const float* channels_of(std::int64_t layer, std::int64_t head) const {
    if (key_scales.empty()) return nullptr;
    return key_scales.data() + (layer * kHeads + head) * cache.config().head_dim;
  }
  void make_value(std::uint64_t number, std::int64_t head) {
    const PagedCacheConfig& c = cache.config();
    row.make(c.type, c.value_dim, ~number + static_cast<std::uint64_t>(head), nullptr);
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
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        const std::uint64_t number[] = {row_numbers(text, layer).back()};
        EXPECT_TRUE(write(id, layer, held + i, number));
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
    const PagedCacheConfig& c = cache.config();
    const std::int64_t size = c.page_tokens;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const KvView view = cache.view(layer, batch);
      ASSERT_EQ(view.k.layout.extents[3], c.head_dim);
      ASSERT_EQ(view.v.layout.extents[3], c.value_dim);
      const std::vector<std::uint64_t> numbers = row_numbers(plain, layer);
      for (std::size_t at = 0; at < plain.tokens.size(); ++at) {
        const auto t = static_cast<std::int64_t>(at);
        const std::int64_t page = batch.table[i * static_cast<std::size_t>(batch.pages_a_sequence) +
                                              static_cast<std::size_t>(t / size)];
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const Index place{page, t % size, h};
          make_key(numbers[at], layer, h);
          ASSERT_TRUE(is_held(view.k, view.k_scales, place, channels_of(layer, h)))
              << "k of token " << t;
          if (!c.values_in_keys) make_value(numbers[at], h);
          ASSERT_TRUE(is_held(view.v, view.v_scales, place)) << "v of token " << t;
        }
      }
    }
  }

  /// Whether `row`, or its beginning, is what a view shows at [page, token of it, head], under the
  /// head's scales by channel where it has those.
  bool is_held(const ConstView& view, const ConstView& scales, const Index& place,
               const float* channels = nullptr) const {
    const auto offset = [&](const ConstView& of) {
      std::int64_t sum = 0;
      for (std::size_t axis = 0; axis < 3; ++axis) sum += place[axis] * of.layout.strides[axis];
      return sum;
    };
    const std::int64_t dim = view.layout.extents[3];
    const auto* const data = static_cast<const std::byte*>(view.data);
    if (!row.held_in(data + bytes_apart(view.type, offset(view)), view.type, dim)) return false;
    if (channels != nullptr) {
      if (scales.layout.axes != 2) return false;
      const auto* const found =
          static_cast<const float*>(scales.data) + place[2] * scales.layout.strides[0];
      for (std::int64_t d = 0; d < dim; ++d)
        if (found[d * scales.layout.strides[1]] != channels[d]) return false;
      return true;
    }
    if (!scales.given()) return row.scales.empty();
    for (std::int64_t block = 0; block < base::code_blocks(dim); ++block) {
      const auto* const found = static_cast<const float*>(scales.data) + offset(scales);
      if (found[block * scales.layout.strides[3]] != row.scales[static_cast<std::size_t>(block)])
        return false;
    }
    return true;
  }

  /// Scales of keys by channel, where they have those, which the configuration then points to:
  /// powers of two, others for each layer, head and dim.
  static std::vector<float> scales_of(const Kind& kind, PagedCacheConfig& to) {
    std::vector<float> scales;
    if (!kind.form.by_channel) return scales;
    for (std::int64_t i = 0; i < kLayers * kHeads * to.head_dim; ++i)
      scales.push_back(std::ldexp(1.0f, static_cast<int>(i % 11) - 5));
    to.key_scales = ConstView(scales.data(), {kLayers, kHeads, to.head_dim});
    return scales;
  }

  std::vector<float> key_scales;
  PagedCache cache;
  Random random;
  ExactRow row;  // the last one made
  std::map<std::int64_t, Plain> model;
  std::vector<std::int64_t> released;
  std::int64_t adopted_tokens = 0, exhausted = 0, exhausted_writes = 0;
  std::int64_t extended_together = 0, exhausted_together = 0, branches = 0;
};

/// All ways to store; values within keys have no scales by channel.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const StoredForm& form : kStoredForms) {
    all.push_back({form, false});
    if (!form.by_channel) all.push_back({form, true});
  }
  return all;
}

class PagedCacheModel : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PagedCacheModel, testing::ValuesIn(kinds()), [](const auto& each) {
  std::string name = name_of(each.param.form) + (each.param.values_in_keys ? " in keys" : "");
  std::ranges::replace(name, ' ', '_');
  return name;
});

// With little effort float32 alone walks the large pools, where more rows are compared and the
// least depends on what they are.
TEST_P(PagedCacheModel, RandomOperationsAgree) {
  const Kind& kind = GetParam();
  const bool all = kind.form.type == f32 || effort() != Effort::smoke;
  const int steps = case_count(1000, kind.form.type == f32 ? 3000 : 1000, 3000);
  for (const auto& [pages, page_tokens] :
       {std::pair<std::int64_t, std::int64_t>{24, 8}, {9, 16}, {200, 8}, {320, 8}, {3, 32}}) {
    if (!all && pages > 100) continue;
    Twin twin(kind, config(kind, pages, page_tokens), static_cast<std::uint64_t>(pages));
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
