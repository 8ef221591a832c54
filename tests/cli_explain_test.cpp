// polyhead explain, run in this process: every number of the textbook's cases, which mask it was,
// and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "models/formats/npy.hpp"
#include "support/golden_model.hpp"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::expect_refused;
using test::Outcome;
using test::run_program;
using test::run_program_json;
using test::ScratchDirectory;

std::string explained(std::vector<std::string> options) {
  options.insert(options.begin(), "explain");
  const Outcome made = run_program(options);
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
  expect_says(explained({"--window", "1,0", "--first-tokens", "2"}),
              "window: a query sees the keys from 1 before its position to its own position, and "
              "the first 2 keys\n");
  expect_says(explained({"--window=-1,2"}),
              "window: a query sees the keys from the first one to 2 after it\n");
  expect_says(explained({"--documents", "7,7,8,8,8"}),
              "documents: a query sees the keys whose document is its own; the keys' are 7 7 8 8 "
              "8\n");
  expect_says(explained({"--documents", "9223372036854775807,9007199254740993,1,1,1"}),
              "the keys' are 9223372036854775807 9007199254740993 1 1 1\n");
  expect_says(explained({"--prefix", "9223372036854775807"}),
              "prefix: every query sees the first 9223372036854775807 keys");
  expect_says(explained({"--lengths", "4", "--causal", "--align", "start"}),
              "causal: a query sees the keys up to its own position; the first query stands at the "
              "first key\n          lengths: the first 4 of 5 keys are valid\n");
  expect_says(explained({"--causal", "--q-start", "2", "--query", "The"}),
              "causal: a query sees the keys up to its own position; the first query stands at "
              "position 2\n");
}

// As in a step of decoding: the queries are the last of the keys' tokens, or any others.
TEST(ExplainPage, QueriesMayStandAnywhere) {
  for (const std::int64_t start : {-1, 0, 2, 7}) {
    for (const bool alone : {false, true}) {
      std::vector<std::string> command{
          "explain", "--heads", "2", "--causal", "--q-start", std::to_string(start), "--json"};
      if (alone) command.insert(command.end(), {"--query", "1"});
      const json shown = run_program_json(command);
      EXPECT_LE(shown["attention"]["max_difference"], 1e-6);
      const json weights = shown["heads"][1]["weights"];
      ASSERT_EQ(weights.size(), alone ? 1u : 5u);
      for (std::size_t row = 0; row < weights.size(); ++row) {
        for (std::int64_t key = 0; key < 5; ++key) {
          const std::int64_t query = alone ? 1 : static_cast<std::int64_t>(row);
          EXPECT_EQ(weights[row][static_cast<std::size_t>(key)] == 0.0, key > start + query)
              << start << ", query " << query << ", key " << key;
        }
      }
    }
  }
}

TEST(ExplainPage, SaysThatABiasHidesPairs) {
  const ScratchDirectory directory;
  const std::vector<float> bias{0.0f, -INFINITY, 0.0f, 0.0f, 0.0f};
  const std::string file = directory.file("bias.npy");
  formats::write_npy(file, ConstView(bias.data(), {1, 5}));
  expect_says(explained({"--bias", file}),
              "mask    scores: a pair whose score is -inf is hidden\n");
}

TEST(ExplainPage, ShowsWhereANanComesFromAndWhichRowsItReaches) {
  const ScratchDirectory directory;
  const std::string q_file = directory.file("q.npy"), k_file = directory.file("k.npy"),
                    v_file = directory.file("v.npy");
  const std::vector<float> q{1.0f, NAN, 2.0f}, k{1.0f, INFINITY, 1.0f}, v{1.0f, 2.0f, 3.0f};
  formats::write_npy(q_file, ConstView(q.data(), {3, 1}));
  formats::write_npy(k_file, ConstView(k.data(), {3, 1}));
  formats::write_npy(v_file, ConstView(v.data(), {3, 1}));
  const std::vector<std::string> call{"--q", q_file, "--k", k_file, "--v", v_file};
  std::vector<std::string> causal = call, as_json{"explain", "--causal"};
  causal.emplace_back("--causal");
  as_json.insert(as_json.end(), call.begin(), call.end());
  const json made = run_program_json(as_json), head = made["heads"][0];
  EXPECT_EQ(made["q"], json::parse(R"([[1.0], ["nan"], [2.0]])"));
  EXPECT_EQ(head["scores"][0], json::parse(R"([1.0, "inf", 1.0])"));
  EXPECT_EQ(head["masked"][0], json::parse("[1.0, null, null]"));
  EXPECT_EQ(head["masked"][1], json::parse(R"(["nan", "nan", null])"));
  EXPECT_EQ(made["output"], json::parse(R"([[1.0], ["nan"], ["nan"]])"));
  EXPECT_EQ(made["attention"]["max_difference"], 0.0);
  expect_says(explained(causal),
              "gives the same to 0.0e+00, with NaN and infinities in the same places.\n");
  const std::string page = explained(call);
  EXPECT_EQ(page.find("Masked scores"), std::string::npos) << page;  // NaN is not a mask
}

