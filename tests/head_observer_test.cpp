// Head statistics of real models: entropies and rows of transformers come out, whatever the chunks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "models/head_observer.hpp"
#include "support/effort.h"
#include "support/golden_model.hpp"

namespace polyhead {
namespace {

using models::HeadObserver;
using models::HeadObserverOptions;
using models::Model;
using models::ModelFile;
using nlohmann::json;

constexpr double kError = 1e-4;  // entropies and weights: the figures' own

/// Full rows of one layer's heads.
class FullRows : public HeadRowVisitor {
 public:
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> rows;
  bool wants_full(std::int64_t) const override { return true; }
  void visit(const HeadRowBlock& block) override {
    const std::lock_guard guard(lock_);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const float* const row = block.full + r * block.full_keys;
      rows[{block.head, block.first_query + r}] = {row, row + block.full_keys};
    }
  }

 private:
  std::mutex lock_;
};

class Watcher : public models::LayerWatcher {
 public:
  std::map<std::int64_t, FullRows> layers;
  std::int64_t chunks = 0;
  HeadRowVisitor* rows_of(std::int64_t layer) override { return &layers[layer]; }
  void attended(const models::AttentionSeen& seen) override {
    EXPECT_EQ(seen.call.q.layout.axes, 4);
    ++chunks;
  }
};

void run(const Model& model, const std::vector<std::int32_t>& ids, models::Observer& observer,
         std::int64_t chunk = 0) {
  if (!model.config().causal) {
    std::vector<float> vector(static_cast<std::size_t>(model.config().model_dim));
    const std::vector<std::vector<std::int32_t>> texts(1, ids);
    model.embed(texts, vector.data(), {.observer = &observer});
    return;
  }
  auto session = model.make_session(static_cast<std::int64_t>(ids.size()));
  model.forward(session, ids, models::Wanted::nothing, nullptr, {.observer = &observer}, chunk);
}

class HeadsOfModels : public testing::TestWithParam<const char*> {};

// One layer alone, in chunks of 7 tokens, against the whole.
void expect_same_in_chunks(const Model& model, const std::vector<std::int32_t>& ids,
                           const HeadObserver& whole) {
  const std::size_t layers = model.config().layers.size(), middle = layers / 2;
  HeadObserverOptions one_layer;
  one_layer.layers.assign(layers, false);
  one_layer.layers[middle] = true;
  HeadObserver cut(model.config(), ids, {}, one_layer);
  run(model, ids, cut, 7);
  EXPECT_EQ(cut.layer(0), nullptr);
  const HeadStatistics& a = *whole.layer(static_cast<std::int64_t>(middle));
  const HeadStatistics& b = *cut.layer(static_cast<std::int64_t>(middle));
  for (std::int64_t head = 0; head < a.heads(); ++head) {
    const HeadMeasures left = a.measures(head), right = b.measures(head);
    EXPECT_EQ(left.mean_entropy, right.mean_entropy);
    EXPECT_EQ(left.first, right.first);
    EXPECT_EQ(left.spread, right.spread);
    EXPECT_EQ(left[HeadTarget::local].share, right[HeadTarget::local].share);
    EXPECT_EQ(left.role, right.role);
    for (std::size_t key = 0; key < ids.size(); ++key) {
      EXPECT_EQ(a.received(head)[key], b.received(head)[key]);
      EXPECT_EQ(a.rows(head).largest_key[key], b.rows(head).largest_key[key]);
    }
  }
}

TEST_P(HeadsOfModels, FiguresOfTransformersWhateverTheChunks) {
  if (test::effort() == test::Effort::smoke) GTEST_SKIP() << "whole models take long here";
  const std::string path = test::fetched_model(GetParam());
  if (path.empty()) GTEST_SKIP() << "scripts/get-model " << GetParam() << " was not run";
  const json golden = test::golden_model(GetParam());
  const auto ids = golden["ids"].get<std::vector<std::int32_t>>();
  const ModelFile file(path);
  const Model model(file);
  Watcher watcher;
  HeadObserverOptions options;
  options.watcher = &watcher;
  HeadObserver heads(model.config(), ids, {}, options);
  run(model, ids, heads);
  EXPECT_EQ(watcher.chunks, static_cast<std::int64_t>(model.config().layers.size()));
  for (const json& expected : golden["heads"]) {
    const auto layer = expected["layer"].get<std::int64_t>();
    const auto head = expected["head"].get<std::int64_t>();
    const HeadMeasures measures = heads.layer(layer)->measures(head);
    EXPECT_NEAR(measures.mean_entropy, expected["mean_entropy"].get<double>(), kError)
        << layer << "." << head;
    EXPECT_TRUE(std::isnan(measures[HeadTarget::delimiter].mean));
    for (const auto& [query, row] : expected["rows"].items()) {
      const std::int64_t q = std::stoll(query);
      const std::vector<float>& found = watcher.layers[layer].rows.at({head, q});
      for (std::size_t key = 0; key < row.size(); ++key) {
        const double weight = key < found.size() ? static_cast<double>(found[key]) : 0.0;
        ASSERT_NEAR(weight, row[key].get<double>(), kError) << layer << "." << head;
      }
    }
  }
  expect_same_in_chunks(model, ids, heads);
}

INSTANTIATE_TEST_SUITE_P(Fetched, HeadsOfModels, testing::Values("smollm2", "gemma3", "minilm"));

}  // namespace
}  // namespace polyhead
