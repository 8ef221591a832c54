// polyhead plan: what it prints, the same figures as JSON and CSV, files, refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "cli/json_text.hpp"
#include "cli/plan_input.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "models/model_path.hpp"
#include "polyhead/cost.h"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::Outcome;

Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return test::run_program(arguments);
}

json run_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return test::run_program_json(std::move(arguments));
}

void expect_refused(const std::vector<std::string>& arguments, int status,
                    const std::string& because) {
  const Outcome made = run(arguments);
  EXPECT_EQ(made.status, status) << made.err;
  EXPECT_EQ(made.out, "");
  EXPECT_NE(made.err.find(because), std::string::npos) << made.err;
}

TEST(PlanCommand, JsonHoldsTheGoldenFigures) {
  const json golden = test::json_file(POLYHEAD_TEST_DATA "/cost_cases.json");
  const json& of = golden["llama3_70b_as_mha"];
  const json made = run_json(
      {"llama-3-70b", "--context", "4096,32k,100k", "--kv-heads", "64,8,1", "--machine", "b200"});
  int held = 0;
  for (const json& c : made["cases"]) {
    const std::string context = std::to_string(c["context"].get<std::int64_t>());
    const std::int64_t heads = c["kv_heads"];
    if (heads == 64) {
      EXPECT_EQ(c["kv_cache_bytes"], of["kv_cache_bytes"][context]);
      if (!of["model_flops"].contains(context)) continue;
      EXPECT_EQ(c["prefill"]["attention_flops"], of["model_flops"][context]);
      EXPECT_EQ(c["score_bytes_one_layer"], of["score_bytes_one_layer"][context]);
      for (const auto& [step, flops] : of["layer_flops"][context].items())
        EXPECT_EQ(c["prefill"]["layer_flops"][0][step], flops) << step;
      const double seconds = golden["device_b200"]["seconds_at_peak"][context];
      EXPECT_NEAR(c["seconds_at_peak"].get<double>() / seconds, 1, 1e-12);
      ++held;
    }
    if (context == "100000") {
      const std::string name = heads == 64 ? "mha_64" : heads == 8 ? "gqa_8" : "mqa_1";
      EXPECT_EQ(c["kv_cache_bytes"], of["kv_cache_bytes_at_100000"][name]);
      EXPECT_EQ(c["fits"], golden["device_b200"]["fits_at_100000"][name]);
    }
  }
  EXPECT_EQ(held, 2);
}

TEST(PlanCommand, VerdictComesFirst) {
  const Outcome made =
      run({"llama-3-70b", "--context", "100k", "--kv-heads", "64", "--machine", "b200"});
  EXPECT_EQ(made.status, 0);
  const std::size_t verdict = made.out.find("does not fit: 262 GB of KV against 192 GB");
  ASSERT_NE(verdict, std::string::npos) << made.out;
  EXPECT_LT(verdict, made.out.find("Memory\n"));
  EXPECT_NE(made.out.find("244 GiB"), std::string::npos) << "both units";
  const Outcome vast = run({"llama-3-70b", "--context", "10M", "--batch", "100k"});
  EXPECT_NE(vast.out.find("needs 328 PB"), std::string::npos) << vast.out.substr(0, 400);
  const Outcome free = run({"smollm2-135m", "--context", "4096"});
  EXPECT_NE(free.out.find("needs 398 MB"), std::string::npos) << free.out;
}

TEST(PlanCommand, ExplainShowsFormulasWithTheirNumbers) {
  const Outcome made = run({"llama-3-70b", "--context", "4096", "--kv-heads", "64", "--explain"});
  EXPECT_NE(made.out.find("scores = 2 · batch · queries · keys · q_heads · head_dim"),
            std::string::npos)
      << made.out;
  EXPECT_NE(made.out.find("= 2 · 1 · 4,096 · 4,096 · 64 · 128"), std::string::npos);
  EXPECT_NE(made.out.find("= 274,877,906,944"), std::string::npos);
}

TEST(PlanCommand, CsvHasARowATerm) {
  const Outcome made = run({"llama-3-8b", "--context", "1000,2000", "--csv"});
  EXPECT_EQ(made.status, 0);
  std::istringstream lines(made.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "context,batch,model,kv_heads,kv_type,term,unit,value");
  EXPECT_NE(made.out.find("2000,1,llama-3-8b,8,f16,memory.kv_cache,bytes,262144000\n"),
            std::string::npos);
  EXPECT_NE(made.out.find("1000,1,llama-3-8b,8,f16,parameters,parameters,8030261248\n"),
            std::string::npos);
}

