// What the settings of a tokenizer's files do to ids: those of Hugging Face's tokenizers
// (tests/make/small_tokenizers.py), or a refusal by name.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/effort.h"
#include "support/json.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::FileError;
using models::Tokenizer;
using nlohmann::json;
using test::ScratchDirectory;
using Ids = std::vector<std::int32_t>;

const std::string kFolder = POLYHEAD_TEST_DATA "/tokenizers/";

json base(const std::string& name) { return test::json_file(kFolder + name + ".json"); }

Tokenizer from_json(const json& file) {
  return Tokenizer(models::tokenizer_from_json("t.json", file.dump()));
}

Tokenizer from_folder(const ScratchDirectory& folder) {
  return Tokenizer(models::tokenizer_from_folder(folder.file("")));
}

template <class Make>
void expect_refused(const Make& make, const std::string& file, const std::string& complaint) {
  try {
    make();
    ADD_FAILURE() << "was believed, where '" << complaint << "' was expected";
  } catch (const FileError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(file + ": tokenizer: "), std::string::npos) << text;
    EXPECT_NE(text.find(complaint), std::string::npos) << text;
  }
}

TEST(TokenizerSettings, GiveTheIds) {
  const json all = base("settings");
  ASSERT_GT(all.size(), 15u);
  for (const json& one : all) {
    SCOPED_TRACE(one["name"]);
    const Tokenizer tokenizer = from_json(one["tokenizer"]);
    for (const json& text_and_ids : one["cases"]) {
      EXPECT_EQ(tokenizer.encode(text_and_ids[0].get<std::string>(), {true, true}),
                text_and_ids[1].get<Ids>())
          << text_and_ids[0];
    }
  }
}

json added(std::int32_t id, const char* content, bool normalized, bool special) {
  return {{"id", id}, {"content", content}, {"normalized", normalized}, {"special", special}};
}

/// GPT-2's <|endoftext|> says "normalized", and is text unless it is asked for.
TEST(TokenizerSettings, NormalizedTokensAreSpecialAllTheSame) {
  json file = base("gpt2");
  file["added_tokens"].push_back(added(481, "<|endoftext|>", true, true));
  const Tokenizer tokenizer = from_json(file);
  EXPECT_EQ(tokenizer.encode("<|endoftext|>", {true, true}), Ids{481});
  EXPECT_GT(tokenizer.encode("<|endoftext|>", {true, false}).size(), 1u);
  EXPECT_TRUE(tokenizer.is_control(481));
  EXPECT_TRUE(tokenizer.ends_answer(481));
}

TEST(TokenizerSettings, NormalizedTokensDifferOnceTheyAreNormalised) {
  const auto with = [](const char* one, const char* other) {
    json file = base("bert");
    file["added_tokens"].push_back(added(480, one, true, false));
    file["added_tokens"].push_back(added(481, other, true, false));
    return from_json(file);
  };
  expect_refused([&] { with("Foo", "foo"); }, "t.json",
                 "'foo' and 'Foo' are normalised to the same");
  expect_refused([&] { with("foo", "\x01"); }, "t.json", "'\\x01' is normalised to nothing");
  EXPECT_EQ(with("Foo", "bar").encode("FOObar", {false, false}), (Ids{480, 481}));
}

TEST(TokenizerSettings, TheUnknownTokenOfBytesIsAPieceWhereItIsNeeded) {
  json file = base("smollm");  // lacks bytes
  file["model"]["unk_token"] = "<nobody>";
  expect_refused([&] { from_json(file); }, "t.json", "model.unk_token is '<nobody>'");
  file = base("gpt2");  // has them all
  file["model"]["unk_token"] = "<nobody>";
  EXPECT_EQ(from_json(file).encode("\x01 a"), from_json(base("gpt2")).encode("\x01 a"));
}

TEST(TokenizerSettings, ByteFallbackHasAllBytes) {
  json file = base("llama2");
  json& vocabulary = file["model"]["vocab"];
  vocabulary["<0x4>"] = vocabulary["<0x41>"];
  vocabulary.erase("<0x41>");
  expect_refused([&] { from_json(file); }, "t.json", "there is no piece '<0x41>'");
}

