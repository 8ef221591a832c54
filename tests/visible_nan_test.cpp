// A NaN in k or v reaches exactly the rows that see its key, whichever lane of a tile they are in.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Found {
  int spread = 0, lost = 0;  ///< outputs that are NaN and should not be, and the reverse
};

/// A NaN with any sign and any of the bits that float32 has for those that say nothing.
double some_nan(Random& random) {
  constexpr std::uint64_t kQuiet = 0x7ff8000000000000u, kSign = 0x8000000000000000u;
  const std::uint64_t rest = random.chance(0.5) ? random.next() & 0x3fffff : 0;
  return std::bit_cast<double>(kQuiet | rest << 29 | (random.chance(0.5) ? kSign : 0));
}

/// Random sizes, values and a dense mask that differs by row, with NaN or infinities in some keys
/// and values. The mask is a boolean, or a bias of -inf.
Found attend_around_nans(ElementType type, Isa isa, std::uint64_t seed, bool by_bias) {
  Random random(seed);
  const std::int64_t q_len = 1 + random.below(14), kv_len = 1 + random.below(140);
  const std::int64_t heads = 1 + random.below(4), dim = 1 + random.below(24);
  Tensor q(type, {1, q_len, heads, dim}), k(type, {1, kv_len, 1, dim});
  Tensor v(type, {1, kv_len, 1, dim}), out(ElementType::float32, {1, q_len, heads, dim});
  Tensor visible(ElementType::boolean, {1, heads, q_len, kv_len});
  const auto sometimes_nan = [&](const Index&) {
    if (by_bias && random.chance(0.01)) return kInfinite;
    return random.chance(0.02) ? some_nan(random) : random.normal();
  };
  q.fill_normal(random);
  v.fill(sometimes_nan);
  if (random.chance(0.3)) {
    k.fill(sometimes_nan);
  } else {
    k.fill_normal(random);
  }
  visible.fill([&](const Index&) { return random.chance(0.5) ? 1.0 : 0.0; });
  Tensor bias(ElementType::float32, visible.extents());
  bias.fill([&](const Index& at) { return visible.get(at) != 0.0 ? 0.5 : -kInfinite; });

  AttentionArguments arguments;
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.out = out.view();
  if (by_bias) {
    arguments.modifiers.bias = bias.view();
    if (random.chance(0.3)) arguments.modifiers.alibi.use_default_slopes = true;
    arguments.mask.align = Align::end;
  } else {
    arguments.mask = boolean(visible.view());
  }
  attention(arguments, {.isa = isa});
  const kernels::reference::Result expected = kernels::reference::attend(door::resolve(arguments));
  Found found;
  std::size_t at = 0;
  for_each_index(out.extents(), [&](const Index& index) {
    const bool should = std::isnan(expected.out[at++]), is = std::isnan(out.get(index));
    found.spread += is && !should;
    found.lost += should && !is;
  });
  return found;
}

TEST(Nan, ReachesExactlyTheRowsThatSeeIt) {
  for (Isa isa : available_isas()) {
    for (ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
      for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const Found found = attend_around_nans(type, isa, seed, seed % 2 != 0);
        ASSERT_EQ(found.spread, 0) << isa_name(isa) << " " << element_name(type) << " " << seed;
        ASSERT_EQ(found.lost, 0) << isa_name(isa) << " " << element_name(type) << " " << seed;
      }
    }
  }
}

