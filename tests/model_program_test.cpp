// generate, score and embed, run in this process on real models.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <sstream>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "cli/stream_text.hpp"
#include "models/formats/npy.hpp"
#include "models/model.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/effort.h"
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

TEST(Generate, RefusesEncoders) {
  const Outcome made =
      run_program({"generate", POLYHEAD_TEST_DATA "/gguf_models/bert.gguf", "--prompt", "a"});
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_NE(made.err.find("the model is an encoder"), std::string::npos) << made.err;
}

TEST(Score, RefusesEncoders) {
  test::expect_refused({"score", POLYHEAD_TEST_DATA "/gguf_models/bert.gguf", "--text", "a b"}, 1,
                       "score: the model is an encoder and predicts no tokens");
}

// Windows of one token each would begin after the token that they are to predict.
TEST(Score, RefusesAModelWithTooShortAContext) {
  const test::ScratchDirectory directory;
  const std::string model = test::tiny_llama(directory);
  json config = test::json_file(directory.file("config.json"));
  for (const int context : {1, 3, 4}) {
    config["max_position_embeddings"] = context;
    directory.write("config.json", config.dump());
    if (context < 4) {
      test::expect_refused({"score", model, "--text", "abcdefgh"}, cli::kFailure,
                           "score: the model's context is " + std::to_string(context) +
                               " tokens; windows need at least 4");
    } else {
      EXPECT_EQ(run_program_json({"score", model, "--text", "abcdefgh"})["scored"], 7);
    }
  }
}

TEST(Embed, RefusesDecodersAndPlacesItCannotWriteTo) {
  const test::ScratchDirectory directory;
  const std::string lines = directory.write("lines.txt", "a\n");
  const std::string folder = POLYHEAD_TEST_DATA "/gguf_models/";
  test::expect_refused({"embed", folder + "llama.gguf", "--file", lines}, 1,
                       "embed: the model is a decoder, expected an encoder");
  test::expect_refused({"embed", "nowhere.gguf", "--file", lines, "-o", "/nowhere/x.npy"}, 1,
                       "/nowhere/x.npy: cannot be written");
}

TEST(Look, RefusesAProbeThatDoesNotFitBeforeItRuns) {
  const test::ScratchDirectory directory;
  const std::string page = directory.file("page.html");
  test::expect_refused(
      {"look", POLYHEAD_TEST_DATA "/gguf_models/bert.gguf", "--text", "a b", "--probe", "-o", page},
      1, "look: --probe: the model's ");
  EXPECT_EQ(directory.file_count(), 0u);
}

TEST(Generate, ContinuesAsTheLogitsSay) {
  SKIP_WITHOUT("smollm2");
  const std::vector<std::string> arguments = {
      "generate", "smollm2", "--prompt", "The capital of France is", "--max-tokens", "6"};
  const json made = run_program_json(arguments);
  EXPECT_EQ(made["ids"].size(), 6u);
  EXPECT_NE(made["text"].get<std::string>().find("Paris"), std::string::npos);
  EXPECT_EQ(made["stop"], "max_tokens");
  const Outcome plain = run_program(arguments);
  EXPECT_EQ(plain.out, made["text"].get<std::string>() + "\n");
  EXPECT_NE(plain.err.find("a second"), std::string::npos);

  // Each id is the best one after all before it, run whole.
  const models::ModelFile file(test::fetched_model("smollm2"));
  const models::Model model(file);
  std::vector<std::int32_t> ids = made["prompt_ids"];
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  for (const std::int32_t id : made["ids"].get<std::vector<std::int32_t>>()) {
    auto session = model.make_session();
    model.forward(session, ids, models::Wanted::last, logits.data());
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), id);
    ids.push_back(id);
  }
}

TEST(Generate, APipedPromptLosesItsLastLineEnd) {
  SKIP_WITHOUT("smollm2");
  const auto ids_of = [](std::vector<std::string> given, const std::string& piped) {
    std::istringstream pipe(piped);
    std::streambuf* const terminal = std::cin.rdbuf(pipe.rdbuf());
    given.insert(given.begin(), {"generate", "smollm2", "--max-tokens", "0", "--prompt"});
    const json made = run_program_json(given);
    std::cin.rdbuf(terminal);
    std::cin.clear();
    return made["prompt_ids"];
  };
  const json plain = ids_of({"The capital"}, "");
  for (const char* const end : {"", "\n", "\r\n"})
    EXPECT_EQ(ids_of({"-"}, std::string("The capital") + end), plain);
  EXPECT_EQ(ids_of({"-"}, "The capital\n\n"), ids_of({"The capital\n"}, ""));
  EXPECT_EQ(ids_of({"-"}, "The capital\r"), ids_of({"The capital\r"}, ""));
}

