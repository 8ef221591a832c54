// Positions in the cache: against keys that are moved there one by one, in double.
#include "polyhead/sliding_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "support/difference.h"
#include "support/effort.h"
#include "support/in_cache_text.h"
#include "support/problem.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

using namespace in_cache;

/// A row of q or k at a position, in double.
std::vector<double> row_at(const Tensor& x, const Index& at, std::int64_t position) {
  std::vector<double> row;
  for (std::int64_t d = 0; d < kDim; ++d) row.push_back(x.get({at[0], at[1], at[2], d}));
  const std::vector<double> frequencies = rope_frequencies(rope(), kDim);
  const std::size_t half = frequencies.size();
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    const double a = row[i], b = row[i + half];
    row[i] = a * std::cos(angle) - b * std::sin(angle);
    row[i + half] = a * std::sin(angle) + b * std::cos(angle);
  }
  return row;
}

/// One query's output and the log of what its weights were divided by.
struct Row {
  std::vector<double> out;
  double lse;
};

/// The row of query `p`, its keys moved to their positions in the cache as the paper has it, under
/// ALiBi of that slope.
Row moved(const Text& text, std::int64_t b, std::int64_t p, std::int64_t head,
          const SlidingCacheConfig& c, double sink, double slope) {
  const std::int64_t begin = std::max<std::int64_t>(0, p - c.window + 1);
  std::vector<std::int64_t> keys;
  for (std::int64_t t = 0; t < std::min(c.first_tokens, begin); ++t) keys.push_back(t);
  for (std::int64_t t = begin; t <= p; ++t) keys.push_back(t);
  const std::vector<double> q =
      row_at(text.q, {b, p, head}, static_cast<std::int64_t>(keys.size()) - 1);
  std::vector<double> out(kValueDim);
  double sum = std::exp(sink);
  for (std::size_t place = 0; place < keys.size(); ++place) {
    const std::vector<double> k = row_at(text.k, {b, keys[place], head / (kQHeads / kHeads)},
                                         static_cast<std::int64_t>(place));
    double score = 0.0;
    for (std::size_t d = 0; d < k.size(); ++d) score += q[d] * k[d];
    const double distance = static_cast<double>(keys.size() - 1 - place);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(kDim)) - slope * distance);
    sum += weight;
    for (std::int64_t d = 0; d < kValueDim; ++d)
      out[static_cast<std::size_t>(d)] +=
          weight * text.v.get({b, keys[place], head / (kQHeads / kHeads), d});
  }
  for (double& x : out) x /= sum;
  return {out, std::log(sum)};
}