TEST(TokenizerSettings, ATemplateHasTheTextOnceAndTheVocabularysIds) {
  const auto changed = [](const std::function<void(json&)>& change) {
    json file = base("bert");
    change(file["post_processor"]);
    return [file] { from_json(file); };
  };
  expect_refused(changed([](json& p) { p["single"].push_back(p["single"][1]); }), "t.json",
                 "has the text 2 times in '[");
  expect_refused(changed([](json& p) { p["single"].erase(1); }), "t.json", "has the text 0 times");
  expect_refused(changed([](json& p) { p["special_tokens"]["[CLS]"]["ids"] = {0}; }), "t.json",
                 "the ids '[0]' (expected [2], as in the vocabulary)");
  expect_refused(changed([](json& p) {
                   p["special_tokens"]["[SEP]"]["ids"] = {3, 3};
                 }),
                 "t.json", "(expected [3], as in the vocabulary)");
  expect_refused(changed([](json& p) { p.erase("special_tokens"); }), "t.json", "ids 'null'");
}

TEST(TokenizerSettings, ASecondTemplateIsRefused) {
  json file = base("bert");
  json& processor = file["post_processor"];
  processor = {{"type", "Sequence"}, {"processors", {processor, processor}}};
  expect_refused([&] { from_json(file); }, "t.json",
                 "post_processor has two steps TemplateProcessing (expected one)");
}

TEST(TokenizerSettings, SettingsOfAnotherTypeAreRefused) {
  struct Case {
    const char* base;
    const char* pointer;
    json value;
    const char* complaint;
  };
  const std::vector<Case> cases{
      {"llama2", "/model/byte_fallback", "true",
       "model.byte_fallback is '\"true\"' (expected true"},
      {"llama2", "/model/byte_fallback", 1, "model.byte_fallback is '1' (expected true or false)"},
      {"gpt2", "/model/byte_fallback", 1, "model.byte_fallback is '1'"},
      {"llama3", "/model/ignore_merges", "true", "model.ignore_merges is"},
      {"llama2", "/model/fuse_unk", 1, "model.fuse_unk is '1'"},
      {"llama2", "/model/unk_token", 0, "model.unk_token is '0' (expected a text)"},
      {"bert", "/model/unk_token", 0, "model.unk_token is '0' (expected a text)"},
      {"gpt2", "/added_tokens", json::object(), "added_tokens is '{}' (expected a list)"},
      {"gpt2", "/added_tokens", 5, "added_tokens is '5' (expected a list)"},
      {"bert", "/added_tokens/0/special", "true",
       ": special is '\"true\"' (expected true or false)"},
      {"bert", "/added_tokens/0/normalized", 1, ": normalized is '1' (expected true or false)"},
      {"bert", "/normalizer/strip_accents", 5, "normalizer.strip_accents is '5' (expected true"}};
  for (const Case& one : cases) {
    json file = base(one.base);
    file[json::json_pointer(one.pointer)] = one.value;
    expect_refused([&] { from_json(file); }, "t.json", one.complaint);
    file[json::json_pointer(one.pointer)] = nullptr;
    if (one.base == std::string("bert")) continue;  // needs an unknown token
    EXPECT_NO_THROW(from_json(file)) << one.pointer;
  }
}

/// Hugging Face's model sees its own vocabulary alone.
TEST(TokenizerSettings, TheAlgorithmsDoNotProduceAddedTokens) {
  json file = base("bert");
  file["added_tokens"].push_back(added(480, "qzq", false, true));
  file["added_tokens"].push_back(added(481, "##zq", false, true));
  const Tokenizer tokenizer = from_json(file);
  const Ids plain = from_json(base("bert")).encode("qzq xzq", {false, false});
  EXPECT_EQ(tokenizer.encode("qzq xzq", {false, false}), plain);
  EXPECT_EQ(tokenizer.encode("qzq", {false, true}), Ids{480});
}

TEST(TokenizerSettings, AnAddedTokenIsNoPieceOfAByteToo) {
  json file = base("llama2");
  const auto id = file["model"]["vocab"]["<0x41>"].get<std::int32_t>();
  file["added_tokens"].push_back(added(id, "<0x41>", false, false));
  expect_refused([&] { from_json(file); }, "t.json",
                 "the added token '<0x41>' is the piece of a byte, which is not supported");
}

TEST(TokenizerSettings, ModelsOfAnotherTypeAreNamed) {
  const json unigram{{"type", "Unigram"}, {"vocab", {{"<unk>", 0.0}, {"a", -1.0}}}};
  expect_refused(
      [&] {
        from_json({{"model", unigram}});
      },
      "t.json", "model.type is 'Unigram' (expected BPE or WordPiece)");
}

