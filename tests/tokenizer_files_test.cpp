// Tokenizers from GGUF metadata and from Hugging Face folders: what is read, what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/gguf_builder.hpp"
#include "support/json.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::FileError;
using models::SpacePrefix;
using models::Tokenizer;
using models::TokenizerKind;
using models::TokenizerSpec;
using models::TokenKind;
using nlohmann::json;
using test::GgufBuilder;
using test::ScratchDirectory;
using Ids = std::vector<std::int32_t>;

std::string texts(const std::vector<std::string>& all) {
  std::string bytes;
  for (const std::string& one : all) bytes += GgufBuilder::text(one);
  return bytes;
}

template <class T>
std::string numbers(const std::vector<T>& all) {
  std::string bytes;
  for (const T one : all) bytes += test::raw(one);
  return bytes;
}

/// A file with a vocabulary of `pieces`, all normal but those in `kinds`.
GgufBuilder gguf(const std::string& model, const std::vector<std::string>& pieces,
                 const std::vector<std::int32_t>& kinds) {
  GgufBuilder builder;
  builder.set("tokenizer.ggml.model", model)
      .list("tokenizer.ggml.tokens", GgufBuilder::string, pieces.size(), texts(pieces))
      .list("tokenizer.ggml.token_type", GgufBuilder::i32, kinds.size(), numbers(kinds));
  return builder;
}

TokenizerSpec read(const GgufBuilder& builder) {
  const ScratchDirectory folder;
  return models::read_tokenizer(folder.write("tiny.gguf", builder.build()));
}

GgufBuilder sentence_piece() {
  return gguf("llama",
              {"<unk>", "<s>", "</s>", "<0x41>", "a", "\xe2\x96\x81",
               "\xe2\x96\x81"
               "a"},
              {2, 3, 3, 6, 1, 1, 1})
      .list("tokenizer.ggml.scores", GgufBuilder::f32, 7, numbers<float>({0, 0, 0, 0, -2, -3, -1}))
      .set("tokenizer.ggml.bos_token_id", 1u)
      .set("tokenizer.ggml.eos_token_id", 2u)
      .set("tokenizer.ggml.unknown_token_id", 0u);
}

TEST(TokenizerFromGguf, SentencePieceHasASpaceAndBosByDefault) {
  const Tokenizer tokenizer(read(sentence_piece()));
  EXPECT_EQ(tokenizer.encode("aA a"), (Ids{1, 6, 3, 6}));
  EXPECT_EQ(tokenizer.encode("a</s>a", {false, true}), (Ids{6, 2, 6}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 6, 3, 6}), "aA a");
  EXPECT_TRUE(tokenizer.ends_answer(2));
  const Tokenizer plain(read(sentence_piece()
                                 .set("tokenizer.ggml.add_space_prefix", false)
                                 .set("tokenizer.ggml.add_bos_token", false)
                                 .set("tokenizer.ggml.add_eos_token", true)));
  EXPECT_EQ(plain.encode("a a"), (Ids{4, 6, 2}));
}

GgufBuilder byte_level(const std::string& split) {
  return gguf("gpt2", {"a", "b", "ab", "\xc4\xa0", "<|im_end|>", "1", "11"}, {1, 1, 1, 1, 3, 1, 1})
      .list("tokenizer.ggml.merges", GgufBuilder::string, 2, texts({"a b", "1 1"}))
      .set("tokenizer.ggml.pre", split);
}

TEST(TokenizerFromGguf, ByteLevelBpeGoesBySplit) {
  EXPECT_EQ(Tokenizer(read(byte_level("gpt-2"))).encode("11 ab"), (Ids{6, 3, 2}));
  EXPECT_EQ(Tokenizer(read(byte_level("smollm"))).encode("11 ab"), (Ids{5, 5, 3, 2}));
  const TokenizerSpec qwen = read(byte_level("qwen2"));
  EXPECT_TRUE(qwen.compose);
  EXPECT_EQ(qwen.end_of_turn, Ids{4});
  const TokenizerSpec llama = read(byte_level("llama-bpe").set("tokenizer.ggml.bos_token_id", 4u));
  EXPECT_TRUE(llama.whole_words);
  EXPECT_TRUE(llama.add_bos);
  EXPECT_FALSE(qwen.add_bos);
}

TEST(TokenizerFromGguf, WordPieceIsSpeltAsBertDoes) {
  const std::string begins = "\xe2\x96\x81";
  const TokenizerSpec spec =
      read(gguf("bert", {"[PAD]", "[UNK]", "[CLS]", "[SEP]", begins + "go", "ing", begins + "["},
                {3, 2, 3, 3, 1, 1, 1})
               .set("tokenizer.ggml.unknown_token_id", 1u)
               .set("tokenizer.ggml.cls_token_id", 2u)
               .set("tokenizer.ggml.seperator_token_id", 3u));
  EXPECT_EQ(spec.pieces,
            (std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "go", "##ing", "["}));
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("Going G\xc3\xb3[x"), (Ids{2, 4, 5, 4, 6, 1, 3}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 4, 5, 4, 3}), "going go");
}

