// generate with files of the cache: what prompts begin with is read once.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "models/batcher.hpp"
#include "polyhead/cache_file.h"
#include "support/golden_model.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::Outcome;
using test::ScratchDirectory;

/// The tiny Llama, run on texts of its letters with pages of 8 tokens.
class GenerateCache : public testing::Test {
 protected:
  static std::vector<std::string> arguments(const std::string& model,
                                            const std::vector<std::string>& more) {
    std::vector<std::string> all = {"generate", model};
    all.insert(all.end(), more.begin(), more.end());
    if (std::ranges::find(more, "--max-tokens") == more.end())
      all.insert(all.end(), {"--max-tokens", "5"});
    return all;
  }
  json generate(const std::vector<std::string>& more) const {
    return test::run_program_json(arguments(model_, more));
  }
  json alone(const std::string& prompt) const { return generate({"--prompt", prompt}); }

  /// Keys and values of kBegin, two pages and more, in a file.
  std::string saved() const {
    const std::string file = folder_.file("begin.kv");
    const json made = generate(
        {"--prompt", kBegin, "--save-cache", file, "--page-tokens", "8", "--max-tokens", "0"});
    EXPECT_EQ(made["cache"]["saved_tokens"], 16);
    EXPECT_EQ(made["ids"], json::array());
    EXPECT_EQ(made["text"], "");
    return file;
  }