// With no other bias of -inf beside it that would be noticed in its place.
TEST(Nan, ABiasHidesWhatItAloneIsAddedTo) {
  constexpr std::int64_t kKeys = 70, kDim = 16, kHidden = 5;
  for (const Isa isa : available_isas()) {
    for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
      for (const std::int64_t rows : {1, 20}) {
        for (const double broken : {std::numeric_limits<double>::quiet_NaN(), kInfinite}) {
          Random random(4);
          Tensor q(type, {1, rows, 1, kDim}), k(type, {1, kKeys, 1, kDim});
          Tensor v(type, {1, kKeys, 1, kDim}), bias(f32, {1, 1, 1, kKeys});
          Tensor visible(ElementType::boolean, {1, 1, 1, kKeys});
          Tensor out(f32, {1, rows, 1, kDim}), expected(f32, {1, rows, 1, kDim});
          for (Tensor* x : {&q, &k, &v}) x->fill_normal(random);
          for (std::int64_t d = 0; d < kDim; ++d) k.set({0, kHidden, 0, d}, broken);
          bias.fill([](const Index& at) { return at[3] == kHidden ? -kInfinite : 0.0; });
          visible.fill([](const Index& at) { return at[3] == kHidden ? 0.0 : 1.0; });
          AttentionArguments a;
          a.q = q.view();
          a.k = k.view();
          a.v = v.view();
          a.out = expected.view();
          a.mask = boolean(visible.view());
          attention(a, {.isa = isa});
          a.mask = {};
          a.modifiers.bias = bias.view();
          a.out = out.view();
          attention(a, {.isa = isa});
          for_each_index(out.extents(), [&](const Index& at) {
            EXPECT_NEAR(out.get(at), expected.get(at), type == f32 ? 1e-5 : 0.02)
                << isa_name(isa) << " " << element_name(type) << " " << rows << " " << broken;
          });
        }
      }
    }
  }
}

// A product beyond float32 is -inf, and hides its pair where a modifier could have made it so: in
// decoding and prefill alike, and in the reference.
TEST(Nan, AProductBelowFloat32HidesOnlyWhereAModifierMight) {
  constexpr std::int64_t kKeys = 70, kDim = 16, kFar = 5;
  enum class Beside { nothing, alibi, large_scale, zero_bias, steep_slope };
  const float zero = 0.0f, steep = 0x1p60f;
  for (const Isa isa : available_isas()) {
    for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
      for (const std::int64_t rows : {1, 20}) {
        for (const Beside beside : {Beside::nothing, Beside::alibi, Beside::large_scale,
                                    Beside::zero_bias, Beside::steep_slope}) {
          Tensor q(type, {1, rows, 1, kDim}), k(type, {1, kKeys, 1, kDim});
          Tensor v(type, {1, kKeys, 1, kDim}), out(f32, {1, rows, 1, kDim});
          q.fill([](const Index& at) { return at[3] == 0 ? 2.0 : 0.0; });
          k.fill([](const Index& at) { return at[1] == kFar && at[3] == 0 ? -3e38 : 0.0; });
          v.fill([](const Index& at) { return at[1] == kFar ? std::nan("") : 1.0; });
          AttentionArguments a;
          a.q = q.view();
          a.k = k.view();
          a.v = v.view();
          a.out = out.view();
          a.mask.align = Align::end;
          a.modifiers.scale = beside == Beside::large_scale ? 1e30f : 1.0f;
          a.modifiers.alibi.use_default_slopes = beside == Beside::alibi;
          if (beside == Beside::zero_bias) a.modifiers.bias = {&zero, {1, 1, 1, 1}};
          if (beside == Beside::steep_slope) a.modifiers.alibi.slopes = {&steep, {1}};
          attention(a, {.isa = isa});
          const bool hides = beside == Beside::zero_bias || beside == Beside::steep_slope;
          for_each_index(out.extents(), [&](const Index& at) {
            EXPECT_EQ(std::isnan(out.get(at)), !hides)
                << isa_name(isa) << " " << element_name(type) << " " << rows << " "
                << static_cast<int>(beside);
          });
          for (const double exact : kernels::reference::attend(door::resolve(a)).out)
            EXPECT_EQ(std::isnan(exact), !hides) << static_cast<int>(beside);
        }
      }
    }
  }
}

