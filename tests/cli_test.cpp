// The program, run in this process: what it prints, and what it says when it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "cli/json_text.hpp"
#include "cli/table.hpp"
#include "polyhead/version.h"
#include "support/run_program.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::expect_refused;
using test::Outcome;
using test::run_program;
using test::run_program_json;

TEST(Program, HelpAndVersion) {
  EXPECT_EQ(run_program({"--version"}).out, "polyhead " POLYHEAD_VERSION "\n");
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("Exit status"), std::string::npos);
  for (const auto& command : cli::make_commands()) {
    EXPECT_NE(help.out.find(command->name()), std::string::npos);
    for (const char* flag : {"-h", "--help"}) {
      const Outcome of = run_program({command->name(), flag});
      EXPECT_EQ(of.status, 0);
      EXPECT_NE(of.out.find("Example"), std::string::npos) << command->name();
      EXPECT_EQ(of.err, "");
    }
  }
}

TEST(Program, AnUnknownSubcommandIsNamed) {
  expect_refused({"bogus"}, cli::kBadUsage, "'bogus' is not a subcommand");
  expect_refused({"--bogus"}, cli::kBadUsage, "'--bogus' is not a subcommand");
}

TEST(Program, EmptyValuesAreRefusedByName) {
  for (const char* option : {"--query", "--columns", "--prune", "--wo", "--tokens", "--lengths",
                             "--mask", "--window", "--sink", "--scale", "--dropout"}) {
    expect_refused({"explain", option, ""}, cli::kBadUsage,
                   std::string(option) + ": the value is empty");
  }
  for (const char* option : {"--model", "--filter", "--isa"})
    expect_refused({"bench", option, ""}, cli::kBadUsage, std::string(option) + ": the value");
  for (const char* option : {"-o", "--layers", "--heads", "--rows", "--file"})
    expect_refused({"look", "model", "--text", "a", option, ""}, cli::kBadUsage,
                   "the value is empty");
  for (const char* command : {"embed", "score", "prune", "tokenize"})
    expect_refused({command, "model", "--file", ""}, cli::kBadUsage, "--file: the value is empty");
  expect_refused({"embed", "model", "--file", "a", "-o", ""}, cli::kBadUsage, "the value is empty");
  expect_refused({"info", ""}, cli::kBadUsage, "model: the value is empty");
  for (const char* option : {"--weights-heads", "--weights-queries", "--lse", "--type", "-o",
                             "--q-start", "--q-offsets", "--documents"}) {
    expect_refused({"attend", "q.npy", "k.npy", "v.npy", option, ""}, cli::kBadUsage,
                   "the value is empty");
  }
}

TEST(Program, NoOptionIsTheValueOfAnother) {
  for (const char* option : {"--lse", "--mask", "--window"}) {
    expect_refused({"attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", std::string(option) + "=",
                    "--causal"},
                   cli::kBadUsage, std::string(option) + ": the value is empty");
  }
  expect_refused({"explain", "--sink=", "--causal"}, cli::kBadUsage, "--sink: the value is empty");
  expect_refused({"attend", "q.npy", "k.npy", "v.npy", "-o", "--causal"}, cli::kBadUsage,
                 "-o: expected a value, found the option --causal");
  expect_refused({"attend", "q.npy", "k.npy", "v.npy", "--lse", "-o", "out.npy"}, cli::kBadUsage,
                 "--lse: expected a value, found the option -o");
  expect_refused({"explain", "--query=--causal"}, cli::kFailure, "no token is '--causal'");
  EXPECT_EQ(run_program({"explain", "--tokens", "a=,b=,c=,d=,e="}).status, cli::kSuccess);
}

TEST(Program, InstructionSetsAreRefusedByTheirOption) {
  for (const char* command : {"explain", "bench"})
    expect_refused({command, "--isa", "avx3"}, cli::kBadUsage,
                   "--isa: \"avx3\" is no instruction set; known are automatic, portable");
}

TEST(Program, BadUsageIsStatusTwo) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"nonsense"},
           {"explain", "--nonsense"},
           {"attend"},
           {"attend", "q.npy"},
           {"explain", "--heads", "x"},
           {"explain", "--heads", "0"},
           {"explain", "--columns", "1-0"},
           {"explain", "--q", "q.npy"},
           {"bench", "--filter", "("},
           {"explain", "--window", "3"},
           {"explain", "--sink", "1,,2"},
           {"explain", "--prune", "x"},
           {"explain", "--seed", "1"},
           {"attend", "q.npy", "k.npy", "v.npy", "--weights-heads", "1"}}) {
    const Outcome made = run_program(arguments);
    EXPECT_EQ(made.status, cli::kBadUsage) << made.err;
    EXPECT_EQ(made.out, "");
    EXPECT_TRUE(made.err.starts_with("polyhead: ")) << made.err;
  }
}

