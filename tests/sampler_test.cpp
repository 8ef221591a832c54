// Which token is drawn.
#include "models/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "polyhead/error.h"

namespace polyhead {
namespace {

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  for (const models::Sampling& sampling :
       {models::Sampling{}, models::Sampling{0.8f, 0, 0.9f, 0.0f, 1},
        models::Sampling{1.0f, 2, 1.0f, 0.2f, 1}}) {
    models::Sampler sampler(sampling);
    EXPECT_THROW(sampler.next(std::vector<float>{1.0f, NAN, 2.0f}), InvalidArgument);
    EXPECT_THROW(sampler.next(std::vector<float>{NAN, NAN}), InvalidArgument);
    EXPECT_THROW(sampler.next(std::vector<float>{-INFINITY, -INFINITY}), InvalidArgument);
    EXPECT_EQ(sampler.next(std::vector<float>{-INFINITY, 0.0f}), 1);
  }
}

TEST(Sampler, FollowsItsLimits) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  EXPECT_EQ(models::Sampler({}).next(logits), 1);  // greedy: the first on ties
  EXPECT_EQ(models::Sampler({2.0f, 1, 1.0f, 0.0f, 9}).next(logits), 1);
  models::Sampler narrow({1.0f, 0, 0.5f, 0.0f, 3});  // 1 and 3 have 0.42 each: both are needed
  models::Sampler wide({1.0f, 0, 1.0f, 0.0f, 3});
  std::vector<int> counts(logits.size()), all(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(narrow.next(logits))];
    ++all[static_cast<std::size_t>(wide.next(logits))];
  }
  EXPECT_EQ(counts[0] + counts[2] + counts[4], 0);
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(static_cast<double>(logits[i])) / total;
    EXPECT_NEAR(all[i], kDraws * p, 5 * std::sqrt(kDraws * p)) << i;  // five deviations
  }
  EXPECT_THROW(models::Sampler({-1.0f, 0, 1.0f}), InvalidArgument);
  EXPECT_THROW(models::Sampler({1.0f, -1, 1.0f}), InvalidArgument);
  EXPECT_THROW(models::Sampler({1.0f, 0, 0.0f}), InvalidArgument);
}

// Of e^(x / T): 1, 0.61, 0.37 and 0.08 times the best at T = 2, after which min_p applies.
TEST(Sampler, MinPIsAShareOfTheBest) {
  const std::vector<float> logits = {-1.0f, 3.0f, 2.0f, -2.0f, 4.0f};
  constexpr int kDraws = 20000;
  const auto counts = [&](const models::Sampling& sampling) {
    models::Sampler sampler(sampling);
    std::vector<int> found(logits.size());
    for (int i = 0; i < kDraws; ++i) ++found[static_cast<std::size_t>(sampler.next(logits))];
    return found;
  };
  const std::vector<int> kept = counts({.temperature = 2.0f, .min_p = 0.3f, .seed = 3});
  EXPECT_EQ(kept[0] + kept[3], 0);
  const double total = 1.0 + std::exp(-0.5) + std::exp(-1.0);
  for (const auto& [id, weight] : {std::pair{4, 1.0}, {1, std::exp(-0.5)}, {2, std::exp(-1.0)}}) {
    const double expected = kDraws * weight / total;
    EXPECT_NEAR(kept[static_cast<std::size_t>(id)], expected, 5 * std::sqrt(expected)) << id;
  }
  EXPECT_EQ(counts({.temperature = 2.0f, .min_p = 1.0f, .seed = 3})[4], kDraws);
  EXPECT_EQ(counts({.temperature = 2.0f, .min_p = 0.0f, .seed = 3}),
            counts({.temperature = 2.0f, .seed = 3}));
  EXPECT_EQ(counts({.temperature = 2.0f, .min_p = 0.01f, .seed = 3}),
            counts({.temperature = 2.0f, .seed = 3}))
      << "all are probable enough";
  // What is left of the best two by the third rule is what both leave.
  EXPECT_EQ(counts({.temperature = 2.0f, .top_k = 2, .min_p = 0.5f, .seed = 3}),
            counts({.temperature = 2.0f, .top_k = 2, .seed = 3}));
  EXPECT_EQ(counts({.temperature = 2.0f, .top_k = 3, .min_p = 0.7f, .seed = 3})[4], kDraws);
  EXPECT_THROW(models::Sampler({.temperature = 1.0f, .min_p = 1.5f}), InvalidArgument);
  EXPECT_THROW(models::Sampler({.temperature = 1.0f, .min_p = NAN}), InvalidArgument);
}

TEST(Sampler, RepeatedTokensArePenalisedOnceEach) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.5f, -1.0f};
  const std::vector<std::int32_t> before = {1, 0, 1, 1, 2};
  const auto greedy = [&](float penalty, std::int64_t last, std::span<const float> of) {
    return models::Sampler({.repeat_penalty = penalty, .repeat_last = last}).next(of, before);
  };
  EXPECT_EQ(greedy(1.0f, 0, logits), 1);
  EXPECT_EQ(greedy(1.1f, 0, logits), 1);  // 2.73 and 2.27: the three 1s count as one
  EXPECT_EQ(greedy(1.3f, 1, logits), 1);  // the last one alone is a 2
  EXPECT_EQ(greedy(1.3f, 2, logits), 2 - 1);
  EXPECT_EQ(greedy(0.5f, 1, logits), 2);  // below 1 it rewards
  // What is below 0 goes further down, not up.
  const std::vector<float> below = {-9.0f, -1.0f, -9.0f, -1.5f};
  EXPECT_EQ(greedy(1.4f, 0, below), 1);
  EXPECT_EQ(greedy(1.6f, 0, below), 3);
  EXPECT_EQ(greedy(1.6f, 1, below), 1);
  // Draws follow what is left: tokens 0, 1 and 2 are as probable as exp(x / 2).
  models::Sampler sampler({.temperature = 1.0f, .seed = 3, .repeat_penalty = 2.0f});
  std::vector<int> counts(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.next(logits, before))];
  const double scores[] = {0.5, 1.5, 1.25, -1.0};
  double total = 0.0;
  for (const double score : scores) total += std::exp(score);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double p = std::exp(scores[i]) / total;
    EXPECT_NEAR(counts[i], kDraws * p, 5 * std::sqrt(kDraws * p)) << i;
  }
  EXPECT_THROW(models::Sampler({.repeat_penalty = 0.0f}), InvalidArgument);
  EXPECT_THROW(models::Sampler({.repeat_penalty = NAN}), InvalidArgument);
  EXPECT_THROW(models::Sampler({.repeat_penalty = INFINITY}), InvalidArgument);
  EXPECT_THROW(models::Sampler({.repeat_last = -1}), InvalidArgument);
  const std::vector<std::int32_t> unknown = {4};
  EXPECT_THROW(models::Sampler({.repeat_penalty = 2.0f}).next(logits, unknown), InvalidArgument);
}

}  // namespace
}  // namespace polyhead