class VocabAndMerges : public testing::Test {
 protected:
  VocabAndMerges() {
    folder_.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3, "<s>": 4})");
    folder_.write("merges.txt", "#version: 0.2\na b\n");
    folder_.write("config.json", R"({"model_type": "gpt2"})");
  }
  Tokenizer open(const json& config) const {
    folder_.write("tokenizer_config.json", config.dump());
    return from_folder(folder_);
  }
  const ScratchDirectory folder_;
};

TEST_F(VocabAndMerges, PutBosBeforeATextWhereTheConfigurationSaysSo) {
  EXPECT_EQ(open({{"add_bos_token", false}}).encode("ab"), Ids{2});
  EXPECT_EQ(open({{"add_bos_token", true}}).encode("ab"), (Ids{3, 2}));
  const Tokenizer named =
      open({{"tokenizer_class", "GPT2Tokenizer"}, {"add_bos_token", true}, {"bos_token", "<s>"}});
  EXPECT_EQ(named.encode("ab"), (Ids{4, 2}));
  EXPECT_EQ(named.spec().eos, 3);
  EXPECT_EQ(open({{"tokenizer_class", "Qwen2Tokenizer"}, {"add_bos_token", false}}).encode("ab"),
            Ids{2});
}

TEST_F(VocabAndMerges, RefuseWhatElseWouldBeAdded) {
  for (const char* name : {"add_prefix_space", "add_eos_token"})
    expect_refused([&] { open({{name, true}}); }, "vocab.json", std::string(name) + " is true");
  expect_refused(
      [&] {
        open({{"tokenizer_class", "Qwen2Tokenizer"}, {"add_bos_token", true}});
      },
      "vocab.json", "add_bos_token is true");
}

TEST_F(VocabAndMerges, NameTheFileOfAMerge) {
  folder_.write("merges.txt", "a b\na z\n");
  expect_refused([&] { open(json::object()); }, "merges.txt", "merge 1, 'a z'");
}

TEST(VocabTxt, TakesItsSpecialTokensFromTheConfiguration) {
  const ScratchDirectory folder;
  folder.write("vocab.txt", "<pad>\n<unk>\n<s>\n</s>\na\nb\n##b\n");
  folder.write("tokenizer_config.json", R"({"unk_token": "<unk>", "sep_token": "</s>",
      "cls_token": {"content": "<s>"}, "pad_token": "<pad>"})");
  const Tokenizer tokenizer = from_folder(folder);
  EXPECT_EQ(tokenizer.encode("ab x"), (Ids{2, 4, 6, 1, 3}));
  EXPECT_EQ(tokenizer.encode("a</s>", {false, true}), (Ids{4, 3}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 4, 6, 1, 3}), "ab");
  EXPECT_EQ(tokenizer.spec().pad, 0);
  folder.write("tokenizer_config.json", R"({"unk_token": "<unk>", "cls_token": "<cls>"})");
  expect_refused([&] { from_folder(folder); }, "vocab.txt",
                 "cls_token is '<cls>' (expected a piece)");
}

/// Calls `use` with the file after each part of it was replaced in turn, to the depth of settings.
void replace_each(json& part, const json& by, const std::function<void()>& use) {
  const json was = part;
  part = by;
  use();
  part = was;
  if (!part.is_structured() || part.size() > 12) return;  // vocabularies and merges
  for (json& inside : part) replace_each(inside, by, use);
}

/// Nothing of the JSON library's own comes out, without a file's name.
TEST(TokenizerSettings, AnyFormIsReadOrRefusedWithTheFilesName) {
  int turn = 0;
  for (const char* name : {"bert", "llama2", "llama3", "gemma", "qwen2"}) {
    for (const char* by :
         {"null", "5", "true", "\"x\"", "[]", "{}", "[\"x\"]", "[5]", "{\"a\": 1}"}) {
      if (test::effort() == test::Effort::smoke && turn++ % 4 != 0) continue;
      json file = base(name);
      replace_each(file, test::json_of(by), [&] {
        try {
          from_json(file);
        } catch (const FileError& error) {
          EXPECT_EQ(std::string(error.what()).find("t.json: tokenizer: "), 0u) << error.what();
          EXPECT_EQ(std::string(error.what()).find("not the expected JSON"), std::string::npos)
              << error.what() << "\n"
              << by;
        }
      });
    }
  }
}

}  // namespace
}  // namespace polyhead
