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

TEST(TokenizeCommand, IdsAreReadBackAsTheirText) {
  const std::string text = "the na\xc3\xafve \xe2\x82\xac 42\n\x1b";
  const auto json = test::json_of(tokenize({"--text", text, "--json"}).out);
  ASSERT_EQ(json["ids"][0], 1) << "<s>, which is no text";
  const Outcome back = tokenize({"--ids", json["ids"].dump()});
  EXPECT_EQ(back.status, cli::kSuccess) << back.err;
  EXPECT_EQ(back.out, text + "\n");
  std::string list;
  for (const int id : json["ids"]) list += (list.empty() ? "" : ", ") + std::to_string(id);
  const auto again = test::json_of(tokenize({"--ids", list, "--json"}).out);
  EXPECT_EQ(again["ids"], json["ids"]);
  EXPECT_EQ(again["pieces"], json["pieces"]);
  EXPECT_EQ(again["text"], text);
}

TEST(TokenizeCommand, RefusesIdsThatNoTokenHas) {
  const auto json = test::json_of(tokenize({"--text", "", "--json"}).out);
  const auto refused = [](const std::vector<std::string>& options, int status, const char* why) {
    const Outcome made = tokenize(options);
    EXPECT_EQ(made.status, status);
    EXPECT_EQ(made.out, "");
    EXPECT_NE(made.err.find(why), std::string::npos) << made.err;
  };
  refused({"--ids", "1,32000000000"}, cli::kFailure,
          "--ids: 32000000000 is no token's, expected 0 to ");
  refused({"--ids", "1,-2"}, cli::kBadUsage, "--ids: '-2' is not a whole number");
  EXPECT_EQ(tokenize({"--ids", "[]"}).out, "\n");
  refused({"--ids", "+1"}, cli::kBadUsage, "--ids: '+1' is not a whole number");
  refused({"--ids", "[1,2"}, cli::kBadUsage, "--ids: '[1' is not a whole number");
  refused({"--ids", "1,,2"}, cli::kBadUsage, "has an empty entry");
  refused({"--ids", "1", "--text", "a"}, cli::kBadUsage, "excludes");
  refused({"--ids", "1", "--bare"}, cli::kBadUsage, "excludes");
}

TEST(TokenizeCommand, RefusesWhatMakesNoSense) {
  EXPECT_EQ(tokenize({}).status, cli::kBadUsage);
  EXPECT_EQ(tokenize({"--text", "a", "--file", "b"}).status, cli::kBadUsage);
  EXPECT_EQ(tokenize({"--file", "/nowhere/text"}).status, cli::kFailure);
}

}  // namespace
}  // namespace polyhead
