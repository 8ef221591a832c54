// Attention over what caches hold: the same bits on any pages, and the right numbers from any
// codes.
#include "polyhead/kv_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/kv_cache.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/half_step.h"
#include "support/paged.h"
#include "support/refused.h"
#include "support/slice.h"
#include "support/yardstick.h"

namespace polyhead::test {
namespace {

/// Worst-case roundings in float32 of scores of order 1 and values up to 3.5. On the integer path
/// the 64 weights of a block are off by half a unit of 2^-14 of the largest each, which add up as
/// their root does; weights rounded to bfloat16, and their sum, are off by 2^-9 each.
double bound(const Case& c, WeightRounding rounding) {
  const double chains = 0x1p-23 * static_cast<double>(c.head_dim + c.kv_len);
  const double weights = rounding == WeightRounding::integer    ? 0x1p-12
                         : rounding == WeightRounding::bfloat16 ? 0x1p-8
                                                                : 0.0;
  return 3.5 * (chains + weights);
}

constexpr std::int64_t kPageTokens[] = {8, 16, 32, 64, 128, 256};

/// Every mask and every modifier, decoding and prefill, all element types in turn.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (int i = 0; i < kMaskKinds + kModifierKinds; ++i) {
    for (const bool decoding : {false, true}) {
      Case c;
      const std::size_t n = list.size();
      c.batch = 2;
      c.q_len = decoding ? 1 + static_cast<std::int64_t>(n % 3) : 37;
      c.kv_len = n % 7 == 3 ? 1100 : 150;
      constexpr std::int64_t kQHeads[] = {4, 3, 2}, kKvHeads[] = {2, 1, 2};
      c.q_heads = kQHeads[n % 3];
      c.kv_heads = kKvHeads[n % 3];
      constexpr std::int64_t kHeadDims[] = {24, 64, 33, 128, 96};
      constexpr std::int64_t kValueDims[] = {40, 64, 17, 16, 80};
      c.head_dim = kHeadDims[n % 5];
      c.value_dim = kValueDims[n % 5];
      c.types = kTypes[n % kTypes.size()];
      c.mask = i < kMaskKinds ? static_cast<MaskKind>(i) : MaskKind::causal_end;
      c.modifier = i < kMaskKinds ? static_cast<ModifierKind>(i % kModifierKinds)
                                  : static_cast<ModifierKind>(i - kMaskKinds);
      c.statistics = n % 4 == 0;
      c.seed = 900 + n;
      list.push_back(c);
    }
  }
  if (effort() != Effort::smoke) return list;
  std::vector<Case> few;
  for (std::size_t i = 0; i < list.size(); i += 9) few.push_back(list[i]);
  return few;
}

TEST(KvView, PagedGivesTheBitsOfContiguous) {
  ThreadPool pool(3);
  for (const Case& c : cases()) {
    Problem p(c);
    for (Isa isa : isas()) {
      p.run(isa, &Executor::serial());
      const Outputs contiguous(p);
      std::size_t turn = c.seed;
      for (const std::int64_t page_tokens : kPageTokens) {
        const Scattered pages(p, page_tokens, static_cast<LayoutKind>(turn % kLayoutKinds));
        const bool threads = ++turn % 2 == 0;
        for (Tensor* output : {&p.out, &p.lse, &p.entropy, &p.max_weight, &p.max_key})
          output->poison();
        attention(pages.arguments(p),
                  {.isa = isa, .executor = threads ? &pool : &Executor::serial()});
        EXPECT_EQ(differing_bits(contiguous, Outputs(p)), 0)
            << isa_name(isa) << " pages of " << page_tokens << ": " << describe(c);
      }
    }
  }
}

TEST(KvView, AContiguousViewIsTheCallItself) {
  Case c;
  c.batch = 2;
  c.q_len = 5;
  c.kv_len = 70;
  c.mask = MaskKind::kv_lengths;
  Problem p(c);
  p.run(Isa::automatic);
  const Outputs plain(p);
  AttentionArguments a = p.arguments();
  a.kv.k = a.k;
  a.kv.v = a.v;
  a.kv.lengths = a.mask.kv_lengths;
  a.k = a.v = a.mask.kv_lengths = {};
  p.out.poison();
  attention(a);
  EXPECT_EQ(differing_bits(plain, Outputs(p)), 0);
}

