// What other libraries mean by a word.
#include "polyhead/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LseBase, LogarithmsToTheBaseOfTwoAndBack) {
  // Every other number, the rows from the last one to the first.
  std::vector<float> numbers = {1.0f,  7, -3.5f, 7, 0.0f,       7,  //
                                80.0f, 7, 1e-3f, 7, -kInfinity, 7};
  const std::vector<float> before = numbers;
  const View lse(numbers.data() + 6, {2, 3}, {-6, 2});
  lse_to_base2(lse);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double expected = i % 2 ? 7.0 : before[i] / std::log(2.0);
    EXPECT_EQ(numbers[i], static_cast<float>(expected)) << i;
  }
  lse_from_base2(lse);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isinf(before[i])) {
      EXPECT_EQ(numbers[i], before[i]);
    } else {
      EXPECT_NEAR(numbers[i], before[i], std::abs(before[i]) * 0x1p-23) << i;
    }
  }
}

TEST(LseBase, PartialResultsOfAnotherLibraryAreMerged) {
  constexpr std::int64_t kKeys = 40, kFirst = 17;
  Random random(3);
  Tensor q(f32, {1, 2, 2, 16}), k(f32, {1, kKeys, 2, 16}), v(f32, {1, kKeys, 2, 16});
  for (Tensor* tensor : {&q, &k, &v}) tensor->fill_normal(random);
  Tensor whole(f32, {1, 2, 2, 16}), outs(f32, {2, 1, 2, 2, 16}), lses(f32, {2, 1, 2, 2});
  const auto attend = [&](std::int64_t from, std::int64_t count, View out, View lse) {
    AttentionArguments call;
    call.q = q.const_view();
    call.k = k.const_view();
    call.v = v.const_view();
    for (ConstView* view : {&call.k, &call.v}) {
      view->data = static_cast<const float*>(view->data) + from * 2 * 16;
      view->layout.extents[1] = count;
    }
    call.out = out;
    call.lse = lse;
    attention(call);
  };
  attend(0, kKeys, whole.view(), {});
  float* const out = static_cast<float*>(outs.view().data);
  float* const lse = static_cast<float*>(lses.view().data);
  attend(0, kFirst, View(out, {1, 2, 2, 16}), View(lse, {1, 2, 2}));
  attend(kFirst, kKeys - kFirst, View(out + 64, {1, 2, 2, 16}), View(lse + 4, {1, 2, 2}));
  for (int i = 0; i < 8; ++i) lse[i] = static_cast<float>(std::log2(std::exp(double{lse[i]})));
  lse_from_base2(lses.view());
  Tensor merged(f32, {1, 2, 2, 16});
  merge_partials({.outs = outs.const_view(), .lses = lses.const_view(), .out = merged.view()});
  for_each_index(merged.extents(),
                 [&](const Index& at) { EXPECT_NEAR(merged.get(at), whole.get(at), 1e-5); });
}

TEST(LseBase, WhatIsNoNumberStays) {
  std::vector<float> numbers = {kInfinity, -kInfinity, 3e38f,
                                -3e38f,    0.0f,       std::numeric_limits<float>::quiet_NaN()};
  const View lse(numbers.data(), {6});
  lse_to_base2(lse);
  EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.begin() + 5),
            (std::vector<float>{kInfinity, -kInfinity, kInfinity, -kInfinity, 0.0f}));
  EXPECT_TRUE(std::isnan(numbers[5]));
}

TEST(LseBase, RefusesByName) {
  std::vector<float> numbers(4, 2.0f);
  EXPECT_EQ(refusal_of([] { lse_to_base2({}); }), "lse_to_base2: lse is not given");
  EXPECT_EQ(refusal_of([&] { lse_from_base2(View(numbers.data(), {4}, {0})); }).substr(0, 19),
            "lse_from_base2: lse");
  std::vector<double> wide(4);
  EXPECT_NE(refusal_of([&] {
              lse_from_base2(View(wide.data(), ElementType::int64, detail::Layout({4})));
            }).find("lse_from_base2: lse is int64, expected float32"),
            std::string::npos);
  EXPECT_EQ(numbers, std::vector<float>(4, 2.0f));
  lse_to_base2(View(numbers.data(), {0}));
  EXPECT_EQ(numbers, std::vector<float>(4, 2.0f));
}

TEST(LastKeys, TheQuerysOwnCounts) {
  constexpr std::int64_t kTokens = 6, kSeen = 3;
  Tensor q(f32, {1, kTokens, 1, 8}), k(f32, {1, kTokens, 1, 8}), v(f32, {1, kTokens, 1, 1});
  for (Tensor* tensor : {&q, &k})  // all keys alike
    for_each_index(tensor->extents(), [&](const Index& at) { tensor->set(at, 0.0); });
  for (std::int64_t t = 0; t < kTokens; ++t) v.set({0, t, 0, 0}, static_cast<double>(1 << t));
  Tensor out(f32, {1, kTokens, 1, 1});
  AttentionArguments call;
  call.q = q.const_view();
  call.k = k.const_view();
  call.v = v.const_view();
  call.out = out.view();
  call.mask = last_keys(kSeen);
  attention(call);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double sum = 0.0;
    const std::int64_t first = std::max<std::int64_t>(0, t - kSeen + 1);
    for (std::int64_t seen = first; seen <= t; ++seen) sum += static_cast<double>(1 << seen);
    EXPECT_NEAR(out.get({0, t, 0, 0}), sum / static_cast<double>(t - first + 1), 1e-5) << t;
  }
}

TEST(LastKeys, AreAWindowThatEndsWithTheQuery) {
  const Mask mask = last_keys(4, Align::end);
  EXPECT_TRUE(mask.causal && mask.windowed);
  EXPECT_EQ(mask.left, 3);
  EXPECT_EQ(mask.right, 0);
  EXPECT_EQ(mask.align, Align::end);
  EXPECT_EQ(mask.conflict, nullptr);
  EXPECT_EQ(refusal_of([] { last_keys(0); }),
            "last_keys: keys (0) is less than 1, the query's own");
}

}  // namespace
}  // namespace polyhead::test
