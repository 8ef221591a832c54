// Faults that other libraries had, one test each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/explain.h"
#include "support/distance.h"
#include "support/problem.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

void expect_zero_row(const Problem& p, const Index& row, const std::string& what) {
  for (std::int64_t d = 0; d < p.description().value_dim; ++d) {
    ASSERT_EQ(p.out.get({row[0], row[1], row[2], d}), 0.0) << what;
  }
  ASSERT_EQ(p.lse.get(row), -kInfinity) << what;
}

TEST(Regression, FullyMaskedRowsAreZeroWithAnLseOfMinusInfinity) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) {
      for (std::int64_t q_len : {1, 4, 90}) {
        for (bool sink : {false, true}) {
          Case c;
          c.q_len = q_len;
          c.kv_len = 140;
          c.q_heads = 2;
          c.types = types;
          if (sink) c.modifier = ModifierKind::sink;
          Problem p(c);
          Tensor visible(ElementType::boolean, {1, 1, q_len, 140});
          visible.fill([&](const Index& at) { return at[2] % 3 == 0 ? 0.0 : 1.0; });
          p.mask = boolean(visible.const_view());
          p.run(isa);
          const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
          for (std::int64_t query = 0; query < q_len; ++query) {
            for (std::int64_t head = 0; head < 2; ++head) {
              if (query % 3 == 0)
                expect_zero_row(p, {0, query, head}, what);
              else
                ASSERT_TRUE(std::isfinite(p.lse.get({0, query, head}))) << what;
            }
          }
          // All hidden: by length, by a window beyond the keys, by a bias.
          const std::int32_t none[] = {0};
          const float minus = -std::numeric_limits<float>::infinity();
          for (int way = 0; way < 3; ++way) {
            p.mask = way == 0 ? lengths({none, {1}}) : way == 1 ? window(3, 0) : Mask{};
            const std::int64_t far[] = {1000};
            AttentionArguments a = p.arguments();
            if (way == 1) a.q_start = {far, {1}};
            if (way == 2) a.modifiers.bias = {&minus, {1, 1, 1, 1}};
            p.out.poison();
            p.lse.poison();
            attention(a, {.isa = isa});
            for (std::int64_t query = 0; query < q_len; ++query)
              expect_zero_row(p, {0, query, 1}, what);
          }
        }
      }
    }
  }
}

TEST(Regression, LeadingBlocksFullyMasked) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) {
      for (std::int64_t q_len : {1, 50}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 1200;
        c.types = types;
        c.types.out = f32;
        Problem p(c);
        Tensor visible(ElementType::boolean, {1, 1, 1, 1200});
        // One key in the last block of the first split, one in the second split.
        visible.fill([](const Index& at) { return at[3] == 1000 || at[3] == 1150 ? 1.0 : 0.0; });
        p.mask = boolean(visible.const_view());
        p.run(isa);
        const Distance distance = from_reference(p);
        EXPECT_LE(distance.out, types.v == bf16 ? 3.5 * 0x1p-8 : bound(c))
            << isa_name(isa) << describe(c);
        EXPECT_LE(distance.lse, bound(c)) << isa_name(isa) << describe(c);
      }
    }
  }
}

TEST(Regression, LowestFiniteBiasesAreUniformWeights) {
  const float lowest = -FLT_MAX;
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
      for (std::int64_t q_len : {1, 20}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 100;
        c.types = types;
        c.types.out = f32;
        Problem p(c);
        p.modifiers.bias = {&lowest, {1, 1, 1, 1}};
        p.v.fill([](const Index& at) { return static_cast<double>(at[1] % 2); });
        p.run(isa);
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_NEAR(p.out.get(at), 0.5, 1e-5)
              << isa_name(isa) << describe(c);  // no score survives beside 3e38
        });
        if (isa != isas().front()) continue;
        const HeadTrace head = explain(p.arguments(), {.head = 0, .query = q_len - 1}).heads[0];
        for (std::size_t key = 0; key < head.weights.size(); ++key) {
          ASSERT_TRUE(head.visible[key]) << key << describe(c);
          ASSERT_NEAR(head.weights[key], 0.01, 1e-9) << key << describe(c);
        }
        ASSERT_NEAR(head.output[0], 0.5, 1e-9) << describe(c);
      }
    }
  }
}

