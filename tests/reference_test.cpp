// The reference against the textbook's figures and against cases that can be worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#endif

#include "attention/validate.hpp"
#include "kernels/dropout.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;
using Matrix = std::vector<std::vector<double>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

#if __has_include(<nlohmann/json.hpp>)  // a cross build may lack it

nlohmann::json five_tokens() {
  return nlohmann::json::parse(
      std::ifstream(std::string(POLYHEAD_TEST_DATA) + "/five_tokens.json"));
}

std::vector<float> flat(const Matrix& rows) {
  std::vector<float> values;
  for (const std::vector<double>& row : rows) values.insert(values.end(), row.begin(), row.end());
  return values;
}

// The figures are printed with 17 digits; every step here is in double on exact inputs. The scale
// is rounded to float32, as the contract holds it: a relative 2^-24 of scores up to 3.
constexpr double kGolden = 3 * 0x1p-24;

TEST(Reference, TextbookExampleComesOut) {
  const nlohmann::json golden = five_tokens();
  std::vector<float> q = flat(golden["q"].get<Matrix>()), k = flat(golden["k"].get<Matrix>()),
                     v = flat(golden["v"].get<Matrix>()), out(20);
  for (const nlohmann::json& one : golden["cases"]) {
    const int heads = one["num_heads"], dim = one["head_dim"];
    AttentionArguments arguments;
    arguments.q = {q.data(), {1, 5, heads, dim}};
    arguments.k = {k.data(), {1, 5, heads, dim}};
    arguments.v = {v.data(), {1, 5, heads, dim}};
    arguments.out = {out.data(), {1, 5, heads, dim}};
    if (one["causal"]) arguments.mask = causal();
    const reference::Result result = reference::attend(door::resolve(arguments), true);
    const Matrix output = one["output"];
    for (int row = 0; row < 5; ++row) {
      for (int column = 0; column < 4; ++column) {
        EXPECT_NEAR(result.out[static_cast<std::size_t>(row * 4 + column)], output[row][column],
                    kGolden);
      }
    }
    for (int head = 0; head < heads; ++head) {
      const Matrix weights = one["heads"][head]["weights"];
      const std::vector<double> lse = one["heads"][head]["lse"];
      for (int row = 0; row < 5; ++row) {
        EXPECT_NEAR(result.lse[static_cast<std::size_t>(row * heads + head)], lse[row], kGolden);
        for (int key = 0; key < 5; ++key) {
          EXPECT_NEAR(result.weights[static_cast<std::size_t>((head * 5 + row) * 5 + key)],
                      weights[row][key], kGolden);
        }
      }
    }
  }
}

#endif

/// One query of dim 1 against keys whose scores are their own values: q = 1, scale = 1.
struct OneRow {
  std::vector<float> q{1.0f}, k, v, out;
  AttentionArguments arguments;

  explicit OneRow(std::vector<float> scores, std::vector<float> values = {})
      : k(std::move(scores)), v(std::move(values)), out(1) {
    if (v.empty()) v.assign(k.size(), 1.0f);
    const std::int64_t kv_len = static_cast<std::int64_t>(k.size());
    const std::int64_t one = 1;
    arguments.q = {q.data(), {1, 1, 1, 1}};
    arguments.k = {k.data(), {one, kv_len, one, one}};
    arguments.v = {v.data(), {one, kv_len, one, one}};
    arguments.out = {out.data(), {1, 1, 1, 1}};
    arguments.modifiers.scale = 1.0f;
  }
  reference::Result run() const { return reference::attend(door::resolve(arguments), true); }
};

TEST(Reference, SoftmaxOfOneRow) {
  const OneRow row({std::log(1.0f), std::log(2.0f), std::log(5.0f)}, {8.0f, 16.0f, 32.0f});
  const reference::Result result = row.run();
  EXPECT_NEAR(result.out[0], (8 + 2 * 16 + 5 * 32) / 8.0, 1e-5);  // logs rounded to float32
  EXPECT_NEAR(result.lse[0], std::log(8.0), 1e-6);
  EXPECT_NEAR(result.entropy[0],
              -(1 / 8.0 * std::log(1 / 8.0) + 0.25 * std::log(0.25) + 0.625 * std::log(0.625)),
              1e-6);
  EXPECT_NEAR(result.max_weight[0], 0.625, 1e-6);
  EXPECT_EQ(result.max_key[0], 2);
}