  /// Why a run over `file` is refused; nothing is said then.
  std::string refusal(const std::string& file, const std::vector<std::string>& more = {},
                      const std::string& model = "") const {
    std::vector<std::string> all = {"--prompt", kBegin, "--load-cache", file, "--page-tokens", "8"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome made = test::run_program(arguments(model.empty() ? model_ : model, all));
    EXPECT_EQ(made.status, cli::kFailure);
    EXPECT_EQ(made.out, "");
    EXPECT_TRUE(made.err.starts_with("polyhead: " + file + ": ")) << made.err;
    return made.err;
  }

  const std::string kBegin = "abcdefgijabcdefgijab";
  const ScratchDirectory folder_;
  const std::string model_ = test::tiny_llama(folder_);
};

TEST_F(GenerateCache, PromptsThatBeginAlikeAreReadFromThereOn) {
  const std::string file = saved();
  for (const std::string& prompt : {kBegin, kBegin + "jjj", kBegin.substr(0, 16), std::string("ab"),
                                    kBegin.substr(0, 12) + "jjjjjjj"}) {
    const json made = generate({"--prompt", prompt, "--load-cache", file, "--page-tokens", "8"});
    EXPECT_EQ(made["ids"], alone(prompt)["ids"]) << prompt;
    EXPECT_EQ(made["text"], alone(prompt)["text"]) << prompt;
    // A prompt's last token is always run.
    const std::size_t common = std::ranges::mismatch(prompt, kBegin).in1 - prompt.begin();
    EXPECT_EQ(made["cache"]["loaded_tokens"], std::min(common, prompt.size() - 1) / 8 * 8)
        << prompt;
  }
}

TEST_F(GenerateCache, SaysWhereNothingOfAFileIsUsed) {
  const std::string file = saved();
  const auto said = [&](const std::vector<std::string>& prompt) {
    std::vector<std::string> how = {"--load-cache", file, "--page-tokens", "8"};
    how.insert(how.end(), prompt.begin(), prompt.end());
    const Outcome made = test::run_program(arguments(model_, how));
    EXPECT_EQ(made.status, cli::kSuccess) << made.err;
    return made.err;
  };
  const std::string nothing = "begin.kv: nothing of it is used: ";
  const std::string page = " from a whole page (8 tokens) of what it holds\n";
  for (const std::string& prompt : {std::string("jj"), "j" + kBegin, kBegin.substr(0, 8)}) {
    const std::string err = said({"--prompt", prompt});
    EXPECT_NE(err.find(nothing + "the prompt does not go on" + page), std::string::npos) << err;
  }
  EXPECT_EQ(said({"--prompt", kBegin.substr(0, 9)}).find(nothing), std::string::npos);
  // Prompts that share a page with each other share none with the file.
  const std::string others = folder_.write("others.txt", "jjjjjjjjja\njjjjjjjjjb\n");
  const std::string err = said({"--prompts", others});
  EXPECT_NE(err.find(nothing + "no prompt goes on" + page), std::string::npos) << err;
  const std::string one = folder_.write("one.txt", "jjjjjjjjja\n" + kBegin + "\n");
  EXPECT_EQ(said({"--prompts", one}).find(nothing), std::string::npos);
}

TEST_F(GenerateCache, PagesOfAnotherSizeServe) {
  const std::string file = saved();
  const json made = generate({"--prompt", kBegin, "--load-cache", file, "--page-tokens", "16"});
  EXPECT_EQ(made["ids"], alone(kBegin)["ids"]);
  EXPECT_EQ(made["cache"]["loaded_tokens"], 16);
}

TEST_F(GenerateCache, AnswersAreSavedWithTheirPrompt) {
  const std::string file = folder_.file("talk.kv");
  const json first = generate(
      {"--prompt", kBegin, "--max-tokens", "30", "--save-cache", file, "--page-tokens", "8"});
  EXPECT_EQ(first["ids"], generate({"--prompt", kBegin, "--max-tokens", "30"})["ids"]);
  const std::size_t held = kBegin.size() + first["ids"].size() - 1;  // the last one is not run
  EXPECT_EQ(first["cache"]["saved_tokens"], held / 8 * 8);
}

TEST_F(GenerateCache, ServesAllPromptsOfABatch) {
  const std::string file = saved();
  const std::string prompts = folder_.write("prompts.txt", kBegin + "j\nab\n" + kBegin + "i\n");
  const json made = generate({"--prompts", prompts, "--load-cache", file, "--page-tokens", "8"});
  EXPECT_EQ(made["cache"]["shared_tokens"], 32);
  EXPECT_EQ(made["answers"][0]["ids"], alone(kBegin + "j")["ids"]);
  EXPECT_EQ(made["answers"][1]["ids"], alone("ab")["ids"]);
  EXPECT_EQ(made["answers"][2]["ids"], alone(kBegin + "i")["ids"]);
}

TEST_F(GenerateCache, EveryTypeOfCache) {
  const std::string text = folder_.write("text.txt", "abcjjiia");
  for (const char* type : {"f32", "bf16", "f16", "int8", "int4", "e4m3"}) {
    const std::string file = folder_.file(std::string(type) + ".kv");
    for (const bool by_channel : {false, true}) {
      if (by_channel && std::string(type).substr(0, 3) != "int") continue;
      std::vector<std::string> how = {"--prompt", kBegin, "--kv-type", type};
      if (by_channel) how.insert(how.end(), {"--kv-keys", "channel", "--kv-text", text});
      const json expected = generate(how);
      how.insert(how.end(), {"--page-tokens", "8", "--save-cache", file});
      EXPECT_EQ(generate(how)["ids"], expected["ids"]) << type;
      *(how.end() - 2) = "--load-cache";
      const json made = generate(how);
      EXPECT_EQ(made["ids"], expected["ids"]) << type;
      EXPECT_EQ(made["cache"]["loaded_tokens"], 16) << type;
    }
  }
}

// What channels were calibrated on is saved with the keys: whoever reads them needs no text.
TEST_F(GenerateCache, FramesComeFromTheFile) {
  const std::string text = folder_.write("text.txt", "abcjjiia");
  const std::string prompts = folder_.write("prompts.txt", kBegin + "j\nab\n");
  for (const std::string type : {"int8", "int4"}) {
    const std::string file = folder_.file(type + ".kv");
    const std::vector<std::string> channel = {"--kv-type",     type, "--kv-keys", "channel",
                                              "--page-tokens", "8"};
    const auto run = [&](std::vector<std::string> how) {
      how.insert(how.end(), channel.begin(), channel.end());
      return generate(how);
    };
    for (const bool by_text : {true, false}) {
      std::vector<std::string> save = {"--prompt", kBegin, "--save-cache", file};
      if (by_text) save.insert(save.end(), {"--kv-text", text});
      const json made = run(save);
      const json loaded = run({"--prompt", kBegin, "--load-cache", file});
      EXPECT_EQ(loaded["ids"], made["ids"]);
      EXPECT_EQ(loaded["cache"]["loaded_tokens"], 16);
      // Another prompt's answer is that of these frames, however it came to them.
      const std::string copy = folder_.file("copy.kv");
      const json other =
          run({"--prompt", kBegin + "j", "--load-cache", file, "--save-cache", copy});
      if (by_text) {
        EXPECT_EQ(other["ids"],
                  run({"--prompt", kBegin + "j", "--kv-text", text, "--save-cache", copy})["ids"]);
      }
      for (const std::string& from : {file, copy}) {
        const json many = run({"--prompts", prompts, "--load-cache", from});
        EXPECT_EQ(many["answers"][0]["ids"], other["ids"]);
        EXPECT_EQ(many["cache"]["shared_tokens"], 16);
      }
    }
    const std::string serves = " (a file serves the model, --weights,";
    const auto refused = [&](const std::vector<std::string>& how, const std::string& why) {
      const std::string said = refusal(file, how);
      EXPECT_NE(said.find(file + why), std::string::npos) << said;
    };
    refused({"--kv-type", type, "--kv-keys", "channel", "--kv-text", text},
            ": was saved with channels calibrated on another text than this run's" + serves);
    refused({"--kv-type", type}, ": was saved with --kv-keys channel" + serves);
    const std::string plain = folder_.file("plain.kv");
    generate({"--prompt", kBegin, "--kv-type", type, "--page-tokens", "8", "--save-cache", plain});
    const std::string said = refusal(plain, {"--kv-type", type, "--kv-keys", "channel"});
    EXPECT_NE(said.find(plain + ": was saved without --kv-keys channel"), std::string::npos)
        << said;
    EXPECT_NE(refusal(plain, {"--kv-type", type, "--kv-keys", "channel", "--kv-text", text})
                  .find(plain + ": was saved without --kv-keys channel" + serves),
              std::string::npos);
  }
}

// What another program has put beside the rows is no other way to hold them.
TEST_F(GenerateCache, NotesThatAreNoFramesAreSaidToBeNone) {
  const std::string file = saved();
  const CacheFileInfo info = load_cache_file_info(file);
  PagedCache cache({.pages = 8,
                    .layers = info.layers,
                    .kv_heads = info.kv_heads,
                    .head_dim = info.head_dim,
                    .value_dim = info.value_dim,
                    .type = info.type});
  std::vector<std::int64_t> sequences;
  ASSERT_EQ(load_sequences(file, info.fingerprint, cache, sequences), PagedCache::Status::ok);
  const std::string noted = folder_.file("noted.kv");
  save_sequences(noted, info.fingerprint, cache, sequences, std::vector<std::byte>(5));
  EXPECT_NE(refusal(noted).find(noted + ": has notes that are no frames\n"), std::string::npos)
      << refusal(noted);
}

TEST_F(GenerateCache, TheTypeThatIsTakenAnywayMayBeNamed) {
  const std::string file = saved();
  const json made = generate(
      {"--prompt", kBegin, "--kv-type", "f32", "--page-tokens", "8", "--load-cache", file});
  EXPECT_EQ(made["cache"]["loaded_tokens"], 16);
  const std::string said = refusal(file, {"--kv-type", "bf16"});
  EXPECT_NE(said.find(file + ": was saved with --kv-type f32, this run has bf16"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("that it was saved with)"), std::string::npos) << said;
}

TEST_F(GenerateCache, FilesOfAnotherModelAreRefused) {
  const std::string file = saved();
  const auto other = [&](const std::string& what, const std::string& said) {
    EXPECT_NE(said.find(file + ": was saved with " + what + " (a file"), std::string::npos) << said;
    EXPECT_NE(said.find("that it was saved with)"), std::string::npos) << said;
  };
  other("--weights f32, this run has bf16", refusal(file, {"--weights", "bf16"}));
  const std::string isa = isa_name(resolve_isa(Isa::automatic));
  if (isa != "portable") {
    other("--isa " + isa + ", this run has portable", refusal(file, {"--isa", "portable"}));
    other("--weights f32 and --isa " + isa + ", this run has bf16 and portable",
          refusal(file, {"--weights", "bf16", "--isa", "portable"}));
  }
  const ScratchDirectory changed;
  other("other weights than the model's",
        refusal(file, {}, test::tiny_llama_with(changed, 3, 0x3f80)));
  const auto with_config = [&](const char* from, const char* to) {
    const ScratchDirectory folder;
    const std::string model = test::tiny_llama(folder);
    std::string config = ScratchDirectory::read(folder.file("config.json"));
    const std::size_t at = config.find(from);
    EXPECT_NE(at, std::string::npos);
    folder.write("config.json", config.replace(at, std::string(from).size(), to));
    return refusal(file, {}, model);
  };
  other("another model, or another configuration of this one",
        with_config("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05"));
  other("other rotations of positions (RoPE) than the model's configuration says",
        with_config("\"rope_theta\": 100.0", "\"rope_theta\": 200.0"));
}

TEST_F(GenerateCache, RefusesWhatIsNoSuchFile) {
  const std::string file = saved();
  EXPECT_NE(refusal(folder_.file("nowhere.kv")).find("nowhere.kv: cannot be read"),
            std::string::npos);
  const std::string bytes = ScratchDirectory::read(file);
  const std::string part = folder_.write("part.kv", bytes.substr(0, bytes.size() - 9));
  EXPECT_NE(refusal(part).find("part.kv: is damaged or incomplete"), std::string::npos);
  EXPECT_EQ(refusal(part).find("that it was saved with)"), std::string::npos);
  EXPECT_NE(
      refusal(folder_.file("config.json")).find("config.json: is not a file of saved sequences"),
      std::string::npos);
}

// Rows of the context in float32 take more than those of this run's type.
TEST_F(GenerateCache, AFileOfALargerTypeIsOfAnotherType) {
  const std::string all = "abcdefgijabcdefgijabcdefgijabcdefgijabcdefgijabcdefgijabcdefgija";
  const std::string file = folder_.file("all.kv");
  generate({"--prompt", all, "--page-tokens", "8", "--max-tokens", "1", "--save-cache", file});
  const std::string said = refusal(file, {"--kv-type", "int4"});
  EXPECT_NE(said.find(file + ": was saved with --kv-type f32, this run has int4"),
            std::string::npos)
      << said;
}

// The file is a hole: a pool of its size, or its bytes, would not fit into any memory.
TEST_F(GenerateCache, AFileLargerThanTheContextTakesNoMemory) {
  const std::string file = saved();
  std::filesystem::resize_file(file, std::uintmax_t{1} << 36);
  EXPECT_NE(refusal(file).find("begin.kv: has 68719476736 bytes, expected at most "),
            std::string::npos);
  // One of the whole context is not too large.
  const std::string all = "abcdefgijabcdefgijabcdefgijabcdefgijabcdefgijabcdefgijabcdefgija";
  const std::vector<std::string> run = {"--prompt", all, "--page-tokens", "8", "--max-tokens", "1"};
  const auto with = [&](const char* option) {
    std::vector<std::string> more = run;
    more.insert(more.end(), {option, folder_.file("all.kv")});
    return generate(more)["cache"];
  };
  EXPECT_EQ(with("--save-cache")["saved_tokens"], 64);
  EXPECT_EQ(with("--load-cache")["loaded_tokens"], 56);
}

TEST_F(GenerateCache, OptionsThatMakeNoSense) {
  const std::string prompts = folder_.write("prompts.txt", "ab\n");
  const auto refused = [&](const std::vector<std::string>& more, int status, const char* why) {
    test::expect_refused(arguments(model_, more), status, why);
  };
  refused({"--prompts", prompts, "--save-cache", "x.kv"}, cli::kBadUsage,
          "--save-cache needs --prompt or --file");
  refused({"--prompt", "a", "--page-tokens", "8"}, cli::kBadUsage,
          "--page-tokens needs --prompts, --save-cache or --load-cache");
  refused({"--prompt", "a", "--save-cache", "/nowhere/x.kv"}, cli::kFailure,
          "/nowhere/x.kv: cannot be written");
}

// The file may be written to when the run begins, and not when there is something to write.
TEST_F(GenerateCache, AFileThatCannotBeWrittenIsNamed) {
  const std::string file = folder_.file("large.kv");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few{100, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  const Outcome made = test::run_program(
      arguments(model_, {"--prompt", kBegin, "--save-cache", file, "--page-tokens", "8"}));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_TRUE(made.err.starts_with("polyhead: " + file + ": cannot be written: ")) << made.err;
}

// A page has one shape for all layers. The model has no tokenizer: nothing is read but its sizes.
TEST_F(GenerateCache, LayersThatDifferAreRefusedBeforeTheModelIsMade) {
  test::GgufBuilder unlike =
      test::tiny_gguf(models::Architecture::llama, [](models::ExpectedTensor& tensor) {
        const bool of_keys = tensor.name.starts_with("blk.1.attn_k.");
        if (of_keys || tensor.name.starts_with("blk.1.attn_v.")) tensor.shape[0] = 16;
      });
  unlike.remove("llama.attention.head_count_kv");
  unlike.list("llama.attention.head_count_kv", test::GgufBuilder::u32, 2,
              test::raw(2u) + test::raw(4u));
  const std::string model = folder_.write("unlike.gguf", unlike.build());
  const std::string prompts = folder_.write("prompts.txt", "ab\n");
  for (const std::vector<std::string>& how : std::vector<std::vector<std::string>>{
           {"--prompts", prompts},
           {"--save-cache", folder_.file("x.kv"), "--prompt", "a"},
           {"--load-cache", prompts, "--prompt", "a"}}) {
    test::expect_refused(arguments(model, how), cli::kFailure,
                         std::string(model).append(": ").append(how.front()) +
                             " needs layers alike: layer 1 has 4 KV heads (keys of 4, values of "
                             "4), expected those of layer 0, 2 KV heads (keys of 4, values of 4)");
  }
}

TEST_F(GenerateCache, SaysWhereNothingFillsAPage) {
  const std::string file = folder_.file("none.kv");
  const Outcome made =
      test::run_program(arguments(model_, {"--prompt", "ab", "--save-cache", file}));
  EXPECT_EQ(made.status, cli::kSuccess);
  EXPECT_NE(made.err.find(
                "nothing saved: prompt and answer, less its last token, fill no page of 64 tokens"),
            std::string::npos)
      << made.err;
  const Outcome listed =
      test::run_program(arguments(model_, {"--prompt", "ab", "--save-cache", file, "--json"}));
  EXPECT_NE(listed.err.find("nothing saved"), std::string::npos) << listed.err;
  EXPECT_FALSE(std::filesystem::exists(file));
}

// Windowed layers keep all pages in a pool.
TEST(GenerateCacheModels, RealModelsSayTheSame) {
  for (const char* model : {"smollm2", "gemma3"}) {
    if (test::fetched_model(model).empty()) GTEST_SKIP() << "scripts/get-model " << model;
    const ScratchDirectory folder;
    const std::string file = folder.file("sea.kv");
    const std::string prompt = "The sea was calm, and nothing moved. The keeper said that it";
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {"generate", model, "--prompt", prompt, "--max-tokens", "4"});
      return test::run_program_json(more);
    };
    const json plain = run({});
    EXPECT_EQ(run({"--save-cache", file, "--page-tokens", "8"})["ids"], plain["ids"]);
    const json loaded = run({"--load-cache", file, "--page-tokens", "8"});
    EXPECT_EQ(loaded["ids"], plain["ids"]);
    EXPECT_EQ(loaded["cache"]["loaded_tokens"], 8);
  }
}

}  // namespace
}  // namespace polyhead
