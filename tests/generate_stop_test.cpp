// Where an answer of generate ends: texts, the model's end tokens; and prompts from files.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/answer_text.hpp"
#include "cli/exit_codes.hpp"
#include "support/golden_model.hpp"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::run_program_json;

/// What is left of a text by the definition: where the first of the stop texts is complete, without
/// the longest that is complete there.
std::string until(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(AnswerText, WhereTokensEndChangesNothing) {
  const std::vector<std::vector<std::string>> lists = {
      {}, {"ab"}, {"aab", "b"}, {"aba", "ba"}, {"bbbbbbbb"}, {"abcab", "ca", "bb"}, {"\xc3\xa9"}};
  std::uint64_t state = 7;
  const auto below = [&](std::uint64_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % most;
  };
  const std::vector<std::string> letters = {"a", "b", "c", "\xc3\xa9"};
  for (const std::vector<std::string>& stops : lists) {
    for (int round = 0; round < 200; ++round) {
      std::string text;
      while (text.size() < 12) text += letters[below(letters.size())];
      const std::string expected = until(text, stops);
      std::ostringstream out;
      cli::AnswerText answer(cli::TextStream(out, false), stops);
      bool goes_on = true;
      for (std::size_t at = 0; at < text.size() && goes_on;) {
        const std::size_t size = 1 + below(5);
        goes_on = answer.write(text.substr(at, size));
        at += size;
        ASSERT_TRUE(expected.starts_with(out.str())) << "a part of a stop text was shown";
      }
      EXPECT_EQ(goes_on, expected == text && !answer.stopped());
      EXPECT_EQ(answer.stopped(), expected != text) << text;
      answer.finish();
      EXPECT_EQ(out.str(), expected) << text;
      EXPECT_EQ(answer.text(), expected);
    }
  }
}

/// The tiny Llama, which answers texts of its letters with some, between tokens of no text.
class GenerateStop : public testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"generate", model_, "--max-tokens", "40"});
    return more;
  }
  json generate(const std::vector<std::string>& more) const {
    return run_program_json(arguments(more));
  }

  const test::ScratchDirectory folder_;
  const std::string model_ = test::tiny_llama(folder_);
};

TEST_F(GenerateStop, AnswersEndBeforeAText) {
  const json whole = generate({"--prompt", "abcdefg"});
  const std::string text = whole["text"];
  ASSERT_GE(text.size(), 5u) << text;
  const std::string stop = text.substr(2, 2), other = text.substr(3, 2);
  const std::vector<std::string> how = {"--prompt", "abcdefg", "--stop", other, "--stop", stop};
  const json made = generate(how);
  EXPECT_EQ(made["text"], until(text, {stop, other}));
  EXPECT_EQ(made["stop"], "stop_text");
  ASSERT_LT(made["ids"].size(), whole["ids"].size()) << "nothing is run after it";
  for (std::size_t i = 0; i < made["ids"].size(); ++i)
    EXPECT_EQ(made["ids"][i], whole["ids"][i]) << "those of the stop text among them";
  EXPECT_EQ(test::run_program(arguments(how)).out, made["text"].get<std::string>() + "\n");
  // Its beginning at the end of an answer is text.
  const json not_there =
      generate({"--prompt", "abcdefg", "--stop", text.back() + std::string("!")});
  EXPECT_EQ(not_there["text"], text);
  EXPECT_EQ(not_there["stop"], "max_tokens");
}