TEST(PlanCommand, CsvSaysWhatItsOptionsAdd) {
  const Outcome made = run({"llama-3-8b", "--context", "1000", "--csv", "--machine", "b200",
                            "--training", "--generate", "10", "--devices", "2"});
  for (const char* row :
       {",generation_flops.model,flops,", ",training_flops.model,flops,", ",prefill.sent,bytes,",
        ",prefill.roofline,seconds,", ",decode_step.likely_to,seconds,",
        ",generation.flops_at_peak,seconds,", ",largest_context,tokens,"})
    EXPECT_NE(made.out.find(row), std::string::npos) << row;
}

// A model's kinds of layers each have terms of their own: no two rows of a case have one name.
TEST(PlanCommand, EveryTermHasANameOfItsOwn) {
  for (const cost::ModelDescription& model : cost::model_presets()) {
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"--machine", "b200"},
          {"--devices", "2", "--kv-type", "int8-by-channel", "--generate", "5"},
          {"--devices", "2", "--split", "ring", "--training"}}) {
      std::vector<std::string> arguments{model.id, "--context", "512", "--csv"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Outcome made = run(arguments);
      if (made.status != 0) continue;  // an encoder has no --kv-type
      std::istringstream lines(made.out);
      std::set<std::string> seen;
      for (std::string line; std::getline(lines, line);) {
        const std::string term = line.substr(0, line.rfind(','));
        EXPECT_TRUE(seen.insert(term).second) << term;
      }
      EXPECT_GT(seen.size(), 30u) << model.id;
    }
  }
}

TEST(PlanCommand, TermsSayWhichLayersTheyAreOf) {
  const std::vector<std::string> asked{"deepseek-v3", "--context", "512"};
  std::vector<std::string> csv = asked, explain = asked;
  csv.emplace_back("--csv");
  explain.emplace_back("--explain");
  const std::string rows = run(csv).out, formulas = run(explain).out;
  for (const char* term :
       {",parameters.attention.attention_of_layers[experts].w_o,",
        ",parameters.experts.experts_of_layers[experts].experts,",
        ",prefill_flops.model.feed_forward.feed_forward_of_layers[dense].ffn_matrices,",
        ",decode_step.traffic.feed_forward.weights[experts].experts,",
        ",memory.kv_cache.kv_cache_of_layers[dense],"})
    EXPECT_NE(rows.find(term), std::string::npos) << term;
  EXPECT_NE(formulas.find("kv_cache = kv_cache_of_layers[dense] + kv_cache_of_layers[experts]\n"),
            std::string::npos);
  EXPECT_NE(formulas.find("attention_of_layers[experts] = layers · ("), std::string::npos);
  const json made = run_json(asked)["models"][0]["parameter_terms"]["parts"][0]["parts"];
  EXPECT_EQ(made[0]["id"], "attention_of_layers");
  EXPECT_EQ(made[0]["layers"], "dense");
  EXPECT_EQ(made[1]["layers"], "experts");
  EXPECT_EQ(run({"llama-3-8b", "--context", "512", "--csv"}).out.find('['), std::string::npos)
      << "one kind of layers";
}

TEST(PlanCommand, NothingStandsInAListTwice) {
  const std::string twice = " changes nothing here: it is in the list already";
  expect_refused({"llama-3-8b", "--context", "8k,8000"}, 2, "--context: 8000" + twice);
  expect_refused({"llama-3-8b", "--batch", "1,4,1"}, 2, "--batch: 1" + twice);
  expect_refused({"llama-3-8b", "--kv-heads", "8,8"}, 2, "--kv-heads: 8" + twice);
  expect_refused({"llama-3-8b", "--kv-type", "f16,F16"}, 2, "--kv-type: f16" + twice);
  expect_refused({"llama-3-8b", "--compare", "gpt2,llama-3.1-8b"}, 1,
                 "plan: --compare: 'llama-3.1-8b' changes nothing here: llama-3-8b is one of the "
                 "models already");
  const json made = run_json({"llama-3-8b", "--context", "512", "--kv-type", "e5m2,fp8"})["cases"];
  EXPECT_EQ(made[0]["kv_type"], "e5m2");
  EXPECT_EQ(made[1]["kv_type"], "fp8");
  EXPECT_EQ(made[0]["kv_cache_bytes"], made[1]["kv_cache_bytes"]);
}

