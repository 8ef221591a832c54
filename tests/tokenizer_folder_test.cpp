// Which files of a folder a tokenizer is read from, and what they must agree on.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::FileError;
using models::Tokenizer;
using nlohmann::json;
using test::ScratchDirectory;
using Ids = std::vector<std::int32_t>;

Tokenizer open(const ScratchDirectory& folder, const std::string& name = "") {
  return Tokenizer(models::read_tokenizer(folder.file(name)));
}

std::string refusal(const ScratchDirectory& folder, const std::string& name = "") {
  return test::refusal_of<FileError>([&] { open(folder, name); });
}

void expect_refused(const ScratchDirectory& folder, const std::string& complaint,
                    const std::string& name = "") {
  EXPECT_NE(refusal(folder, name).find(complaint), std::string::npos) << refusal(folder, name);
}

class TokenizerVocabTxt : public testing::Test {
 protected:
  TokenizerVocabTxt() { folder_.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngo\n##ing\n"); }

  void configure(const json& config) const {
    folder_.write("tokenizer_config.json", config.dump());
  }

  const ScratchDirectory folder_;
};

TEST_F(TokenizerVocabTxt, IsBertsAlone) {
  for (const char* known : {"BertTokenizer", "BertTokenizerFast"}) {
    configure({{"tokenizer_class", known},
               {"word_tokenizer_type", "basic"},
               {"subword_tokenizer_type", "wordpiece"},
               {"do_basic_tokenize", true}});
    EXPECT_EQ(open(folder_).encode("going"), (Ids{2, 4, 5, 3}));
  }
  configure({{"tokenizer_class", "BertJapaneseTokenizer"}});
  expect_refused(folder_,
                 "vocab.txt: tokenizer: tokenizer_class is 'BertJapaneseTokenizer' "
                 "(expected BertTokenizer where there is no tokenizer.json)");
  configure({{"word_tokenizer_type", "mecab"}});
  expect_refused(folder_, "word_tokenizer_type is 'mecab' (expected basic");
  configure({{"subword_tokenizer_type", "character"}});
  expect_refused(folder_, "subword_tokenizer_type is 'character' (expected wordpiece");
  configure({{"do_basic_tokenize", false}});
  expect_refused(folder_, "do_basic_tokenize is false");
  configure({{"do_lower_case", "no"}});
  expect_refused(folder_, "tokenizer_config.json's do_lower_case is '\"no\"' (expected true");
  configure(json::object());
  folder_.write("config.json", R"({"tokenizer_class": "KoBertTokenizer"})");
  expect_refused(folder_, "tokenizer_class is 'KoBertTokenizer'");
}

TEST_F(TokenizerVocabTxt, HasAddedTokensBesideIt) {
  folder_.write("added_tokens.json", R"({"<new>": 6, "[X]": 7})");
  folder_.write("special_tokens_map.json", R"({"additional_special_tokens": ["[X]"]})");
  EXPECT_EQ(open(folder_).encode("go<new>going[X]", {true, true}), (Ids{2, 4, 6, 4, 5, 7, 3}));
  EXPECT_EQ(open(folder_).encode("<NEW>[X]"), (Ids{2, 6, 1, 1, 1, 3}));
  configure({{"added_tokens_decoder",
              {{"1", {{"content", "[UNK]"}, {"special", true}}},
               {"6", {{"content", "<old>"}, {"special", false}}}}}});
  EXPECT_EQ(open(folder_).encode("go<old>x"), (Ids{2, 4, 6, 1, 3}));
  configure({{"added_tokens_decoder", {{"9", {{"content", "<old>"}, {"special", false}}}}}});
  expect_refused(folder_, "the id of '<old>' is 9 (expected 0 to 6, each once)");
  configure(json::object());
  folder_.write("added_tokens.json", R"(["<new>"])");
  expect_refused(folder_, "added_tokens.json is not a table");
}

class TokenizerVocabJson : public testing::Test {
 protected:
  TokenizerVocabJson() {
    folder_.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "1": 3, "11": 4})");
    folder_.write("merges.txt", "a b\n1 1\n");
  }
  const ScratchDirectory folder_;
};