TEST(InCache, IsAttentionOverKeysMovedToTheirPlaces) {
  const float sinks[kQHeads] = {0.5f, -1.0f, 2.0f, 0.0f};
  const float slopes[2 * kQHeads] = {-0.01f, 9, 0.3f, 9, 0.0f, 9, 0.05f, 9};
  const std::int64_t tokens = effort() == Effort::smoke ? 90 : 400;
  for (const auto& [window, first_tokens, chunk] :
       {std::tuple{20, 4, 1}, {33, 40, 7}, {64, 1, 64}, {1, 2, 3}, {25, 0, 5}}) {
    const Text text(tokens, static_cast<std::uint64_t>(window));
    // With the closed form, with slopes of one's own (the first one grows with distance), without.
    for (const int alibi : {0, 1, 2}) {
      const bool sink = alibi != 0;
      SlidingCache cache(config(window, first_tokens, chunk));
      Modifiers modifiers;
      if (sink) modifiers.sink = ConstView(sinks, {kQHeads});
      modifiers.alibi.use_default_slopes = alibi == 1;
      if (alibi == 2) modifiers.alibi.slopes = ConstView(slopes, {kQHeads}, {2});
      const auto slope_of = [&](std::int64_t head) {
        return alibi == 0 ? 0.0f : alibi == 1 ? alibi_slope(head, kQHeads) : slopes[2 * head];
      };
      for (std::int64_t first = 0; first < tokens; first += chunk) {
        const std::int64_t count = std::min<std::int64_t>(chunk, tokens - first);
        append(cache, text, first, count);
        Tensor out(f32, {kBatch, count, kQHeads, kValueDim});
        Tensor lse(f32, {kBatch, count, kQHeads});
        attend_in_cache(cache, rope(),
                        {.q = part(text.q, first, count),
                         .out = out.view(),
                         .lse = lse.view(),
                         .modifiers = modifiers});
        LargestDifference worst, worst_lse;
        for_each_index({kBatch, count, kQHeads}, [&](const Index& at) {
          const std::int64_t head = at[2];
          const Row expected = moved(
              text, at[0], first + at[1], head, cache.config(),
              sink ? static_cast<double>(sinks[head]) : -std::numeric_limits<double>::infinity(),
              static_cast<double>(slope_of(head)));
          for (std::int64_t d = 0; d < kValueDim; ++d)
            worst.add(out.get({at[0], at[1], head, d}), expected.out[static_cast<std::size_t>(d)]);
          worst_lse.add(lse.get(at), expected.lse);
        });
        // docs/numerics.md with D = 24, |q.k| scaled below 12, its rotation's 4 roundings of q and
        // of k, scores within 24 of each other, values below 3.5.
        // ALiBi adds two roundings of what is at most 0.3 * 82 more.
        const double far = alibi == 0 ? 0 : 0.3 * 82;
        const double e = (24 + 6 + 8) * 12 * 0x1p-24 + (4 * 24 + 2 * (far + 24)) * 0x1p-24;
        EXPECT_LE(worst.value(), 2 * 3.5 * (e + 82 * 0x1p-24))
            << window << " + " << first_tokens << " at " << first;
        // Weights' relative errors are at most e, their sum's so too; the lse is below 32.
        EXPECT_LE(worst_lse.value(), e + 82 * 0x1p-24 + 32 * 0x1p-24)
            << window << " + " << first_tokens << " at " << first;
      }
    }
  }
}

// Without RoPE keys and q are as they came: ALiBi alone says where they stand, and the values of
// latents are not turned with their keys.
TEST(InCache, AModelWithoutRopeGoesByAlibi) {
  constexpr std::int64_t kTokens = 90, kWindow = 20, kFirst = 3;
  const Text text(kTokens, 8);
  for (const bool in_keys : {false, true}) {
    SlidingCacheConfig c = config(kWindow, kFirst, 30);
    c.values_in_keys = in_keys;
    SlidingCache cache(c);
    Modifiers modifiers;
    modifiers.alibi.use_default_slopes = true;
    for (std::int64_t first = 0; first < kTokens; first += 30) {
      cache.append(part(text.k, first, 30), in_keys ? ConstView() : part(text.v, first, 30));
      Tensor out(f32, {kBatch, 30, kQHeads, kValueDim});
      attend_in_cache(cache, std::nullopt,
                      {.q = part(text.q, first, 30), .out = out.view(), .modifiers = modifiers});
      LargestDifference worst;
      for_each_index(out.extents(), [&](const Index& at) {
        const std::int64_t p = first + at[1], kv_head = at[2] / (kQHeads / kHeads);
        const std::int64_t begin = std::max<std::int64_t>(0, p - kWindow + 1);
        const std::int64_t firsts = std::min(kFirst, begin);
        double sum = 0.0, value = 0.0;
        for (std::int64_t t = 0; t <= p; ++t) {
          if (t >= firsts && t < begin) continue;
          double score = 0.0;
          for (std::int64_t d = 0; d < kDim; ++d)
            score += text.q.get({at[0], p, at[2], d}) * text.k.get({at[0], t, kv_head, d});
          const std::int64_t place = t < firsts ? t : t - begin + firsts;
          const double distance = static_cast<double>(p - begin + firsts - place);
          const double weight =
              std::exp(score / std::sqrt(static_cast<double>(kDim)) -
                       static_cast<double>(alibi_slope(at[2], kQHeads)) * distance);
          sum += weight;
          value += weight * (in_keys ? text.k : text.v).get({at[0], t, kv_head, at[3]});
        }
        worst.add(out.get(at), value / sum);
      });
      const double e = (24 + 6) * 12 * 0x1p-24 + 6 * 24 * 0x1p-24;
      EXPECT_LE(worst.value(), 2 * 4.5 * (e + 23 * 0x1p-24)) << in_keys << " at " << first;
    }
  }
}

