// Every kind of tokenizer on a small vocabulary against Hugging Face's tokenizers
// (tests/make/small_tokenizers.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/json.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using models::Tokenizer;
using models::TokenizerKind;
using nlohmann::json;

const std::string kFolder = POLYHEAD_TEST_DATA "/tokenizers/";

json cases() { return test::json_file(kFolder + "cases.json"); }

Tokenizer open(const std::string& name) {
  const test::ScratchDirectory folder;
  folder.write("tokenizer.json", test::ScratchDirectory::read(kFolder + name + ".json"));
  return Tokenizer(models::tokenizer_from_folder(folder.file("")));
}

class SmallTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(SmallTokenizer, GivesTheIds) {
  const Tokenizer tokenizer = open(GetParam());
  const json all = cases();
  const json& expected = all[GetParam()];
  ASSERT_GT(expected.size(), 100u);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(all["texts"][i].get<std::string>(), {true, true}),
              expected[i].get<std::vector<std::int32_t>>())
        << all["texts"][i];
  }
}

TEST_P(SmallTokenizer, DecodesAlike) {
  const Tokenizer tokenizer = open(GetParam());
  const json all = cases();
  const json& expected = all[GetParam() + std::string(" decoded")];
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto text = expected[i].get<std::string>();
    if (text.find("\xef\xbf\xbd") != std::string::npos) continue;  // bytes that are not UTF-8
    EXPECT_EQ(tokenizer.decode(all[GetParam()][i].get<std::vector<std::int32_t>>()), text)
        << all["texts"][i];
  }
}

/// What cannot be Python strings: any bytes at all.
TEST_P(SmallTokenizer, TakesAnyBytes) {
  const Tokenizer tokenizer = open(GetParam());
  std::string text;
  for (int i = 0; i < 2048; ++i) text += static_cast<char>(i * i * 31 % 257 ^ i >> 3);
  const std::vector<std::int32_t> ids = tokenizer.encode(text, {false, false});
  for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer.size());
  const bool all_bytes = GetParam() == std::string("gpt2") || GetParam() == std::string("llama3") ||
                         tokenizer.spec().kind == TokenizerKind::sentence_piece;
  if (all_bytes) {
    EXPECT_EQ(tokenizer.decode(ids), text);
    std::string joined;
    for (const std::int32_t id : ids) joined += tokenizer.bytes(id);
    const bool prefixed = tokenizer.spec().space_prefix != models::SpacePrefix::none;
    EXPECT_EQ(joined, (prefixed ? " " : "") + text);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SmallTokenizer,
                         testing::Values("gpt2", "smollm", "llama3", "qwen2", "gemma", "llama2",
                                         "metaspace", "bert", "bert_cased"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace polyhead