// What one lane of a vector of rows does with a NaN score and what another does with a bias of -inf
// are both decided by comparisons of the whole vector: neither may answer for the other's row.
TEST(Nan, AScoreOfOneRowLeavesABiasOfAnotherAlone) {
  // Rows 16 apart share a lane of every instruction set, in different vectors of a tile of 48.
  constexpr std::int64_t kRows = 48, kApart = 16, kKeys = 70, kDim = 16;
  for (const Isa isa : available_isas()) {
    for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
      for (std::int64_t turn = 0; turn < 2 * kRows; ++turn) {
        const std::int64_t broken = turn % kRows;
        const std::int64_t hides = (broken + kApart) % kRows, one = (broken + 2 * kApart) % kRows;
        Random random(static_cast<std::uint64_t>(broken) + 1);
        Tensor q(type, {1, kRows, 1, kDim}), k(type, {1, kKeys, 1, kDim});
        Tensor v(type, {1, kKeys, 1, kDim}), bias(f32, {1, 1, kRows, kKeys});
        Tensor out(f32, {1, kRows, 1, kDim}), lse(f32, {1, kRows, 1});
        for (Tensor* x : {&q, &k, &v}) x->fill_normal(random);
        // A weight of 0 would not hide this value.
        v.set({0, 5, 0, 2}, std::numeric_limits<double>::quiet_NaN());
        q.set({0, broken, 0, 3}, std::numeric_limits<double>::quiet_NaN());
        // One row is hidden from everything, another from all but the last key.
        bias.fill([&](const Index& at) {
          return at[2] == hides || (at[2] == one && at[3] + 1 < kKeys) ? -kInfinite : 0.0;
        });
        AttentionArguments a;
        a.q = q.view();
        a.k = k.view();
        a.v = v.view();
        a.out = out.view();
        a.lse = lse.view();
        a.modifiers.bias = bias.view();
        if (turn >= kRows) a.modifiers.soft_cap = 20.0f;  // scores are then looked at once more
        attention(a, {.isa = isa});
        const std::string what = std::string(isa_name(isa)) + " " + element_name(type) + " row ";
        for (std::int64_t row = 0; row < kRows; ++row) {
          EXPECT_EQ(std::isnan(lse.get({0, row, 0})), row == broken) << what << row;
          for (std::int64_t d = 0; d < kDim; ++d) {
            const double found = out.get({0, row, 0, d});
            const bool sees = d == 2 && row != hides && row != one;
            EXPECT_EQ(std::isnan(found), row == broken || sees) << what << row;
            if (row == hides) {
              EXPECT_EQ(found, 0.0) << what << row;
            }
            if (row == one) {
              EXPECT_EQ(found, v.get({0, kKeys - 1, 0, d})) << what << row;
            }
          }
        }
        EXPECT_EQ(lse.get({0, hides, 0}), -kInfinite) << what << hides;
      }
    }
  }
}

// Of the rows that see one, not of the others; whichever key of a row it is.
TEST(Nan, IsInTheStatisticsOfTheRowsThatSeeIt) {
  constexpr std::int64_t kRows = 20, kKeys = 70, kDim = 16;
  for (const Isa isa : available_isas()) {
    for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
      for (const std::int64_t broken : {0, 33, 69}) {
        Random random(4);
        Tensor q(type, {1, kRows, 1, kDim}), k(type, {1, kKeys, 1, kDim});
        Tensor v(type, {1, kKeys, 1, kDim}), visible(ElementType::boolean, {1, 1, kRows, kKeys});
        Tensor out(f32, {1, kRows, 1, kDim}), entropy(f32, {1, kRows, 1});
        Tensor max_weight(f32, {1, kRows, 1});
        for (Tensor* x : {&q, &k, &v}) x->fill_normal(random);
        k.set({0, broken, 0, 3}, some_nan(random));
        visible.fill(
            [&](const Index& at) { return at[3] == broken && at[2] % 3 == 0 ? 0.0 : 1.0; });
        AttentionArguments a;
        a.q = q.view();
        a.k = k.view();
        a.v = v.view();
        a.out = out.view();
        a.statistics = {.entropy = entropy.view(), .max_weight = max_weight.view()};
        a.mask = boolean(visible.view());
        attention(a, {.isa = isa});
        for (std::int64_t row = 0; row < kRows; ++row) {
          for (const Tensor* found : {&entropy, &max_weight}) {
            EXPECT_EQ(std::isnan(found->get({0, row, 0})), row % 3 != 0)
                << isa_name(isa) << " " << element_name(type) << " " << row << " " << broken;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
