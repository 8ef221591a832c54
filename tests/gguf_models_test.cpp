// A tiny model of every architecture from GGUF gives what llama.cpp gives
// (tests/make/gguf_models.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "support/json.hpp"

namespace polyhead {
namespace {

using models::Model;
using models::ModelFile;

const std::string kFolder = POLYHEAD_TEST_DATA "/gguf_models/";

std::vector<float> computed(const Model& model, const std::vector<std::int32_t>& ids) {
  const models::ModelConfig& config = model.config();
  if (!config.causal) {
    std::vector<float> vector(static_cast<std::size_t>(config.model_dim), NAN);
    model.embed(std::vector<std::vector<std::int32_t>>{ids}, vector.data());
    return vector;
  }
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(config.vocab_size), NAN);
  models::Session session = model.make_session(static_cast<std::int64_t>(ids.size()));
  model.forward(session, ids, models::Wanted::every, logits.data());
  return logits;
}

class GgufModels : public testing::TestWithParam<std::string> {};

TEST_P(GgufModels, GiveWhatLlamaCppGives) {
  const nlohmann::json peer = test::json_file(kFolder + "llama_cpp.json");
  std::vector<float> expected;
  for (const auto& row : peer[GetParam()]) {
    for (const auto& value : row) expected.push_back(value.get<float>());
  }
  const Model model(ModelFile(kFolder + GetParam() + ".gguf"));
  const std::vector<float> found = computed(model, peer["ids"].get<std::vector<std::int32_t>>());
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  // Two to six layers of eight float32 sums of up to 32 products, in another order: some hundred
  // roundings of 2^-24, which the norms keep relative to the largest value. ggml looks GELU up in a
  // table of float16 (and takes the tanh form for bert): 2^-11 of an activation, a layer.
  const bool gelu = model.config().activation != models::Activation::silu;
  const float tolerance = largest * (gelu ? 6 * 0x1p-11f : 128 * 0x1p-24f);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance) << "value " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufModels,
                         testing::Values("llama", "llama_divisors", "gemma3", "qwen2", "qwen3",
                                         "gpt2", "bert"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace polyhead