TEST(InCache, AnyChunksAndPaddingGiveTheSameBits) {
  const std::int64_t tokens = 150;
  const Text text(tokens, 3);
  Modifiers modifiers;
  modifiers.alibi.use_default_slopes = true;
  for (const ElementType type : {f32, bf16, ElementType::int8, ElementType::int4}) {
    for (Isa isa : isas()) {
      std::vector<std::vector<std::byte>> results;
      for (const std::int64_t chunk : {1, 13, 50}) {
        SlidingCache cache(config(40, 3, 50, type));
        Tensor all(f32, {kBatch, tokens, kQHeads, kValueDim});
        for (std::int64_t first = 0; first < tokens; first += chunk) {
          const std::int64_t count = std::min(chunk, tokens - first);
          append(cache, text, first, count);
          View out = all.view();
          out.data = all.address({0, first, 0, 0});
          out.layout.extents[1] = count;
          attend_in_cache(cache, rope(),
                          {.q = part(text.q, first, count), .out = out, .modifiers = modifiers},
                          {.isa = isa});
        }
        results.push_back(all.bytes());
      }
      EXPECT_EQ(results[0], results[1]) << isa_name(isa);
      EXPECT_EQ(results[0], results[2]) << isa_name(isa);
    }
  }
}

// One plan and workspace for all chunks, of caches with and without first tokens, with a sink and
// ALiBi, with RoPE and without.
TEST(InCache, APlanGivesTheSameBits) {
  const std::int64_t tokens = 150;
  const Text text(tokens, 3);
  const std::vector<float> sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  Modifiers modifiers;
  modifiers.sink = ConstView(sinks.data(), {kQHeads});
  modifiers.alibi.use_default_slopes = true;
  for (const ElementType type : {f32, ElementType::int8}) {
    const std::optional<RopeConfig> turned = type == f32 ? std::optional(rope()) : std::nullopt;
    const InCachePlan plan(limits(50, tokens, type), turned);
    InCacheWorkspace workspace = plan.make_workspace();
    const std::size_t bytes = workspace.bytes();
    for (const std::int64_t first_tokens : {0, 3}) {
      SlidingCache cache(config(40, first_tokens, 50, type));
      std::int64_t chunk = 50;
      for (std::int64_t first = 0; first < tokens; first += chunk, chunk = 1 + first % 50) {
        chunk = std::min(chunk, tokens - first);
        append(cache, text, first, chunk);
        const std::int32_t counts[] = {static_cast<std::int32_t>(chunk),
                                       static_cast<std::int32_t>(chunk / 2)};
        Tensor expected(f32, {kBatch, chunk, kQHeads, kValueDim});
        Tensor out(f32, {kBatch, chunk, kQHeads, kValueDim});
        Tensor expected_lse(f32, {kBatch, chunk, kQHeads}), lse(f32, {kBatch, chunk, kQHeads});
        attend_in_cache(cache, turned,
                        {.q = part(text.q, first, chunk),
                         .out = expected.view(),
                         .lse = expected_lse.view(),
                         .counts = ConstView(counts, {2}),
                         .modifiers = modifiers});
        plan.run(cache,
                 {.q = part(text.q, first, chunk),
                  .out = out.view(),
                  .lse = lse.view(),
                  .counts = ConstView(counts, {2}),
                  .modifiers = modifiers},
                 workspace);
        EXPECT_EQ(out.bytes(), expected.bytes()) << first << " " << first_tokens;
        EXPECT_EQ(lse.bytes(), expected_lse.bytes()) << first << " " << first_tokens;
        EXPECT_EQ(lse.get({1, chunk - 1, 0}), -std::numeric_limits<double>::infinity())
            << "past counts";
      }
    }
    EXPECT_EQ(workspace.bytes(), bytes);
  }
}