TEST(Reference, SinkCountsInTheDenominatorOnly) {
  OneRow row({0.0f, 0.0f}, {3.0f, 5.0f});
  const float sink[] = {std::log(2.0f)};
  row.arguments.modifiers.sink = {sink, {1}};
  const reference::Result result = row.run();
  EXPECT_NEAR(result.out[0], (3.0 + 5.0) / 4.0, 1e-6);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(result.weights[0] + result.weights[1], 0.5, 1e-6);
}

TEST(Reference, RowWithoutAVisibleKeyIsZeroEvenWithASink) {
  OneRow row({1.0f, 2.0f});
  const float sink[] = {1.0f};
  const bool hidden[] = {false, false};
  row.arguments.modifiers.sink = {sink, {1}};
  row.arguments.mask = boolean({hidden, {1, 1, 1, 2}});
  const reference::Result result = row.run();
  EXPECT_EQ(result.out[0], 0.0);
  EXPECT_EQ(result.lse[0], -kInfinity);
  EXPECT_EQ(result.max_key[0], -1);
  EXPECT_EQ(result.entropy[0], 0.0);
}

TEST(Reference, ModifiersApplyInTheStatedOrder) {
  OneRow row({4.0f});
  const float bias[] = {0.5f}, slopes[] = {0.25f};
  const std::int64_t start[] = {3};
  Modifiers& modifiers = row.arguments.modifiers;
  modifiers.scale = 0.5f;
  modifiers.soft_cap = 3.0f;
  modifiers.bias = {bias, {1, 1, 1, 1}};
  modifiers.alibi.slopes = {slopes, {1}};
  row.arguments.q_start = {start, {1}};
  struct Halve : ScoreModifier<Halve> {
    float operator()(float score, ScoreAt) const { return score / 2; }
  } halve;
  struct AddPosition : ScoreModifier<AddPosition> {
    float operator()(float score, ScoreAt at) const {
      return score + static_cast<float>(10 * at.q_pos + at.kv_pos);
    }
  } add;
  modifiers.custom = {&halve, &add};
  // One key: the LSE is its final score.
  const double expected = (3.0 * std::tanh(2.0 / 3.0) + 0.5 - 0.25 * 3) / 2 + 30;
  EXPECT_NEAR(row.run().lse[0], expected, 30 * 0x1p-23);  // a custom score passes through float32
}

TEST(Reference, HiddenByBiasIsHiddenByMask) {
  OneRow row({1.0f, 2.0f}, {std::numeric_limits<float>::quiet_NaN(), 7.0f});
  const float bias[] = {-std::numeric_limits<float>::infinity(), 0.0f};
  row.arguments.modifiers.bias = {bias, {1, 1, 1, 2}};
  const reference::Result result = row.run();
  EXPECT_EQ(result.out[0], 7.0);
  EXPECT_EQ(result.lse[0], 2.0);
}

TEST(Reference, NanInAVisibleSlotPropagates) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(OneRow({1.0f, nan}).run().out[0]));
  EXPECT_TRUE(std::isnan(OneRow({1.0f, nan}).run().lse[0]));
  EXPECT_TRUE(std::isnan(OneRow({nan}).run().out[0]));
  EXPECT_TRUE(std::isnan(OneRow({1.0f, 2.0f}, {nan, 0.0f}).run().out[0]));
}

TEST(Reference, ANanRowStaysOneWhereDropoutEmptiesIt) {
  OneRow row({1.0f, std::numeric_limits<float>::quiet_NaN()}, {2.0f, 3.0f});
  row.arguments.modifiers.dropout.probability = 0.999999f;
  row.arguments.mask.align = Align::end;
  const reference::Result result = row.run();
  EXPECT_TRUE(std::isnan(result.out[0]));
  for (double weight : result.weights) EXPECT_TRUE(std::isnan(weight));
}

TEST(Reference, StatisticsOfANanRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const reference::Result result = OneRow({1.0f, nan, 2.0f}).run();
  EXPECT_TRUE(std::isnan(result.entropy[0]));
  EXPECT_TRUE(std::isnan(result.max_weight[0]));
}