// Prefill chunks and decode steps of sequences of many lengths in one call.
TEST(KvView, ARaggedMixGivesEachSequenceItsOwnBits) {
  ThreadPool pool(2);
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[4]}) {
    Case c;
    c.batch = 5;
    c.q_len = 40;
    c.kv_len = 1300;
    c.q_heads = 4;
    c.kv_heads = 2;
    c.head_dim = c.value_dim = 64;
    c.types = types;
    c.mask = MaskKind::kv_lengths;
    Problem p(c);
    std::int32_t lengths[] = {1300, 40, 1, 1025, 64}, counts[] = {1, 40, 1, 17, 2};
    p.mask = causal(Align::end) & polyhead::lengths(ConstView(lengths, {5}));
    const Scattered pages(p, 16);
    const std::int32_t offsets[] = {0, 1, 41, 42, 59, 61};
    Tensor q(types.q, {61, 4, 64}), out(types.out, {61, 4, 64}), lse(f32, {61, 4});
    std::vector<Tensor> alone;
    for (std::int64_t b = 0; b < 5; ++b) {
      for (std::int64_t i = 0; i < counts[b]; ++i) {
        for (std::int64_t h = 0; h < 4; ++h) {
          for (std::int64_t d = 0; d < 64; ++d)
            q.set({offsets[b] + i, h, d}, p.q.get({b, i, h, d}));
        }
      }
    }
    for (Isa isa : isas()) {
      AttentionArguments a;
      a.q = q.const_view();
      a.kv = pages.view();
      a.out = out.view();
      a.lse = lse.view();
      a.mask = causal(Align::end);
      a.q_offsets = ConstView(offsets, {6});
      out.poison();
      attention(a, {.isa = isa, .executor = &pool});
      for (std::int64_t b = 0; b < 5; ++b) {
        // The same sequence, contiguous and alone.
        AttentionArguments one;
        one.q = slice(ConstView(p.q.const_view()), 0, b, b + 1);
        one.q.layout.extents[1] = counts[b];
        one.k = slice(p.k.const_view(), 0, b, b + 1);
        one.v = slice(p.v.const_view(), 0, b, b + 1);
        one.k.layout.extents[1] = one.v.layout.extents[1] = lengths[b];
        Tensor expected(types.out, {1, counts[b], 4, 64});
        one.out = expected.view();
        one.mask = causal(Align::end);
        attention(one, {.isa = isa});
        std::int64_t differing = 0;
        const auto bytes = static_cast<std::size_t>(element_bytes(types.out));
        for_each_index(expected.extents(), [&](const Index& at) {
          differing += std::memcmp(expected.address(at),
                                   out.address({offsets[b] + at[1], at[2], at[3]}), bytes) != 0;
        });
        EXPECT_EQ(differing, 0) << isa_name(isa) << " " << name_of(types) << " sequence " << b;
      }
    }
  }
}

// --- codes ---

TEST(Codes, EightBitFloatsAreThoseOfTheSpecification) {
  using base::float8_to_float32;
  EXPECT_EQ(float8_to_float32(0x7e, true), 448.0f);
  EXPECT_EQ(float8_to_float32(0x01, true), 0x1p-9f);
  EXPECT_EQ(float8_to_float32(0x08, true), 0x1p-6f);
  EXPECT_EQ(float8_to_float32(0xb8, true), -1.0f);
  EXPECT_TRUE(std::isnan(float8_to_float32(0x7f, true)));
  EXPECT_EQ(float8_to_float32(0x7b, false), 57344.0f);
  EXPECT_EQ(float8_to_float32(0x01, false), 0x1p-16f);
  EXPECT_EQ(float8_to_float32(0x3c, false), 1.0f);
  EXPECT_EQ(float8_to_float32(0xfc, false), -kInfinity);
  EXPECT_TRUE(std::isnan(float8_to_float32(0x7d, false)));
}