// "At most this many": scratch is for those who have something to do.
TEST(InCache, ManyMoreThreadsThanRows) {
  const Text text(4, 5);
  SlidingCache cache(config(2, 1, 4));
  append(cache, text, 0, 4);
  Tensor one(f32, {kBatch, 4, kQHeads, kValueDim}), many = one;
  const auto attend = [&](Tensor& to, int threads) {
    attend_in_cache(cache, rope(), {.q = part(text.q, 0, 4), .out = to.view()},
                    {.threads = threads});
  };
  attend(one, 1);
  attend(many, ThreadPool::kMost);
  EXPECT_EQ(differing_bits(one, many), 0);
}

TEST(InCache, PaddingRowsGiveZeros) {
  const Text text(60, 4);
  SlidingCache cache(config(20, 2, 60));
  append(cache, text, 0, 60);
  Tensor out(f32, {kBatch, 5, kQHeads, kValueDim}), whole(f32, {kBatch, 5, kQHeads, kValueDim});
  const std::int32_t counts[] = {3, 5};
  attend_in_cache(cache, rope(), {.q = part(text.q, 55, 5), .out = whole.view()});
  // Sequence 0 has its last three queries first, then padding.
  Tensor q(f32, {kBatch, 5, kQHeads, kDim});
  for_each_index(q.extents(), [&](const Index& at) {
    const std::int64_t from = at[0] == 0 ? std::min<std::int64_t>(57 + at[1], 59) : 55 + at[1];
    q.set(at, text.q.get({at[0], from, at[2], at[3]}));
  });
  attend_in_cache(cache, rope(),
                  {.q = q.const_view(), .out = out.view(), .counts = ConstView(counts, {2})});
  for_each_index(out.extents(), [&](const Index& at) {
    const double expected = at[0] == 1   ? whole.get(at)
                            : at[1] >= 3 ? 0.0
                                         : whole.get({0, at[1] + 2, at[2], at[3]});
    EXPECT_EQ(out.get(at), expected);
  });
}

TEST(InCache, RaggedGivesTheBitsOfPadded) {
  constexpr std::int64_t kTokens = 60, kFirst = 7, kSecond = 3;
  const Text text(kTokens, 8);
  const std::int64_t counts[] = {kFirst, kSecond}, offsets[] = {0, kFirst, kFirst + kSecond};
  const ConstView offsets_view(offsets, {kBatch + 1});
  for (const std::int64_t first_tokens : {0, 4}) {
    SlidingCache cache(config(20, first_tokens, kTokens));
    append(cache, text, 0, kTokens);
    Tensor q(f32, {kBatch, kFirst, kQHeads, kDim});  // the last queries of each first, then padding
    for_each_index(q.extents(), [&](const Index& at) {
      const std::int64_t token = kTokens - counts[at[0]] + at[1];
      q.set(at, text.q.get({at[0], std::min(token, kTokens - 1), at[2], at[3]}));
    });
    Tensor out(f32, {kBatch, kFirst, kQHeads, kValueDim}), lse(f32, {kBatch, kFirst, kQHeads});
    attend_in_cache(cache, rope(),
                    {.q = q.const_view(),
                     .out = out.view(),
                     .lse = lse.view(),
                     .counts = ConstView(counts, {kBatch})});
    const Tensor some_q = ragged(q, kFirst, kSecond);
    const Tensor some_out = ragged(out, kFirst, kSecond), some_lse = ragged(lse, kFirst, kSecond);
    Tensor found = some_out, found_lse = some_lse;
    found.poison();
    found_lse.poison();
    attend_in_cache(cache, rope(),
                    {.q = some_q.const_view(),
                     .out = found.view(),
                     .lse = found_lse.view(),
                     .q_offsets = offsets_view});
    EXPECT_EQ(differing_bits(found, some_out), 0) << first_tokens;
    EXPECT_EQ(differing_bits(found_lse, some_lse), 0) << first_tokens;
    found.poison();
    const InCachePlan plan(limits(kFirst, kTokens), rope());
    InCacheWorkspace workspace = plan.make_workspace();
    plan.run(cache, {.q = some_q.const_view(), .out = found.view(), .q_offsets = offsets_view},
             workspace);
    EXPECT_EQ(differing_bits(found, some_out), 0) << first_tokens;
  }
}

}  // namespace
}  // namespace polyhead::test
