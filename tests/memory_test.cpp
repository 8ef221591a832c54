// Long, large and far arrays, and what lies beyond their edges.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/paged_cache.h"
#include "support/distance.h"
#include "support/effort.h"
#include "support/guarded.h"
#include "support/problem.h"
#include "support/reserved.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

// Near-uniform weights and values around 1: sums of 131,072 terms must not drift.
TEST(Regression, NoDegradationAtLongKeys) {
  Case c;
  c.q_len = 2;
  c.kv_len = 131072;
  c.head_dim = 8;
  c.value_dim = 4;
  c.q_deviation = 0.05;
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
    for (std::int64_t q_len : {1, 24}) {
      if (effort() == Effort::smoke && q_len != 1) continue;
      c.types = types;
      c.q_len = q_len;
      Problem p(c);
      Random random(8);
      p.v.fill([&](const Index&) { return 1.0 + 0.1 * random.normal(); });
      // The mean of rounded values, as every query sees about that.
      for (Isa isa : isas()) {
        p.run(isa);
        const Distance distance = from_reference(p);
        // 16-bit: half a unit of the output just above 1, and what is left of the rounding of
        // weights after averaging.
        const double unit = types.out == f32   ? 1e-5
                            : types.out == f16 ? 0x1p-11 + 1e-5
                                               : 0x1p-8 + 1e-4;
        EXPECT_LE(distance.out, unit) << isa_name(isa) << describe(c);
        EXPECT_LE(distance.lse, 1e-5) << isa_name(isa) << describe(c);
      }
    }
  }
}

TEST(Regression, AMillionKeys) {
  const std::int64_t kv_len = 1000000;
  std::vector<float> k(static_cast<std::size_t>(kv_len) * 2), v(static_cast<std::size_t>(kv_len));
  std::vector<float> q(128, 1.0f), out(64), lse(64);
  double mean = 0;
  for (std::int64_t j = 0; j < kv_len; ++j) {
    v[static_cast<std::size_t>(j)] = static_cast<float>(j % 7);
    mean += static_cast<double>(j % 7) / static_cast<double>(kv_len);
  }
  const std::int64_t one = 1, two = 2;
  for (std::int64_t q_len : {1, 64}) {
    for (Isa isa : isas()) {
      if (isa == Isa::portable && effort() == Effort::smoke) continue;
      AttentionArguments a;
      a.q = {q.data(), {one, q_len, one, two}};
      a.k = {k.data(), {one, kv_len, one, two}};  // all zero: uniform weights
      a.v = {v.data(), {one, kv_len, one, one}};
      a.out = {out.data(), {one, q_len, one, one}};
      a.lse = {lse.data(), {one, q_len, one}};
      attention(a, {.isa = isa});
      for (std::int64_t i = 0; i < q_len; ++i) {
        ASSERT_NEAR(out[static_cast<std::size_t>(i)], mean, 1e-5) << isa_name(isa);
        ASSERT_NEAR(lse[static_cast<std::size_t>(i)], std::log(1e6), 1e-5) << isa_name(isa);
      }
    }
  }
}

// Of other types, scales and pages: far_rows_test.cpp.
TEST(Regression, OffsetsBeyondTwoToTheThirtyOneElements) {
  // Tokens 2^29 elements apart: the sixth begins at 5 * 2^29 > 2^31.
  const std::int64_t far = std::int64_t{1} << 29, tokens = 6;
  Case c;
  c.q_len = c.kv_len = tokens;
  c.q_heads = c.kv_heads = 2;
  c.mask = MaskKind::causal_end;
  const std::size_t bytes = static_cast<std::size_t>(far * tokens) * sizeof(float);
  Reserved q(bytes), k(bytes), v(bytes), out(bytes);
  for (const Reserved* array : {&q, &k, &v, &out}) {
    if (!array->valid()) GTEST_SKIP() << "no address space";
  }
  for (Isa isa : isas()) {
    Problem p(c);
    p.run(isa);
    const auto spread = [&](const Reserved& to, const Tensor& from) {
      const std::int64_t dim = from.extents()[3];
      for_each_index(from.extents(), [&](const Index& at) {
        to.floats()[at[1] * far + at[2] * dim + at[3]] = static_cast<float>(from.get(at));
      });
      return View(to.floats(), {std::int64_t{1}, tokens, std::int64_t{2}, dim},
                  {std::int64_t{0}, far, dim, std::int64_t{1}});
    };
    AttentionArguments a = p.arguments();
    a.q = spread(q, p.q);
    a.k = spread(k, p.k);
    a.v = spread(v, p.v);
    Tensor nothing(f32, p.out.extents());
    a.out = spread(out, nothing);
    attention(a, {.isa = isa});
    for_each_index(p.out.extents(), [&](const Index& at) {
      ASSERT_EQ(out.floats()[at[1] * far + at[2] * 16 + at[3]], p.out.get(at)) << isa_name(isa);
    });
  }
}

TEST(Regression, ManySequencesAndHeads) {
  for (const auto& [batch, heads] : {std::pair{4096, 16}, {65536, 1}, {1, 4096}}) {
    for (std::int64_t q_len : {1, 2}) {
      Case c;
      c.batch = batch;
      c.q_heads = c.kv_heads = heads;
      c.q_len = q_len;
      c.kv_len = 2;
      c.head_dim = c.value_dim = 4;
      Problem p(c);
      p.run(isas().back());
      EXPECT_LE(from_reference(p).out, bound(c)) << describe(c);
    }
  }
}

