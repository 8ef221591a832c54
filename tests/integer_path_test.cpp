// The integer path: int8 and int4 codes under bfloat16 queries, multiplied as integers. What it
// rounds, and that nothing else is lost: docs/numerics.md has the bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "kernels/reference/attend.hpp"
#include "support/bound.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/random.h"
#include "support/slice.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kBlockKeys = 64;  // whose weights share a power of two

/// Codes and scales of one's own choice, and a call over them: [1, tokens, heads, dim].
struct CodeCall {
  ElementType type;
  std::int64_t keys, queries, q_heads = 4, kv_heads = 2, head_dim = 72, value_dim = 80;
  bool by_channel = false;
  Random random{17};
  Tensor q, k_scales, v_scales, out, lse;
  std::vector<std::byte> k, v;

  CodeCall(ElementType code_type, std::int64_t kv_len, std::int64_t q_len, bool channels = false)
      : type(code_type), keys(kv_len), queries(q_len), by_channel(channels) {
    q = Tensor(bf16, {1, queries, q_heads, head_dim});
    q.fill_normal(random);
    k_scales = by_channel ? Tensor(f32, {kv_heads, head_dim})
                          : Tensor(f32, {1, keys, kv_heads, base::code_blocks(head_dim)});
    v_scales = Tensor(f32, {1, keys, kv_heads, base::code_blocks(value_dim)});
    // Codes are numbers of about 1.
    const double unit = type == ElementType::int8 ? 1.0 / 64 : 1.0 / 4;
    for (Tensor* scales : {&k_scales, &v_scales})
      scales->fill([&](const Index&) { return unit * random.uniform(0.25, 1.0); });
    k = codes(head_dim);
    v = codes(value_dim);
    out = Tensor(f32, {1, queries, q_heads, value_dim});
    lse = Tensor(f32, {1, queries, q_heads});
  }

  std::int64_t row(std::int64_t dim) const { return base::code_row_bytes(type, dim); }

  /// Any bytes are codes; the padding's too.
  std::vector<std::byte> codes(std::int64_t dim) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(keys * kv_heads * row(dim)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() >> 11);
    return bytes;
  }

  ConstView view_of(const std::vector<std::byte>& bytes, std::int64_t dim) const {
    const std::int64_t padded = base::code_blocks(dim) * base::kCodeBlock;
    return ConstView(bytes.data(), type,
                     {{std::int64_t{1}, keys, kv_heads, dim},
                      {keys * kv_heads * padded, kv_heads * padded, padded, std::int64_t{1}}});
  }

  AttentionArguments arguments() {
    AttentionArguments a;
    a.q = q.const_view();
    a.kv.k = view_of(k, head_dim);
    a.kv.v = view_of(v, value_dim);
    a.kv.k_scales = k_scales.const_view();
    a.kv.v_scales = v_scales.const_view();
    a.out = out.view();
    a.lse = lse.view();
    a.mask = causal(Align::end);
    return a;
  }

  kernels::reference::Result exact() {
    return kernels::reference::attend(door::resolve(arguments()));
  }

  /// All queries at once, or one at a time.
  void run(Isa isa, bool decoding = false) {
    out.poison();
    lse.poison();
    if (!decoding) return attention(arguments(), {.isa = isa});
    for (std::int64_t query = 0; query < queries; ++query) {
      AttentionArguments a = arguments();
      a.q = slice(a.q, 1, query, query + 1);
      a.out = slice(a.out, 1, query, query + 1);
      a.lse = slice(a.lse, 1, query, query + 1);
      const std::int64_t start = keys - queries + query;
      a.mask.align = Align::unstated;
      a.q_start = ConstView(&start, {1});
      attention(a, {.isa = isa});
    }
  }
};

/// The sets that multiply codes as integers.
std::vector<Isa> integer_isas() {
  std::vector<Isa> list;
  for (const Isa isa : available_isas()) {
    CodeCall c(ElementType::int8, 8, 1);
    if (rounding_of(door::resolve(c.arguments()), isa) == WeightRounding::integer)
      list.push_back(isa);
  }
  return list;
}

constexpr ElementType kIntegers[] = {ElementType::int8, ElementType::int4};

