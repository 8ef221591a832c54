// Every architecture on a tiny model with random weights: what transformers computes comes out, the
// same bits however the tokens arrive, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "models/model.hpp"
#include "support/head_recorder.hpp"
#include "support/json.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using models::Model;
using models::ModelFile;
using models::Wanted;
using nlohmann::json;

// Scores of a few units, over sums of at most 40 products in float32 on both sides: some 1e-6 a
// layer, which the logits (of size 1 to 10) and the weights (of at most 1) take on.
constexpr double kWeightError = 1e-5, kLogitError = 1e-4;

std::string folder_of(const std::string& name) { return POLYHEAD_TEST_DATA "/tiny/" + name; }

json expected_of(const std::string& name) {
  return test::json_file(folder_of(name) + "/expected.json");
}

class TinyDecoder : public testing::TestWithParam<const char*> {};

TEST_P(TinyDecoder, GivesWhatTransformersGives) {
  const json expected = expected_of(GetParam());
  const auto ids = expected["ids"].get<std::vector<std::int32_t>>();
  const ModelFile file(folder_of(GetParam()));
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    models::ModelOptions options;
    options.run.isa = isa;
    const Model model(file, options);
    const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
    std::vector<float> logits(ids.size() * vocabulary, NAN);
    auto session = model.make_session();
    test::HeadRecorder recorder(expected);
    models::RunOptions run;
    run.observer = &recorder;
    model.forward(session, ids, Wanted::every, logits.data(), run);
    recorder.expect(expected, kWeightError);
    for (const auto& [query, row] : expected["logits"].items()) {
      const float* const found = logits.data() + std::stoull(query) * vocabulary;
      ASSERT_EQ(row.size(), vocabulary);
      for (std::size_t i = 0; i < vocabulary; ++i) {
        EXPECT_NEAR(found[i], row[i].get<float>(), kLogitError) << "query " << query << " id " << i;
      }
    }
    EXPECT_NEAR(model.negative_log_likelihood(ids), expected["nll"].get<double>(), kWeightError);
  }
}

TEST_P(TinyDecoder, SameBitsHoweverTokensArrive) {
  const auto ids = expected_of(GetParam())["ids"].get<std::vector<std::int32_t>>();
  const ModelFile file(folder_of(GetParam()));
  for (const auto weights : {models::WeightForm::float32, models::WeightForm::bfloat16}) {
    for (const Isa isa : available_isas()) {
      models::ModelOptions options{weights, {}};
      options.run.isa = isa;
      const Model model(file, options);
      options.run.threads = 1;
      const Model alone(file, options);
      const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
      std::vector<float> whole(ids.size() * vocabulary, NAN);
      auto session = model.make_session();
      model.forward(session, ids, Wanted::every, whole.data());
      for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{16}}) {
        std::vector<float> parts(whole.size(), NAN);
        auto other = alone.make_session();
        for (std::size_t first = 0; first < ids.size(); first += piece) {
          const std::size_t count = std::min(piece, ids.size() - first);
          alone.forward(other, std::span(ids).subspan(first, count), Wanted::every,
                        parts.data() + first * vocabulary, {}, 2);
        }
        EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0)
            << isa_name(isa) << ", pieces of " << piece;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyDecoder,
                         testing::Values("llama3", "longrope", "dynamic", "mistral", "qwen2",
                                         "qwen3", "gpt2", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

void expect_vector(const Model& model, const json& expected, const char* pooling) {
  const std::vector<std::vector<std::int32_t>> texts{expected["ids"]};
  std::vector<float> vector(static_cast<std::size_t>(model.config().model_dim), NAN);
  test::HeadRecorder recorder(expected);
  models::RunOptions options;
  options.observer = &recorder;
  model.embed(texts, vector.data(), options);
  recorder.expect(expected, kWeightError);
  for (std::size_t i = 0; i < vector.size(); ++i) {
    EXPECT_NEAR(vector[i], expected[pooling][i].get<float>(), kWeightError) << i;
  }
}

TEST(TinyBert, PoolsTheMeanOrTheFirst) {
  const json expected = expected_of("bert");
  expect_vector(Model{ModelFile(folder_of("bert"))}, expected, "mean");

  const test::ScratchDirectory copy;
  const std::filesystem::path folder(copy.file("bert"));
  std::filesystem::create_directory(folder);
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(folder_of("bert") + "/" + name, folder / name);
  }
  std::filesystem::create_directory(folder / "1_Pooling");
  std::ofstream(folder / "1_Pooling" / "config.json")
      << R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})";
  expect_vector(Model{ModelFile(folder.string())}, expected, "first");
}

TEST(TinyBert, ATextsVectorDoesNotDependOnItsCompany) {
  const auto ids = expected_of("bert")["ids"].get<std::vector<std::int32_t>>();
  std::vector<std::vector<std::int32_t>> texts;
  for (std::size_t length = 1; length <= ids.size(); ++length) {
    texts.emplace_back(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length));
  }
  const Model model{ModelFile(folder_of("bert"))};
  const auto dim = static_cast<std::size_t>(model.config().model_dim);
  std::vector<float> together(texts.size() * dim, NAN), alone(dim, NAN);
  model.embed(texts, together.data());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    model.embed(std::span(texts).subspan(i, 1), alone.data());
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + i * dim, dim * 4), 0) << i;
  }
  texts[3].clear();
  EXPECT_THROW(model.embed(texts, together.data()), InvalidArgument);
  auto session = model.make_session();
  EXPECT_THROW(model.forward(session, ids, Wanted::nothing, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace polyhead