TEST(Regression, NothingIsTouchedBeyondAnEdge) {
  Random random(31);
  const int count = case_count(20, 160, 1500);
  for (int i = 0; i < count; ++i) {
    Case c;
    constexpr std::int64_t kLengths[] = {1, 2, 3, 15, 17, 63, 65, 66, 129};
    constexpr std::int64_t kDims[] = {1, 2, 3, 5, 15, 16, 17, 31, 33, 63, 65, 100};
    c.q_len = kLengths[random.below(9)];
    c.kv_len = kLengths[random.below(9)];
    c.head_dim = kDims[random.below(12)];
    c.value_dim = kDims[random.below(12)];
    c.q_heads = 1 + random.below(3);
    c.types =
        kTypes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(kTypes.size())))];
    c.layout = i % 2 == 0 ? LayoutKind::dense : LayoutKind::heads_first;
    c.mask = i % 3 == 0   ? MaskKind::boolean_full
             : i % 3 == 1 ? MaskKind::bits
                          : MaskKind::documents;
    c.modifier = i % 5 == 0   ? ModifierKind::bias_full
                 : i % 5 == 1 ? ModifierKind::bias_16_bit
                              : ModifierKind::none;
    c.seed = 9000 + static_cast<std::uint64_t>(i);
    Problem p(c);
    // Tables without gaps, so that their last row ends at the edge.
    Tensor visible(ElementType::boolean, {1, c.q_heads, c.q_len, c.kv_len}),
        bias(f32, visible.extents());
    visible.fill([&](const Index&) { return random.chance(0.7); });
    bias.fill_normal(random);
    Tensor bits(ElementType::boolean, {1, 1, c.q_len, (c.kv_len + 7) / 8});
    for (Isa isa : isas()) {
      p.run(isa);
      for (bool at_end : {true, false}) {
        const Guarded q(p.q, at_end), k(p.k, at_end), v(p.v, at_end), out(p.out, at_end),
            lse(p.lse, at_end);
        const Guarded table(visible, at_end), packed(bits, at_end), added(bias, at_end);
        AttentionArguments a = p.arguments();
        a.q.data = q.data();
        a.k.data = k.data();
        a.v.data = v.data();
        a.out.data = out.data();
        a.lse.data = lse.data();
        const bool own_mask = c.mask == MaskKind::documents;
        if (c.mask == MaskKind::boolean_full) {
          a.mask.visible = visible.const_view();
          a.mask.visible.data = table.data();
          if (at_end) std::swap(a.mask.visible, a.mask.hidden);
        } else if (c.mask == MaskKind::bits) {
          const std::int64_t row = (c.kv_len + 7) / 8 * 8;
          const std::int64_t one = 1, none = 0;
          a.mask.visible =
              ConstView(packed.data(), ElementType::bit,
                        detail::Layout({one, one, c.q_len, c.kv_len}, {none, none, row, one}));
          if (at_end) std::swap(a.mask.visible, a.mask.hidden);
        }
        if (c.modifier == ModifierKind::bias_full) {
          a.modifiers.bias = bias.const_view();
          a.modifiers.bias.data = added.data();
        }
        attention(a, {.isa = isa});  // a touch beyond an edge ends the test here
        if (own_mask && c.modifier != ModifierKind::bias_full) {
          EXPECT_EQ(std::memcmp(out.data(), p.out.bytes().data(), p.out.bytes().size()), 0)
              << describe(c);
        }
      }
    }
  }
}

// A packed mask of one bit a sequence, which stands for all its keys: one of each, or none.
TEST(Regression, NothingPastAPackedMaskOfOneBitASequence) {
  for (const std::int64_t keys : {0, 1}) {
    PagedCache cache({.pages = 2, .page_tokens = 8, .kv_heads = 1, .head_dim = 8});
    const std::int64_t sequences[] = {cache.create(), cache.create()};
    const std::vector<float> ones(2 * 8, 1.0f);
    for (const std::int64_t sequence : sequences) {
      const ConstView row(ones.data(), {keys, std::int64_t{1}, std::int64_t{8}});
      ASSERT_EQ(cache.append(sequence, row, row), PagedCache::Status::ok);
    }
    PagedBatch batch;
    cache.batch(sequences, batch);
    std::vector<float> out(ones.size());
    const std::byte shown[] = {std::byte{1}, std::byte{0}};
    const Guarded bits(std::span(shown, static_cast<std::size_t>(2 * keys)), true);
    AttentionArguments a;
    a.q = {ones.data(), {2, 1, 1, 8}};
    a.kv = cache.view(0, batch);
    a.out = {out.data(), {2, 1, 1, 8}};
    const std::int64_t one = 1, two = 2, eight = 8;
    a.mask = boolean(ConstView(bits.data(), ElementType::bit,
                               detail::Layout({two, one, one, keys}, {eight, one, one, one})));
    attention(a);  // a touch beyond the mask ends the test here
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i < 8 && keys > 0 ? 1.0f : 0.0f);
  }
}

}  // namespace
}  // namespace polyhead::test