// Half a step below the lowest float32 is -inf there, and hides; less than half is the lowest.
TEST(Regression, WhatRoundsToMinusInfinityIsHiddenFromAttentionAndItsTrace) {
  const float lowest = -FLT_MAX;
  for (Isa isa : isas()) {
    for (std::int64_t q_len : {1, 20}) {
      Case c;
      c.q_len = q_len;
      c.kv_len = 70;
      c.head_dim = 1;
      Problem p(c);
      p.modifiers.scale = 1.0f;
      p.modifiers.bias = {&lowest, {1, 1, 1, 1}};
      p.q.fill([](const Index&) { return 1.0; });
      p.k.fill([](const Index& at) {
        return at[1] == 5 ? -0x1p103 : at[1] == 6 ? -0x1.fffffep102 : 0.0;
      });
      p.v.fill([](const Index& at) { return at[1] == 5 ? std::nan("") : 1.0; });
      p.run(isa);
      for_each_index(p.out.extents(), [&](const Index& at) {
        ASSERT_NEAR(p.out.get(at), 1.0, 1e-5) << isa_name(isa) << describe(c);
      });
      const HeadTrace head = explain(p.arguments(), {.head = 0, .query = 0}).heads[0];
      for (std::size_t key = 0; key < head.visible.size(); ++key)
        ASSERT_EQ(head.visible[key], key != 5) << key;
      ASSERT_NEAR(head.output[0], 1.0, 1e-9);
    }
  }
}

TEST(Regression, SlidingWindowIsExactInPrefillAndDecoding) {
  // One-hot values: the output shows which keys were seen.
  for (Isa isa : isas()) {
    const std::int64_t n = 96;
    std::vector<float> q(static_cast<std::size_t>(n), 0.0f), k(q),
        v(static_cast<std::size_t>(n * n), 0.0f), out(v), row(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i * n + i)] = 1.0f;
    const std::int64_t one = 1;
    AttentionArguments a;
    a.q = {q.data(), {one, n, one, one}};
    a.k = {k.data(), {one, n, one, one}};
    a.v = {v.data(), {one, n, one, n}};
    a.out = {out.data(), {one, n, one, n}};
    const std::int64_t width = 5;  // keys, the query's own among them
    a.mask = window(width - 1, 0);
    attention(a, {.isa = isa});
    for (std::int64_t i = 0; i < n; ++i) {
      AttentionArguments decode = a;
      decode.q = {q.data(), {1, 1, 1, 1}};
      decode.k = {k.data(), {one, i + 1, one, one}};
      decode.v = {v.data(), {one, i + 1, one, n}};
      decode.out = {row.data(), {one, one, one, n}};
      decode.mask = window(width - 1, 0, Align::end);
      attention(decode, {.isa = isa});
      const float weight = 1.0f / static_cast<float>(std::min(i + 1, width));
      for (std::int64_t j = 0; j < n; ++j) {
        const float expected = j <= i && j > i - width ? weight : 0.0f;
        const float found = out[static_cast<std::size_t>(i * n + j)];
        ASSERT_NEAR(found, expected, kEpsilon) << isa_name(isa) << " query " << i << " key " << j;
        ASSERT_EQ(found, row[static_cast<std::size_t>(j)]) << isa_name(isa) << " decoding " << i;
      }
    }
  }
}