TEST(PlanCommand, HelpSaysWhatHereKeeps) {
  const std::string help = run({"--help"}).out;
  EXPECT_NE(help.find("--here bf16 where weights are"), std::string::npos) << help;
  const auto kept = [](const char* weights) {
    const json made = run_json({"--layers", "1", "--q-heads", "2", "--head-dim", "8", "--ffn", "16",
                                "--here", "--context", "64", "--weight-type", weights});
    return made["cases"][0]["kv_type"];
  };
  EXPECT_EQ(kept("bf16"), "bf16");
  EXPECT_EQ(kept("q8_0"), "f32");
}

TEST(PlanCommand, TheHeaderIsThePublishedModel) {
  const std::string published = "80 layers: 64 query heads, 8 KV heads (GQA) of 128\n";
  const std::string variants =
      run({"llama-3-70b", "--context", "4096", "--kv-heads", "64,8,1"}).out;
  EXPECT_TRUE(variants.starts_with("Llama 3.1 70B  70.6 B parameters, model_dim 8,192; " +
                                   published + "  with 64 KV heads: 79.9 B parameters\n" +
                                   "  with 8 KV heads: 70.6 B parameters\n" +
                                   "  with 1 KV head: 69.4 B parameters\n"))
      << variants.substr(0, 400);
  const std::string one = run({"llama-3-70b", "--context", "4096", "--kv-heads", "64"}).out;
  EXPECT_NE(one.find(published + "  with 64 KV heads: 79.9 B"), std::string::npos);
  const std::string same = run({"llama-3-70b", "--context", "4096", "--kv-heads", "8"}).out;
  EXPECT_NE(same.find(published + "\n"), std::string::npos) << "nothing more to say";
  const std::string own =
      run({"--layers", "2", "--q-heads", "8", "--head-dim", "8", "--kv-heads", "2"}).out;
  EXPECT_NE(own.find("2 layers: 8 query heads, 2 KV heads (GQA) of 8\n\n"), std::string::npos)
      << own.substr(0, 400);
}

TEST(PlanCommand, WhereTheLastRowFitsIsOnTheDevicesThatWereAskedFor) {
  const auto fits = [](std::vector<std::string> arguments) -> std::string {
    const std::string out = run(std::move(arguments)).out;
    const std::size_t begin = out.find("the last row fits ");
    return begin == std::string::npos ? "" : out.substr(begin, out.find('\n', begin) - begin);
  };
  EXPECT_EQ(fits({"llama-3-405b", "--devices", "16", "--split", "ring", "--context", "4096"}), "")
      << "812 GB of weights on each";
  EXPECT_EQ(fits({"llama-3-70b", "--devices", "4", "--split", "ring", "--context", "4096"}),
            "the last row fits 4 x b200, 4 x mi300x (tokens split)");
  EXPECT_EQ(fits({"llama-3-405b", "--devices", "8", "--context", "4096"}),
            "the last row fits 8 x h200, 8 x b200, 8 x mi300x (heads split)");
  EXPECT_EQ(fits({"llama-3-405b", "--context", "4096"}),
            "the last row fits 16 x a100, 16 x h100, 8 x h200, 8 x b200, 8 x mi300x, "
            "16 x desktop-cpu (heads split)");
}

TEST(PlanCommand, SmallNumbersAreWholeAndLargeOnesGrouped) {
  const std::string tiny =
      run({"--layers", "1", "--q-heads", "1", "--head-dim", "1", "--context", "1"}).out;
  for (const char* text : {"7 parameters", "1 layer: 1 head (MHA)", "\n  1 token  needs 30 B",
                           "12 FLOP ", "One layer, 1 KV head, 1 token\n"})
    EXPECT_NE(tiny.find(text), std::string::npos) << text << '\n' << tiny;
  const std::string fast =
      run({"smollm2-135m", "--machine", "b200", "--context", "512", "--generate", "1"}).out;
  EXPECT_NE(fast.find(" 28,415  17,049 - 24,152  bandwidth"), std::string::npos) << fast;
  EXPECT_NE(fast.find("all but the 1 token that is generated"), std::string::npos);
  const std::string vast = run({"llama-3-405b", "--context", "100M,1M", "--batch", "1k"}).out;
  for (const char* text : {"51.6 PB", "45.8 PiB", "516 TB", "469 TiB", "82.6 YFLOP"})
    EXPECT_NE(vast.find(text), std::string::npos) << text << '\n' << vast;
}

