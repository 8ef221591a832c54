// Scores and scales at the ends of what float32 holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/explain.h"
#include "polyhead/inspect.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

/// How far results may lie from the reference: out and weights absolutely, LSE relatively to the
/// largest of 1 and itself.
struct Tolerance {
  double out, weight, lse, entropy;
};

void expect_near_reference(Problem& p, Isa isa, const Tolerance& tolerance) {
  const Case& c = p.description();
  const reference::Result exact = reference::attend(door::resolve(p.arguments()), true);
  const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
  p.run(isa);
  std::size_t row = 0, element = 0;
  for_each_index(p.lse.extents(), [&](const Index& at) {
    const double lse = exact.lse[row], found = p.lse.get(at);
    if (std::isinf(lse))
      EXPECT_EQ(found, lse) << what;
    else
      EXPECT_LE(std::abs(found - lse), tolerance.lse * std::max(1.0, std::abs(lse)))
          << what << " beside " << found;
    if (c.statistics) {
      EXPECT_LE(std::abs(p.entropy.get(at) - exact.entropy[row]), tolerance.entropy) << what;
      EXPECT_LE(std::abs(p.max_weight.get(at) - exact.max_weight[row]), tolerance.weight) << what;
      if (exact.max_weight[row] > 0.0) {
        EXPECT_EQ(p.max_key.get_int(at), exact.max_key[row]) << what;
      }
    }
    ++row;
  });
  for_each_index(p.out.extents(), [&](const Index& at) {
    ASSERT_LE(std::abs(p.out.get(at) - exact.out[element++]), tolerance.out) << what;
  });
}

/// The second pass, by keys and by queries, its sums, and the trace of single rows.
void expect_second_pass_near(Problem& p, Isa isa, double tolerance) {
  const Case& c = p.description();
  const reference::Result exact = reference::attend(door::resolve(p.arguments()), true);
  const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
  Tensor weights(f32, {1, c.q_heads, c.q_len, c.kv_len}), received(f32, {1, c.q_heads, c.kv_len});
  p.run(isa);
  AttentionArguments call = p.arguments();
  inspect(call, {.weights = weights.view()}, {.isa = isa});
  inspect(call, {.received = received.view()}, {.isa = isa});
  std::size_t pair = 0;
  std::vector<double> mass(static_cast<std::size_t>(c.q_heads * c.kv_len), 0.0);
  for_each_index(weights.extents(), [&](const Index& at) {
    const double weight = exact.weights[pair++];
    mass[static_cast<std::size_t>(at[1] * c.kv_len + at[3])] += weight;
    ASSERT_LE(std::abs(weights.get(at) - weight), tolerance) << what;
  });
  std::size_t key = 0;
  for_each_index(received.extents(), [&](const Index& at) {
    ASSERT_LE(std::abs(received.get(at) - mass[key++]), tolerance * static_cast<double>(c.q_len))
        << what;
  });
  const RowTrace trace = explain(call, {.head = 0, .query = c.q_len - 1});
  for (std::int64_t d = 0; d < c.value_dim; ++d)
    EXPECT_NEAR(trace.heads[0].output[static_cast<std::size_t>(d)],
                exact.out[exact.out.size() - static_cast<std::size_t>(c.value_dim - d)], 1e-9);
}

const std::vector<Types> kExtremeTypes = {
    {f32, f32, f32, f32}, {bf16, bf16, bf16, f32}, {f32, bf16, bf16, f32}};

enum class Beside { nothing, zero_bias, sink };

/// One head; q_len 1 decodes, 60 is a tile of rows; more than one split of keys where they are
/// long. The scores are those of key j times row i's factor of q, which is 1 but in every third
/// row.
Case extreme_case(const Types& types, std::int64_t q_len, std::int64_t kv_len, bool statistics) {
  Case c;
  c.q_len = q_len;
  c.kv_len = kv_len;
  c.head_dim = 1;
  c.value_dim = 5;
  c.types = types;
  c.statistics = statistics;
  return c;
}

