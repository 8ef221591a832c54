// What ragged calls, merges and second passes refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/refused.h"

namespace polyhead::test {
namespace {

/// A good ragged call: two sequences of 2 and 1 queries, 3 and 2 keys.
struct Ragged {
  std::int32_t q_offsets[3] = {0, 2, 3}, kv_offsets[3] = {0, 3, 5};
  Tensor q{f32, {3, 4, 8}}, k{f32, {5, 2, 8}}, v{f32, {5, 2, 6}}, out{f32, {3, 4, 6}},
      lse{f32, {3, 4}};
  AttentionArguments arguments;
  Ragged() {
    Random random(1);
    for (Tensor* input : {&q, &k, &v}) input->fill_normal(random);
    arguments.q = q.view(), arguments.k = k.view(), arguments.v = v.view();
    arguments.out = out.view(), arguments.lse = lse.view();
    arguments.q_offsets = {q_offsets, {3}};
    arguments.kv_offsets = {kv_offsets, {3}};
  }
  std::string message() {
    const std::vector<std::byte> before = out.bytes();
    try {
      attention(arguments);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(out.bytes(), before);
      return error.what();
    }
    return "accepted";
  }
};

TEST(Refused, Offsets) {
  EXPECT_EQ(Ragged().message(), "accepted");
  Ragged one_sided;
  one_sided.arguments.kv_offsets = {};
  EXPECT_EQ(one_sided.message(),
            "attention: q_offsets is given without kv_offsets, expected both or neither");
  Ragged first;
  first.q_offsets[0] = 1;
  EXPECT_EQ(first.message(), "attention: q_offsets[0] is 1, expected 0");
  Ragged descending;
  descending.kv_offsets[1] = 6;
  EXPECT_EQ(descending.message(),
            "attention: kv_offsets[2] (5) is below kv_offsets[1] (6), expected ascending offsets");
  Ragged beyond;
  beyond.kv_offsets[2] = 6;
  EXPECT_EQ(beyond.message(),
            "attention: kv_offsets[2] (6) is beyond the tokens of k, expected at most 5");
  Ragged count;
  count.arguments.kv_offsets = {count.kv_offsets, {2}};
  EXPECT_EQ(count.message(), "attention: kv_offsets has 2 entries, expected 3 as q_offsets");
  Ragged empty;
  empty.arguments.q_offsets.layout.extents[0] = 0;
  EXPECT_EQ(empty.message(), "attention: q_offsets has 0 entries, expected batch + 1");
  Ragged axes;
  axes.arguments.out = Sample().out.view();
  EXPECT_EQ(axes.message(),
            "attention: out has 4 axes, expected 3: [q_tokens, q_heads, value_dim]");
  Ragged unstated;
  unstated.arguments.mask = causal();
  EXPECT_NE(unstated.message().find("mask.align is unstated"), std::string::npos);
  const std::int32_t lengths_given[] = {3, 3};
  Ragged lengths_beyond;
  lengths_beyond.arguments.mask = lengths({lengths_given, {2}});
  EXPECT_EQ(lengths_beyond.message(), "attention: mask.kv_lengths[1] (3) is not within 0 .. 2");
}

std::string merge_message(const std::function<void(MergeArguments&)>& change) {
  Tensor outs(f32, {3, 2, 4, 2, 6}), lses(f32, {3, 2, 4, 2}), out(f32, {2, 4, 2, 6}),
      lse(f32, {2, 4, 2});
  MergeArguments a{outs.view(), lses.view(), out.view(), lse.view(), {}};
  change(a);
  const std::vector<std::byte> before = out.bytes();
  try {
    merge_partials(a);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(out.bytes(), before);
    return error.what();
  }
  return "accepted";
}

TEST(Refused, Merge) {
  EXPECT_EQ(merge_message([](auto&) {}), "accepted");
  EXPECT_EQ(merge_message([](auto& a) { a.lses.layout.extents[0] = 2; }),
            "merge_partials: lses: parts is 2, expected 3");
  EXPECT_EQ(merge_message([](auto& a) { a.out.layout.extents[3] = 5; }),
            "merge_partials: out: dim is 5, expected 6");
  EXPECT_EQ(merge_message([](auto& a) { a.outs.type = ElementType::int64; }),
            "merge_partials: outs is int64, expected float32, float16 or bfloat16");
  EXPECT_EQ(merge_message([](auto& a) { a.out.layout.strides[0] = 0; }),
            "merge_partials: out: its elements overlap each other");
  EXPECT_EQ(merge_message([](auto& a) { a.out.data = const_cast<void*>(a.outs.data); }),
            "merge_partials: out overlaps outs (or cannot be shown not to)");
  EXPECT_EQ(merge_message([](auto& a) { a.outs = {}; }),
            "merge_partials: outs is not given, expected [parts, batch, tokens, heads, dim]");
  static const float sink[3] = {}, broken[2] = {0.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(merge_message([](auto& a) {
              a.sink = {sink, {3}};
            }),
            "merge_partials: sink: heads is 3, expected 2");
  EXPECT_EQ(merge_message([](auto& a) {
              a.sink = {broken, {2}};
            }),
            "merge_partials: sink[1] (nan) is neither finite nor -inf (none)");
}

std::string inspect_message(
    const std::function<void(AttentionArguments&, InspectArguments&)>& change) {
  Sample sample;
  sample.lse.fill([](const Index&) { return 1.0; });
  Tensor weights(f32, {2, 4, 2, 5}), received(f32, {2, 4, 5}), pooled(f32, {2, 4, 2, 3});
  InspectArguments wanted;
  wanted.weights = weights.view(), wanted.received = received.view(), wanted.pooled = pooled.view();
  AttentionArguments call = sample.arguments;
  call.v = {}, call.out = {}, call.statistics = {};
  change(call, wanted);
  try {
    inspect(call, wanted);
  } catch (const InvalidArgument& error) {
    Tensor poisoned(f32, {2, 4, 2, 5});
    EXPECT_EQ(weights.bytes(), poisoned.bytes());
    return error.what();
  }
  return "accepted";
}

TEST(Refused, Inspect) {
  EXPECT_EQ(inspect_message([](auto&, auto&) {}), "accepted");
  EXPECT_EQ(inspect_message([](auto& call, auto&) { call.lse = {}; }),
            "inspect: lse is not given, expected the one attention() wrote");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.first_query = 2; }),
            "inspect: weights: queries (2) from first_query (2) reach beyond q_len (3)");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.first_query = -1; }),
            "inspect: first_query (-1) is not within 0 .. q_len (3)");
  static const std::int32_t heads[] = {0, 4};
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) {
              wanted.heads = {heads, {2}};
            }),
            "inspect: heads[1] (4) is not within 0 .. 3");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) {
              wanted.weights = {};
              wanted.first_query = 1;
            }),
            "inspect: first_query (1) is given without weights");
  EXPECT_EQ(inspect_message([](auto& call, auto& wanted) {
              static const std::int32_t head[] = {0};
              wanted.weights = {};
              wanted.heads = {head, {1}};
              (void)call;
            }),
            "inspect: heads is given without weights");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.received.layout.extents[2] = 4; }),
            "inspect: received: kv_len is 4, expected 5");
  EXPECT_EQ(
      inspect_message([](auto&, auto& wanted) { wanted.pooled.type = ElementType::bfloat16; }),
      "inspect: pooled is bfloat16, expected float32");
  EXPECT_EQ(inspect_message([](auto& call, auto& wanted) { call.lse.data = wanted.weights.data; }),
            "inspect: weights overlaps lse (or cannot be shown not to)");
  EXPECT_EQ(inspect_message([](auto& call, auto&) { call.mask = causal(); }).substr(0, 33),
            "inspect: mask.align is unstated, ");
  // No output may be what a cache's view points to either.
  std::vector<float> keys(2 * 5 * 4 * 8);
  const std::vector<float> before = keys;
  EXPECT_EQ(inspect_message([&](auto& call, auto& wanted) {
              call.kv.k = {
                  keys.data(),
                  {std::int64_t{2}, std::int64_t{5}, call.k.layout.extents[2], std::int64_t{8}}};
              call.k = {};
              wanted.weights.data = keys.data();
            }),
            "inspect: weights overlaps kv.k (or cannot be shown not to)");
  EXPECT_EQ(keys, before);
  static const std::int32_t offsets[] = {0, 3};
  EXPECT_EQ(inspect_message([](auto& call, auto&) {
              call.q_offsets = {offsets, {2}};
            }),
            "inspect: q_offsets is given without kv_offsets, expected both or neither");
}

}  // namespace
}  // namespace polyhead::test