TEST(PlanCommand, AContextLongerThanAModelWasMadeForIsSaidToBe) {
  const std::string note =
      "  the longest context is what memory holds; Llama 3.1 70B was made for 131,072 tokens\n";
  EXPECT_NE(run({"llama-3-70b", "--machine", "b200", "--context", "4096"}).out.find(note),
            std::string::npos);
  EXPECT_EQ(run({"llama-3-70b", "--machine", "b200", "--context", "4096", "--kv-heads", "64"})
                .out.find("was made for"),
            std::string::npos);
  EXPECT_EQ(run({"gpt2", "--machine", "b200"}).out.find("was made for"), std::string::npos)
      << "its table of positions ends there";
}

/// Training reads the whole context, however much of it is generated otherwise.
TEST(PlanCommand, TrainingKnowsNoGeneratedTokens) {
  const std::vector<std::string> asked{"llama-3-8b", "--context", "4096",
                                       "--training", "--machine", "h100"};
  std::vector<std::string> generating = asked;
  generating.insert(generating.end(), {"--generate", "4000"});
  EXPECT_EQ(run_json(generating)["cases"][0]["training"], run_json(asked)["cases"][0]["training"]);
  EXPECT_NE(run(generating).out.find("Prefill of all but the 4,000 tokens that are generated\n"),
            std::string::npos);
}

TEST(PlanCommand, GeneratedTokensAreOfTheContext) {
  const json made = run_json({"llama-3-8b", "--context", "4096", "--generate", "1000"});
  EXPECT_EQ(made["cases"][0]["context"], 4096);
  EXPECT_EQ(made["cases"][0]["prompt"], 3096);
  EXPECT_EQ(made["cases"][0]["kv_cache_bytes"], 536870912);
}

TEST(PlanCommand, TheTriangleCountsInEveryColumn) {
  const Outcome full = run({"llama-3-8b", "--context", "4096"});
  const Outcome made = run({"llama-3-8b", "--context", "4096", "--count", "triangle"});
  EXPECT_NE(full.out.find("66.0 TFLOP"), std::string::npos) << full.out;
  EXPECT_NE(made.out.find("61.6 TFLOP"), std::string::npos) << made.out;
  EXPECT_EQ(made.out.find("66.0 TFLOP"), std::string::npos);
}

TEST(PlanCommand, BytesAreOfOneDeviceWhereHeadsAreSplit) {
  const json one = run_json({"deepseek-v3", "--context", "4096"})["cases"][0]["decode_step"];
  const json made = run_json({"deepseek-v3", "--context", "4096", "--devices", "8", "--machine",
                              "h200"})["cases"][0]["decode_step"];
  std::int64_t kernels = 0;
  for (const json& kernel : made["time"]["kernels"]) kernels += kernel["bytes"].get<std::int64_t>();
  EXPECT_EQ(made["traffic_terms"]["value"], kernels);
  EXPECT_LT(kernels, one["traffic_terms"]["value"].get<std::int64_t>());
  const Outcome text = run({"llama-3-8b", "--context", "4096", "--devices", "8"});
  EXPECT_NE(text.out.find("Prefill, FLOPs of all devices, bytes of each"), std::string::npos);
}