double extreme_score(std::int64_t key, std::int64_t kv_len) {
  if (key % 9 == 4 && key > kv_len / 2) return 3.3e38;  // the largest, several times
  if (key % 5 == 1) return 2.5e38;                      // not in float32 times log2(e)
  return key % 2 == 0 ? -3.3e38 : 2.0;
}

// Ties at the largest score have weights of exactly 1 before they are divided by their number: what
// is left are the sums' roundings, kv_len of them, and of |v| <= 3.5 each.
TEST(ExtremeScores, UpToTheLargestFloat) {
  for (const Types& types : kExtremeTypes) {
    for (const auto& [q_len, kv_len] : {std::pair{1, 70}, {1, 1100}, {60, 70}, {60, 1100}}) {
      for (const bool statistics : {false, true}) {
        for (const Beside beside : {Beside::nothing, Beside::zero_bias, Beside::sink}) {
          Problem p(extreme_case(types, q_len, kv_len, statistics));
          p.modifiers.scale = 1.0f;
          p.q.fill([](const Index& at) { return at[1] % 3 == 1 ? 0x1p-120 : 1.0; });
          p.k.fill([&](const Index& at) { return extreme_score(at[1], p.k.extents()[1]); });
          Tensor bias(f32, {1, 1, 1, 1}), sink(f32, {1});
          bias.fill([](const Index&) { return 0.0; });
          sink.fill([](const Index&) { return 1.0; });
          if (beside == Beside::zero_bias) p.modifiers.bias = bias.const_view();
          if (beside == Beside::sink) p.modifiers.sink = sink.const_view();
          const double sums = kEpsilon * static_cast<double>(kv_len);
          // The ordinary rows' scores reach 250: each is off by a few roundings of that.
          const double ordinary = 250 * 8 * kEpsilon, rounded = types.q == bf16 ? 0x1p-7 : 0.0;
          const Tolerance tolerance{3.5 * (sums + ordinary + rounded), sums + ordinary,
                                    4 * kEpsilon + sums, 8 * (sums + ordinary)};
          for (Isa isa : isas()) {
            expect_near_reference(p, isa, tolerance);
            if (!statistics) expect_second_pass_near(p, isa, sums + ordinary);
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Scores of every size between, under scales that are no power of two: what rounds the largest one
// must round all of a row alike.
TEST(ExtremeScores, OfEverySize) {
  for (const Types& types : kExtremeTypes) {
    for (const float scale : {0.3f, -3e15f}) {
      for (int exponent = 6; exponent < 126; exponent += 8) {
        for (const bool statistics : {false, true}) {
          for (const std::int64_t q_len : {1, 60}) {
            Problem p(extreme_case(types, q_len, 150, statistics));
            p.modifiers.scale = scale;
            const double size = std::ldexp(1.25, exponent) / scale;
            p.q.fill([](const Index& at) { return at[1] % 3 == 1 ? 0.5 : 1.0; });
            p.k.fill([&](const Index& at) {
              return at[1] % 9 == 4 ? size : at[1] % 2 == 0 ? -size : size / 4;
            });
            Tensor sink(f32, {1});
            sink.fill([](const Index&) { return 1.0; });
            if (exponent % 16 == 6) p.modifiers.sink = sink.const_view();
            // Ties, but beside smaller scores where these are near. A score is rounded, and the
            // largest once more in the exponent where it is below 2^12.
            const double sums = kEpsilon * 150, score = std::ldexp(1.25, std::min(exponent, 12));
            const double error = sums + 8 * kEpsilon * score;
            const double rounded = types.q == bf16 ? 0x1p-7 : 0.0;
            for (Isa isa : isas()) {
              expect_near_reference(
                  p, isa, {3.5 * (error + rounded), error, 4 * kEpsilon + sums, 8 * error});
              if (!statistics) expect_second_pass_near(p, isa, error);
            }
            ASSERT_FALSE(HasFailure()) << scale << " " << exponent;
          }
        }
      }
    }
  }
}

// A row of nothing but the lowest scores is no row without keys; beside any sink it is next to
// nothing.
TEST(ExtremeScores, AllAtTheLowestFloat) {
  for (const Types& types : kExtremeTypes) {
    for (const std::int64_t q_len : {1, 60}) {
      for (const bool with_sink : {false, true}) {
        Problem p(extreme_case(types, q_len, 70, q_len > 1));
        p.modifiers.scale = 1.0f;
        p.q.fill([](const Index&) { return 1.0; });
        p.k.fill([](const Index&) { return -3.3e38; });
        Tensor sink(f32, {1});
        sink.fill([](const Index&) { return -7.0; });
        if (with_sink) p.modifiers.sink = sink.const_view();
        const double sums = 70 * kEpsilon;
        for (Isa isa : isas()) {
          expect_near_reference(p, isa, {3.5 * sums, sums, 4 * kEpsilon, 8 * sums});
          expect_second_pass_near(p, isa, sums);
        }
      }
    }
  }
}

// Scales that are subnormal, or beyond float32 once log2(e) joins them, over scores within 50.
TEST(ExtremeScores, ScalesFromSubnormalToTheLargest) {
  constexpr std::array<double, 10> kScales = {0x1p-149, 1e-44, 1e-38,  1.3e-38, 0x1p-90,
                                              0x1p90,   1e38,  2.5e38, 3.4e38,  0x1.fffffep127};
  for (const Types& types : kExtremeTypes) {
    for (const double scale : kScales) {
      for (const double sign : {1.0, -1.0}) {
        for (const std::int64_t q_len : {1, 60}) {
          for (const ModifierKind modifier : {ModifierKind::none, ModifierKind::soft_cap,
                                              ModifierKind::bias_full, ModifierKind::alibi}) {
            Case c = extreme_case(types, q_len, 90, false);
            c.modifier = modifier;
            Problem p(c);
            p.modifiers.scale = static_cast<float>(sign * scale);
            // q k is a power of two times a whole number up to 10, near 1 / scale, but within what
            // the bf16 dot has: no subnormal numbers, and nothing beyond float32.
            const int exponent = std::clamp(-std::ilogb(scale), -126, 123);
            const double a = std::ldexp(1.0, exponent / 2), b = std::ldexp(1.0, exponent) / a;
            p.q.fill([&](const Index& at) { return a * static_cast<double>(1 + at[1] % 2); });
            p.k.fill([&](const Index& at) { return b * static_cast<double>(at[1] * 7 % 11 - 5); });
            const double score = 10.0 * std::ldexp(scale, exponent) + (q_len + 90.0);
            const double error = 2 * kEpsilon * (8 * score + 90);
            for (Isa isa : isas()) {
              expect_near_reference(
                  p, isa, {3.5 * (error + (types.q == bf16 ? 0x1p-7 : 0.0)), error, error, 0});
              expect_second_pass_near(p, isa, error);
            }
            ASSERT_FALSE(HasFailure()) << scale << " " << sign;
          }
        }
      }
    }
  }
}

// Which rows share a tile says nothing about how one is computed.
TEST(ExtremeScores, AnExtremeRowLeavesItsNeighboursAlone) {
  for (const Types& types : kExtremeTypes) {
    for (Isa isa : isas()) {
      Case c = small_case(types, 60, 150);
      c.q_heads = c.kv_heads = 1;
      c.types.out = f32;
      Problem p(c);
      p.modifiers.scale = 1.0f;
      p.k.fill([&](const Index& at) { return at[3] == 0 ? 1.0 : p.k.get(at); });
      p.q.fill([&](const Index& at) { return at[3] == 0 ? 0.0 : p.q.get(at); });
      p.run(isa);
      const Tensor before = p.out;
      for (std::int64_t query = 0; query < 60; query += 7) p.q.set({0, query, 0, 0}, 3.3e38);
      p.run(isa);
      for_each_index(p.out.extents(), [&](const Index& at) {
        if (at[1] % 7 != 0) {
          ASSERT_EQ(p.out.get(at), before.get(at)) << isa_name(isa) << describe(c);
        }
      });
    }
  }
}

}  // namespace
}  // namespace polyhead::test
