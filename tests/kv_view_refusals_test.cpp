// Views that lie are refused, and queries that see keys that are gone.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "polyhead/kv_view.h"
#include "support/refused.h"

namespace polyhead::test {
namespace {

/// The good call over pages of 8 tokens instead of k and v.
struct PagedSample {
  Tensor k{f32, {3, 8, 2, 8}}, v{f32, {3, 8, 2, 6}};
  std::vector<std::int32_t> table = {2, 0};
  std::vector<std::int32_t> lengths = {5, 8};
  void use(AttentionArguments& a) {
    a.k = a.v = {};
    a.kv.k = k.const_view();
    a.kv.v = v.const_view();
    a.kv.page_table = ConstView(table.data(), {2, 1});
    a.kv.lengths = ConstView(lengths.data(), {2});
  }
};

void expect_view_refused(const std::string& expected,
                         const std::function<void(AttentionArguments&, PagedSample&)>& change) {
  PagedSample pages;
  for (Tensor* tensor : {&pages.k, &pages.v}) tensor->fill([](const Index&) { return 0.5; });
  expect_refused(expected, [&](AttentionArguments& a) {
    pages.use(a);
    change(a, pages);
  });
}

// What a ring of the caller's own has written over is refused where a query sees it, in padded and
// in ragged batches.
TEST(KvView, KeysThatAreGoneAreRefusedByName) {
  static constexpr std::int64_t kOldest[] = {2, 4};
  const auto gone = [](AttentionArguments& a) { a.kv.oldest = ConstView(kOldest, {2}); };
  const std::string first =
      "attention: query 0 of sequence 0 sees key 0, but kv holds its keys from 2";
  expect_view_refused(first + " on (kv.oldest) and the first 0 alone",
                      [&](AttentionArguments& a, PagedSample&) { gone(a); });
  expect_view_refused(
      "attention: query 0 of sequence 1 sees key 3, but kv holds its keys from 4 on (kv.oldest) "
      "and the first 0 alone",
      [&](AttentionArguments& a, PagedSample&) {
        gone(a);
        a.mask = window(2, -1, Align::end);  // queries begin at 2 and 5
        a.kv.first_tokens = 0;
        static constexpr std::int64_t kLess[] = {0, 4};
        a.kv.oldest = ConstView(kLess, {2});
      });
  expect_view_refused("accepted", [&](AttentionArguments& a, PagedSample&) {
    gone(a);
    a.mask = window(0, 0, Align::end);
  });
  expect_view_refused("accepted", [&](AttentionArguments& a, PagedSample&) {
    gone(a);
    a.kv.first_tokens = 4;
  });
  expect_view_refused("accepted", [&](AttentionArguments& a, PagedSample&) {
    gone(a);
    a.mask = window_and_first(0, 0, 1, Align::end);
    a.kv.first_tokens = 1;
  });
  // The last query alone is valid: the windows of the others do not count.
  static constexpr std::int64_t kOne[] = {1, 1};
  expect_view_refused("accepted", [&](AttentionArguments& a, PagedSample&) {
    gone(a);
    a.mask = window(2, 0, Align::end) & lengths({}, ConstView(kOne, {2}));
  });
  expect_view_refused(first + "*", [&](AttentionArguments& a, PagedSample&) {
    gone(a);
    static constexpr std::int64_t kStarts[] = {0, 5};
    a.mask = causal();
    a.q_start = ConstView(kStarts, {2});
  });
}

// Keys' documents may be more than a sequence's keys, as a cache's capacity is; queries' may not.
TEST(KvView, DocumentsOfQueriesAreAsManyAsTheyAre) {
  static constexpr std::int64_t kSame[16] = {};
  for (const std::int64_t more : {0, 1}) {
    expect_view_refused(
        more == 0 ? "accepted" : "attention: mask.q_documents: tokens is 4, expected 3",
        [&](AttentionArguments& a, PagedSample&) {
          a.mask.q_documents = ConstView(kSame, {std::int64_t{2}, 3 + more});
          a.mask.kv_documents = ConstView(kSame, {2, 8});
        });
  }
}

TEST(KvView, LyingViewsAreRefusedByName) {
  expect_view_refused("accepted", [](AttentionArguments&, PagedSample&) {});
  expect_view_refused("attention: kv.page_table[1, 0] (3) is not within the pool's 0 .. 2",
                      [](AttentionArguments&, PagedSample& p) { p.table[1] = 3; });
  expect_view_refused("attention: kv.page_table[0, 0] (-1) is not within the pool's 0 .. 2",
                      [](AttentionArguments&, PagedSample& p) { p.table[0] = -1; });
  expect_view_refused(
      "attention: kv.lengths[0] (9) needs 2 pages, but kv.page_table has 1 a sequence",
      [](AttentionArguments&, PagedSample& p) { p.lengths[0] = 9; });
  expect_view_refused("attention: kv.lengths[1] (-1) is negative",
                      [](AttentionArguments&, PagedSample& p) { p.lengths[1] = -1; });
  expect_view_refused("attention: kv.lengths is not given, expected [batch] beside kv.page_table",
                      [](AttentionArguments& a, PagedSample&) { a.kv.lengths = {}; });
  expect_view_refused("attention: k and kv are both given, expected one",
                      [](AttentionArguments& a, PagedSample&) { a.k = a.kv.k; });
  expect_view_refused("attention: v and kv are both given, expected one",
                      [](AttentionArguments& a, PagedSample&) { a.v = a.kv.v; });
  expect_view_refused(
      "attention: mask.kv_lengths and kv are both given, expected kv.lengths alone",
      [](AttentionArguments& a, PagedSample&) { a.mask.kv_lengths = a.kv.lengths; });
  expect_view_refused("attention: kv.k: page_tokens is 7, expected a power of two from 8 to 256",
                      [](AttentionArguments& a, PagedSample&) {
                        a.kv.k.layout.extents[1] = a.kv.v.layout.extents[1] = 7;
                      });
  expect_view_refused("attention: kv.v: kv_heads is 1, expected 2",
                      [](AttentionArguments& a, PagedSample&) { a.kv.v.layout.extents[2] = 1; });
  expect_view_refused("attention: kv.k: head_dim is 7, expected 8",
                      [](AttentionArguments& a, PagedSample&) { a.kv.k.layout.extents[3] = 7; });
  expect_view_refused("attention: kv.page_table: batch is 1, expected 2",
                      [](AttentionArguments& a, PagedSample& p) {
                        a.kv.page_table = ConstView(p.table.data(), {1, 2});
                      });
  expect_view_refused("attention: kv.k_scales is given, but float32 has no scales",
                      [](AttentionArguments& a, PagedSample&) { a.kv.k_scales = a.kv.k; });
  expect_view_refused("attention: kv.k_scales is not given*",
                      [](AttentionArguments& a, PagedSample&) {
                        a.kv.k.type = a.kv.v.type = ElementType::int8;
                        for (int axis = 0; axis < 3; ++axis)
                          a.kv.k.layout.strides[axis] = a.kv.v.layout.strides[axis] = 32;
                      });
  expect_view_refused(
      "attention: kv.k: stride of axis 1 is 16 elements, expected a multiple of 32 for int8",
      [](AttentionArguments& a, PagedSample&) {
        a.kv.k.type = ElementType::int8;
        a.kv.k.layout.strides[0] = 32;
      });
  expect_view_refused("attention: kv.first_tokens (-1) is negative",
                      [](AttentionArguments& a, PagedSample&) { a.kv.first_tokens = -1; });
  expect_view_refused("attention: kv.first_tokens is given without kv.oldest",
                      [](AttentionArguments& a, PagedSample&) { a.kv.first_tokens = 1; });
  expect_view_refused("attention: kv.oldest: batch is 1, expected 2",
                      [](AttentionArguments& a, PagedSample& p) {
                        a.kv.oldest = ConstView(p.lengths.data(), {1});
                      });
  expect_view_refused("attention: kv.oldest is float32, expected*",
                      [](AttentionArguments& a, PagedSample&) {
                        a.kv.oldest = a.kv.lengths;
                        a.kv.oldest.type = f32;
                      });
  expect_view_refused("attention: out overlaps*", [](AttentionArguments& a, PagedSample&) {
    a.kv.oldest = ConstView(static_cast<const std::int32_t*>(a.out.data), {2});
  });
  expect_view_refused("attention: kv_offsets and kv are both given, expected one",
                      [](AttentionArguments& a, PagedSample&) {
                        static constexpr std::int32_t kOffsets[] = {0, 1, 2};
                        a.q_offsets = a.kv_offsets = ConstView(kOffsets, {3});
                      });
}

}  // namespace
}  // namespace polyhead::test
