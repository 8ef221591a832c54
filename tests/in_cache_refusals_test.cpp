// What attention with positions in the cache refuses, by name and with nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/in_cache_text.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

using namespace in_cache;

TEST(InCache, APlanRefusesWhatItIsNotFor) {
  const Text text(40, 5);
  SlidingCache cache(config(20, 2, 4));
  append(cache, text, 0, 4);
  append(cache, text, 4, 4);
  Tensor out(f32, {kBatch, 3, kQHeads, kValueDim});
  const std::vector<std::byte> before = out.bytes();
  const auto refused = [&](const Limits& of) {
    const InCachePlan plan(of, rope());
    InCacheWorkspace workspace = plan.make_workspace();
    return refusal_of(
        [&] { plan.run(cache, {.q = part(text.q, 5, 3), .out = out.view()}, workspace); });
  };
  EXPECT_EQ(refused(limits(2, 8)), "attend_in_cache: q_len (3) exceeds the plan's limit of 2");
  EXPECT_EQ(refused(limits(3, 7)), "attend_in_cache: kv_len (8) exceeds the plan's limit of 7");
  Limits other = limits(3, 8);
  other.head_dim = 32;
  EXPECT_EQ(refused(other), "attend_in_cache: head_dim (24) is not the plan's 32");
  EXPECT_EQ(out.bytes(), before);
  EXPECT_EQ(refused(limits(3, 8)), "accepted");
  EXPECT_EQ(refusal_of([] { InCachePlan(limits(1, 1), RopeConfig{}); }).substr(0, 16),
            "attend_in_cache:");
  Limits huge = limits(std::int64_t{1} << 40, 8);
  huge.batch = std::int64_t{1} << 40;
  EXPECT_EQ(refusal_of([&] { InCachePlan(huge, rope()); }),
            "attend_in_cache: batch (1099511627776) times q_len (1099511627776) times q_heads (4) "
            "overflow 64 bits");
  const InCachePlan plan(limits(3, 8), rope());
  InCacheWorkspace workspace = plan.make_workspace();
  const InCacheWorkspace taken = std::move(workspace);
  EXPECT_EQ(
      refusal_of([&] { plan.run(cache, {.q = part(text.q, 5, 3), .out = out.view()}, workspace); }),
      "attend_in_cache: workspace was moved from, expected the plan's");
  InCacheWorkspace smaller = InCachePlan(limits(1, 8), rope()).make_workspace();
  EXPECT_EQ(
      refusal_of([&] { plan.run(cache, {.q = part(text.q, 5, 3), .out = out.view()}, smaller); }),
      "attend_in_cache: workspace is of smaller limits, expected one this plan made");
  InCacheWorkspace larger = InCachePlan(limits(5, 8), rope()).make_workspace();
  EXPECT_EQ(
      refusal_of([&] { plan.run(cache, {.q = part(text.q, 5, 3), .out = out.view()}, larger); }),
      "accepted");
}

// What the calls within would refuse, too.
TEST(InCache, RefusalsNameTheCall) {
  const Text text(60, 4);
  SlidingCache cache(config(20, 2, 4));
  append(cache, text, 0, 4);
  Tensor out(f32, {kBatch, 3, kQHeads, kValueDim}), narrow(f32, {kBatch, 3, kQHeads, 1});
  const std::vector<std::byte> before = out.bytes();
  const auto refused = [&](View to, const Modifiers& modifiers) {
    const std::string whole = refusal_of([&] {
      attend_in_cache(cache, rope(), {.q = part(text.q, 1, 3), .out = to, .modifiers = modifiers});
    });
    const std::string planned = refusal_of([&] {
      const InCachePlan plan(limits(3, 8), rope());
      InCacheWorkspace workspace = plan.make_workspace();
      plan.run(cache, {.q = part(text.q, 1, 3), .out = to, .modifiers = modifiers}, workspace);
    });
    EXPECT_EQ(whole, planned);
    return whole;
  };
  EXPECT_TRUE(refused(narrow.view(), {}).starts_with("attend_in_cache: out: "));
  EXPECT_TRUE(refused(View(), {}).starts_with("attend_in_cache: out "));
  EXPECT_TRUE(refused(out.view(), {.scale = INFINITY}).starts_with("attend_in_cache: "));
  const float sinks[] = {0, 0, 0, NAN};
  EXPECT_TRUE(
      refused(out.view(), {.sink = ConstView(sinks, {kQHeads})}).starts_with("attend_in_cache: "));
  EXPECT_EQ(refusal_of([&] {
              attend_in_cache(cache, rope(), {.q = part(text.q, 1, 3), .out = out.view()},
                              {.threads = -2});
            }),
            "attend_in_cache: threads (-2) is negative");
  EXPECT_EQ(out.bytes(), before);
  EXPECT_EQ(refused(out.view(), {}), "accepted");
  EXPECT_NE(out.bytes(), before);
}

