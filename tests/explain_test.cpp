// explain(): the textbook's numbers, and agreement with the definition under every option.
#include "polyhead/explain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "support/random.h"

namespace {

using polyhead::AttentionArguments;
using polyhead::ConstView;
using polyhead::RowTrace;
using polyhead::View;
using polyhead::test::random_floats;

// "The cat sat on mat", model_dim 4.
constexpr float kQ[] = {1, 0, 1, 0, 0, 2, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1};
constexpr float kK[] = {0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0.5, 0.5};
constexpr float kV[] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0.5, 0.5, 0.5, 0.5};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-12) << i;  // both in double
  }
}

TEST(Explain, FiveTokensOneHead) {
  AttentionArguments call;
  call.q = {kQ, {1, 5, 1, 4}};
  call.k = {kK, {1, 5, 1, 4}};
  call.v = {kV, {1, 5, 1, 4}};
  const RowTrace trace = polyhead::explain(call, {.query = 1});
  ASSERT_EQ(trace.heads.size(), 1u);
  const polyhead::HeadTrace& head = trace.heads[0];
  EXPECT_EQ(trace.scale, 0.5);
  EXPECT_EQ(head.q, (std::vector<double>{0, 2, 0, 1}));
  EXPECT_EQ(head.k[4], (std::vector<double>{1, 0, 0.5, 0.5}));
  EXPECT_EQ(head.products, (std::vector<double>{3, 0, 2, 1, 0.5}));
  EXPECT_EQ(head.scaled, (std::vector<double>{1.5, 0, 1, 0.5, 0.25}));
  EXPECT_EQ(head.masked, head.scaled);
  expect_near(head.weights, {0.40256918723057933, 0.08982532721758239, 0.24417055471094193,
                             0.14809692763122725, 0.11533800320966896});
  EXPECT_NEAR(head.lse, 2.4098883031549856, 1e-12);
  expect_near(head.output,
              {0.4602381888354138, 0.14749432882241686, 0.3018395563157764, 0.20576592923606174});
  EXPECT_EQ(trace.concatenated, head.output);
  EXPECT_TRUE(trace.projected.empty());
}

TEST(Explain, ProjectsTheConcatenatedHeads) {
  // A permutation of the columns and a bias.
  const float w_o[] = {0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0};
  const float b_o[] = {10, 20, 30, 40};
  AttentionArguments call;
  call.q = {kQ, {1, 5, 2, 2}};
  call.k = {kK, {1, 5, 2, 2}};
  call.v = {kV, {1, 5, 2, 2}};
  call.mask = polyhead::causal();
  const RowTrace trace =
      polyhead::explain(call, {.head = 1, .query = 3}, ConstView(w_o, {4, 4}), ConstView(b_o, {4}));
  ASSERT_EQ(trace.heads.size(), 1u);
  EXPECT_EQ(trace.heads[0].head, 1);
  EXPECT_FALSE(trace.heads[0].visible[4]);
  EXPECT_TRUE(std::isinf(trace.heads[0].masked[4]));
  EXPECT_EQ(trace.heads[0].weights[4], 0.0);
  ASSERT_EQ(trace.concatenated.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(trace.projected[i],
                     trace.concatenated[3 - i] + 10 * static_cast<double>(i + 1));
  }
}

struct Halve : polyhead::ScoreModifier<Halve> {
  float operator()(float score, polyhead::ScoreAt at) const {
    return at.kv_pos == 3 ? -HUGE_VALF : score * 0.5f;
  }
};

