// Joining partial results by their LSE.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/slice.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

/// As many parts as keys at most.
std::vector<std::int64_t> numbers_of_parts(std::int64_t keys) {
  if (effort() == Effort::smoke) return {1, 2, 3, 5, 17, keys};
  std::vector<std::int64_t> all(static_cast<std::size_t>(keys));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

TEST(Merge, SplitKeysGiveTheWhole) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (bool with_sink : {false, true}) {
      for (const std::int64_t parts : numbers_of_parts(40)) {
        Case c = small_case(types, 6, 40);
        c.types.out = f32;
        if (with_sink) c.modifier = ModifierKind::sink;
        Problem p(c);
        p.mask = causal(Align::end);
        p.run(isa);
        const Outputs whole(p);
        Tensor outs(f32, {parts, 1, c.q_len, c.q_heads, c.value_dim}),
            lses(f32, {parts, 1, c.q_len, c.q_heads});
        for (std::int64_t part = 0; part < parts; ++part) {
          const std::int64_t begin = c.kv_len * part / parts, end = c.kv_len * (part + 1) / parts;
          AttentionArguments a = p.arguments();
          a.k = slice(a.k, 1, begin, end);
          a.v = slice(a.v, 1, begin, end);
          // Keys of the part count from 0, so its queries stand that much earlier.
          const std::int64_t start[] = {c.kv_len - c.q_len - begin};
          a.q_start = {start, {1}};
          a.mask.align = Align::unstated;
          a.modifiers.sink = {};
          a.out = drop_first_axis(slice(outs.view(), 0, part, part + 1));
          a.lse = drop_first_axis(slice(lses.view(), 0, part, part + 1));
          if (parts == 1)
            a.out = drop_first_axis(outs.view()), a.lse = drop_first_axis(lses.view());
          attention(a, {.isa = isa});
        }
        Tensor out(f32, {1, c.q_len, c.q_heads, c.value_dim}), lse(f32, {1, c.q_len, c.q_heads});
        merge_partials(
            {outs.const_view(), lses.const_view(), out.view(), lse.view(), p.modifiers.sink});
        EXPECT_LE(largest_difference(out, whole.out), tolerance(c))
            << isa_name(isa) << describe(c) << " parts " << parts;
        EXPECT_LE(largest_difference(lse, whole.lse), 40 * kEpsilon * 6)
            << isa_name(isa) << " parts " << parts;
      }
    }
  });
}

TEST(Merge, EmptyPartsAddNothing) {
  const float minus = -std::numeric_limits<float>::infinity();
  Tensor outs(f32, {3, 1, 2, 1, 2}), lses(f32, {3, 1, 2, 1}), out(f32, {1, 2, 1, 2}),
      lse(f32, {1, 2, 1});
  // Row 0: only the middle part has keys, the others hold NaN (poison). Row 1: all are empty.
  lses.fill([&](const Index& at) { return at[0] == 1 && at[2] == 0 ? 0.5 : minus; });
  outs.set({1, 0, 0, 0, 0}, 3.0);
  outs.set({1, 0, 0, 0, 1}, 4.0);
  const float sink[] = {0.5f};
  merge_partials({outs.const_view(), lses.const_view(), out.view(), lse.view(), {}});
  EXPECT_EQ(out.get({0, 0, 0, 0}), 3.0);
  EXPECT_EQ(out.get({0, 0, 0, 1}), 4.0);
  EXPECT_EQ(lse.get({0, 0, 0}), 0.5);
  EXPECT_EQ(out.get({0, 1, 0, 0}), 0.0);
  EXPECT_EQ(lse.get({0, 1, 0}), minus);
  merge_partials({outs.const_view(), lses.const_view(), out.view(), lse.view(), {sink, {1}}});
  EXPECT_EQ(out.get({0, 0, 0, 0}), 1.5) << "the sink takes half";
  EXPECT_NEAR(lse.get({0, 0, 0}), 0.5 + std::log(2.0), kEpsilon);
  EXPECT_EQ(out.get({0, 1, 0, 0}), 0.0);
  EXPECT_EQ(lse.get({0, 1, 0}), minus);
}

// Beside which the logarithm of a sum is lost.
TEST(Merge, OfLsesUpToTheLargestFloat) {
  for (const double large : {3.3e38, 1e20, -3.3e38}) {
    Tensor outs(f32, {3, 1, 1, 1, 1}), lses(f32, {3, 1, 1, 1}), out(f32, {1, 1, 1, 1});
    lses.fill([&](const Index& at) { return at[0] < 2 ? large : -3.4e38; });
    outs.fill([](const Index& at) { return at[0] == 0 ? 2.0 : at[0] == 1 ? 4.0 : 100.0; });
    merge_partials({outs.const_view(), lses.const_view(), out.view(), {}, {}});
    EXPECT_EQ(out.get({0, 0, 0, 0}), 3.0) << large;
  }
}

TEST(Merge, EveryTypeAndThreadCount) {
  for (ElementType in : {f32, f16, bf16}) {
    for (ElementType result : {f32, f16, bf16}) {
      Random random(12);
      Tensor outs(in, {4, 3, 50, 2, 70}), lses(f32, {4, 3, 50, 2});
      outs.fill_normal(random);
      lses.fill_normal(random, 3.0);
      Tensor one(result, {3, 50, 2, 70}), other(result, {3, 50, 2, 70}, {1, 0, 3, 2});
      ThreadPool pool(3);
      merge_partials({outs.const_view(), lses.const_view(), one.view(), {}, {}},
                     {.executor = &Executor::serial()});
      merge_partials({outs.const_view(), lses.const_view(), other.view(), {}, {}},
                     {.executor = &pool});
      EXPECT_EQ(differing_bits(one, other), 0);
      for_each_index(one.extents(), [&](const Index& at) {
        double total = 0, sum = 0;
        for (std::int64_t part = 0; part < 4; ++part) {
          const double w = std::exp(lses.get({part, at[0], at[1], at[2]}));
          total += w;
          sum += w * outs.get({part, at[0], at[1], at[2], at[3]});
        }
        ASSERT_NEAR(one.get(at), sum / total, 4 * unit_of(result)) << element_name(result);
      });
    }
  }
}

TEST(Merge, RefusesAnInstructionSetThatIsNone) {
  Tensor outs(f32, {1, 1, 1, 1, 1}), lses(f32, {1, 1, 1, 1}), out(f32, {1, 1, 1, 1});
  const MergeArguments merge{outs.const_view(), lses.const_view(), out.view(), {}, {}};
  EXPECT_THROW(merge_partials(merge, {.isa = static_cast<Isa>(99)}), InvalidArgument);
}

}  // namespace
}  // namespace polyhead::test