TEST(TokenizerFromGguf, WordPieceGoesByItsKeysBeforeItsVocabulary) {
  const auto spec = [](std::optional<bool> lower, std::optional<bool> strip, const char* piece) {
    GgufBuilder builder = gguf("bert", {"[UNK]", piece}, {2, 1});
    if (lower) builder.set("tokenizer.ggml.normalizer.lowercase", *lower);
    if (strip) builder.set("tokenizer.ggml.normalizer.strip_accents", *strip);
    return read(builder);
  };
  const auto is = [](const TokenizerSpec& read, bool lower, bool strip) {
    return read.lowercase == lower && read.strip_accents == strip;
  };
  EXPECT_TRUE(is(spec({}, {}, "\xe2\x96\x81go"), true, true));
  EXPECT_TRUE(is(spec({}, {}, "\xe2\x96\x81G"), false, false));
  EXPECT_TRUE(is(spec(false, {}, "\xe2\x96\x81go"), false, false));
  EXPECT_TRUE(is(spec(true, false, "\xe2\x96\x81G"), true, false));
  EXPECT_TRUE(is(spec({}, false, "\xe2\x96\x81go"), true, false));
}

template <class Read>
void expect_refused(const Read& read_it, const std::string& complaint) {
  try {
    Tokenizer tokenizer(read_it());
    ADD_FAILURE() << "was believed, where '" << complaint << "' was expected";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find(complaint), std::string::npos) << error.what();
  }
}

TEST(TokenizerFromGguf, RefusesLies) {
  const auto refused = [](const GgufBuilder& builder, const std::string& complaint) {
    expect_refused([&] { return read(builder); }, complaint);
  };
  refused(GgufBuilder().set("tokenizer.ggml.model", std::string("gpt2")), "tokens is missing");
  refused(gguf("t5", {"a"}, {1}), "'t5' (expected gpt2, llama or bert)");
  refused(gguf("gpt2", {"a"}, {1}), "tokenizer.ggml.pre is missing");
  refused(byte_level("\x1b[2Jnew"), "tokenizer.ggml.pre is '\\x1b[2Jnew'");
  refused(gguf("llama", {"a"}, {1}), "scores is missing");
  refused(gguf("llama", {"a", "b"}, {1}), "1 token types for 2 tokens");
  refused(gguf("llama", {"a"}, {7}), "token_type holds 7");
  refused(sentence_piece().replace("tokenizer.ggml.bos_token_id", 7u), "bos_token_id is 7 of 7");
  refused(sentence_piece().replace("tokenizer.ggml.eos_token_id", 4000000000u), "eos_token_id");
  refused(sentence_piece().set("tokenizer.ggml.eot_token_id", 99u), "eot_token_id is 99");
  refused(gguf("gpt2", {"a", "a"}, {1, 1}).set("tokenizer.ggml.pre", std::string("gpt-2")),
          "are both 'a'");
}

std::string tokenizer_json(const std::string& name) {
  return ScratchDirectory::read(POLYHEAD_TEST_DATA "/tokenizers/" + name + ".json");
}

TEST(TokenizerFromFolder, ReadsVocabTxt) {
  const ScratchDirectory folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\r\n[CLS]\n[SEP]\nGo\ngo\n##ing\n!");
  const TokenizerSpec spec = models::tokenizer_from_folder(folder.file(""));
  EXPECT_EQ(Tokenizer(spec).encode("GOing!"), (Ids{2, 5, 6, 7, 3}));
  EXPECT_EQ(Tokenizer(spec).encode("[SEP]", {false, true}), Ids{3});
  folder.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(
      Tokenizer(models::read_tokenizer(folder.write("model.safetensors", ""))).encode("Going"),
      (Ids{2, 4, 6, 3}));
  folder.write("tokenizer_config.json", R"({"tokenize_chinese_chars": false})");
  expect_refused([&] { return models::tokenizer_from_folder(folder.file("")); },
                 "tokenize_chinese_chars");
}

TEST(TokenizerFromFolder, ReadsVocabAndMerges) {
  const ScratchDirectory folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3, "1": 4, "11": 5})");
  folder.write("merges.txt", "#version: 0.2\na b\n1 1\n");
  folder.write("config.json", R"({"model_type": "gpt2"})");
  const Tokenizer gpt2(models::tokenizer_from_folder(folder.file("")));
  EXPECT_EQ(gpt2.encode("ab11<|endoftext|>", {true, true}), (Ids{2, 5, 3}));
  EXPECT_TRUE(gpt2.ends_answer(3));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer",
      "eos_token": "<|im_end|>", "chat_template": "{{ '<|im_start|>' }}",
      "added_tokens_decoder": {"6": {"content": "<|im_end|>", "special": true},
                               "7": {"content": "<tool>", "special": false}}})");
  const Tokenizer qwen(models::tokenizer_from_folder(folder.file("")));
  EXPECT_EQ(qwen.encode("ab11<tool><|im_end|>", {true, true}), (Ids{2, 4, 4, 7, 6}));
  EXPECT_TRUE(qwen.ends_answer(6));
  EXPECT_EQ(qwen.spec().chat_template, "{{ '<|im_start|>' }}");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "BloomTokenizer"})");
  expect_refused([&] { return models::tokenizer_from_folder(folder.file("")); }, "BloomTokenizer");
}