TEST(Codes, EveryEightBitFloatComesBackAndTheNearestIsTaken) {
  for (const bool e4m3 : {true, false}) {
    const int most = e4m3 ? 0x7e : 0x7b;  // the largest finite one
    for (int code = 0; code <= most; ++code) {
      const float value = base::float8_to_float32(static_cast<std::uint8_t>(code), e4m3);
      EXPECT_EQ(base::float32_to_float8(value, e4m3), code);
      EXPECT_EQ(base::float32_to_float8(-value, e4m3), code | 0x80);
      if (code == most) continue;
      const float next = base::float8_to_float32(static_cast<std::uint8_t>(code + 1), e4m3);
      const float middle = value + (next - value) / 2.0f;  // exact
      EXPECT_EQ(base::float32_to_float8(middle, e4m3), code % 2 == 0 ? code : code + 1);
      EXPECT_EQ(base::float32_to_float8(std::nextafterf(middle, 0.0f), e4m3), code);
      EXPECT_EQ(base::float32_to_float8(std::nextafterf(middle, 1e9f), e4m3), code + 1);
    }
    EXPECT_EQ(base::float32_to_float8(1e30f, e4m3), most);
    EXPECT_EQ(base::float32_to_float8(-kInfinity, e4m3), most | 0x80);
    EXPECT_EQ(base::float32_to_float8(kNan, e4m3) & 0x7f, 0x7f);
  }
}

/// A cache filled with a problem's keys and values, and the problem's call over it.
struct Cached {
  std::vector<float> scales;  // before the cache, whose making fills them
  PagedCache cache;
  std::vector<std::int64_t> sequences;
  PagedBatch batch;

  Cached(Problem& p, ElementType type, std::int64_t page_tokens, bool by_channel)
      : cache(config(p, type, page_tokens, by_channel, scales)) {
    const Case& c = p.description();
    for (std::int64_t b = 0; b < c.batch; ++b) {
      sequences.push_back(cache.create());
      ConstView k = drop_first_axis(slice(p.k.const_view(), 0, b, b + 1));
      ConstView v = drop_first_axis(slice(p.v.const_view(), 0, b, b + 1));
      k.layout.extents[0] = v.layout.extents[0] = Scattered::length_of(p, b);
      EXPECT_EQ(cache.append(sequences.back(), k, v), PagedCache::Status::ok);
    }
    cache.batch(sequences, batch);
  }

  static PagedCacheConfig config(Problem& p, ElementType type, std::int64_t page_tokens,
                                 bool by_channel, std::vector<float>& scales) {
    const Case& c = p.description();
    PagedCacheConfig config;
    config.pages = c.batch * ((c.kv_len + page_tokens - 1) / page_tokens);
    config.page_tokens = page_tokens;
    config.kv_heads = c.kv_heads;
    config.head_dim = c.head_dim;
    config.value_dim = c.value_dim;
    config.type = type;
    if (by_channel) {
      scales = key_scales_by_channel(p.k.const_view(), type);
      config.key_scales = ConstView(scales.data(), {std::int64_t{1}, c.kv_heads, c.head_dim});
    }
    return config;
  }

  AttentionArguments arguments(Problem& p) {
    AttentionArguments a = p.arguments();
    a.k = a.v = {};
    a.mask.kv_lengths = {};
    a.kv = cache.view(0, batch);
    return a;
  }
};

// Scores of rows without a dim are 0: all keys weigh the same, in decoding and in prefill.
TEST(KvView, CodesWithoutADimWeighTheSame) {
  for (const ElementType type : kCodeTypes) {
    KvCache cache(
        {.batch = 1, .kv_heads = 1, .head_dim = 0, .value_dim = 1, .type = type, .capacity = 70});
    std::vector<float> values(70);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 3);
    const float none = 0;
    // head_dim 0 is value_dim's default too, so that only keys are empty.
    cache.append(ConstView(&none, {1, 70, 1, 0}), ConstView(values.data(), {1, 70, 1, 1}));
    for (const Isa isa : isas()) {
      for (const ElementType q_type : {f32, bf16}) {
        for (const std::int64_t q_len : {1, 3, 20}) {
          Tensor q(q_type, {1, q_len, 2, 0}), out(f32, {1, q_len, 2, 1});
          AttentionArguments a;
          a.q = q.view();
          a.kv = cache.view();
          a.out = out.view();
          attention(a, {.isa = isa});
          for (std::int64_t i = 0; i < q_len; ++i)
            EXPECT_NEAR(out.get({0, i, 1, 0}), 69.0 / 70.0, 0.02)
                << isa_name(isa) << " " << element_name(type) << " " << q_len;
        }
      }
    }
  }
}