#define SKIP_WITHOUT_INTEGER_ISA() \
  if (integer_isas().empty())      \
  GTEST_SKIP() << "no instruction set here has the integer path (AVX-512 with BF16, VNNI)"

// --- what it rounds ---

/// x in units of the power of two that leaves the largest of `most` 15 bits, rounded.
double fitted(double x, double most) {
  if (most == 0.0) return 0.0;
  const double unit = std::ldexp(1.0, std::ilogb(most) - 14);
  return std::nearbyint(x / unit) * unit;
}

/// The definition with the two roundings of the integer path, all else in double: q, and the
/// weights of 64 keys times the scales of a block of dims.
std::vector<double> rounded_reference(CodeCall& c) {
  const kernels::AttendCall call = door::resolve(c.arguments());
  const kernels::Sequence s = kernels::sequence_of(call, 0);
  std::vector<double> out;
  for (std::int64_t query = 0; query < c.queries; ++query) {
    for (std::int64_t head = 0; head < c.q_heads; ++head) {
      const std::int64_t kv_head = head / call.group();
      const auto channel = [&](std::int64_t d) {
        return c.by_channel ? c.k_scales.get({kv_head, d}) : 1.0;
      };
      std::vector<double> q, p;
      double most = 0.0, total = 0.0;
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        q.push_back(c.q.get({0, query, head, d}) * channel(d));
        most = std::max(most, std::abs(q.back()));
      }
      for (double& x : q) x = fitted(x, most);
      const std::int64_t visible = c.keys - c.queries + query + 1;
      for (std::int64_t key = 0; key < visible; ++key) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < c.head_dim; ++d)
          sum += q[static_cast<std::size_t>(d)] / channel(d) *
                 kernels::reference::key_element(call, s, call.k, s.k, kv_head, key, d);
        p.push_back(std::exp(sum * static_cast<double>(call.score.scale)));
        total += p.back();
      }
      for (std::int64_t d = 0; d < c.value_dim; ++d) {
        double sum = 0.0;
        for (std::int64_t block = 0; block < visible; block += kBlockKeys) {
          const std::int64_t end = std::min(visible, block + kBlockKeys);
          const auto scale = [&](std::int64_t key) {
            return c.v_scales.get({0, key, kv_head, d / 32});
          };
          double heaviest = 0.0;
          for (std::int64_t key = block; key < end; ++key)
            heaviest = std::max(heaviest, std::abs(p[static_cast<std::size_t>(key)] * scale(key)));
          for (std::int64_t key = block; key < end; ++key) {
            const double value =
                kernels::reference::key_element(call, s, call.v, s.v, kv_head, key, d);
            if (scale(key) != 0.0)
              sum += fitted(p[static_cast<std::size_t>(key)] * scale(key), heaviest) *
                     (value / scale(key));
          }
        }
        out.push_back(sum / total);
      }
    }
  }
  return out;
}

TEST(IntegerPath, ErrsAtMostTwiceAsMuchAsItsRoundingsDo) {
  SKIP_WITHOUT_INTEGER_ISA();
  for (const ElementType type : kIntegers) {
    for (const bool by_channel : {false, true}) {
      for (const std::int64_t keys : {1, 33, 64, 200, 1100}) {
        if (effort() == Effort::smoke && by_channel && keys > 200) continue;
        CodeCall c(type, keys, std::min<std::int64_t>(keys, 7), by_channel);
        const std::vector<double> exact = c.exact().out;
        const double allowed = 2.0 * largest_difference(rounded_reference(c), exact) + 0x1p-19;
        ASSERT_LT(allowed, kInfinity);
        for (const Isa isa : integer_isas()) {
          c.run(isa);
          EXPECT_LE(largest_difference(c.out, exact), allowed)
              << element_name(type) << (by_channel ? " by channel, " : ", ") << keys << " keys";
        }
      }
    }
  }
}