/// Every option at once, against the reference.
TEST(Explain, AgreesWithTheReference) {
  constexpr std::int64_t batch = 2, q_len = 5, kv_len = 7, q_heads = 4, kv_heads = 2, dim = 6,
                         value_dim = 3;
  const auto q = random_floats(batch * q_len * q_heads * dim, 1);
  const auto k = random_floats(batch * kv_len * kv_heads * dim, 2);
  const auto v = random_floats(batch * kv_len * kv_heads * value_dim, 3);
  const auto bias = random_floats(q_len * kv_len, 4);
  const auto sink = random_floats(q_heads, 5);
  const Halve halve;
  const std::int64_t lengths[] = {7, 6};
  std::vector<float> out(batch * q_len * q_heads * value_dim);
  AttentionArguments call;
  call.q = {q.data(), {batch, q_len, q_heads, dim}};
  call.k = {k.data(), {batch, kv_len, kv_heads, dim}};
  call.v = {v.data(), {batch, kv_len, kv_heads, value_dim}};
  call.out = {out.data(), {batch, q_len, q_heads, value_dim}};
  call.mask = polyhead::causal(polyhead::Align::end) & polyhead::lengths(ConstView(lengths, {2}));
  call.modifiers.soft_cap = 2.0f;
  call.modifiers.bias = {bias.data(), {std::int64_t{1}, std::int64_t{1}, q_len, kv_len}};
  call.modifiers.alibi.use_default_slopes = true;
  call.modifiers.custom[0] = &halve;
  call.modifiers.sink = {sink.data(), {q_heads}};
  call.modifiers.dropout.probability = 0.3f;
  call.modifiers.dropout.seed = 9;
  const auto reference = polyhead::kernels::reference::attend(polyhead::door::resolve(call));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t query = 0; query < q_len; ++query) {
      const RowTrace trace = polyhead::explain(call, {.query = query, .batch = b});
      EXPECT_EQ(trace.kv_len, lengths[b]);
      EXPECT_EQ(trace.q_pos, lengths[b] - q_len + query);
      ASSERT_EQ(trace.heads.size(), 4u);
      for (std::size_t i = 0; i < trace.concatenated.size(); ++i) {
        const auto row = static_cast<std::size_t>((b * q_len + query) * q_heads * value_dim);
        EXPECT_NEAR(trace.concatenated[i], reference.out[row + i], 1e-12);
      }
      for (std::size_t h = 0; h < 4; ++h) {
        const double expected =
            reference.lse[static_cast<std::size_t>((b * q_len + query) * q_heads) + h];
        EXPECT_NEAR(trace.heads[h].lse, expected, 1e-12);
        EXPECT_TRUE(trace.heads[h].has_sink);
        EXPECT_FALSE(trace.heads[h].visible[3]);
      }
    }
  }
}

// A cache's view stands for k, v and the lengths of the keys.
TEST(Explain, ReadsWhatACacheHolds) {
  AttentionArguments call, cached;
  const std::int32_t length[] = {4};
  call.q = cached.q = {kQ, {1, 5, 1, 4}};
  call.k = cached.kv.k = {kK, {1, 5, 1, 4}};
  call.v = cached.kv.v = {kV, {1, 5, 1, 4}};
  call.mask = polyhead::lengths({length, {1}});
  cached.kv.lengths = {length, {1}};
  const RowTrace trace = polyhead::explain(call, {.query = 2});
  const RowTrace same = polyhead::explain(cached, {.query = 2});
  EXPECT_EQ(same.kv_len, 4);
  EXPECT_EQ(same.heads[0].v, trace.heads[0].v);
  EXPECT_EQ(same.concatenated, trace.concatenated);
  cached.v = call.v;
  EXPECT_THROW(polyhead::explain(cached), polyhead::InvalidArgument);
}

/// Rows of bits may lie in any order: the pairs of query 1 before those of query 0.
TEST(Explain, ReadsBitsThatRunBackwards) {
  constexpr std::int64_t keys = 11;
  const auto q = random_floats(2 * 4, 5), kv = random_floats(keys * 4, 6);
  const std::uint8_t bits[4] = {0b10110101, 0b101, 0b01001010, 0b010};
  AttentionArguments call;
  call.q = {q.data(), {1, 2, 1, 4}};
  call.k = call.v = {kv.data(), {std::int64_t{1}, keys, std::int64_t{1}, std::int64_t{4}}};
  call.mask.visible = {
      bits + 2, polyhead::ElementType::bit, {{std::int64_t{1}, 1, 2, keys}, {32, 32, -16, 1}}};
  for (const std::int64_t query : {0, 1}) {
    const RowTrace trace = polyhead::explain(call, {.query = query});
    for (std::int64_t key = 0; key < keys; ++key) {
      const bool visible = ((bits[(1 - query) * 2 + key / 8] >> key % 8) & 1) != 0;
      EXPECT_EQ(trace.heads[0].weights[static_cast<std::size_t>(key)] > 0, visible)
          << query << ", " << key;
    }
  }
}