TEST(Generate, ChatsUntilTheEndOfTheTurn) {
  SKIP_WITHOUT("smollm2");
  const json made =
      run_program_json({"generate", "smollm2", "--chat", "--max-tokens", "60", "--prompt",
                        "What is the capital of France? Answer in one sentence."});
  EXPECT_EQ(made["stop"], "end");
  EXPECT_EQ(made["text"], "The capital of France is Paris.");
}

TEST(Generate, AModelWithoutATemplateWantsOneNamed) {
  SKIP_WITHOUT("gemma3");
  const Outcome made = run_program({"generate", "gemma3", "--chat", "--prompt", "x"});
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_NE(made.err.find("chatml, gemma, llama2, llama3"), std::string::npos) << made.err;
}

TEST(Generate, TheSeedAloneDecides) {
  SKIP_WITHOUT("smollm2");
  const auto ids = [](const char* seed, const char* threads) {
    return run_program_json({"generate", "smollm2", "--prompt", "Once", "--temperature", "1.5",
                             "--max-tokens", "8", "--seed", seed, "--threads", threads})["ids"];
  };
  EXPECT_EQ(ids("1", "1"), ids("1", "2"));
  EXPECT_NE(ids("1", "1"), ids("2", "1"));
}

TEST(Generate, RefusesWhatMakesNoSense) {
  EXPECT_EQ(run_program({"generate"}).status, cli::kBadUsage);
  EXPECT_EQ(run_program({"generate", "smollm2", "--prompt", "x", "--system", "y"}).status,
            cli::kBadUsage);
  EXPECT_EQ(run_program({"generate", "smollm2", "--prompt", ""}).status, cli::kBadUsage);
  const Outcome made = run_program({"generate", "nowhere.gguf", "--prompt", "x"});
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_NE(made.err.find("nowhere.gguf"), std::string::npos) << made.err;
  EXPECT_EQ(made.out, "");
}

TEST(Generate, APromptLongerThanTheContextIsRefused) {
  SKIP_WITHOUT("smollm2");
  std::string text = "a";
  for (int i = 0; i < 8192; ++i) text += " a";
  const Outcome made = run_program({"generate", "smollm2", "--prompt", text});
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_EQ(made.err, "polyhead: generate: --prompt has 8193 tokens, the model takes 8192\n");
}

TEST(Generate, AnEmptySystemMessageIsNone) {
  SKIP_WITHOUT("smollm2");
  const auto ids = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "smollm2", "--prompt", "a", "--max-tokens", "0"});
    return run_program_json(more)["prompt_ids"].get<std::vector<std::int32_t>>();
  };
  const models::Tokenizer tokenizer(models::ModelFile(test::fetched_model("smollm2")).tokenizer());
  const auto encoded = [&](const std::string& text) {
    return tokenizer.encode(text, {true, true});
  };
  const std::string turn = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(ids({"--chat", "--system", ""}), encoded(turn));
  EXPECT_EQ(ids({"--chat", "--system", "b"}), encoded("<|im_start|>system\nb<|im_end|>\n" + turn));
  EXPECT_GT(ids({"--chat"}).size(), encoded(turn).size() + 5)
      << "what its template says by default";
}

TEST(Score, GivesTheGoldenFigure) {
  SKIP_WITHOUT("smollm2");
  const json golden = test::golden_model("smollm2");
  const json made =
      run_program_json({"score", "smollm2", "--text", golden["text"].get<std::string>()});
  EXPECT_EQ(made["tokens"], golden["ids"].size());
  EXPECT_EQ(made["scored"], golden["ids"].size() - 1);
  EXPECT_NEAR(made["nll"].get<double>(), golden["nll"].get<double>(), 1e-4);
  EXPECT_NEAR(made["perplexity"].get<double>(), std::exp(made["nll"].get<double>()), 1e-9);
}