bool channels_too(ElementType type) { return base::is_scaled(type); }

std::vector<Case> code_cases() {
  std::vector<Case> list = cases();
  std::vector<Case> few;
  // cache_grid_test.cpp crosses masks, groups and types; this has the modifiers, dims and splits.
  const auto step = static_cast<std::size_t>(case_count(1, 5, 1));
  for (std::size_t i = 0; i < list.size(); i += step) {
    list[i].types = {f32, f32, f32, f32};
    if (i % 4 == 2) list[i].types.q = bf16;
    few.push_back(list[i]);
  }
  return few;
}

// The reference reads the same codes, so that the distance is the kernels' own.
TEST(KvView, CodesAreReadAsTheReferenceReadsThem) {
  std::size_t turn = 0;
  for (const Case& c : code_cases()) {
    Problem p(c);
    for (const ElementType type : kCodeTypes) {
      for (const bool by_channel : {false, true}) {
        if (by_channel && !channels_too(type)) continue;
        Cached cached(p, type, kPageTokens[turn++ % 6], by_channel);
        const AttentionArguments a = cached.arguments(p);
        const kernels::AttendCall call = door::resolve(a);
        const auto exact = kernels::reference::attend(call);
        for (Isa isa : isas()) {
          p.out.poison();
          attention(a, {.isa = isa});
          EXPECT_LE(largest_difference(p.out, exact.out), bound(c, rounding_of(call, isa)))
              << isa_name(isa) << " " << element_name(type) << (by_channel ? " by channel " : " ")
              << describe(c);
        }
      }
    }
  }
}

TEST(KvView, CodesGiveTheSameBitsOnAnyPagesInAnyChunks) {
  for (const ElementType type : kCodeTypes) {
    for (const bool by_channel : {false, true}) {
      if (by_channel && !channels_too(type)) continue;
      for (const auto& [q_heads, kv_heads, q_type] :
           {std::tuple{2, 2, f32}, {4, 1, f32}, {6, 2, f32}, {4, 1, bf16}, {6, 2, bf16}}) {
        Case c;
        c.types = {q_type, f32, f32, f32};
        c.batch = 2;
        c.q_len = 21;
        c.kv_len = q_heads == 4 ? 1100 : 150;
        c.q_heads = q_heads;
        c.kv_heads = kv_heads;
        c.head_dim = q_heads == 2 ? 128 : 80;
        c.value_dim = q_heads == 6 ? 33 : 64;
        c.mask = MaskKind::causal_end;
        Problem p(c);
        for (Isa isa : isas()) {
          Cached first(p, type, 64, by_channel);
          attention(first.arguments(p), {.isa = isa, .executor = &Executor::serial()});
          const Outputs whole(p);
          for (const std::int64_t page_tokens : kPageTokens) {
            if (effort() == Effort::smoke && page_tokens != 16 && page_tokens != 64) continue;
            Cached other(p, type, page_tokens, by_channel);
            p.out.poison();
            p.lse.poison();
            // One query at a time: decoding.
            for (std::int64_t query = 0; query < c.q_len; ++query) {
              AttentionArguments a = other.arguments(p);
              a.q = slice(a.q, 1, query, query + 1);
              a.out = slice(a.out, 1, query, query + 1);
              a.lse = slice(a.lse, 1, query, query + 1);
              const std::int64_t starts[] = {c.kv_len - c.q_len + query,
                                             c.kv_len - c.q_len + query};
              a.mask.align = Align::unstated;
              a.q_start = ConstView(starts, {2});
              attention(a, {.isa = isa});
            }
            EXPECT_EQ(differing_bits(whole, Outputs(p)), 0)
                << isa_name(isa) << " " << element_name(type) << " pages of " << page_tokens
                << (by_channel ? " by channel " : " ") << describe(c);
          }
        }
      }
    }
  }
}

