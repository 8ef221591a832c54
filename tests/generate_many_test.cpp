// generate --prompts, run in this process: many prompts in one running batch.
#include <gtest/gtest.h>

#include <string>

#include "cli/exit_codes.hpp"
#include "support/golden_model.hpp"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::Outcome;
using test::run_program;
using test::run_program_json;
using test::ScratchDirectory;

/// A text of `count` tokens of smollm2's.
std::string words(std::size_t count) {
  std::string text = "a";
  while (--count > 0) text += " a";
  return text;
}

TEST(GenerateMany, NamesTheLineThatCannotRun) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const auto refusal = [&](const std::string& lines, std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"generate", "smollm2", "--prompts", directory.write("prompts.txt", lines)});
    const Outcome made = run_program(options);
    EXPECT_EQ(made.status, cli::kFailure);
    EXPECT_EQ(made.out, "");
    return made.err;
  };
  const std::string file = "polyhead: " + directory.file("prompts.txt");
  EXPECT_EQ(refusal("Hello\n\n" + words(8193) + "\nBye\n", {}),
            file + ": line 3 has 8193 tokens, the model takes 8192\n");
  EXPECT_EQ(refusal("Hello\n" + words(120) + "\n", {"--pool-tokens", "100", "--max-tokens", "10"}),
            file +
                ": line 2 has 120 tokens and with --max-tokens needs 3 pages of 64, "
                "--pool-tokens holds 2\n");
  EXPECT_EQ(refusal(words(5), {"--pool-tokens", "8", "--max-tokens", "9223372036854775807"}),
            file +
                ": line 1 has 5 tokens and with --max-tokens needs 128 pages of 64, "
                "--pool-tokens holds 1\n");
}

TEST(GenerateMany, PagesOfThePool) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const std::string prompts = directory.write("prompts.txt", words(3));
  const auto pages = [&](const char* pool_tokens) {
    return run_program_json({"generate", "smollm2", "--prompts", prompts, "--max-tokens", "10",
                             "--page-tokens", "8", "--pool-tokens", pool_tokens})["cache"]["pages"];
  };
  EXPECT_EQ(pages("12"), 2) << "12 tokens are rounded up to whole pages, as many as are needed";
  EXPECT_EQ(pages("9223372036854775807"), 2) << "no more than all prompts fill";
  const Outcome made =
      run_program({"generate", "smollm2", "--prompts", prompts, "--page-tokens", "7"});
  EXPECT_EQ(made.status, cli::kBadUsage);
  EXPECT_NE(made.err.find("--page-tokens (7) is not a power of two from 8 to 256"),
            std::string::npos)
      << made.err;
}

TEST(GenerateMany, PromptsThatBeginAlikeShare) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const std::string prompts =
      directory.write("prompts.txt", "\xEF\xBB\xBF" + words(30) + "\n" + words(30) + "\n");
  const json made = run_program_json(
      {"generate", "smollm2", "--prompts", prompts, "--max-tokens", "2", "--page-tokens", "8"});
  EXPECT_EQ(made["answers"][0]["prompt"], words(30)) << "without the byte order mark";
  EXPECT_EQ(made["answers"][0]["ids"], made["answers"][1]["ids"]);
  EXPECT_EQ(made["cache"]["shared_tokens"], 24);
  EXPECT_GT(made["answers"][0]["first_token_seconds"], 0.0);
}

TEST(GenerateMany, PromptsAreRepeatedAsWholeCharacters) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const std::string prompts =
      directory.write("prompts.txt", "caf\xc3\xa9 \x9b\xff \xe2\x82\x1b[1m\n");
  const Outcome made =
      run_program({"generate", "smollm2", "--prompts", prompts, "--max-tokens", "0"});
  EXPECT_EQ(made.out, "[1] caf\u00e9 \ufffd\ufffd \ufffd\\x1b[1m\n\n\n");
}

TEST(GenerateMany, WhoSaysNothingHasNoFirstToken) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const std::vector<std::string> arguments = {
      "generate",     "smollm2", "--prompts", directory.write("prompts.txt", "Once\n"),
      "--max-tokens", "0"};
  const json made = run_program_json(arguments);
  EXPECT_TRUE(made["answers"][0]["first_token_seconds"].is_null());
  EXPECT_TRUE(made["first_token_seconds"]["median"].is_null());
  EXPECT_TRUE(made["first_token_seconds"]["most"].is_null());
  const std::string err = run_program(arguments).err;
  EXPECT_EQ(err.find("first token"), std::string::npos);
  EXPECT_EQ(err.rfind("polyhead: 0 tokens read, 0 written", 0), 0u) << err;
  EXPECT_EQ(made["tokens_read"], 0) << "nobody reads a prompt that nothing is to follow";
  EXPECT_EQ(made["cache"]["pages"], 1);
}

TEST(GenerateMany, TheMedianOfTwoLiesBetweenThem) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const json made = run_program_json({"generate", "smollm2", "--prompts",
                                      directory.write("prompts.txt", "a\nb\n"), "--batch", "1",
                                      "--max-tokens", "2"});
  const double first = made["answers"][0]["first_token_seconds"];
  const double second = made["answers"][1]["first_token_seconds"];
  EXPECT_DOUBLE_EQ(made["first_token_seconds"]["median"], (first + second) / 2);
  EXPECT_EQ(made["first_token_seconds"]["most"], second);
}

// The second of them needs more pages than are left beside the first.
TEST(GenerateMany, WhoWaitsForPagesIsNotInterrupted) {
  SKIP_WITHOUT("smollm2");
  const ScratchDirectory directory;
  const json made = run_program_json(
      {"generate", "smollm2", "--prompts",
       directory.write("prompts.txt", words(99) + "\nb" + words(120) + "\n"), "--batch", "2",
       "--page-tokens", "8", "--pool-tokens", "184", "--max-tokens", "12"});
  EXPECT_EQ(made["cache"]["interrupted"], 0);
  EXPECT_LE(made["steps"], 2 * 12 + 1);
}

// The others have their answers by then.
TEST(GenerateMany, NamesTheLinesWhoseLogitsAreNoNumbers) {
  const ScratchDirectory directory;
  const std::string model = test::model_with_a_nan(directory);
  const std::string prompts = directory.write("prompts.txt", "abc\n\nah\nij\nha\n");
  const std::vector<std::string> arguments = {"generate",      model, "--prompts",    prompts,
                                              "--batch",       "2",   "--max-tokens", "1",
                                              "--page-tokens", "8"};
  const std::string wrong = "polyhead: " + prompts +
                            ": lines 3, 5: Sampler: logits hold a NaN: the model's weights or its "
                            "text give no numbers\n";
  const Outcome made = run_program(arguments);
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_NE(made.out.find("[3] ij\n"), std::string::npos) << made.out;
  EXPECT_TRUE(made.err.ends_with(wrong)) << made.err;

  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const Outcome told = run_program(as_json);
  EXPECT_EQ(told.status, cli::kFailure);
  EXPECT_EQ(told.err, wrong);
  const json answers = test::json_of(told.out)["answers"];
  const char* const stops[] = {"max_tokens", "failed", "max_tokens", "failed"};
  ASSERT_EQ(answers.size(), std::size(stops));
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i]["stop"], stops[i]) << i;
  const json alone = run_program_json({"generate", model, "--prompt", "ij", "--max-tokens", "1"});
  EXPECT_EQ(answers[2]["ids"], alone["ids"]);
}

}  // namespace
}  // namespace polyhead