TEST(Reference, AlibiSlopesOfThePaper) {
  for (int head = 0; head < 8; ++head) {
    EXPECT_EQ(alibi_slope(head, 8), static_cast<float>(std::ldexp(1.0, -(head + 1))));
  }
  // 12 heads: the 8 of a power of two, then every second one of 16.
  for (int head = 0; head < 8; ++head) EXPECT_EQ(alibi_slope(head, 12), alibi_slope(head, 8));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(alibi_slope(8 + i, 12), alibi_slope(2 * i, 16));
  EXPECT_EQ(alibi_slope(0, 1), static_cast<float>(std::ldexp(1.0, -8)));
  constexpr std::int64_t kMany = std::int64_t{1} << 62;
  EXPECT_EQ(alibi_slope(kMany, kMany + 1), 1.0f);  // step 1 / 2^63
  EXPECT_EQ(test::refusal_of([] { alibi_slope(3, 3); }),
            "alibi_slope: head (3) is not within 0 .. 2");
  EXPECT_EQ(test::refusal_of([] { alibi_slope(-1, 4); }),
            "alibi_slope: head (-1) is not within 0 .. 3");
  EXPECT_NE(test::refusal_of([] { alibi_slope(0, 0); }).find("alibi_slope: heads (0)"),
            std::string::npos);
}

// The known answers of the Random123 distribution (kat_vectors, philox4x32 10).
static_assert(kernels::philox4x32({0, 0, 0, 0}, 0, 0) ==
              kernels::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(kernels::philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) ==
              kernels::PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(kernels::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822,
                                  0x299f31d0) ==
              kernels::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(Reference, DropoutKeepsTheStatedShareAndTheMean) {
  constexpr int kKeys = 4096;
  constexpr float kProbability = 0.3f;
  OneRow row(std::vector<float>(kKeys, 0.0f));
  row.arguments.modifiers.dropout.probability = kProbability;
  row.arguments.modifiers.dropout.seed = 99;
  row.arguments.mask.align = Align::end;
  const reference::Result result = row.run();
  int kept = 0;
  for (double w : result.weights) {
    if (w == 0.0) continue;
    ++kept;
    EXPECT_NEAR(w, 1.0 / kKeys / (1 - 0.3), 1e-10);
  }
  // Binomial: five deviations.
  EXPECT_NEAR(kept, kKeys * 0.7, 5 * std::sqrt(kKeys * 0.3 * 0.7));
  EXPECT_NEAR(result.lse[0], std::log(kKeys), 1e-12) << "dropout comes after the softmax";
}

TEST(Reference, ReceivedAndPooledAreSumsOfWeights) {
  const std::int64_t q_len = 5, kv_len = 7;
  std::vector<float> q(5), k(7), out(5);
  for (std::size_t i = 0; i < 5; ++i) q[i] = static_cast<float>(i) - 2;
  for (std::size_t j = 0; j < 7; ++j) k[j] = 0.3f * static_cast<float>(j);
  const std::int64_t one = 1;
  AttentionArguments arguments;
  arguments.q = {q.data(), {one, q_len, one, one}};
  arguments.k = arguments.v = {k.data(), {one, kv_len, one, one}};
  arguments.out = {out.data(), {one, q_len, one, one}};
  const kernels::AttendCall call = door::resolve(arguments);
  const reference::Result result = reference::attend(call, true);
  const std::vector<double> received = reference::received(call, result.weights);
  double total = 0;
  for (double mass : received) total += mass;
  EXPECT_NEAR(total, 5.0, 1e-12) << "each row's weights sum to 1";
  const std::vector<double> whole = reference::pooled(call, result.weights, 1, 7);
  for (std::size_t key = 0; key < 7; ++key) EXPECT_NEAR(whole[key], received[key], 1e-12);
  const std::vector<double> quarter = reference::pooled(call, result.weights, 2, 2);
  // Bins by floor: queries 0-1 and 2-4, keys 0-2 and 3-6.
  double corner = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) corner += result.weights[i * 7 + j];
  }
  EXPECT_NEAR(quarter[0], corner, 1e-12);
}

}  // namespace
}  // namespace polyhead::test