TEST(Codes, AreWithinHalfAStepOfTheValues) {
  Case c;
  c.kv_len = 40;
  c.head_dim = c.value_dim = 72;
  Problem p(c);
  for (const ElementType type : kCodeTypes) {
    for (const bool by_channel : {false, true}) {
      if (by_channel && !channels_too(type)) continue;
      Cached cached(p, type, 8, by_channel);
      const kernels::AttendCall call = door::resolve(cached.arguments(p));
      const kernels::Sequence s = kernels::sequence_of(call, 0);
      for (std::int64_t t = 0; t < c.kv_len; ++t) {
        float most = 0.0f;
        for (std::int64_t d = 0; d < c.value_dim; ++d) {
          if (d % 32 == 0) {
            most = 0.0f;
            for (std::int64_t i = d; i < std::min<std::int64_t>(d + 32, 72); ++i)
              most = std::max(most, std::abs(static_cast<float>(p.v.get({0, t, 0, i}))));
          }
          const double value = p.v.get({0, t, 0, d});
          const double held = kernels::reference::key_element(call, s, call.v, s.v, 0, t, d);
          EXPECT_LE(std::abs(held - value), half_step(type, value, static_cast<double>(most)))
              << element_name(type);
        }
      }
    }
  }
}

// Every code is a bfloat16, and is read as that one wherever queries are.
TEST(Codes, EightBitFloatsGiveTheBitsOfTheirValuesAsBfloat16) {
  int turn = 0;
  for (const ElementType type : {ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    for (const std::int64_t group : {1, 2, 4, 8, 16}) {
      for (const std::int64_t q_len : {1, 40}) {
        constexpr std::int64_t kDims[] = {64, 128, 33, 80, 17};
        Case c;
        c.types = {bf16, f32, f32, f32};
        c.q_len = q_len;
        c.kv_len = 1100;
        c.q_heads = group;
        c.kv_heads = 1;
        c.head_dim = kDims[turn % 5];
        c.value_dim = kDims[++turn % 5];
        Problem p(c);
        const bool e4m3 = type == ElementType::float8_e4m3;
        for_each_index(p.k.extents(), [&](const Index& at) {
          const auto code = base::float32_to_float8(static_cast<float>(p.k.get(at)), e4m3);
          p.k.set(at, base::float8_to_float32(code, e4m3));
        });
        std::uint8_t code = 0;  // all finite ones in turn
        for_each_index(p.v.extents(), [&](const Index& at) {
          do code = static_cast<std::uint8_t>(code + 37);
          while (!std::isfinite(base::float8_to_float32(code, e4m3)));
          p.v.set(at, base::float8_to_float32(code, e4m3));
        });
        Cached codes(p, type, 64, false), values(p, bf16, 64, false);
        for (Isa isa : isas()) {
          attention(codes.arguments(p), {.isa = isa});
          const Outputs of_codes(p);
          p.out.poison();
          p.lse.poison();
          attention(values.arguments(p), {.isa = isa});
          EXPECT_EQ(differing_bits(of_codes, Outputs(p)), 0)
              << isa_name(isa) << " " << element_name(type) << " " << describe(c);
        }
      }
    }
  }
}

TEST(Codes, NaNReachesOnlyRowsThatSeeItsToken) {
  for (const auto& [type, q_type] : {std::pair{ElementType::int8, f32},
                                     {ElementType::int4, f32},
                                     {ElementType::float8_e4m3, f32},
                                     {ElementType::float8_e5m2, f32},
                                     {ElementType::float8_e4m3, bf16},
                                     {ElementType::float8_e5m2, bf16}}) {
    Case c;
    c.types.q = q_type;
    c.q_len = c.kv_len = 70;
    c.head_dim = c.value_dim = 64;
    c.mask = MaskKind::causal_end;
    Problem p(c);
    p.v.set({0, 50, 0, 3}, kNan);
    Cached cached(p, type, 16, false);
    for (Isa isa : isas()) {
      attention(cached.arguments(p), {.isa = isa});
      for (std::int64_t query = 0; query < c.q_len; ++query)
        EXPECT_EQ(std::isnan(p.out.get({0, query, 0, 3})), query >= 50)
            << element_name(type) << " query " << query;
    }
  }
}

}  // namespace
}  // namespace polyhead::test
