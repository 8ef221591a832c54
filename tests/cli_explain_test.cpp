// polyhead explain: that its page says which mask it was and has every number of the softmax.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/formats/npy.hpp"
#include "support/golden_model.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::expect_refused;
using test::run_program;
using test::run_program_json;
using test::ScratchDirectory;

std::string explained(std::vector<std::string> options) {
  options.insert(options.begin(), "explain");
  const test::Outcome made = run_program(options);
  EXPECT_EQ(made.status, cli::kSuccess) << made.err;
  return made.out;
}

void expect_says(const std::string& page, const std::string& what) {
  EXPECT_NE(page.find(what), std::string::npos) << what << " is not in\n" << page;
}

TEST(ExplainPage, SaysWhichMaskItIs) {
  expect_says(explained({}), "mask    none: every token sees every token\n");
  expect_says(explained({"--causal"}),
              "mask    causal: a token sees itself and the tokens before it\n\n");
  expect_says(explained({"--lengths", "3"}), "mask    lengths: the first 3 of 5 keys are valid\n");
  expect_says(explained({"--prefix", "3", "--query", "The"}),
              "mask    prefix: every query sees the first 3 keys, beyond them those up to its own "
              "position\n\n");
  expect_says(explained({"--causal", "--window", "1,0"}),
              "mask    causal: a token sees itself and the tokens before it\n"
              "          window: a query sees the keys from 1 before its position to its own "
              "position\n\n");
  expect_says(explained({"--window=-1,2"}),
              "window: a query sees the keys from the first one to 2 after it\n");
  expect_says(explained({"--documents", "7,7,8,8,8"}),
              "documents: a query sees the keys whose document is its own; the keys' are 7 7 8 8 "
              "8\n");
  expect_says(explained({"--lengths", "4", "--causal", "--align", "start"}),
              "causal: a query sees the keys up to its own position; the first query stands at the "
              "first key\n          lengths: the first 4 of 5 keys are valid\n");
}

TEST(ExplainPage, SaysThatABiasHidesPairs) {
  const ScratchDirectory directory;
  const std::vector<float> bias{0.0f, -INFINITY, 0.0f, 0.0f, 0.0f};
  const std::string file = directory.file("bias.npy");
  formats::write_npy(file, ConstView(bias.data(), {1, 5}));
  expect_says(explained({"--bias", file}),
              "mask    scores: a pair whose score is -inf is hidden\n");
}

TEST(ExplainPage, SaysTheWindowOfAModelsLayer) {
  if (test::fetched_model("gemma3").empty()) GTEST_SKIP() << "scripts/get-model gemma3 was not run";
  const std::string page = explained({"gemma3", "--layer", "0", "--text", "a b c", "--query", "1"});
  expect_says(page, "causal: a token sees itself and the tokens before it\n");
  expect_says(page,
              "window: a query sees the keys from 511 before its position to its own position");
}

TEST(ExplainPage, ShowsEveryQueryOfAPaddedSequence) {
  const std::string page = explained({"--lengths", "3"});
  const std::string first = page.substr(page.find("query q"), page.find("2  Scores"));
  for (const char* row : {"The    1.0000", "cat    0.0000", "sat    1.0000", "on     0.0000",
                          "mat    1.0000  0.0000  0.0000  1.0000\n"}) {
    expect_says(first, row);
  }
}

TEST(ExplainPage, ShowsTheSinkAndItsShare) {
  const std::string row = explained({"--sink", "1", "--query", "cat"});
  // e^(1 - 1.5) and its share of 3.0906, the sum of all five keys' and its own.
  expect_says(row, "1.0000         0.6065    0.1963\n");
  expect_says(row, "3.0906    1.0000");
  expect_says(explained({"--sink", "1"}), "softmax of each line and the sink's logit, 1.0000");
  const json head = run_program_json({"explain", "--sink", "1"})["heads"][0];
  EXPECT_EQ(head["sink"], 1.0);
  ASSERT_EQ(head["sink_weights"].size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    double sum = head["sink_weights"][i];
    for (const json& weight : head["weights"][i]) sum += weight.get<double>();
    EXPECT_NEAR(sum, 1.0, 1e-12);
    EXPECT_NEAR(head["sink_weights"][i].get<double>(), std::exp(1.0 - head["lse"][i].get<double>()),
                1e-12);
  }
}

