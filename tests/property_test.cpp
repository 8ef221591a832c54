// What must hold for any attention, whatever its numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/problem.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double unit_of(ElementType type) { return type == f32 ? kEpsilon : type == f16 ? 0x1p-10 : 0x1p-7; }

/// How far two computations of one exact result may lie apart. Scores of this file are of order 1
/// (deviation 1, at most about 6): each carries at most head_dim roundings, and the sums over keys
/// at most kv_len, each of eps/2 of its terms, for both sides; weights rounded to bfloat16 carry
/// 2^-9 each; and the output is rounded to its type.
double tolerance(const Case& c) {
  const double v_scale = 4.0;  // Random::normal() never exceeds 3.5
  const bool rounded_weights = c.types.q == bf16 && c.types.k == bf16 && c.types.v == bf16;
  return v_scale * (kEpsilon * static_cast<double>(c.head_dim + c.kv_len) +
                    (rounded_weights ? 0x1p-7 : 0.0) + unit_of(c.types.out));
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double most = 0.0;
  for_each_index(a.extents(), [&](const Index& at) {
    const double x = a.get(at), y = b.get(at);
    if (x == y) return;
    const double difference = std::abs(x - y);
    most = std::isnan(difference) ? kInfinity : std::max(most, difference);
  });
  return most;
}

Case small_case(const Types& types, std::int64_t q_len = 20, std::int64_t kv_len = 150) {
  Case c;
  c.q_len = q_len;
  c.kv_len = kv_len;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.value_dim = 20;
  c.types = types;
  return c;
}

template <class F>
void for_each_isa_and_type(F f) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) f(isa, types);
  }
}

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

// --- what is masked is not read ---

/// Puts `garbage` into one key's slot of k or v, and expects rows that do not see the key to keep
/// every bit, and rows that see it to show it in every element (a NaN as NaN, an infinity at least
/// as something not finite).
void expect_unread(const Case& c, Isa isa, const std::vector<double>& garbage_kinds) {
  Problem p(c);
  const kernels::AttendCall call = door::resolve(p.arguments());
  p.run(isa);
  const Outputs clean(p);
  const Tensor k = p.k, v = p.v;
  const std::int64_t last = std::min<std::int64_t>(c.kv_len, 131);
  const std::int64_t step = effort() == Effort::smoke ? 13 : 1;
  for (std::int64_t key = 0; key < last; key += step) {
    for (double garbage : garbage_kinds) {
      for (Tensor* poisoned : {&p.k, &p.v}) {
        for (std::int64_t b = 0; b < c.batch; ++b) {
          for (std::int64_t head = 0; head < c.kv_heads; ++head) {
            for (std::int64_t d = 0; d < poisoned->extents()[3]; ++d)
              poisoned->set({b, key, head, d}, garbage);
          }
        }
        p.run(isa);
        for (std::int64_t b = 0; b < c.batch; ++b) {
          const kernels::Sequence s = kernels::sequence_of(call, b);
          for (std::int64_t query = 0; query < c.q_len; ++query) {
            for (std::int64_t head = 0; head < c.q_heads; ++head) {
              const bool sees = kernels::reference::visible(call, s, head, query, key);
              std::int64_t changed = 0, finite = 0;
              for (std::int64_t d = 0; d < c.value_dim; ++d) {
                const Index at = {b, query, head, d};
                changed += std::memcmp(p.out.address(at), clean.out.address(at),
                                       static_cast<std::size_t>(element_bytes(c.types.out))) != 0;
                finite += std::isfinite(p.out.get(at));
              }
              const Index row = {b, query, head};
              if (!sees) changed += std::memcmp(p.lse.address(row), clean.lse.address(row), 4) != 0;
              const bool right = sees ? finite == 0 || !std::isnan(garbage) : changed == 0;
              ASSERT_TRUE(right) << isa_name(isa) << ": " << describe(c) << ": key " << key
                                 << " query " << query << " head " << head
                                 << (sees ? " lost " : " leaked ") << garbage << " in "
                                 << (poisoned == &p.k ? "k" : "v");
            }
          }
        }
        p.k = k;
        p.v = v;
      }
    }
  }
}

TEST(MaskedIsUnread, AtEveryOffsetWithTablesThatDifferByRow) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (std::int64_t q_len : {1, 2, 17}) {
      for (MaskKind kind : {MaskKind::boolean_full, MaskKind::bits}) {
        if (q_len == 2 && kind == MaskKind::bits) continue;
        Case c = small_case(types, q_len, 133);
        c.q_heads = 2;
        c.kv_heads = 1;
        c.head_dim = 16;
        c.value_dim = 9;
        c.mask = kind;
        expect_unread(c, isa, {kNan});
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST(MaskedIsUnread, AtEveryOffsetWithStructuralMasks) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (MaskKind kind :
         {MaskKind::causal_end, MaskKind::causal_start, MaskKind::window_both,
          MaskKind::both_lengths, MaskKind::prefix, MaskKind::documents, MaskKind::kv_lengths}) {
      for (std::int64_t q_len : {1, 67}) {
        Case c = small_case(types, q_len, 131);
        c.batch = kind == MaskKind::both_lengths ? 2 : 1;
        c.q_heads = c.kv_heads = 1;
        c.head_dim = 8;
        c.value_dim = 5;
        c.mask = kind;
        expect_unread(c, isa, {kNan});
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST(MaskedIsUnread, InfinitiesToo) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (MaskKind kind : {MaskKind::causal_end, MaskKind::boolean_full}) {
      Case c = small_case(types, 19, 131);
      c.q_heads = c.kv_heads = 1;
      c.head_dim = 8;
      c.value_dim = 5;
      c.mask = kind;
      expect_unread(c, isa, {kInfinity, -kInfinity});
      if (HasFatalFailure()) return;
    }
  });
}

TEST(MaskedIsUnread, HiddenByABiasOrAFunction) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (ModifierKind kind : {ModifierKind::bias_hides, ModifierKind::custom_hides}) {
      for (std::int64_t q_len : {1, 18}) {
        Case c = small_case(types, q_len, 131);
        c.q_heads = c.kv_heads = 1;
        c.modifier = kind;
        Problem p(c);
        p.run(isa);
        const Outputs clean(p);
        // Which pairs are hidden: those of weight 0 in the reference.
        const std::vector<double> weights =
            kernels::reference::attend(door::resolve(p.arguments()), true).weights;
        const Tensor v = p.v;
        for (std::int64_t key = 0; key < c.kv_len; key += 3) {
          for (std::int64_t d = 0; d < c.value_dim; ++d) p.v.set({0, key, 0, d}, kNan);
          p.run(isa);
          for (std::int64_t query = 0; query < c.q_len; ++query) {
            const bool hidden = weights[static_cast<std::size_t>(query * c.kv_len + key)] == 0.0;
            for (std::int64_t d = 0; d < c.value_dim; ++d) {
              const double found = p.out.get({0, query, 0, d}),
                           before = clean.out.get({0, query, 0, d});
              if (hidden) {
                ASSERT_EQ(found, before)
                    << isa_name(isa) << describe(c) << " key " << key << " query " << query;
              } else {
                ASSERT_TRUE(std::isnan(found))
                    << isa_name(isa) << describe(c) << " key " << key << " query " << query;
              }
            }
          }
          p.v = v;
        }
      }
    }
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

// --- splitting and merging ---

TEST(Merge, SplitKeysGiveTheWhole) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    for (bool with_sink : {false, true}) {
      for (std::int64_t parts : {1, 2, 3, 7, 40}) {
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

}  // namespace
}  // namespace polyhead::test
