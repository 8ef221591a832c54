// A tree of drafted tokens in one call gives what each of its branches gives by itself.
#include "polyhead/tree_mask.h"

#include <gtest/gtest.h>

#include <vector>

#include "polyhead/attention.h"
#include "polyhead/paged_cache.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kKvHeads = 2, kQHeads = 6, kDim = 40;
const std::vector<std::int32_t> kParents = {-1, 0, 0, -1, 3, 2, 5, 1};
const auto kDrafted = static_cast<std::int64_t>(kParents.size());

/// Rows [first, first + count) of [1, tokens, ...], without the batch axis.
ConstView rows(const Tensor& all, std::int64_t first, std::int64_t count) {
  ConstView view = all.const_view();
  detail::Layout layout = view.layout;
  layout.axes = 3;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    layout.extents[axis] = view.layout.extents[axis + 1];
    layout.strides[axis] = view.layout.strides[axis + 1];
  }
  layout.extents[0] = count;
  return {static_cast<const float*>(view.data) + first * layout.strides[0], f32, layout};
}

/// Keys that a query sees; 0: all before it.
struct Window {
  std::int64_t keys = 0, first_tokens = 0;

  Mask mask() const {
    if (keys == 0) return causal(Align::end);
    return window_and_first(keys - 1, 0, first_tokens, Align::end);
  }
};

/// A sequence of `held` tokens and a draft behind it, and what single queries see of it.
class Draft {
 public:
  Draft(ElementType type, std::int64_t held, std::uint64_t seed)
      : held_(held),
        q(f32, {1, kDrafted, kQHeads, kDim}),
        k(f32, {1, held + kDrafted, kKvHeads, kDim}),
        v(f32, {1, held + kDrafted, kKvHeads, kDim}),
        cache_([&] {
          PagedCacheConfig c;
          c.pages = 200;
          c.page_tokens = 16;
          c.kv_heads = kKvHeads;
          c.head_dim = kDim;
          c.type = type;
          return c;
        }()) {
    Random random(seed);
    for (Tensor* x : {&q, &k, &v}) x->fill_normal(random);
    stem_ = cache_.create();
    append(stem_, 0, held);
  }

  void append(std::int64_t sequence, std::int64_t first, std::int64_t count) {
    ASSERT_EQ(cache_.append(sequence, rows(k, first, count), rows(v, first, count)),
              PagedCache::Status::ok);
  }

  /// out of queries [first, first + count) over `sequence` under `mask`.
  Tensor attend(std::int64_t sequence, std::int64_t first, std::int64_t count, const Mask& mask,
                Isa isa) {
    Tensor out(f32, {1, count, kQHeads, kDim});
    PagedBatch batch;
    cache_.batch({&sequence, 1}, batch);
    AttentionArguments call;
    call.q = q.const_view();
    call.q.data = static_cast<const float*>(call.q.data) + first * kQHeads * kDim;
    call.q.layout.extents[1] = count;
    call.kv = cache_.view(0, batch);
    call.out = out.view();
    call.mask = mask;
    attention(call, {.isa = isa});
    return out;
  }

  Tensor tree(Isa isa, const Window& window = {}) {
    const std::int64_t all = cache_.fork(stem_);
    append(all, held_, kDrafted);
    const TreeMask mask({held_, kParents, window.keys, window.first_tokens});
    return attend(all, 0, kDrafted, mask.mask(), isa);
  }

  /// The branch that ends in token `last`, run after the held tokens without the others.
  Tensor branch(std::int64_t last, Isa isa, const Window& window = {}) {
    const std::int64_t alone = cache_.fork(stem_);
    std::vector<std::int64_t> path;
    for (std::int64_t at = last; at >= 0; at = kParents[static_cast<std::size_t>(at)])
      path.insert(path.begin(), at);
    for (const std::int64_t token : path) append(alone, held_ + token, 1);
    return attend(alone, last, 1, window.mask(), isa);
  }

 private:
  std::int64_t held_;

 public:
  Tensor q, k, v;

 private:
  PagedCache cache_;
  std::int64_t stem_ = 0;
};

float at(const Tensor& out, std::int64_t query, std::int64_t i) {
  return reinterpret_cast<const float*>(out.bytes().data())[query * kQHeads * kDim + i];
}