TEST(PlanCommand, EncodersHaveNoRowsOfDecoding) {
  for (const std::vector<std::string>& models :
       {std::vector<std::string>{"llama-3-8b", "--compare", "bert"},
        {"bert", "--compare", "llama-3-8b"}}) {
    std::vector<std::string> asked = models;
    asked.insert(asked.end(), {"--context", "512", "--machine", "h100"});
    const std::string out = run(asked).out;
    const std::size_t decode = out.find("Decode, one more token"), end = out.find("\n\n", decode);
    ASSERT_NE(decode, std::string::npos) << out;
    EXPECT_NE(out.substr(decode, end - decode).find("llama-3-8b"), std::string::npos);
    EXPECT_EQ(out.substr(decode, end - decode).find("bert"), std::string::npos);
  }
  for (const char* option : {"--generate", "--chunk", "--page"})
    expect_refused({"bert", option, "8"}, 1, std::string(option) + " changes nothing here");
  const json ring = run_json({"bert", "--devices", "4", "--split", "ring", "--context", "512"});
  EXPECT_GT(ring["cases"][0]["sent_bytes"]["prefill"].get<std::int64_t>(), 0);
  const json here = run_json({"bert", "--here", "--context", "128"});  // no cache to measure
  EXPECT_TRUE(here["cases"][0]["prefill"].contains("time")) << here.dump();
}

TEST(PlanCommand, NoLimitIsNoNumber) {
  const json made = run_json({"mistral-7b", "--machine", "h100"});  // its window bounds the cache
  EXPECT_EQ(made["cases"][0]["largest_context"], nullptr);
  EXPECT_GT(made["cases"][0]["largest_batch"], 0);
}

TEST(PlanCommand, NoContextIsLongerThanATableOfPositions) {
  const json made = run_json({"gpt2", "--machine", "desktop-cpu"});
  EXPECT_EQ(made["cases"][0]["largest_context"], 1024);
  EXPECT_EQ(run_json({"llama-3-8b", "--compare", "gpt2"})["cases"][0]["context"], 1024);
  expect_refused({"llama-3-8b", "--compare", "gpt2", "--context", "512,4k"}, 1,
                 "--context (4000) is more than the table of 1024 positions that GPT-2 small has");
}

TEST(PlanCommand, TypesAreOfCachesOrOfWeights) {
  expect_refused({"gpt2", "--kv-type", "q4_k"}, 2, "--kv-type: 'q4_k' has blocks of 256");
  expect_refused({"gpt2", "--weight-type", "cache-int8"}, 2, "is a type of caches");
  const auto bytes = [](const char* type) {
    return run_json(
               {"llama-3-8b", "--context", "4096", "--kv-type", type})["cases"][0]["kv_cache_bytes"]
        .get<std::int64_t>();
  };
  const std::int64_t rows = std::int64_t{32} * 8 * 4096;  // of 128 codes and 4 scales
  EXPECT_EQ(bytes("cache-int8"), rows * 2 * (128 + 16));
  EXPECT_EQ(bytes("e4m3"), rows * 2 * 128);
  EXPECT_EQ(bytes("int8-by-channel"), rows * (128 + 128 + 16) + 32 * 8 * 128 * 4);
}