TEST_F(TokenizerVocabJson, GoesByTheConfiguration) {
  expect_refused(folder_, "vocab.json: tokenizer: whose it is no file says");
  folder_.write("config.json", R"({"model_type": "opt"})");
  expect_refused(folder_, "config.json's model_type is 'opt' (expected gpt2, qwen2 or qwen3");
  for (const char* type : {"qwen2", "qwen3"}) {
    folder_.write("config.json", json{{"model_type", type}}.dump());
    EXPECT_EQ(open(folder_).encode("11"), (Ids{3, 3}));
    EXPECT_TRUE(open(folder_).spec().compose);
  }
  folder_.write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_EQ(open(folder_).encode("11"), Ids{4});
  folder_.write("config.json", R"({"model_type": "gpt2", "tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_EQ(open(folder_).encode("11"), (Ids{3, 3}));
}

TEST_F(TokenizerVocabJson, HasAddedTokensBesideIt) {
  folder_.write("config.json", R"({"model_type": "gpt2"})");
  folder_.write("added_tokens.json", R"({"<new>": 5})");
  EXPECT_EQ(open(folder_).encode("ab<new>11"), (Ids{2, 5, 4}));
}

TEST_F(TokenizerVocabJson, OnlyFilesOfAModelStandForItsFolder) {
  folder_.write("config.json", R"({"model_type": "gpt2"})");
  for (const char* name : {"vocab.json", "merges.txt", "config.json"})
    EXPECT_EQ(open(folder_, name).encode("11"), Ids{4}) << name;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    expect_refused(folder_, std::string(name) + ": tokenizer: there is no such file", name);
    folder_.write(name, "");
    EXPECT_EQ(open(folder_, name).encode("11"), Ids{4}) << name;
  }
  expect_refused(folder_, "tokenizer.json: tokenizer: there is no such file", "tokenizer.json");
  folder_.write("notes.txt", "11");
  for (const char* name : {"notes.txt", "missing.json"}) {
    expect_refused(
        folder_,
        std::string(name) + ": tokenizer: is not a file of a model by its name (expected a folder",
        name);
  }
}

class TokenizerJsonFolder : public testing::Test {
 protected:
  void take(const char* name, const json& config) const {
    folder_.write("tokenizer.json", ScratchDirectory::read(POLYHEAD_TEST_DATA "/tokenizers/" +
                                                           std::string(name) + ".json"));
    folder_.write("tokenizer_config.json", config.dump());
  }
  const ScratchDirectory folder_;
};

TEST_F(TokenizerJsonFolder, TheConfigurationAgrees) {
  take("bert", {{"do_lower_case", true},
                {"strip_accents", nullptr},
                {"tokenize_chinese_chars", true},
                {"add_prefix_space", true}});
  EXPECT_NO_THROW(open(folder_));
  take("bert", {{"do_lower_case", false}});
  expect_refused(folder_,
                 "tokenizer.json: tokenizer: normalizer.lowercase is true, but "
                 "tokenizer_config.json's do_lower_case is false (expected the same)");
  take("bert", {{"do_lower_case", false}, {"tokenizer_class", "PreTrainedTokenizerFast"}});
  EXPECT_NO_THROW(open(folder_));
  take("bert_cased", {{"do_lower_case", false}});
  EXPECT_NO_THROW(open(folder_));
  take("bert_cased", {{"do_lower_case", true}});
  expect_refused(folder_, "normalizer.lowercase is false");
  take("bert", {{"strip_accents", false}});
  expect_refused(folder_, "normalizer.strip_accents is true");
  take("bert", {{"tokenize_chinese_chars", false}});
  expect_refused(folder_, "normalizer.handle_chinese_chars is true");
  take("gpt2", {{"add_prefix_space", true}});
  expect_refused(folder_, "pre_tokenizer.add_prefix_space is false");
  take("gpt2", {{"add_prefix_space", false}});
  EXPECT_NO_THROW(open(folder_));
  for (const char* name : {"llama2", "llama3", "qwen2"}) {
    take(name, {{"add_prefix_space", true}, {"do_lower_case", true}});
    EXPECT_NO_THROW(open(folder_)) << name;
  }
}

}  // namespace
}  // namespace polyhead
