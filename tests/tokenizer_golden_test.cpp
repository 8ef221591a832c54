// The three real models' tokenizers against ids from Hugging Face's tokenizers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "support/golden_model.hpp"
#include "support/json.hpp"

namespace polyhead {
namespace {

using models::EncodeOptions;
using models::Tokenizer;

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = test::fetched_model(GetParam());
    ASSERT_FALSE(HasFailure());
    if (path_.empty()) GTEST_SKIP() << "scripts/get-model " << GetParam() << " was not run";
    cases_ = test::json_file(POLYHEAD_TEST_DATA "/tokenizers.json")[GetParam()];
    ASSERT_EQ(cases_.size(), 27u);
  }

  std::string path_;
  nlohmann::json cases_;
};

TEST_P(GoldenTokenizer, GivesTheIds) {
  const Tokenizer tokenizer(models::read_tokenizer(path_));
  // The figures of gemma3 are without the bos token that it puts before each text.
  const bool special = GetParam() != std::string("gemma3");
  for (const auto& one : cases_) {
    EXPECT_EQ(tokenizer.encode(one[0].get<std::string>(), {special, true}),
              one[1].get<std::vector<std::int32_t>>())
        << one[0];
  }
}

TEST_P(GoldenTokenizer, DecodesToTheText) {
  const Tokenizer tokenizer(models::read_tokenizer(path_));
  if (tokenizer.spec().kind == models::TokenizerKind::word_piece) {
    GTEST_SKIP() << "WordPiece forgets case and spaces";
  }
  for (const auto& one : cases_) {
    const auto text = one[0].get<std::string>();
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << one[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTokenizer, testing::Values("smollm2", "minilm", "gemma3"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace polyhead
