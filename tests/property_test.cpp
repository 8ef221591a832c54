// What must hold for any attention, whatever its numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/problem.h"
#include "support/slice.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Element (at) of `from` at a permuted place along one axis.
Tensor permuted(const Tensor& from, int axis, const std::vector<std::int64_t>& order) {
  Tensor to = from;
  for_each_index(from.extents(), [&](const Index& at) {
    Index source = at;
    const std::size_t a = static_cast<std::size_t>(axis);
    source[a] = order[static_cast<std::size_t>(at[a])];
    std::memcpy(to.address(at), from.address(source),
                static_cast<std::size_t>(element_bytes(from.type())));
  });
  return to;
}

std::vector<std::int64_t> shuffled(std::int64_t n, Random& random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

TEST(Property, PermutingKeysWithTheirValuesChangesNothing) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (std::int64_t q_len : {1, 20}) {
      const Case c = small_case(types, q_len);
      Problem a(c), b(c);
      Random random(9);
      const std::vector<std::int64_t> order = shuffled(c.kv_len, random);
      b.k = permuted(a.k, 1, order);
      b.v = permuted(a.v, 1, order);
      a.run(isa);
      b.run(isa);
      EXPECT_LE(largest_difference(a.out, b.out), tolerance(c)) << isa_name(isa) << describe(c);
    }
  });
}

TEST(Property, PermutingHeadsPermutesTheOutput) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    Case c = small_case(types);
    c.q_heads = c.kv_heads = 5;
    Problem a(c), b(c);
    const std::vector<std::int64_t> order = {3, 0, 4, 1, 2};
    b.q = permuted(a.q, 2, order);
    b.k = permuted(a.k, 2, order);
    b.v = permuted(a.v, 2, order);
    a.run(isa);
    b.run(isa);
    EXPECT_EQ(differing_bits(b.out, permuted(a.out, 2, order)), 0) << isa_name(isa) << describe(c);
  });
}

TEST(Property, OneKeyGivesItsValue) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (double deviation : {1.0, 30.0}) {
      Case c = small_case(types, 5, 1);
      c.types.out = c.types.v;
      c.q_deviation = deviation;
      Problem p(c);
      p.run(isa);
      for_each_index(p.out.extents(), [&](const Index& at) {
        ASSERT_EQ(p.out.get(at), p.v.get({at[0], 0, at[2] / 2, at[3]}))
            << isa_name(isa) << describe(c);
      });
    }
  });
}

// Keys that are all alike have equal weights: the largest is that of the first visible one.
TEST(Property, OfEqualWeightsTheFirstKeyIsNamed) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (std::int64_t q_len : {1, 20}) {
      for (MaskKind mask : {MaskKind::none, MaskKind::window_causal, MaskKind::boolean_full}) {
        Case c = small_case(types, q_len);
        c.mask = mask;
        c.statistics = true;
        Problem p(c);
        p.k = permuted(p.k, 1, std::vector<std::int64_t>(static_cast<std::size_t>(c.kv_len), 0));
        p.run(isa);
        const auto exact = kernels::reference::attend(door::resolve(p.arguments()));
        std::size_t row = 0;
        for_each_index(p.max_key.extents(), [&](const Index& at) {
          ASSERT_EQ(p.max_key.get_int(at), exact.max_key[row++]) << isa_name(isa) << describe(c);
        });
      }
    }
  });
}

// 64 weights of 1, and one of 63.6 in the next block: no bfloat16, unless what others refer to.
TEST(Property, AWeightThatIsALargePartOfItsRowIsNotRounded) {
  for (Isa isa : isas()) {
    for (std::int64_t q_len : {1, 40}) {
      Case c = small_case({bf16, bf16, bf16, f32}, q_len, 65);
      Problem p(c);
      const double size = 0.84765625;  // a bfloat16
      p.q.fill([](const Index&) { return 1.0; });
      p.k.fill([&](const Index& at) { return at[1] == 64 ? size : 0.0; });
      p.v.fill([](const Index& at) { return at[1] == 64 ? 1.0 : 0.0; });
      p.run(isa);
      const double weight = std::exp(size * std::sqrt(static_cast<double>(c.head_dim)));
      for_each_index(p.out.extents(), [&](const Index& at) {
        ASSERT_NEAR(p.out.get(at), weight / (64 + weight), 1e-5) << isa_name(isa) << describe(c);
      });
    }
  }
}