TEST(ExplainPage, SaysWhereFloat32IsTooSmall) {
  const ScratchDirectory directory;
  const std::string file = directory.file("x.npy");
  const std::vector<float> large{1e30f, 2e30f};
  formats::write_npy(file, ConstView(large.data(), {2, 1}));
  expect_says(
      explained({"--q", file, "--k", file, "--v", file}),
      "differs in what is NaN or infinite: it computes in float32, where numbers beyond 3.4e+38");
}

/// Each query alone is compared with attention at the place that it has among all, under whatever
/// has a row for each query.
TEST(ExplainPage, OneQueryIsComparedAtItsPlace) {
  const ScratchDirectory directory;
  std::vector<float> bias;
  std::vector<std::uint8_t> visible;
  for (int i = 0; i < 25; ++i) {
    bias.push_back(static_cast<float>(i * i % 7) - 3.0f);
    visible.push_back(i % 5 == 0 || i * i % 11 < 6);
  }
  const std::string bias_file = directory.file("bias.npy"), mask_file = directory.file("mask.npy");
  formats::write_npy(bias_file, ConstView(bias.data(), {5, 5}));
  formats::write_npy(mask_file, ConstView(visible.data(), {5, 5}));
  const std::vector<std::vector<std::string>> calls = {
      {"--causal"},
      {"--causal", "--align", "start", "--lengths", "4"},
      {"--causal", "--align", "end", "--lengths", "4"},
      {"--causal", "--align", "end", "--lengths", "4", "--q-lengths", "3"},
      {"--q-lengths", "3"},
      {"--window=1,1"},
      {"--prefix", "2"},
      {"--documents", "1,1,2,2,1"},
      {"--mask", mask_file},
      {"--hide", mask_file, "--causal"},
      {"--bias", bias_file},
      {"--mask", mask_file, "--bias", bias_file, "--causal", "--alibi", "--soft-cap", "2"},
      {"--dropout", "0.4", "--seed", "5"},
      {"--causal", "--dropout", "0.4", "--seed", "5"}};
  for (const std::vector<std::string>& call : calls) {
    for (const char* query : {"0", "1", "2", "3", "4"}) {
      std::vector<std::string> arguments = call;
      arguments.insert(arguments.begin(), {"explain", "--heads", "2", "--query", query});
      const json made = run_program_json(arguments);
      EXPECT_LT(made["attention"]["max_difference"], 1e-6) << call[0] << ' ' << query;
    }
  }
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

TEST(ExplainPage, ConvertsItsArraysFirst) {
  const ScratchDirectory directory;
  const std::string file = directory.write(
      "a.json", R"({"q": [[0.1, 3.0]], "k": [[1.01, 70000.0]], "v": [[0.3, 1e-9]]})");
  const json made = run_program_json({"explain", file, "--type", "bfloat16"});
  EXPECT_EQ(made["q"], json({{0.10009765625, 3.0}}));
  EXPECT_EQ(made["heads"][0]["k"], json({{1.0078125, 70144.0}}));
  EXPECT_EQ(made["heads"][0]["output"], made["v"]);
  expect_refused({"explain", file, "--type", "float16"}, 1, "a.json: ");
  expect_refused({"explain", file, "--type", "int8"}, 2, "--type: int8 not in");
  EXPECT_EQ(run_program_json({"explain", "--exercises", "--type", "float16"})["cases"][0]["q"],
            run_program_json({"explain", "--exercises"})["cases"][0]["q"]);
}

TEST(ExplainPage, ExercisesTakeAnAlignment) {
  const ScratchDirectory directory;
  const std::string file = directory.write(
      "a.json", R"({"q": [[1,0,0,1]], "k": [[1,2,3,4],[4,3,2,1]], "v": [[1,2,3,4],[5,6,7,8]]})");
  expect_refused({"explain", file, "--exercises"}, 1,
                 "expected --align end, --align start or --q-start");
  const auto causal_output = [&](const char* align) {
    return run_program_json(
        {"explain", file, "--exercises", "--align", align})["cases"][3]["output"];
  };
  EXPECT_EQ(causal_output("start"), json({{1.0, 2.0, 3.0, 4.0}}));
  EXPECT_NE(causal_output("end"), causal_output("start"));
  EXPECT_EQ(
      run_program_json({"explain", file, "--exercises", "--q-start", "1"})["cases"][3]["output"],
      causal_output("end"));
  expect_refused({"explain", file, "--exercises", "--q-start", "1", "--align", "end"}, 1,
                 "--q-start and --align are both given");
}

TEST(ExplainPage, RefusesInTheWordsOfItsOptions) {
  const ScratchDirectory directory;
  const std::vector<std::int32_t> values(16, 1);
  const std::string w_o = directory.file("w_o.npy");
  formats::write_npy(w_o, ConstView(values.data(), {4, 4}));
  expect_refused({"explain", "--wo", w_o}, 1,
                 "w_o.npy: has type int32 (--wo takes float32, float16, bfloat16 or float64)");
  expect_refused({"explain", "--prune", "0,"}, 2, "--prune: '0,' has an empty entry");
  expect_refused({"explain", "--columns", "0-1,2-3", "--value-columns", "0-1"}, 2,
                 "--value-columns are of 1 heads, expected 2 as --columns");
  expect_refused({"explain", "--columns", "0-1", "--value-columns", "2-1"}, 2,
                 "--value-columns: 2-1 runs backwards");
  expect_refused({"explain", "--value-columns", "2-1"}, 2, "--columns");
  expect_refused({"explain", "--columns", "0-1,"}, 2, "--columns: '0-1,' has an empty entry");
  expect_refused({"explain", "--tokens", "a,b,c,d,e,"}, 1,
                 "tokens has 6 names (expected 5, as many as k has)");
  expect_refused({"explain", "--align", "end"}, 2, "--align changes nothing here");
  expect_refused({"explain", "smollm2"}, 2, "'smollm2' is a model: --layer is needed");
  expect_refused({"explain", POLYHEAD_TEST_DATA "/gguf_models/bert.gguf"}, 2, "--layer is needed");
  expect_refused({"explain", "nowhere/smollm2.gguf"}, 2, "--layer is needed");
  expect_refused({"explain", directory.file("")}, 1, "is a folder; if of a model, --layer");
  EXPECT_EQ(run_program({"explain", "--window=-1,-1", "--soft-cap", "0", "--dropout", "0"}).status,
            cli::kSuccess)
      << "what says none in so many words";
}

/// `actual` has everything that `golden` has, numbers to 1e-6: the golden figures were computed in
/// double precision; the inputs are exact in float32, the scale is not, which moves scores below 10
/// by less than 10 * 2^-24 = 6e-7.
void expect_holds(const json& actual, const json& golden, const std::string& where) {
  if (golden.is_number()) {
    ASSERT_TRUE(actual.is_number()) << where;
    EXPECT_NEAR(actual.get<double>(), golden.get<double>(), 1e-6) << where;
  } else if (golden.is_array()) {
    ASSERT_EQ(actual.size(), golden.size()) << where;
    for (std::size_t i = 0; i < golden.size(); ++i) {
      expect_holds(actual[i], golden[i], where + "[" + std::to_string(i) + "]");
    }
  } else if (golden.is_object()) {
    for (const auto& [key, value] : golden.items()) {
      if (key == "note") continue;
      ASSERT_TRUE(actual.contains(key)) << where << "." << key;
      expect_holds(actual[key], value, where + "." + key);
    }
  } else {
    EXPECT_EQ(actual, golden) << where;
  }
}

json golden() { return test::json_file(POLYHEAD_TEST_DATA "/five_tokens.json"); }

TEST(Explain, GivesEveryCaseOfTheTextbook) {
  const json textbook = golden();
  for (const json& wanted : textbook["cases"]) {
    std::vector<std::string> arguments{"explain", "--heads",
                                       std::to_string(wanted["num_heads"].get<int>())};
    if (wanted["causal"] == true) arguments.push_back("--causal");
    expect_holds(run_program_json(arguments), wanted, "case");
  }
  const json one = run_program_json({"explain"});
  for (const char* key : {"tokens", "q", "k", "v"}) EXPECT_EQ(one[key], textbook[key]);
  expect_holds(run_program_json({"explain", "--columns", "0-1,0-1"}),
               textbook["identical_subspaces"], "identical");
  expect_holds(run_program_json({"explain", "--heads", "2", "--prune", "0,1"})["pruning"],
               textbook["pruning"], "pruning");
  const ScratchDirectory directory;
  const std::string w_o = directory.write("w_o.json", textbook["output_projection"]["w_o"].dump());
  expect_holds(run_program_json({"explain", "--heads", "2", "--wo", w_o})["output_projection"],
               textbook["output_projection"], "projection");
  expect_holds(run_program_json({"explain", "--exercises"}), textbook, "exercises");
}

TEST(Explain, ReadsTheSameNumbersFromArrays) {
  const json textbook = golden();
  const ScratchDirectory directory;
  std::vector<std::string> arguments{"explain", "--heads", "2", "--tokens", "The,cat,sat,on,mat"};
  for (const char* name : {"q", "k", "v"}) {
    std::vector<float> values;
    for (const json& row : textbook[name]) {
      for (const json& value : row) values.push_back(value.get<float>());
    }
    formats::write_npy(directory.file(name), ConstView(values.data(), {5, 4}));
    arguments.push_back("--" + std::string(name));
    arguments.push_back(directory.file(name));
  }
  expect_holds(run_program_json(arguments), textbook["cases"][1], "case");
  arguments.insert(arguments.end(), {"--query", "sat"});
  const json row = run_program_json(arguments);
  EXPECT_EQ(row["queries"], json::array({2}));
  expect_holds(row["heads"][1]["weights"][0], textbook["cases"][1]["heads"][1]["weights"][2],
               "row");
}

TEST(Explain, PrintsWhatABookPrints) {
  const Outcome all = run_program({"explain", "--heads", "2", "--causal"});
  EXPECT_EQ(all.status, 0);
  EXPECT_NE(all.out.find("  cat  0.8044  0.1956  0.0000  0.0000  0.0000    1.6318\n"),
            std::string::npos)
      << all.out;
  EXPECT_EQ(all.out.find('\x1b'), std::string::npos) << "no colour where there is no terminal";
  const Outcome one = run_program({"explain", "--heads", "2", "--query", "cat"});
  EXPECT_NE(one.out.find("0·0 + 2·1 =  2.0000"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("output = [ 0.4109  0.1336 ]"), std::string::npos) << one.out;
}

TEST(Explain, ModifiersAndMasksApply) {
  const json made =
      run_program_json({"explain", "--window", "1,0", "--soft-cap", "0.5", "--sink", "0.25"});
  const json& head = made["heads"][0];
  const double capped = 0.5 * std::tanh(head["scaled"][1][0].get<double>() / 0.5);
  EXPECT_NEAR(head["modified"][1][0].get<double>(), capped, 1e-6);
  EXPECT_TRUE(head["masked"][4][0].is_null());
  EXPECT_LT(head["weights"][0][0].get<double>(), 1.0) << "the sink takes its share";
  EXPECT_LT(made["attention"]["max_difference"].get<double>(), 1e-6);
}

TEST(Explain, TakesNumbersOnly) {
  const ScratchDirectory directory;
  std::vector<float> numbers(8, 0.5f);
  std::vector<std::int32_t> whole(8, 3);
  const std::string floats = directory.file("f.npy"), ints = directory.file("i.npy");
  formats::write_npy(floats, ConstView(numbers.data(), {2, 4}));
  formats::write_npy(ints, ConstView(whole.data(), ElementType::int32, {2, 4}));
  expect_refused({"explain", "--q", floats, "--k", ints, "--v", floats}, 1,
                 "i.npy: has type int32 (k takes float32, float16, bfloat16 or float64)");
}

TEST(Explain, RefusesWhatItCannotShow) {
  expect_refused({"explain", "--heads", "3"}, 1, "model_dim (4) is not a multiple of --heads (3)");
  expect_refused({"explain", "--query", "dog"}, 1, "no token is 'dog'");
  expect_refused({"explain", "--query", "5"}, 1, "queries are 0 to 4");
  expect_refused({"explain", "--prune", "1"}, 1, "heads are 0 to 0");
  expect_refused({"explain", "--columns", "0-1,3-4"}, 1, "columns 3-4");
  expect_refused({"explain", "--tokens", "a,b"}, 1, "tokens has 2 names (expected 5");
  expect_refused({"explain", "missing.json"}, 1,
                 "missing.json: cannot be opened: No such file or directory");
  const std::string long_name(300, 'x');
  expect_refused({"explain", long_name}, 1, long_name + ": cannot be opened: File name too long");
  expect_refused({"explain", "--columns", "0-9223372036854775807"}, 1,
                 "columns 0-9223372036854775807 of q, which has 4 columns");
  expect_refused({"explain", "--columns", "0-1,2"}, 2,
                 "--columns: 2 are not as many as 0-1, the first head's");
  expect_refused({"explain", "nofile.json", "--columns", "0-1,2-3", "--value-columns", "0-1,2"}, 2,
                 "--value-columns: 2 are not as many as 0-1, the first head's");
  expect_refused({"explain", "nofile.json", "--heads", "2", "--prune", "2"}, 2,
                 "--prune names head 2, expected heads 0 to 1");
  expect_refused({"explain", "--columns", "0-1,2-3", "--prune", "1,5"}, 2,
                 "--prune names head 5, expected heads 0 to 1");
  expect_refused({"explain", "--query", "9223372036854775808"}, 2,
                 "'9223372036854775808' is not a whole number from 0 to 2^63 - 1");
  const ScratchDirectory directory;
  expect_refused({"explain", directory.write("a.json", "{")}, 1, "is not JSON");
  expect_refused({"explain", directory.write("b.json", "{\"q\":[[1]],\"k\":[[1]]}")}, 1,
                 "has no 'v'");
  expect_refused(
      {"explain", directory.write("c.json", "{\"q\":[[1],[1,2]],\"k\":[[1]],\"v\":[[1]]}")}, 1,
      "rows of different lengths");
  expect_refused({"explain", "--wo", directory.write("w.json", "[[1,2]]")}, 1,
                 "--wo has shape [1, 2]");
}

TEST(Explain, RefusesArraysWithoutNumbers) {
  const ScratchDirectory directory;
  const std::vector<float> values(8, 1.0f);
  const auto file = [&](const char* name, std::initializer_list<std::int64_t> extents) {
    formats::write_npy(directory.file(name), ConstView(values.data(), extents));
    return directory.file(name);
  };
  const std::string none = file("none.npy", {3, 1, 0}), some = file("some.npy", {3, 1, 2});
  const std::string shape = " has tokens without numbers: shape [1, 3, 1, 0] as [batch, tokens,";
  expect_refused({"explain", "--q", none, "--k", some, "--v", some}, 1, "explain: q" + shape);
  expect_refused({"explain", "--q", some, "--k", none, "--v", some}, 1, "explain: k" + shape);
  const std::string rows = file("rows.npy", {0, 4}), keys = file("keys.npy", {2, 4});
  expect_refused({"explain", "--q", rows, "--k", keys, "--v", keys, "--query", "0"}, 1,
                 "--query 0 (there are no queries)");
  expect_refused({"explain", directory.write("a.json", R"({"q": [[]], "k": [[]], "v": [[]]})")}, 1,
                 "model_dim is 0 (expected at least 1)");
  expect_refused({"explain", "--wo", file("list.npy", {4}), "--wo-order", "in-out"}, 1,
                 "--wo has shape [4] (expected two axes, in-out)");
}

TEST(Explain, RefusesWhatWouldChangeNothing) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& because) {
    arguments.insert(arguments.begin(), "explain");
    expect_refused(arguments, cli::kBadUsage, because);
  };
  refused({"--exercises", "--causal"}, "--causal changes nothing here: --exercises");
  refused({"--exercises", "--heads", "2"}, "--heads changes nothing here");
  refused({"--exercises", "--soft-cap", "2"}, "--soft-cap changes nothing here");
  refused({"model", "--layer", "0", "--text", "a", "--causal"},
          "--causal changes nothing here: --layer");
  refused({"--columns", "0-1,0-1", "--heads", "4"}, "--heads and --columns exclude each other");
  refused({"--wo-order", "in-out"}, "--wo-order needs --wo");
  refused({"--batch", "3"}, "--batch 3: rows are one sequence");
  refused({"--layout", "bhtd"}, "--layout bhtd: rows [tokens, model_dim] have no axis of heads");
  refused({"model", "--layer", "0", "--text", "a", "--file", "b"}, "--text excludes --file");
  refused({"--seed", "0"}, "--seed needs --dropout");
  EXPECT_EQ(run_program({"explain", "--batch", "0"}).status, cli::kSuccess);
  EXPECT_EQ(run_program({"explain", "--dropout", "0", "--seed", "3"}).status, cli::kSuccess);
}