TEST(ExplainPage, ShowsTheSoftmaxAndWhatDropoutLeavesOfIt) {
  const json plain = run_program_json({"explain"});
  const json made = run_program_json({"explain", "--dropout", "0.5", "--seed", "3"});
  EXPECT_EQ(made["heads"][0]["weights"], plain["heads"][0]["weights"]);
  EXPECT_FALSE(plain["heads"][0].contains("dropped"));
  EXPECT_FALSE(plain["heads"][0].contains("sink"));
  int kept = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 5; ++j) {
      const double dropped = made["heads"][0]["dropped"][i][j];
      if (dropped == 0.0) continue;
      ++kept;
      EXPECT_NEAR(dropped, 2.0 * made["heads"][0]["weights"][i][j].get<double>(), 1e-12);
    }
  }
  EXPECT_GT(kept, 4);
  EXPECT_LT(kept, 21);
  const std::string page = explained({"--dropout", "0.5", "--seed", "3"});
  expect_says(page, "Weights after dropout   dropped ones are 0, the others divided by 0.5000");
  expect_says(page, "Output   weights after dropout · v");
  expect_says(explained({"--dropout", "0.5", "--seed", "3", "--query", "cat"}), "after dropout");
}

TEST(ExplainPage, HasAScaleWithoutQueries) {
  const ScratchDirectory directory;
  const std::vector<float> values(8, 1.0f);
  const std::string none = directory.file("q.npy"), some = directory.file("k.npy");
  formats::write_npy(none, ConstView(values.data(), {0, 4}));
  formats::write_npy(some, ConstView(values.data(), {2, 4}));
  EXPECT_EQ(run_program_json({"explain", "--q", none, "--k", some, "--v", some})["scale"], 0.5);
}

TEST(ExplainPage, ExercisesTakeAnAlignment) {
  const ScratchDirectory directory;
  const std::string file = directory.write(
      "a.json", R"({"q": [[1,0,0,1]], "k": [[1,2,3,4],[4,3,2,1]], "v": [[1,2,3,4],[5,6,7,8]]})");
  expect_refused({"explain", file, "--exercises"}, 1, "expected --align end or --align start");
  const auto causal_output = [&](const char* align) {
    return run_program_json(
        {"explain", file, "--exercises", "--align", align})["cases"][3]["output"];
  };
  EXPECT_EQ(causal_output("start"), json({{1.0, 2.0, 3.0, 4.0}}));
  EXPECT_NE(causal_output("end"), causal_output("start"));
}

TEST(ExplainPage, RefusesInTheWordsOfItsOptions) {
  const ScratchDirectory directory;
  const std::vector<std::int32_t> values(16, 1);
  const std::string w_o = directory.file("w_o.npy");
  formats::write_npy(w_o, ConstView(values.data(), {4, 4}));
  expect_refused({"explain", "--wo", w_o}, 1, "explain: --wo is int32");
  expect_refused({"explain", "--prune", "0,"}, 2, "--prune: '0,' has an empty entry");
  expect_refused({"explain", "--columns", "0-1,"}, 2, "--columns: '0-1,' has an empty entry");
  expect_refused({"explain", "--tokens", "a,b,c,d,e,"}, 1, "6 tokens are named");
  expect_refused({"explain", "--align", "end"}, 2, "--align changes nothing here");
  expect_refused({"explain", "smollm2"}, 2, "'smollm2' is a model: --layer is needed");
  expect_refused({"explain", POLYHEAD_TEST_DATA "/gguf_models/bert.gguf"}, 2, "--layer is needed");
  EXPECT_EQ(run_program({"explain", "--window=-1,-1", "--soft-cap", "0", "--dropout", "0"}).status,
            cli::kSuccess)
      << "what says none in so many words";
}

}  // namespace
}  // namespace polyhead