// A bfloat16 has eight bits: integers of fifteen hold all of a row whose magnitudes are within 2^7
// of each other, and their products with codes are exact.
TEST(IntegerPath, ScoresAreAsExactAsInFloat32) {
  SKIP_WITHOUT_INTEGER_ISA();
  for (const ElementType type : kIntegers) {
    CodeCall c(type, 150, 20);
    c.q.fill([&](const Index&) {
      return (c.random.chance(0.5) ? 1 : -1) * std::exp2(c.random.uniform(-3.0, 3.0));
    });
    const kernels::AttendCall call = door::resolve(c.arguments());
    const auto exact = c.exact();
    double most = 0.0;
    for (const double lse : exact.lse) most = std::max(most, std::abs(lse));
    const Bound bound = documented_bound(Seen(call), {0.0, most}, WeightRounding::none);
    for (const Isa isa : integer_isas()) {
      c.run(isa);
      EXPECT_LE(largest_difference(c.lse, exact.lse), bound.lse) << element_name(type);
    }
  }
}

// --- scales of all sizes ---

TEST(IntegerPath, EveryBlockOfDimsHasItsOwnPowerOfTwo) {
  SKIP_WITHOUT_INTEGER_ISA();
  for (const ElementType type : kIntegers) {
    CodeCall c(type, 130, 5);
    const double sizes[] = {1e-6, 1.0, 1e8};
    c.v_scales.fill([&](const Index& at) {
      // Of one block some scales are negative, which no cache of ours makes.
      const double sign = at[3] == 1 && at[1] % 3 == 0 ? -1.0 : 1.0;
      return sign * sizes[at[3]] * c.random.uniform(0.01, 1.0) / 128.0;
    });
    const std::vector<double> exact = c.exact().out;
    for (const Isa isa : integer_isas()) {
      c.run(isa);
      for (std::int64_t block = 0; block < 3; ++block) {
        const double error =
            largest_difference(c.out, exact, [&](const Index& at) { return at[3] / 32 == block; });
        EXPECT_LE(error, 0x1p-9 * sizes[block]) << element_name(type) << " block " << block;
      }
      const Tensor whole = c.out;
      c.run(isa, true);
      EXPECT_EQ(differing_bits(whole, c.out), 0) << element_name(type);
    }
  }
}

TEST(IntegerPath, TheLargestAndTheSmallestScales) {
  SKIP_WITHOUT_INTEGER_ISA();
  // Just below 2 the integer would round to 2^15; the others come near an end of float32.
  // An integer stands for 2^-126 at least.
  for (const float scale : {std::nextafterf(2.0f, 0.0f), 0.0f, -0.0f, 1e-44f,
                            std::numeric_limits<float>::min(), 5e35f}) {
    CodeCall c(ElementType::int8, 3, 2);
    std::fill(c.v.begin(), c.v.end(), std::byte{100});
    c.v_scales.fill([&](const Index&) { return scale; });
    const double expected = 100.0 * static_cast<double>(scale);
    for (const Isa isa : integer_isas()) {
      for (const bool decoding : {false, true}) {
        c.run(isa, decoding);
        for_each_index(c.out.extents(), [&](const Index& at) {
          ASSERT_NEAR(c.out.get(at), expected, 0x1p-13 * expected + 3 * 100 * 0x1p-127)
              << scale << (decoding ? " decoding" : "");
        });
      }
    }
  }
}

// Of one token in each place: unseen it changes no bit, seen it reaches the dims of its block.
TEST(IntegerPath, ScalesThatAreNoNumbersStayWithTheRowsThatSeeThem) {
  SKIP_WITHOUT_INTEGER_ISA();
  for (const Isa isa : integer_isas()) {
    for (std::int64_t bad = 0; bad < 70; ++bad) {
      CodeCall c(ElementType::int8, 70, 70);
      c.run(isa);
      const Tensor clean = c.out;
      for (std::int64_t head = 0; head < c.kv_heads; ++head) {
        c.v_scales.set({0, bad, head, 1}, bad % 2 == 0 ? kNan : kInfinity);
        if (bad % 3 == 0) c.k_scales.set({0, bad, head, 0}, kNan);
      }
      for (const bool decoding : {false, true}) {
        c.run(isa, decoding);
        for_each_index(c.out.extents(), [&](const Index& at) {
          const auto where = [&] {
            return "key " + std::to_string(bad) + " query " + std::to_string(at[1]) +
                   (decoding ? " decoding" : "");
          };
          if (at[1] < bad) {
            ASSERT_EQ(std::memcmp(c.out.address(at), clean.address(at), 4), 0) << where();
          } else if (at[3] / 32 == 1) {
            ASSERT_TRUE(std::isnan(c.out.get(at))) << where();
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