TEST(PlanCommand, IntegersOfAnySizeArePlain) {
  const Outcome made = run({"--layers", "1000", "--q-heads", "100000", "--head-dim", "128",
                            "--context", "10M", "--json"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find("\"scores\": 2560000000000000000000,"), std::string::npos);
  EXPECT_EQ(cli::json_text(cli::whole_number("340282366920938463463374607431768211455")),
            "340282366920938463463374607431768211455\n");
  EXPECT_EQ(cli::json_text(cli::whole_number("12")), "12\n");
}

TEST(PlanCommand, NumbersAsPeopleWriteThem) {
  EXPECT_EQ(cli::parse_count("--context", "32k"), 32000);
  EXPECT_EQ(cli::parse_count("--context", "32Ki"), 32768);
  EXPECT_EQ(cli::parse_count("--context", "1.5M"), 1500000);
  EXPECT_EQ(cli::parse_count("--context", "100,000"), 100000);
  EXPECT_EQ(cli::parse_amount("--memory", "80GB", cli::Amount::bytes), 80e9);
  EXPECT_EQ(cli::parse_amount("--memory", "80GiB", cli::Amount::bytes), 80.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(cli::parse_amount("--flops", "989T", cli::Amount::flops_a_second), 989e12);
  EXPECT_EQ(cli::parse_amount("--bandwidth", "3.35TB/s", cli::Amount::bytes_a_second), 3.35e12);
  EXPECT_EQ(cli::parse_count("--context", "1.001k"), 1001);
  EXPECT_EQ(cli::parse_count("--context", "0.3k"), 300);
  EXPECT_EQ(cli::parse_count("--context", "1.5Ki"), 1536);
  EXPECT_EQ(cli::parse_count("--context", "0.0009765625Ki"), 1);
  EXPECT_EQ(cli::parse_count("--context", "1024.000"), 1024);
  EXPECT_EQ(cli::parse_count("--context", "1,048,576"), 1 << 20);
  EXPECT_EQ(cli::parse_count("--context", "1_000_0"), 10000);
  EXPECT_EQ(cli::parse_count("--context", "1e3"), 1000);
  EXPECT_EQ(cli::parse_count("--context", "1Ti"), std::int64_t{1} << 40);
  EXPECT_EQ(cli::parse_count("--context", "1.099511627776T"), 1099511627776);
  for (const char* bad : {"",     "abc",       "-5",          "1.5",     "0x10",   "1e400",
                          "12q",  "k",         "80,5",        "1,00",    "1,0000", "4096,",
                          ",096", "1,,000",    "1.1Ki",       "1.0001k", "1__000", "1000,000",
                          "1_",   "1,000_000", "1.000000001", "1.1Ti",   "2Ti",    "1e99999999999"})
    EXPECT_THROW(cli::parse_count("--context", bad), cli::UsageError) << bad;
  EXPECT_EQ(cli::parse_amount("--flops", "989TFLOP/s", cli::Amount::flops_a_second), 989e12);
  EXPECT_THROW(cli::parse_amount("--flops", "989TB", cli::Amount::flops_a_second), cli::UsageError);
  EXPECT_THROW(cli::parse_amount("--bandwidth", "3TFLOP/s", cli::Amount::bytes_a_second),
               cli::UsageError);
  EXPECT_EQ(cli::parse_amount("--bandwidth", "1e30", cli::Amount::bytes_a_second), 9e18);
  EXPECT_EQ(cli::parse_amount("--memory", "1,000GB", cli::Amount::bytes), 1e12);
  for (const char* bad : {"", "0", "-1GB", "80XB", "80GFLOPS", "80GB/s", "nan", "inf", "80,5GB"})
    EXPECT_THROW(cli::parse_amount("--memory", bad, cli::Amount::bytes), cli::UsageError) << bad;
}

// One number to who writes it, two to who reads a list.
TEST(PlanCommand, ACommaWithinANumberIsNotTakenForAList) {
  const std::string either = "' may be one number or a list: write ";
  const std::string one = "' is one number in a list, where numbers have no commas: write ";
  const std::string zero = "' begins with 0; numbers of a list have no commas";
  const std::string empty = "' has an empty entry";
  for (const auto& [text, why] : std::vector<std::pair<const char*, std::string>>{
           {"64,128", "64,128" + either + "64128, or '64, 128' in quotes"},
           {"1,2,345", "2,345" + either + "2345, or '2, 345' in quotes"},
           {"4096,4,128k", "4,128k" + either + "4128k, or '4, 128k' in quotes"},
           {"1,234,567", "1,234,567" + either + "1234567, or '1, 234, 567' in quotes"},
           {"4,096", "4,096" + one + "4096"},
           {"100,000", "100,000" + one + "100000"},
           {"1,048,576", "1,048,576" + one + "1048576"},
           {"4, 096", "096" + zero},
           {"8,00", "00" + zero},
           {"4096,0960", "0960" + zero},
           {",128", ",128" + empty},
           {"4,,096", "4,,096" + empty}}) {
    expect_refused({"llama-3-70b", "--context", text}, 2, "--context: '" + why);
  }
  expect_refused({"llama-3-70b", "--batch", "1,024"}, 2, "--batch: '024" + zero);
  const std::vector<std::int64_t> list{64, 128};
  EXPECT_EQ(cli::parse_counts("--context", "64, 128"), list);
  EXPECT_EQ(cli::parse_counts("--context", " 64, 128 "), list);
  for (const char* option : {"--batch", "--kv-heads"})
    EXPECT_EQ(cli::parse_counts(option, "64,128"), list) << option;
  EXPECT_EQ(cli::parse_counts("--context", "4096,32k,100k"),
            (std::vector<std::int64_t>{4096, 32000, 100000}));
  EXPECT_EQ(cli::parse_counts("--context", "1000,200,0,100,8,1"),
            (std::vector<std::int64_t>{1000, 200, 0, 100, 8, 1}));
}

TEST(PlanCommand, RefusesByName) {
  expect_refused({"lama-3-70b"}, 1, "did you mean 'llama-3-70b'?");
  expect_refused({"llama-3-70b", "--machine", "b20"}, 2,
                 "--machine: machine 'b20' is not known; did you mean 'b200'?");
  expect_refused({"llama-3-70b", "--machine", "tpu"}, 2,
                 "--machine: machine 'tpu' is not known; did you mean 'cpu'? Expected one of "
                 "a100, h100, h200, b200, mi300x, desktop-cpu\n");
  expect_refused({"llama-3-70b", "--machine", "epyc-9654"}, 2,
                 "--machine: machine 'epyc-9654' is not known; expected one of a100, ");
  expect_refused({"foo"}, 1, "model 'foo' is neither a preset (polyhead plan --list) nor a file\n");
  expect_refused({"lama-3-70b"}, 1, "nor a file; did you mean 'llama-3-70b'?");
  expect_refused({"llama-3-70b", "--kv-type", "bfloat16"}, 2,
                 "expected one of f32, f16, bf16, fp8 (e4m3, e5m2), int8, int4, mxfp4, q8_0, ");
  expect_refused({"llama-3-70b", "--weight-type", "bfloat16"}, 2, "q5_k, q6_k\n");
  expect_refused({"llama-3-70b", "--kv-type", "fp9"}, 2, "--kv-type: type 'fp9' is not known");
  expect_refused({"llama-3-70b", "--weight-type", "q4k"}, 2,
                 "--weight-type: type 'q4k' is not known; did you mean 'q4_k'?");
  expect_refused({"llama-3-70b", "--kv-heads", "7"}, 1,
                 "kv_heads (7) does not divide q_heads (64)");
  expect_refused({"llama-3-70b", "--context", "0"}, 2, "--context (0)");
  expect_refused({"llama-3-70b", "--context", "4096,,1"}, 2,
                 "--context: '4096,,1' has an empty entry");
  expect_refused({"llama-3-70b", "--context", "1 2"}, 2, "--context: '1 2' is not");
  expect_refused({"llama-3-70b", "--batch", "1,"}, 2, "--batch: '1,' has an empty entry");
  expect_refused({"llama-3-70b", "--kv-type", "f16,"}, 2, "--kv-type: 'f16,' has an empty entry");
  for (const char* option : {"--machine", "--compare", "--kv-type", "--html", "--context",
                             "--kv-heads", "--weight-type", "--compute", "--layers"})
    expect_refused({"llama-3-70b", option, ""}, 2, std::string(option) + ": the value is empty");
  expect_refused({"llama-3-70b", "--json", "--explain"}, 2,
                 "--explain changes nothing here: --json");
  expect_refused({"llama-3-70b", "--csv", "--explain"}, 2, "--explain changes nothing here: --csv");
  expect_refused({"llama-3-70b", "--compute", "fp8"}, 2, "--compute fp8 needs a machine");
  expect_refused({"deepseek-v3", "--kv-heads", "8,4"}, 1, "--kv-heads changes nothing here");
  expect_refused({"llama-3-70b", "--batch", "0"}, 2, "--batch (0)");
  expect_refused({"llama-3-70b", "--devices", "3"}, 1, "q_heads (64) is not a multiple of devices");
  expect_refused({"llama-3-70b", "--machine", "a100", "--compute", "fp8"}, 2, "has no fp8 peak");
  expect_refused({"llama-3-70b", "--json", "--csv"}, 2, "exclude each other");
  expect_refused({"llama-3-70b", "--generate", "5000", "--context", "4096"}, 2,
                 "--generate (5000)");
  expect_refused({"llama-3-70b", "--layers", "2"}, 2, "exclude each other");
  expect_refused({"llama-3-70b", "--threads", "2"}, 2, "--threads needs --here");
  expect_refused({"llama-3-70b", "--split", "ring"}, 2, "--split needs --devices above 1");
  expect_refused({"llama-3-70b", "--latent-form", "absorbed"}, 1, "--latent-form changes nothing");
  expect_refused({"--list", "--json"}, 2, "--json changes nothing here: --list");
  expect_refused({"--list", "llama-3-70b"}, 2, "model changes nothing here: --list");
  const auto own = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--layers", "2", "--q-heads", "4", "--model-dim", "64"});
    return more;
  };
  expect_refused(own({"--rope-dim", "8"}), 2, "--rope-dim requires --kv-rank");
  expect_refused(own({"--nope-dim", "8"}), 2, "--nope-dim requires --kv-rank");
  expect_refused(own({"--q-rank", "8"}), 2, "--q-rank requires --kv-rank");
  expect_refused(own({"--experts", "8"}), 2, "--experts requires --ffn");
  expect_refused(own({"--ffn", "8", "--experts-used", "2"}), 2,
                 "--experts-used requires --experts");
  expect_refused(own({"--plain-ffn"}), 2, "--plain-ffn requires --ffn");
  expect_refused(own({"--untied"}), 2, "--untied requires --vocab");
  expect_refused(own({"--kv-rank", "8", "--rope-dim", "8", "--head-dim", "8"}), 2,
                 "--head-dim excludes --kv-rank");
  expect_refused({"llama-3-70b", "--memory", "8GB"}, 2, "together");
  expect_refused({"llama-3-70b", "--untied", "--vocab", "8"}, 2, "exclude each other");
  expect_refused({"llama-3-70b", "--measure"}, 2, "--measure needs --here");
  expect_refused({"--measure", "--here"}, 2, "--measure needs a model's file");
  expect_refused({"--layers", "2", "--q-heads", "4", "--kv-rank", "8"}, 2, "--kv-rank needs");
  expect_refused({}, 2, "a MODEL is needed");
  expect_refused({"nothing.gguf"}, 1, "nothing.gguf");
}

// A file's layers may differ in their heads: each kind has a name, and terms under it.
TEST(PlanFiles, KindsOfLayersHaveNames) {
  test::GgufBuilder unlike =
      test::tiny_gguf(models::Architecture::llama, [](models::ExpectedTensor& tensor) {
        if (tensor.name.starts_with("blk.1.attn_k.") || tensor.name.starts_with("blk.1.attn_v."))
          tensor.shape[0] = 16;
      });
  unlike.remove("llama.attention.head_count_kv");
  unlike.list("llama.attention.head_count_kv", test::GgufBuilder::u32, 2,
              test::raw(2u) + test::raw(4u));
  const test::ScratchDirectory folder;
  const std::string path = folder.write("unlike.gguf", unlike.build());
  const cost::ModelDescription model = cli::find_model(path);
  ASSERT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.layers[0].name, "kind 1");
  EXPECT_EQ(model.layers[1].name, "kind 2");
  EXPECT_NE(run({path, "--context", "16", "--csv"})
                .out.find(",memory.kv_cache.kv_cache_of_layers[kind 2],"),
            std::string::npos);
}

