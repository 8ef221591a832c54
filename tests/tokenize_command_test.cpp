// polyhead tokenize: what it prints of a text and a vocabulary.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using test::Outcome;
/// With the small Llama 2 vocabulary, <s> before each text and </s> among its tokens.
Outcome tokenize(std::vector<std::string> options) {
  const test::ScratchDirectory folder;
  folder.write("tokenizer.json",
               test::ScratchDirectory::read(POLYHEAD_TEST_DATA "/tokenizers/llama2.json"));
  options.insert(options.begin(), {"tokenize", folder.file("")});
  return test::run_program(options);
}

TEST(TokenizeCommand, PrintsIdsAndPieces) {
  const Outcome done = tokenize({"--text", "the <s>\x1b", "--parse-special", "--json"});
  ASSERT_EQ(done.status, cli::kSuccess) << done.err;
  const auto json = test::json_of(done.out);
  ASSERT_EQ(json["ids"].size(), json["pieces"].size());
  EXPECT_EQ(json["pieces"][0], "<s>");
  EXPECT_EQ(json["pieces"][1], "\xe2\x96\x81the");
  EXPECT_EQ(json["ids"][3], 1);
  EXPECT_EQ(json["pieces"].back(), "<0x1B>");
}

TEST(TokenizeCommand, EscapesWhatWouldSteerATerminal) {
  const Outcome done = tokenize({"--text", "a\x1b[2J", "--bare"});
  ASSERT_EQ(done.status, cli::kSuccess) << done.err;
  EXPECT_EQ(done.out.find('\x1b'), std::string::npos);
  EXPECT_NE(done.out.find("'\\x1b'"), std::string::npos) << done.out;
  EXPECT_EQ(done.out.find("<s>"), std::string::npos) << done.out;
}

TEST(TokenizeCommand, TakesAnEmptyText) {
  EXPECT_NE(tokenize({"--text", ""}).out.find("1 token\n"), std::string::npos);
  EXPECT_NE(tokenize({"--text", "", "--bare"}).out.find("0 tokens\n"), std::string::npos);
}

TEST(TokenizeCommand, RefusesWhatMakesNoSense) {
  EXPECT_EQ(tokenize({}).status, cli::kBadUsage);
  EXPECT_EQ(tokenize({"--text", "a", "--file", "b"}).status, cli::kBadUsage);
  EXPECT_EQ(tokenize({"--file", "/nowhere/text"}).status, cli::kFailure);
}

}  // namespace
}  // namespace polyhead