TEST(TreeMask, GivesTheBitsOfEachBranchAlone) {
  for (const ElementType type :
       {ElementType::float32, ElementType::float16, ElementType::int8, ElementType::int4,
        ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    for (const Isa isa : available_isas()) {
      // The draft within one block of 64 keys; at its beginning; behind nothing; in a second split.
      for (const std::int64_t held : {100, 64, 0, 1030}) {
        Draft draft(type, held, 7);
        const Tensor together = draft.tree(isa);
        for (std::int64_t last = 0; last < kDrafted; ++last) {
          const Tensor alone = draft.branch(last, isa);
          int different = 0;
          for (std::int64_t i = 0; i < kQHeads * kDim; ++i)
            different += at(together, last, i) != at(alone, 0, i);
          EXPECT_EQ(different, 0) << element_name(type) << ", " << isa_name(isa) << ", held "
                                  << held << ", token " << last;
        }
      }
    }
  }
}

// A token's window is that of its position in the text, wherever its key lies.
TEST(TreeMask, WithAWindowGivesTheBitsOfEachBranchUnderIt) {
  for (const Window& window : {Window{1}, Window{2}, Window{3, 1}, Window{40, 5}, Window{70, 101},
                               Window{1025}, Window{1 << 20, 3}}) {
    for (const Isa isa : available_isas()) {
      for (const std::int64_t held : {100, 64, 0, 1030}) {
        Draft draft(f32, held, 9);
        const Tensor together = draft.tree(isa, window);
        for (std::int64_t last = 0; last < kDrafted; ++last) {
          const Tensor alone = draft.branch(last, isa, window);
          int different = 0;
          for (std::int64_t i = 0; i < kQHeads * kDim; ++i)
            different += at(together, last, i) != at(alone, 0, i);
          EXPECT_EQ(different, 0) << "window " << window.keys << ", first tokens "
                                  << window.first_tokens << ", " << isa_name(isa) << ", held "
                                  << held << ", token " << last;
        }
      }
    }
  }
}

// Across a block's or a split's end the branch's keys lie elsewhere: two float32 computations of
// the same sum, each within (D + n) u of values below 6, with D = 40 and n = 1030 keys of which
// rounding errors mostly cancel.
TEST(TreeMask, IsWithinTheErrorBoundAcrossBlocks) {
  for (const std::int64_t held : {60, 1020}) {
    Draft draft(f32, held, 8);
    const Tensor together = draft.tree(Isa::automatic);
    for (std::int64_t last = 0; last < kDrafted; ++last) {
      const Tensor alone = draft.branch(last, Isa::automatic);
      for (std::int64_t i = 0; i < kQHeads * kDim; ++i)
        ASSERT_NEAR(at(together, last, i), at(alone, 0, i), 6 * (40 + 1030) * 0x1p-24);
    }
  }
}

TEST(TreeMask, TreesOfARaggedBatchSeeWhatEachSeesAlone) {
  const std::vector<std::int32_t> first = {-1, 0, -1}, second = {-1, 0, 1, 1, 0};
  const DraftTree trees[] = {{20, first}, {3, second}};
  const TreeMask both(trees);
  constexpr std::int64_t kTokens = 23 + 8;
  Tensor q(f32, {8, kQHeads, kDim}), k(f32, {kTokens, kKvHeads, kDim}),
      v(f32, {kTokens, kKvHeads, kDim}), out(f32, {8, kQHeads, kDim});
  Random random(3);
  for (Tensor* x : {&q, &k, &v}) x->fill_normal(random);
  const std::int32_t q_offsets[] = {0, 3, 8}, kv_offsets[] = {0, 23, kTokens};
  AttentionArguments call;
  call.q = q.const_view();
  call.k = k.const_view();
  call.v = v.const_view();
  call.out = out.view();
  call.q_offsets = ConstView(q_offsets, {3});
  call.kv_offsets = ConstView(kv_offsets, {3});
  call.mask = both.mask();
  attention(call);
  for (int s = 0; s < 2; ++s) {
    const TreeMask own(trees[s]);
    Tensor alone(f32, {1, q_offsets[s + 1] - q_offsets[s], kQHeads, kDim});
    const auto part = [](const Tensor& x, const std::int32_t* offsets, std::int64_t heads) {
      return ConstView(reinterpret_cast<const float*>(x.bytes().data()) + offsets[0] * heads * kDim,
                       {std::int64_t{1}, std::int64_t{offsets[1] - offsets[0]}, heads, kDim});
    };
    AttentionArguments one;
    one.q = part(q, q_offsets + s, kQHeads);
    one.k = part(k, kv_offsets + s, kKvHeads);
    one.v = part(v, kv_offsets + s, kKvHeads);
    one.out = alone.view();
    one.mask = own.mask();
    attention(one);
    for (std::int64_t i = 0; i < alone.extents()[1] * kQHeads * kDim; ++i)
      ASSERT_EQ(at(alone, 0, i), at(out, q_offsets[s], i)) << "tree " << s;
  }
}

TEST(TreeMask, PositionsAreDepths) {
  const TreeMask mask({100, kParents});
  EXPECT_EQ(std::vector<std::int64_t>(mask.positions().begin(), mask.positions().end()),
            (std::vector<std::int64_t>{100, 101, 101, 100, 101, 102, 103, 102}));
  EXPECT_EQ(TreeMask({5, {}}).positions().size(), 0u);
}

TEST(TreeMask, RefusesByName) {
  const std::vector<std::int32_t> forward = {-1, 1}, below = {-2};
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({3, forward});
            }),
            "TreeMask: trees[0].parents[1] (1) is not within -1 .. 0");
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({3, below});
            }),
            "TreeMask: trees[0].parents[0] (-2) is not within -1 .. -1");
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({-1, kParents});
            }),
            "TreeMask: trees[0].held (-1) is not within 0 .. 2^40");
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({3, kParents, -1});
            }),
            "TreeMask: trees[0].window (-1) is negative");
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({3, kParents, 4, -2});
            }),
            "TreeMask: trees[0].first_tokens (-2) is negative");
  EXPECT_EQ(refusal_of([&] {
              TreeMask mask({3, kParents, 0, 2});
            }),
            "TreeMask: trees[0].first_tokens (2) is given without a window");
}

}  // namespace
}  // namespace polyhead::test
