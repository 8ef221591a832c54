// Real models from their files: what transformers computes for them in float32 comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/model.hpp"
#include "support/golden_model.hpp"
#include "support/head_recorder.hpp"

namespace polyhead {
namespace {

using models::Model;
using models::ModelFile;
using nlohmann::json;

constexpr double kWeightError = 1e-4;  // entropies and weights: the figures' own, of issue 4

void expect_decoder(const std::string& name) {
  const std::string path = test::fetched_model(name);
  if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
  const json golden = test::golden_model(name);
  const auto ids = golden["ids"].get<std::vector<std::int32_t>>();
  const Model model{ModelFile(path)};
  auto session = model.make_session();
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size), NAN);
  test::HeadRecorder recorder(golden);
  models::RunOptions options;
  options.observer = &recorder;
  model.forward(session, ids, models::Wanted::last, logits.data(), options);
  recorder.expect(golden, kWeightError);

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + 10, order.end(), [&](auto a, auto b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < 10; ++i) {
    const json& top = golden["top"][i];
    EXPECT_EQ(order[i], top[0].get<std::int32_t>()) << i;
    EXPECT_NEAR(logits[static_cast<std::size_t>(order[i])], top[1].get<double>(),
                2e-3 * std::abs(top[1].get<double>()));
  }
  EXPECT_NEAR(model.negative_log_likelihood(ids), golden["nll"].get<double>(), 1e-4);
}

/// bfloat16 weights and activations: 8 bits of each, over tens of layers.
void expect_bfloat16(const std::string& name) {
  const std::string path = test::fetched_model(name);
  if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
  const json golden = test::golden_model(name);
  const Model model{ModelFile(path), {models::WeightForm::bfloat16, {}}};
  EXPECT_NEAR(model.negative_log_likelihood(golden["ids"].get<std::vector<std::int32_t>>()),
              golden["nll"].get<double>(), 0.01);
}

TEST(GoldenModel, SmolLm2) { expect_decoder("smollm2"); }
TEST(GoldenModel, Gemma3) { expect_decoder("gemma3"); }
TEST(GoldenModel, SmolLm2InBfloat16) { expect_bfloat16("smollm2"); }
TEST(GoldenModel, Gemma3InBfloat16) { expect_bfloat16("gemma3"); }

TEST(GoldenModel, MiniLm) {
  const std::string path = test::fetched_model("minilm");
  if (path.empty()) GTEST_SKIP() << "scripts/get-model minilm was not run";
  const json golden = test::golden_model("minilm");
  const std::vector<std::vector<std::int32_t>> texts{golden["ids"]};
  const Model model{ModelFile(path)};
  test::HeadRecorder recorder(golden);
  models::RunOptions options;
  options.observer = &recorder;
  std::vector<float> vector(static_cast<std::size_t>(model.config().model_dim), NAN);
  model.embed(texts, vector.data(), options);
  recorder.expect(golden, kWeightError);
  for (std::size_t i = 0; i < vector.size(); ++i) {
    EXPECT_NEAR(vector[i], golden["embedding"][i].get<float>(), kWeightError) << i;
  }
}

}  // namespace
}  // namespace polyhead