TEST(Regression, BroadcastKeysAndValuesWithTails) {
  for (Isa isa : isas()) {
    for (const Types& types : kTypes) {
      for (std::int64_t q_len : {1, 70}) {
        Case c;
        c.batch = 3;
        c.q_len = q_len;
        c.kv_len = 77;
        c.q_heads = c.kv_heads = 4;
        c.head_dim = 19;
        c.value_dim = 21;
        c.types = types;
        Problem p(c);
        // All sequences and heads share the first one's keys and values.
        AttentionArguments a = p.arguments();
        for (ConstView* view : {&a.k, &a.v}) view->layout.strides[0] = view->layout.strides[2] = 0;
        p.out.poison();
        attention(a, {.isa = isa});
        const Tensor broadcast = p.out;
        for (Tensor* tensor : {&p.k, &p.v}) {
          const Tensor source = *tensor;
          tensor->fill([&](const Index& at) { return source.get({0, at[1], 0, at[3]}); });
        }
        p.run(isa);
        EXPECT_EQ(differing_bits(broadcast, p.out), 0) << isa_name(isa) << describe(c);
        // Every token the same key and value: their mean is the value itself.
        for (ConstView* view : {&a.k, &a.v}) view->layout.strides[1] = 0;
        attention(a, {.isa = isa});
        const double unit = types.out == f32 ? 77 * kEpsilon : types.out == f16 ? 0x1p-10 : 0x1p-7;
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_NEAR(p.out.get(at), p.v.get({0, 0, 0, at[3]}), 3.5 * unit)
              << isa_name(isa) << describe(c);
        });
      }
    }
  }
}

TEST(Regression, StridesOfSizeOneAxesAreIgnored) {
  for (Isa isa : isas()) {
    for (const Types& types : kTypes) {
      Case c;
      c.q_len = 1;
      c.kv_len = 33;
      c.head_dim = 1;
      c.value_dim = 1;
      c.types = types;
      Problem p(c);
      p.run(isa);
      const Tensor plain = p.out;
      AttentionArguments a = p.arguments();
      const std::int64_t wild = std::int64_t{1} << 61;
      a.q.layout.strides = {wild, wild, -wild, wild};
      for (detail::Layout* layout : {&a.k.layout, &a.v.layout}) {
        layout->strides[0] = layout->strides[2] = wild;
        layout->strides[3] = -wild;
      }
      a.out.layout.strides = {0, wild, 0, -3};
      a.lse.layout.strides = {wild, 0, 0};
      p.out.poison();
      attention(a, {.isa = isa});
      EXPECT_EQ(differing_bits(plain, p.out), 0) << isa_name(isa) << describe(c);
    }
  }
}

// Values near the largest float16, of which a sum would overflow: the mean does not.
TEST(Regression, LargeNormsOverflowNo16BitSum) {
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[1], kTypes[2]}) {
      for (std::int64_t q_len : {1, 20}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 200;
        c.head_dim = 128;
        c.types = types;
        Problem p(c);
        p.q.fill([](const Index&) { return 200.0; });
        p.k.fill([](const Index&) { return 200.0; });  // every product is 5,120,000
        p.v.fill([](const Index&) { return 60000.0; });
        p.run(isa);
        const double value = p.v.get({0, 0, 0, 0});
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_EQ(p.out.get(at), value) << isa_name(isa) << describe(c);
        });
      }
    }
  }
}

// Intel's processors take some hundred cycles for an instruction with a subnormal weight.
TEST(Regression, WeightsBelowNormalNumbersAreZero) {
  for (Isa isa : isas()) {
    for (std::int64_t q_len : {1, 60}) {
      Case c;
      c.q_len = q_len;
      c.kv_len = 2;
      Problem p(c);
      // Scores of 0 and -131 ln 2: the second weight is 2^-131.
      p.q.fill([](const Index& at) { return at[3] == 0 ? 1.0 : 0.0; });
      p.k.fill(
          [](const Index& at) { return at[1] == 1 && at[3] == 0 ? -131.0 * std::log(2.0) : 0.0; });
      p.v.fill([](const Index& at) { return at[1] == 1 ? 0x1p120 : 0.0; });
      p.modifiers.scale = 1.0f;
      p.run(isa);
      for (std::int64_t query = 0; query < q_len; ++query)
        ASSERT_EQ(p.out.get({0, query, 0, 0}), 0.0) << isa_name(isa) << " " << q_len;
    }
  }
}

}  // namespace
}  // namespace polyhead::test