TEST(TokenizerFromFolder, ReadsWhatLiesBesideTokenizerJson) {
  const ScratchDirectory folder;
  folder.write("tokenizer.json", tokenizer_json("llama2"));
  folder.write("tokenizer_config.json",
               R"({"eos_token": {"content": "</s>"}, "chat_template": [{"name": "tool", "template":
                   "no"}, {"name": "default", "template": "yes"}]})");
  folder.write("generation_config.json", R"({"eos_token_id": [2, 5, 100000]})");
  const TokenizerSpec spec = models::tokenizer_from_folder(folder.file(""));
  EXPECT_EQ(spec.bos, 1);
  EXPECT_TRUE(spec.add_bos);
  EXPECT_EQ(spec.eos, 2);
  EXPECT_EQ(spec.end_of_turn, Ids{5});
  EXPECT_EQ(spec.chat_template, "yes");
  EXPECT_EQ(spec.space_prefix, SpacePrefix::every);
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(models::tokenizer_from_folder(folder.file("")).chat_template, "file");
}

TEST(TokenizerFromFolder, RefusesAFolderWithoutOne) {
  const ScratchDirectory folder;
  expect_refused([&] { return models::tokenizer_from_folder(folder.file("")); },
                 "holds no tokenizer.json");
}

struct Change {
  const char* name;
  const char* base;
  std::function<void(json&)> make;
  const char* complaint;
};

TEST(TokenizerFromJson, RefusesWhatItDoesNotKnow) {
  const std::vector<Change> changes{
      {"pattern", "llama3",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a*)*b"; },
       "is none of the known ones"},
      {"normalizer", "gpt2",
       [](json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       },
       "NFKC"},
      {"prefix", "gpt2", [](json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
       "none of the known"},
      {"bert", "bert", [](json& j) { j["normalizer"]["clean_text"] = false; }, "none of the known"},
      {"model", "gpt2", [](json& j) { j["model"]["type"] = "Unigram"; }, "Unigram"},
      {"no model", "gpt2", [](json& j) { j.erase("model"); }, "model.type is 'null'"},
      {"list", "gpt2", [](json& j) { j = json::array({j}); }, "model.type is 'null'"},
      {"vocabulary", "gpt2", [](json& j) { j["model"]["vocab"] = 5; }, "vocabulary is not a table"},
      {"dropout", "gpt2", [](json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {"suffix", "gpt2", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "suffix"},
      {"merges", "gpt2", [](json& j) { j["model"]["merges"] = "a b"; }, "not a list"},
      {"merge", "gpt2", [](json& j) { j["model"]["merges"].push_back(5); }, "neither"},
      {"unknown merge", "gpt2",
       [](json& j) {
         j["model"]["merges"].push_back({"q", "q~"});
       },
       "is not two pieces"},
      {"hole", "gpt2", [](json& j) { j["model"]["vocab"].erase("a"); }, "each once"},
      {"id twice", "gpt2", [](json& j) { j["model"]["vocab"]["a"] = 9; }, "both have id 9"},
      {"negative", "gpt2", [](json& j) { j["model"]["vocab"]["a"] = -1; }, "is -1"},
      {"huge", "gpt2", [](json& j) { j["model"]["vocab"]["a"] = 4000000000000000000u; },
       "each once"},
      {"text id", "gpt2", [](json& j) { j["model"]["vocab"]["a"] = "1"; }, "each once"},
      {"lstrip", "gpt2", [](json& j) { j["added_tokens"][0]["lstrip"] = true; }, "lstrip"},
      {"added id", "gpt2", [](json& j) { j["added_tokens"][0]["id"] = 7; }, "two ids"},
      {"no content", "gpt2", [](json& j) { j["added_tokens"][0].erase("content"); }, "no content"},
      {"template", "llama2",
       [](json& j) { j["post_processor"]["single"][0]["SpecialToken"]["id"] = "<nobody>"; },
       "post_processor puts"},
      {"processor", "llama2", [](json& j) { j["post_processor"]["type"] = "RobertaProcessing"; },
       "is not known"},
      {"word", "bert", [](json& j) { j["model"]["max_input_chars_per_word"] = 1 << 30; },
       "longest word"}};
  for (const Change& change : changes) {
    json file = test::json_of(tokenizer_json(change.base));
    change.make(file);
    SCOPED_TRACE(change.name);
    expect_refused([&] { return models::tokenizer_from_json("t.json", file.dump()); },
                   change.complaint);
  }
  expect_refused([] { return models::tokenizer_from_json("t.json", "{\"a\""); }, "not JSON");
  expect_refused([] { return models::tokenizer_from_json("t.json", std::string(100000, '[')); },
                 "nested too deeply");
  expect_refused([] { return models::tokenizer_from_json("t.json", R"({"a": 1, "a": 2})"); },
                 "stands twice");
}

}  // namespace
}  // namespace polyhead
