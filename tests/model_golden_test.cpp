// Real models from their files: what transformers computes for them in float32 comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "models/model.hpp"
#include "polyhead/inspect.h"
#include "support/golden_model.hpp"

namespace polyhead {
namespace {

using models::AttentionSeen;
using models::Model;
using models::ModelFile;
using nlohmann::json;

constexpr double kWeightError = 1e-4;  // entropies and weights: the figures' own, of issue 4

/// Entropies and rows of weights of every layer and head, kept by (layer, head).
class Recorder : public models::Observer {
 public:
  explicit Recorder(std::vector<std::int64_t> queries) : queries_(std::move(queries)) {}

  struct Head {
    double mean_entropy = 0.0;
    std::map<std::int64_t, std::vector<float>> rows;
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Head> heads;

  void attending(std::int64_t, std::int64_t, AttentionArguments& arguments) override {
    const auto& q = arguments.q.layout.extents;
    entropy_.assign(static_cast<std::size_t>(q[1] * q[2]), NAN);
    arguments.statistics.entropy = View(entropy_.data(), {std::int64_t{1}, q[1], q[2]});
  }

  void attended(const AttentionSeen& seen) override {
    const std::int64_t tokens = seen.call.q.layout.extents[1],
                       count = seen.call.q.layout.extents[2];
    const std::int64_t keys = seen.call.k.layout.extents[1];
    std::vector<float> weights(static_cast<std::size_t>(count * tokens * keys), NAN);
    InspectArguments wanted;
    wanted.weights = View(weights.data(), {std::int64_t{1}, count, tokens, keys});
    inspect(seen.call, wanted);
    for (std::int64_t head = 0; head < count; ++head) {
      Head& to = heads[{seen.layer, head}];
      for (std::int64_t t = 0; t < tokens; ++t) {
        to.mean_entropy +=
            static_cast<double>(entropy_[static_cast<std::size_t>(t * count + head)]) /
            static_cast<double>(tokens);
      }
      for (const std::int64_t query : queries_) {
        const float* const row = weights.data() + (head * tokens + query) * keys;
        to.rows[query] = {row, row + keys};
      }
    }
  }

 private:
  std::vector<std::int64_t> queries_;
  std::vector<float> entropy_;
};

std::vector<std::int64_t> queries_of(const json& golden) {
  std::vector<std::int64_t> queries;
  for (const auto& [query, row] : golden["heads"][0]["rows"].items()) {
    queries.push_back(std::stoll(query));
  }
  return queries;
}

void expect_heads(const Recorder& seen, const json& golden) {
  ASSERT_EQ(seen.heads.size(), golden["heads"].size());
  for (const json& expected : golden["heads"]) {
    const auto layer = expected["layer"].get<std::int64_t>();
    const auto head = expected["head"].get<std::int64_t>();
    const Recorder::Head& found = seen.heads.at({layer, head});
    EXPECT_NEAR(found.mean_entropy, expected["mean_entropy"].get<double>(), kWeightError)
        << "layer " << layer << " head " << head;
    for (const auto& [query, row] : expected["rows"].items()) {
      const std::vector<float>& weights = found.rows.at(std::stoll(query));
      ASSERT_EQ(weights.size(), row.size());
      for (std::size_t key = 0; key < weights.size(); ++key) {
        EXPECT_NEAR(weights[key], row[key].get<float>(), kWeightError)
            << "layer " << layer << " head " << head << " query " << query << " key " << key;
      }
    }
  }
}

void expect_decoder(const std::string& name) {
  const std::string path = test::fetched_model(name);
  if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
  const json golden = test::golden_model(name);
  const auto ids = golden["ids"].get<std::vector<std::int32_t>>();
  const Model model{ModelFile(path)};
  auto session = model.make_session();
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size), NAN);
  Recorder recorder(queries_of(golden));
  models::RunOptions options;
  options.observer = &recorder;
  model.forward(session, ids, models::Wanted::last, logits.data(), options);
  expect_heads(recorder, golden);

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
  Recorder recorder(queries_of(golden));
  models::RunOptions options;
  options.observer = &recorder;
  std::vector<float> vector(static_cast<std::size_t>(model.config().model_dim), NAN);
  model.embed(texts, vector.data(), options);
  expect_heads(recorder, golden);
  for (std::size_t i = 0; i < vector.size(); ++i) {
    EXPECT_NEAR(vector[i], golden["embedding"][i].get<float>(), kWeightError) << i;
  }
}

}  // namespace
}  // namespace polyhead