TEST(InCache, RaggedRefusesByName) {
  const Text text(12, 8);
  SlidingCache cache(config(20, 2, 4));
  for (std::int64_t first = 0; first < 12; first += 4) append(cache, text, first, 4);
  Tensor q(f32, {8, kQHeads, kDim}), out(f32, {8, kQHeads, kValueDim});
  const std::vector<std::byte> before = out.bytes();
  const auto refused = [&](std::vector<std::int64_t> offsets, const ConstView& counts = {}) {
    return refusal_of([&] {
      attend_in_cache(cache, rope(),
                      {.q = q.const_view(),
                       .out = out.view(),
                       .counts = counts,
                       .q_offsets = ConstView(offsets.data(), {std::ssize(offsets)})});
    });
  };
  EXPECT_EQ(refused({0, 5, 8}),
            "attend_in_cache: q_offsets: sequence 0 has 5 queries, expected at most chunk (4) and "
            "its length (12)");
  EXPECT_EQ(refused({1, 4, 8}), "attend_in_cache: q_offsets[0] is 1, expected 0");
  EXPECT_EQ(refused({0, 4, 3}),
            "attend_in_cache: q_offsets[2] (3) is below q_offsets[1] (4), expected ascending "
            "offsets");
  EXPECT_EQ(refused({0, 4, 9}),
            "attend_in_cache: q_offsets[2] (9) is beyond the tokens of q, expected at most 8");
  EXPECT_EQ(refused({0, 4}), "attend_in_cache: q_offsets: batch + 1 is 2, expected 3");
  const std::int64_t counts[] = {1, 1};
  EXPECT_EQ(refused({0, 4, 8}, ConstView(counts, {kBatch})),
            "attend_in_cache: counts and q_offsets are both given, expected one");
  q = Tensor(f32, {8, kQHeads, kDim});
  out = Tensor(f32, {7, kQHeads, kValueDim});
  EXPECT_EQ(refused({0, 4, 7}), "attend_in_cache: out: tokens is 7, expected 8");
  out = Tensor(f32, {8, kQHeads, kValueDim});
  q = Tensor(f32, {8, 1, kQHeads, kDim});
  EXPECT_EQ(refused({0, 1, 1}),
            "attend_in_cache: q has 4 axes, expected 3: [tokens, q_heads, head_dim]");
  EXPECT_EQ(out.bytes(), before);
}

TEST(InCache, RefusesByName) {
  const Text text(40, 5);
  SlidingCache cache(config(20, 2, 4));
  append(cache, text, 0, 3);
  Tensor out(f32, {kBatch, 2, kQHeads, kValueDim});
  const std::vector<std::byte> before = out.bytes();
  const auto refused = [&](const ConstView& q, const Modifiers& modifiers = {},
                           const ConstView& counts = {}) {
    return refusal_of([&] {
      attend_in_cache(cache, rope(),
                      {.q = q, .out = out.view(), .counts = counts, .modifiers = modifiers});
    });
  };
  EXPECT_EQ(refused(part(text.q, 0, 4)),
            "attend_in_cache: q: sequence 0 has 4 queries, expected at most q_len (4), chunk (4) "
            "and its length (3)");
  const std::int32_t counts[] = {1, 3};
  EXPECT_EQ(refused(part(text.q, 0, 2), {}, ConstView(counts, {2})),
            "attend_in_cache: counts: sequence 1 has 3 queries, expected at most q_len (2), chunk "
            "(4) and its length (3)");
  Modifiers modifiers;
  modifiers.dropout.probability = 0.5f;
  EXPECT_EQ(refused(part(text.q, 0, 2), modifiers),
            "attend_in_cache: modifiers has dropout, expected scale, soft_cap, alibi and sink "
            "alone: the others go by positions in the sequence");
  const float slopes[] = {1.0f, 2.0f, std::numeric_limits<float>::infinity(), 1.0f};
  modifiers = {};
  modifiers.alibi.slopes = ConstView(slopes, {4});
  EXPECT_EQ(refused(part(text.q, 0, 2), modifiers),
            "attend_in_cache: modifiers.alibi.slopes[2] (inf) is not finite");
  EXPECT_NE(refused(part(text.v, 0, 2)).find("attend_in_cache: q"), std::string::npos);
  Tensor lse(f32, {kBatch, 3, kQHeads});
  const std::string of_lse = refusal_of([&] {
    attend_in_cache(cache, rope(), {.q = part(text.q, 0, 2), .out = out.view(), .lse = lse.view()});
  });
  EXPECT_TRUE(of_lse.starts_with("attend_in_cache: lse")) << of_lse;
  SlidingCacheConfig latents = config(20, 2, 4);
  latents.values_in_keys = true;
  cache = SlidingCache(latents);
  cache.append(part(text.k, 0, 2), {});
  EXPECT_EQ(refused(part(text.q, 0, 2)),
            "attend_in_cache: cache has values_in_keys, expected values of their own: those in the "
            "keys would be turned with them");
  EXPECT_EQ(out.bytes(), before);
}

// Keys that truncate() gives back are gone where the ring has written over them.
TEST(InCache, RefusesWindowsThatWereWrittenOver) {
  constexpr std::int64_t kTokens = 600, kWindow = 64, kChunk = 128;
  const Text text(kTokens, 6);
  SlidingCache cache(config(kWindow, 0, kChunk));
  for (std::int64_t first = 0; first < kTokens; first += 100) append(cache, text, first, 100);
  for (std::int64_t b = 0; b < kBatch; ++b) cache.truncate(b, kTokens - kChunk);
  Tensor out(f32, {kBatch, kChunk, kQHeads, kValueDim});
  const auto attend = [&](std::int64_t count) {
    View to = out.view();
    to.layout.extents[1] = count;
    attend_in_cache(cache, rope(), {.q = part(text.q, kTokens - kChunk - count, count), .out = to});
  };
  const std::string refusal = refusal_of([&] { attend(kChunk); });
  EXPECT_EQ(refusal.substr(0, 84),
            "attend_in_cache: sequence 0 has 128 queries, the first of which sees keys from 281 o");
  const std::int64_t last = kTokens - kChunk - 1;  // the one query whose window is there
  EXPECT_LE(cache.oldest(0), last - kWindow + 1);
  EXPECT_NO_THROW(attend(1));
}

}  // namespace
}  // namespace polyhead::test