TEST_F(GenerateStop, EachOfABatchEndsAsAlone) {
  const std::vector<std::string> prompts = {"abcdefg", "jj", "cab", "hij", "fade"};
  std::string lines;
  for (const std::string& prompt : prompts) lines += prompt + "\n";
  const std::string file = folder_.write("prompts.txt", lines);
  const std::vector<std::string> stops = {"--stop", "jja", "--stop", "ga", "--stop", "aje"};
  std::size_t stopped = 0;
  const std::vector<std::vector<std::string>> ways = {
      {},
      {"--temperature", "1.2", "--min-p", "0.02", "--seed", "5"},
      {"--repeat-penalty", "1.3", "--repeat-last", "20"}};
  for (const char* batch : {"1", "3", "8"}) {
    for (const std::vector<std::string>& way : ways) {
      std::vector<std::string> how = stops;
      how.insert(how.end(), way.begin(), way.end());
      std::vector<std::string> many = how;
      many.insert(many.end(), {"--prompts", file, "--batch", batch, "--page-tokens", "8"});
      // Two answers of the longest fill the pool, so that some are interrupted.
      many.insert(many.end(), {"--pool-tokens", "96"});
      const json made = generate(many);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        std::vector<std::string> one = how;
        one.insert(one.end(), {"--prompt", prompts[i]});
        const json alone = generate(one);
        const json& answer = made["answers"][i];
        EXPECT_EQ(answer["ids"], alone["ids"]) << prompts[i];
        EXPECT_EQ(answer["text"], alone["text"]) << prompts[i];
        EXPECT_EQ(answer["stop"], alone["stop"]) << prompts[i];
        stopped += alone["stop"] == "stop_text";
        // By way of pages, too.
        one.insert(one.end(), {"--page-tokens", "8", "--save-cache", folder_.file("x.kv")});
        const json paged = generate(one);
        EXPECT_EQ(paged["ids"], alone["ids"]) << prompts[i];
        EXPECT_EQ(paged["text"], alone["text"]) << prompts[i];
        EXPECT_EQ(paged["stop"], alone["stop"]) << prompts[i];
      }
    }
  }
  EXPECT_GT(stopped, 0u);
}

TEST_F(GenerateStop, EndTokensMayBeIgnored) {
  const json without = generate({"--prompt", "abcdefg"});
  json config = test::json_file(folder_.file("config.json"));
  config["eos_token_id"] = 9;  // j
  folder_.write("config.json", config.dump());
  const json ended = generate({"--prompt", "abcdefg"});
  EXPECT_EQ(ended["stop"], "end");
  EXPECT_LT(ended["ids"].size(), without["ids"].size());
  const json ignored = generate({"--prompt", "abcdefg", "--ignore-eos"});
  EXPECT_EQ(ignored["stop"], "max_tokens");
  EXPECT_EQ(ignored["ids"], without["ids"]);
  const std::string prompts = folder_.write("prompts.txt", "abcdefg\n");
  EXPECT_EQ(generate({"--prompts", prompts})["answers"][0]["ids"], ended["ids"]);
  EXPECT_EQ(generate({"--prompts", prompts, "--ignore-eos"})["answers"][0]["ids"], without["ids"]);
}

TEST_F(GenerateStop, PromptsComeFromFiles) {
  const json expected = generate({"--prompt", "abcdefg"});
  for (const char* end : {"", "\n", "\r\n"}) {
    const std::string file = folder_.write("prompt.txt", std::string("abcdefg") + end);
    const json made = generate({"--file", file});
    EXPECT_EQ(made["prompt_ids"], expected["prompt_ids"]);
    EXPECT_EQ(made["ids"], expected["ids"]);
  }
  const std::string file = folder_.file("prompt.txt"), empty = folder_.write("empty.txt", "\n");
  const auto refused = [&](const std::vector<std::string>& more, int status, const char* why) {
    test::expect_refused(arguments(more), status, why);
  };
  refused({"--file", empty}, cli::kFailure, "generate: --file: the text has no token");
  refused({"--file", folder_.write("long.txt", std::string(65, 'a'))}, cli::kFailure,
          "generate: --file has 65 tokens, the model takes 64");
  refused({"--file", folder_.file("nowhere.txt")}, cli::kFailure, "nowhere.txt: cannot be opened");
  // No file that was read is written over.
  refused({"--file", file, "--page-tokens", "8", "--save-cache", file}, cli::kFailure,
          "prompt.txt: ");
  EXPECT_EQ(test::ScratchDirectory::read(file), "abcdefg\r\n");
}

TEST(GenerateStopModels, AStopTextWithinAndAcrossTokens) {
  SKIP_WITHOUT("smollm2");
  const std::vector<std::string> how = {
      "generate", "smollm2", "--prompt", "The capital of France is", "--max-tokens", "12"};
  const std::string text = run_program_json(how)["text"];
  for (std::size_t at = 1; at + 3 < text.size(); at += 3) {
    std::vector<std::string> stopped = how;
    stopped.insert(stopped.end(), {"--stop", text.substr(at, 3)});
    EXPECT_EQ(run_program_json(stopped)["text"], until(text, {text.substr(at, 3)}));
    EXPECT_EQ(test::run_program(stopped).out, until(text, {text.substr(at, 3)}) + "\n");
  }
}

}  // namespace
}  // namespace polyhead