// Windows of 8 tokens read some tokens twice, and each is scored once.
TEST(Score, FiguresOfEachTokenSumToTheWhole) {
  const test::ScratchDirectory directory;
  const std::string model = test::tiny_llama(directory), text = "abcdefghijabcdej";
  const std::vector<std::string> arguments = {"score", model, "--text", text, "--context", "8"};
  EXPECT_FALSE(run_program_json(arguments).contains("per_token"));
  std::vector<std::string> each = arguments;
  each.emplace_back("--per-token");
  const json made = run_program_json(each);
  ASSERT_EQ(made["per_token"].size(), text.size());
  EXPECT_TRUE(made["per_token"][0]["nll"].is_null()) << "nothing is before it";
  double sum = 0.0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const json& token = made["per_token"][i];
    EXPECT_EQ(token["text"], text.substr(i, 1));
    EXPECT_EQ(token["id"], text[i] - 'a');
    if (i > 0) sum += token["nll"].get<double>();
  }
  EXPECT_EQ(made["total_nll"], sum);
  EXPECT_EQ(made["nll"], sum / 15);
  // The first window reads what the text of its own has.
  each[3] = text.substr(0, 9);
  EXPECT_EQ(run_program_json(each)["per_token"][8]["nll"], made["per_token"][8]["nll"]);

  const std::string told = run_program(each).out;
  EXPECT_NE(told.find("  probability\n      0   0  'a'\n"), std::string::npos) << told;
  EXPECT_NE(told.find("      8   8  'i'   "), std::string::npos) << told;
}

TEST(Score, RefusesWindowsThatTheModelHasNot) {
  SKIP_WITHOUT("smollm2");
  test::expect_refused({"score", "smollm2", "--text", "a b c", "--context", "8193"}, 1,
                       "--context (8193) is more than the model's, 8192");
  test::expect_refused({"prune", "smollm2", "--text", "a b c", "--tokens", "8193"}, 1,
                       "--tokens (8193) is more than the model's context, 8192");
}

TEST(Explain, ATokenIsNamedWithOrWithoutItsSpace) {
  SKIP_WITHOUT("smollm2");
  const auto query = [](const char* token) {
    return run_program_json({"explain", "smollm2", "--layer", "0", "--text", "The cat sat on cat",
                             "--query", token})["queries"];
  };
  EXPECT_EQ(query(" sat"), json({2}));
  EXPECT_EQ(query("sat"), json({2}));
  test::expect_refused(
      {"explain", "smollm2", "--layer", "0", "--text", "The cat sat on cat", "--query", "cat"}, 1,
      "--query: more than one token is ' cat'");
}

TEST(Score, LongTextsAreReadInWindowsThatOverlapByHalf) {
  for (const std::string name : {"smollm2", "gemma3"}) {
    if (name == "gemma3" && test::effort() == test::Effort::smoke) continue;
    const std::string path = test::fetched_model(name);
    if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
    const models::ModelFile file(path);
    const models::Tokenizer tokenizer(file.tokenizer());
    std::string text = test::golden_model(name)["text"];
    if (test::effort() == test::Effort::smoke) text.resize(text.size() / 2);
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    const bool begins = tokenizer.spec().add_bos;
    const models::Model model(file);
    constexpr std::int64_t kContext = 8;
    // The rule, a token at a time: which window counts it, and where that window begins.
    double sum = 0.0;
    const auto count = static_cast<std::int64_t>(ids.size());
    std::int64_t begin = 0, end = std::min(kContext, count - 1);
    for (std::int64_t token = 1; token < count; ++token) {
      if (token > end) {
        begin = token - kContext / 2;
        end = std::min(begin + kContext - (begins ? 1 : 0), count - 1);
      }
      std::vector<std::int32_t> window;
      if (begins && begin > 0) window.push_back(tokenizer.spec().bos);
      window.insert(window.end(), ids.begin() + begin, ids.begin() + token);
      std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
      auto session = model.make_session();
      model.forward(session, window, models::Wanted::last, logits.data());
      double total = 0.0;
      for (const float logit : logits) total += std::exp(static_cast<double>(logit));
      sum += std::log(total) -
             static_cast<double>(
                 logits[static_cast<std::size_t>(ids[static_cast<std::size_t>(token)])]);
    }
    const json made = run_program_json({"score", name, "--text", text, "--context", "8"});
    EXPECT_EQ(made["scored"], count - 1);
    EXPECT_NEAR(made["nll"].get<double>(), sum / static_cast<double>(count - 1), 1e-5) << name;
  }
}