TEST(Bench, RefusesWhatWouldChangeNothing) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& because) {
    arguments.insert(arguments.begin(), "bench");
    expect_refused(arguments, cli::kBadUsage, because);
  };
  refused({"--weights", "bf16"}, "--weights requires --model");
  refused({"--model", "smollm2", "--filter", "decode"}, "--filter excludes --model");
  refused({"--list", "--threads", "2"}, "--threads changes nothing here");
  refused({"--list", "--model", "smollm2"}, "--model changes nothing here");
  refused({"--list", "--filter", std::string(100000, '(')},
          "--filter has 100000 bytes (at most 1000)");
  refused({"--filter", "nonesuch"}, "--filter: no case's name matches 'nonesuch'");
}

TEST(Generate, RefusesDrawsWithoutATemperature) {
  for (const char* option : {"--top-k", "--top-p", "--seed"}) {
    expect_refused({"generate", "model", "--prompt", "a", option, "1"}, cli::kBadUsage,
                   std::string(option) + " needs --temperature above 0");
  }
}

TEST(Bench, ListsItsCasesAndGivesJson) {
  const Outcome list = run_program({"bench", "--list", "--filter", "^causal float32"});
  EXPECT_EQ(list.status, 0);
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 6);
  EXPECT_EQ(run_program_json({"bench", "--list", "--filter", "^causal float32 n=512"}),
            json({{"cases", {"causal float32 n=512 d=64", "causal float32 n=512 d=128"}}}));
  // What bench/peers.py and bench/cache_peers.py ask for.
  for (const auto& [filter, cases] :
       {std::pair("^full float32 n=1024 d=64$", 1),
        {"^cache 32/8 heads (float32|float16|bfloat16|int8) kv=16384$", 4}})
    EXPECT_EQ(run_program_json({"bench", "--list", "--filter", filter})["cases"].size(), cases);
  const json made = run_program_json(
      {"bench", "--filter", "causal float32 n=512 d=64", "--seconds", "0.01", "--threads", "1"});
  for (const char* key : {"cpu", "isa", "threads", "ceilings", "cases"})
    EXPECT_TRUE(made.contains(key)) << key;
  for (const char* key : {"float32_gflops", "bfloat16_gflops", "dram_gbps"})
    EXPECT_TRUE(made["ceilings"].contains(key));
  ASSERT_EQ(made["cases"].size(), 1u);
  for (const char* key : {"name", "median_seconds", "rate", "unit", "share", "goal"}) {
    EXPECT_TRUE(made["cases"][0].contains(key)) << key;
  }
  EXPECT_GT(made["cases"][0]["share"].get<double>(), 0.0);
}

TEST(Json, RowsStandOnOneLineAndBadTextIsReplaced) {
  const nlohmann::ordered_json value = {
      {"rows", {{1, 2.5}, {3, nullptr}}}, {"name", "a\xff"}, {"none", json::array()}};
  const std::string text = cli::json_text(value);
  EXPECT_EQ(text,
            "{\n  \"rows\": [\n    [1, 2.5],\n    [3, null]\n  ],\n  \"name\": \"a\ufffd\",\n  "
            "\"none\": []\n}\n");
  EXPECT_EQ(cli::json_text("\x01"
                           "23"),
            "\"\\u000123\"\n")
      << "text, whatever it begins with";
}

TEST(Table, AlignsWhatIsWide) {
  EXPECT_EQ(cli::display_width("cat"), 3u);
  EXPECT_EQ(cli::display_width("中文"), 4u);
  EXPECT_EQ(cli::display_width("e\u0301"), 1u);
  EXPECT_EQ(cli::display_width("\u0e01\u0e47\u0e14\u0e35"), 2u) << "Thai vowels stand above";
  EXPECT_EQ(cli::display_width("\u2705"), 2u) << "an emoji among the symbols";
  EXPECT_EQ(cli::display_width("1/√2 · … ─"), 10u);
  EXPECT_EQ(cli::display_width("\x1b[1mcat\x1b[0m"), 3u);
  EXPECT_EQ(cli::display_width("\xff\xf0"), 2u) << "broken sequences count something and end";
  EXPECT_EQ(cli::display_width("\xe0\xb8 \xb8\xb8"), 4u) << "begun, a space, two of no beginning";
  EXPECT_EQ(cli::fixed(-0.00001), "0.0000");
  EXPECT_EQ(cli::fixed(-INFINITY), "-inf");
  EXPECT_EQ(cli::grouped(1234567), "1,234,567");
  EXPECT_EQ(cli::grouped(-123), "-123");
  EXPECT_EQ(cli::printable("a\x1b[2Jb"), "a\\x1b[2Jb");
}

}  // namespace
}  // namespace polyhead
