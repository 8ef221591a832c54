// Masked means not read: garbage in hidden slots of k and v changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/slice.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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
      for (MaskKind kind :
           {MaskKind::boolean_full, MaskKind::bits, MaskKind::hidden, MaskKind::booleans}) {
        if (q_len == 2 && kind != MaskKind::boolean_full) continue;
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

// Where a NaN has to stay unread, a kernel may take another way; it must treat subnormal values as
// the usual one does. Keys from 64 on weigh 16 times as much as
// those before them, which makes their subnormal values count.
TEST(MaskedIsUnread, BesideSubnormalValues) {
  for (Isa isa : isas()) {
    for (std::int64_t q_len : {1, 60}) {
      Case c = small_case({bf16, bf16, bf16, ElementType::float32}, q_len, 70);
      c.mask = MaskKind::none;
      Problem p(c);
      Tensor visible(ElementType::boolean, {1, 1, 1, 70});
      visible.fill([](const Index& at) { return at[3] == 65 ? 0.0 : 1.0; });
      p.mask = boolean(visible.const_view());
      p.modifiers.scale = 1.0f;
      p.q.fill([](const Index& at) { return at[3] == 0 ? 1.0 : 0.0; });
      p.k.fill([](const Index& at) { return at[1] >= 64 && at[3] == 0 ? 2.7656 : 0.0; });
      const auto value = [](const Index& at) {
        return at[1] == 0 ? 0x1p-110 : at[1] >= 64 ? 0x1p-127 : 0.0;
      };
      p.v.fill(value);
      p.run(isa);
      const Outputs clean(p);
      p.v.fill([&](const Index& at) { return at[1] == 65 ? kNan : value(at); });
      p.run(isa);
      EXPECT_EQ(differing_bits(Outputs(p), clean), 0) << isa_name(isa) << " " << q_len;
    }
  }
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

// A slope that takes scores to -inf hides their pairs, in decoding and in prefill alike: from
// distance 2 on in one head, from the first key on in another, whose rows are then empty.
TEST(MaskedIsUnread, HiddenByASteepSlope) {
  for_each_isa_and_type([](Isa isa, const Types& types) {
    constexpr std::int64_t kRows = 18, kKeys = 131;
    Case c = small_case(types, kRows, kKeys);
    c.q_heads = c.kv_heads = 2;
    c.modifier = ModifierKind::slopes;
    Problem p(c);
    Tensor slopes(f32, {2}), starts(ElementType::int64, {1});
    slopes.fill([](const Index& at) { return at[0] == 0 ? 3.4e38 : 0.25; });
    p.modifiers.alibi.slopes = slopes.const_view();
    p.mask = window_and_first(kRows, -1, 3) & causal();
    for (const std::int64_t start : {kKeys - kRows, kKeys + 5}) {
      starts.fill([&](const Index&) { return static_cast<double>(start); });
      p.q_start = starts;
      p.v.fill([](const Index& at) { return at[2] == 0 ? kNan : static_cast<double>(at[1] % 3); });
      for (std::int64_t key = kKeys - kRows - 1; key < kKeys && start < kKeys; ++key) {
        for (std::int64_t d = 0; d < c.value_dim; ++d) p.v.set({0, key, 0, d}, 1.0);
      }
      p.run(isa);
      const Outputs whole(p);
      const std::vector<double> expected =
          kernels::reference::attend(door::resolve(p.arguments())).out;
      std::size_t element = 0;
      for_each_index(p.out.extents(), [&](const Index& at) {
        const double exact = expected[element++];
        ASSERT_FALSE(std::isnan(exact));
        ASSERT_NEAR(p.out.get(at), exact, 0.02) << isa_name(isa) << describe(c) << " " << at[2];
      });
      for (std::int64_t query = 0; query < kRows; ++query)
        attention(part_of(p, {.first_query = query, .end_query = query + 1}), {.isa = isa});
      ASSERT_EQ(differing_bits(Outputs(p), whole), 0) << isa_name(isa) << describe(c) << start;
    }
  });
}

}  // namespace
}  // namespace polyhead::test