TEST(Embed, ALineAVector) {
  SKIP_WITHOUT("minilm");
  const ScratchDirectory scratch;
  const json golden = test::golden_model("minilm");
  const std::string text = golden["text"];
  const std::string lines = scratch.write("lines.txt", text + "\nThe cat sat.\r\n\nLast");
  const Outcome made = run_program({"embed", "minilm", "--file", lines});
  ASSERT_EQ(made.status, cli::kSuccess) << made.err;
  std::istringstream rows(made.out);
  std::vector<json> vectors;
  for (std::string row; std::getline(rows, row);) vectors.push_back(test::json_of(row));
  ASSERT_EQ(vectors.size(), 4u);
  ASSERT_EQ(vectors[0].size(), golden["embedding"].size());
  for (std::size_t i = 0; i < vectors[0].size(); ++i) {
    EXPECT_NEAR(vectors[0][i].get<float>(), golden["embedding"][i].get<float>(), 1e-4);
  }

  const std::string out = scratch.file("vectors.npy");
  ASSERT_EQ(run_program({"embed", "minilm", "--file", lines, "-o", out}).status, cli::kSuccess);
  const formats::Array array = formats::read_npy(out);
  ASSERT_EQ(array.view.layout.extents[0], 4);
  const auto* const values = static_cast<const float*>(array.view.data);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < vectors[row].size(); ++i) {
      EXPECT_EQ(values[row * vectors[row].size() + i], vectors[row][i].get<float>());
    }
  }

  // One text, whatever lines it has, and the same as an object.
  const json one = run_program_json({"embed", "minilm", "--text", "The cat sat."});
  ASSERT_EQ(one["texts"].size(), 1u);
  EXPECT_EQ(one["texts"][0]["text"], "The cat sat.");
  EXPECT_EQ(one["texts"][0]["ids"].size(), 6u);
  for (std::size_t i = 0; i < vectors[1].size(); ++i) {
    EXPECT_EQ(one["texts"][0]["embedding"][i].get<float>(), vectors[1][i].get<float>());
  }
  const Outcome lines_of_one = run_program({"embed", "minilm", "--text", "The cat\nsat."});
  EXPECT_EQ(lines_of_one.out, run_program({"embed", "minilm", "--text", "The cat sat."}).out);
  EXPECT_EQ(run_program_json({"embed", "minilm", "--file", lines})["texts"][3]["text"], "Last");
  test::expect_refused({"embed", "minilm", "--text", std::string(4000, '.')}, cli::kFailure,
                       "embed: --text has ");

  const std::string long_line = scratch.write("long.txt", "short\n" + std::string(4000, '.'));
  const Outcome refused = run_program({"embed", "minilm", "--file", long_line});
  EXPECT_EQ(refused.status, cli::kFailure);
  EXPECT_NE(refused.err.find("line 2"), std::string::npos) << refused.err;
}

std::string streamed(const std::vector<std::string>& pieces, bool terminal = false) {
  std::ostringstream out;
  cli::TextStream stream(out, terminal);
  for (const std::string& piece : pieces) stream.write(piece);
  stream.finish();
  return out.str();
}

TEST(TextStream, WritesWholeCharactersOnly) {
  EXPECT_EQ(streamed({"a\xc3", "\xa9", "\xe2\x82", "\xac", "\xf0\x9f", "\x98\x80z"}),
            "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
  EXPECT_EQ(streamed({"\xe2\x82"}), "\xef\xbf\xbd");                              // cut short
  EXPECT_EQ(streamed({"\xe2(", "\x80x"}), "\xef\xbf\xbd(\xef\xbf\xbdx");          // broken
  EXPECT_EQ(streamed({"\xc0\xaf"}), "\xef\xbf\xbd\xef\xbf\xbd");                  // overlong
  EXPECT_EQ(streamed({"\xed\xa0\x80"}), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
  EXPECT_EQ(streamed({"\x1b[31m\n\tx\x7f\xc2\x9b"}, true), "\\x1b[31m\n\tx\\x7f\\xc2\\x9b");
  EXPECT_EQ(streamed({"a\u202e\u2066b\u200f"}, true), "a\\xe2\\x80\\xae\\xe2\\x81\\xa6b\u200f");
  EXPECT_EQ(streamed({"a\u202eb"}, false), "a\u202eb");
  EXPECT_EQ(streamed({"\x1b"}), "\x1b");  // a file gets what was said
  std::ostringstream out;
  cli::TextStream stream(out, false);
  stream.write("\xe2\x82");
  EXPECT_EQ(out.str(), "");
  stream.write("\xac");
  EXPECT_EQ(out.str(), "\xe2\x82\xac");
}

}  // namespace
}  // namespace polyhead