TEST(Explain, HiddenKeysHaveNoWeightBesideANan) {
  std::vector<float> k(kK, kK + 20);
  k[4] = NAN;  // key 1
  AttentionArguments call;
  call.q = {kQ, {1, 5, 1, 4}};
  call.k = {k.data(), {1, 5, 1, 4}};
  call.v = {kV, {1, 5, 1, 4}};
  call.mask = polyhead::causal();
  const RowTrace trace = polyhead::explain(call, {.query = 2});
  const auto& head = trace.heads[0];
  EXPECT_TRUE(std::isnan(head.lse));
  for (std::size_t key = 0; key < 5; ++key) {
    EXPECT_EQ(std::isnan(head.weights[key]), key <= 2) << key;
    if (key <= 2) continue;
    EXPECT_EQ(head.weights[key], 0.0) << key;
    EXPECT_EQ(head.dropped[key], 0.0) << key;
  }
}

TEST(Explain, ASinkIsThereWhereNoKeyIs) {
  const std::vector<float> rows(4, 1.0f), sink = {2.0f};
  std::vector<float> out(4);
  const std::uint8_t visible[] = {0};
  AttentionArguments call;
  call.q = call.k = call.v = {rows.data(), {1, 1, 1, 4}};
  call.out = {out.data(), {1, 1, 1, 4}};
  call.mask = polyhead::boolean({visible, polyhead::ElementType::boolean, {1, 1, 1, 1}});
  call.modifiers.sink = {sink.data(), {1}};
  const polyhead::HeadTrace head = polyhead::explain(call, {.query = 0}).heads[0];
  EXPECT_TRUE(head.has_sink);
  EXPECT_EQ(head.sink, 2.0);
  EXPECT_EQ(head.weights[0], 0.0);
  EXPECT_EQ(head.lse, -std::numeric_limits<double>::infinity());
}

// Dropout takes no NaN away, be its weight kept or not.
TEST(Explain, ANaNStaysOneUnderDropout) {
  std::vector<float> k(kK, kK + 20);
  k[0] = NAN;
  float out[5 * 4];
  AttentionArguments call;
  call.q = {kQ, {1, 5, 1, 4}};
  call.k = {k.data(), {1, 5, 1, 4}};
  call.v = {kV, {1, 5, 1, 4}};
  call.out = {out, {1, 5, 1, 4}};
  call.mask = polyhead::causal();
  call.modifiers.dropout.probability = 0.999f;
  polyhead::attention(call);
  for (std::int64_t query = 0; query < 5; ++query) {
    const RowTrace trace = polyhead::explain(call, {.query = query});
    EXPECT_TRUE(std::isnan(out[query * 4]));
    EXPECT_TRUE(std::isnan(trace.concatenated[0]));
    EXPECT_TRUE(std::isnan(trace.heads[0].dropped[0]));
  }
}

TEST(Explain, RefusesRowsThatAreNotThere) {
  AttentionArguments call;
  call.q = {kQ, {1, 5, 1, 4}};
  call.k = {kK, {1, 5, 1, 4}};
  call.v = {kV, {1, 5, 1, 4}};
  try {
    polyhead::explain(call, {.query = 5});
    FAIL();
  } catch (const polyhead::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "explain: row.query (5) is not within 0 .. 4");
  }
  EXPECT_THROW(polyhead::explain(call, {.batch = 1}), polyhead::InvalidArgument);
  EXPECT_THROW(polyhead::explain(call, {.head = 1}), polyhead::InvalidArgument);
  EXPECT_THROW(polyhead::explain(call, {}, ConstView(kQ, {4, 5})), polyhead::InvalidArgument);
  call.v = {kV, {1, 4, 1, 4}};
  EXPECT_THROW(polyhead::explain(call, {}), polyhead::InvalidArgument);
}

}  // namespace