TEST(Explain, RefusesNumbersThatFloat32DoesNotHold) {
  const ScratchDirectory directory;
  const auto file = [&](const std::string& q, const std::string& behind = "") {
    return directory.write("a.json", "{\"q\":[[" + q + "]],\"k\":[[1]],\"v\":[[1]]}" + behind);
  };
  EXPECT_EQ(run_program({"explain", file("1e38")}).status, cli::kSuccess);
  expect_refused({"explain", file("1e39")}, 1, "q holds 1e+39, too large for float32");
  expect_refused({"explain", file("1", std::string(1, '\0') + "more")}, 1, "is not JSON");
  expect_refused({"explain", "--sink", "nan"}, 2, "--sink: 'nan' is not finite");
  expect_refused({"explain", "--alibi-slopes", "inf"}, 2, "--alibi-slopes: 'inf' is not finite");
  EXPECT_EQ(run_program({"explain", "--heads", "1", "--sink=-inf"}).status, cli::kSuccess);
}

TEST(Explain, ValuesAreCutByTheirOwnWidth) {
  const ScratchDirectory directory;
  const auto file = [&](const std::string& k) {
    return directory.write("a.json", "{\"q\":[[1,0,0,1]],\"k\":" + k + ",\"v\":[[5,7],[5,7]]}");
  };
  const std::string rows = file("[[1,2,3,4],[4,3,2,1]]");
  const json made = run_program_json({"explain", rows, "--heads", "2"});
  EXPECT_EQ(made["columns"], json({{0, 1}, {2, 3}}));
  EXPECT_EQ(made["value_columns"], json({{0, 0}, {1, 1}}));
  EXPECT_EQ(made["output"], json({{5.0, 7.0}})) << "the same whatever the weights";
  const std::string shown = run_program({"explain", rows, "--heads", "2"}).out;
  EXPECT_NE(shown.find("columns 0-1 of q and k, column 0 of v"), std::string::npos) << shown;
  const json chosen =
      run_program_json({"explain", rows, "--columns", "0-2,1-3", "--value-columns", "1,0"});
  EXPECT_EQ(chosen["columns"], json({{0, 2}, {1, 3}}));
  EXPECT_EQ(chosen["value_columns"], json({{1, 1}, {0, 0}}));
  EXPECT_EQ(chosen["output"], json({{7.0, 5.0}}));
  expect_refused({"explain", rows, "--heads", "4"}, 1,
                 "v's width (2) is not a multiple of --heads (4)");
  expect_refused({"explain", rows, "--exercises"}, 1, "v has 2 columns (--exercises expects 4");
  expect_refused({"explain", file("[[1,2],[3,4]]"), "--heads", "2"}, 1,
                 "k has 2 columns (expected 4 as q)");
}

}  // namespace
}  // namespace polyhead