TEST(Property, LinearInTheValues) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    Case c = small_case(types);
    c.types.out = f32;
    Problem a(c), doubled(c), b(c), sum(c);
    doubled.v.fill([&](const Index& at) { return 2 * a.v.get(at); });
    // Values on a grid of 1/8 up to 4, so that their sums are exact in every type.
    Random random(4);
    a.v.fill([&](const Index&) { return static_cast<double>(random.below(31) - 15) / 8; });
    b.v.fill([&](const Index&) { return static_cast<double>(random.below(31) - 15) / 8; });
    sum.v.fill([&](const Index& at) { return a.v.get(at) + b.v.get(at); });
    doubled.v.fill([&](const Index& at) { return 2 * a.v.get(at); });
    for (Problem* p : {&a, &b, &sum, &doubled}) p->run(isa);
    Tensor expected = sum.out, twice = sum.out;
    expected.fill([&](const Index& at) { return a.out.get(at) + b.out.get(at); });
    twice.fill([&](const Index& at) { return 2 * a.out.get(at); });
    EXPECT_LE(largest_difference(sum.out, expected), tolerance(c)) << isa_name(isa) << describe(c);
    EXPECT_EQ(differing_bits(doubled.out, twice), 0) << "a power of two is exact";
  });
}

TEST(Property, AddingAConstantToAllScoresChangesNothing) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (float constant : {3.0f, -700.0f, 1000.0f}) {
      const Case c = small_case(types);
      Problem a(c), b(c);
      b.modifiers.bias = {&constant, {1, 1, 1, 1}};
      a.run(isa);
      b.run(isa);
      // Scores of order 1,000 are rounded to eps * 512, which is a relative error of the weights.
      const double shift = 2 * 512 * kEpsilon * 4.0;
      EXPECT_LE(largest_difference(a.out, b.out), tolerance(c) + shift)
          << isa_name(isa) << describe(c);
      for_each_index(a.lse.extents(), [&](const Index& at) {
        ASSERT_NEAR(b.lse.get(at) - constant, a.lse.get(at), 4e-4)
            << isa_name(isa);  // eps of 1,000 a few times
      });
    }
  });
}

TEST(Property, ACausalPrefixDoesNotKnowWhatComesLater) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    Case c = small_case(types, 150, 150);
    c.mask = MaskKind::causal_end;
    Problem a(c), b(c);
    Random random(77);
    const std::int64_t later = 90;
    for (Tensor* tensor : {&b.q, &b.k, &b.v}) {
      for_each_index(tensor->extents(), [&](const Index& at) {
        if (at[1] >= later) tensor->set(at, 10 * random.normal());
      });
    }
    a.run(isa);
    b.run(isa);
    for_each_index(a.out.extents(), [&](const Index& at) {
      if (at[1] >= later) return;
      ASSERT_EQ(a.out.get(at), b.out.get(at)) << isa_name(isa) << describe(c);
    });
  });
}

TEST(Property, NanInAQueryStaysInItsRow) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (std::int64_t q_len : {1, 3, 40}) {
      for (ModifierKind modifier :
           {ModifierKind::none, ModifierKind::soft_cap, ModifierKind::sink}) {
        Case c = small_case(types, q_len, 70);
        c.modifier = modifier;
        Problem p(c);
        p.run(isa);
        const Outputs clean(p);
        const std::int64_t sick = q_len / 2;
        p.q.set({0, sick, 2, 3}, kNan);
        p.run(isa);
        for_each_index(p.out.extents(), [&](const Index& at) {
          if (at[1] == sick && at[2] == 2) {
            ASSERT_TRUE(std::isnan(p.out.get(at))) << isa_name(isa) << describe(c);
          } else {
            ASSERT_EQ(p.out.get(at), clean.out.get(at)) << isa_name(isa) << describe(c);
          }
        });
        EXPECT_TRUE(std::isnan(p.lse.get({0, sick, 2}))) << isa_name(isa) << describe(c);
      }
    }
  });
}

}  // namespace
}  // namespace polyhead::test