// Real files, where scripts/get-model fetched them: what the sizes come to is what the tensors
// have.
TEST(PlanFiles, ParametersAndBytesAreTheSumsOfTheTensors) {
  int read = 0;
  for (const char* name : {"smollm2", "gemma3"}) {
    std::string path;
    try {
      path = models::model_path(name);
    } catch (const formats::FileError&) {
      continue;
    }
    const models::ModelFile file(path);
    std::int64_t elements = 0;
    for (const models::WeightTensor& tensor : file.tensors()) {
      std::int64_t count = 1;
      for (const std::int64_t extent : tensor.shape) count *= extent;
      elements += count;
    }
    const cost::ModelDescription model = cli::find_model(path);
    EXPECT_EQ(cost::parameters(model).value, cost::Count(elements)) << name;
    std::int64_t bytes = 0;
    for (const models::WeightTensor& tensor : file.tensors())
      bytes += static_cast<std::int64_t>(tensor.data.size());
    EXPECT_EQ(cost::weight_bytes(model, {}).value, cost::Count(bytes)) << "each its own type";
    const char* const preset = std::string(name) == "smollm2" ? "smollm2-135m" : "gemma-3-270m";
    cost::Workload work;
    work.prompt = 3000;
    EXPECT_EQ(cost::kv_cache_bytes(model, work).value,
              cost::kv_cache_bytes(cost::model_preset(preset), work).value);
    ++read;
  }
  if (read == 0) GTEST_SKIP() << "no model here: scripts/get-model smollm2";
}

}  // namespace
}  // namespace polyhead
