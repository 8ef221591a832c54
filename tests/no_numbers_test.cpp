// What subcommands say of a model whose figures are no numbers: no result, and nothing written.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "models/model_file.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using test::expect_refused;
using test::ScratchDirectory;

constexpr std::uint16_t kNaN = 0x7fc0;
const std::string kEnd = ": the model's weights or its text give no numbers\n";

/// tests/data/gguf_models/bert.gguf with a NaN in what stands for the last of its tokens.
std::string encoder_with_a_nan(const ScratchDirectory& folder, std::int32_t& id) {
  const std::string path = POLYHEAD_TEST_DATA "/gguf_models/bert.gguf";
  std::string bytes = ScratchDirectory::read(path);
  const models::ModelFile file(path);
  const models::WeightTensor& words = file.tensor("token_embd.weight");
  EXPECT_EQ(words.type, WeightType::float32);
  const std::string_view data(reinterpret_cast<const char*>(words.data.data()), words.data.size());
  id = static_cast<std::int32_t>(words.shape[0]) - 1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::size_t row = data.size() / static_cast<std::size_t>(words.shape[0]);
  std::memcpy(bytes.data() + bytes.find(data) + data.size() - row, &nan, sizeof nan);
  return folder.write("encoder.gguf", bytes);
}

TEST(NoNumbers, ScoreSaysWhichTokenHasNone) {
  const ScratchDirectory folder;
  const std::string model = test::model_with_a_nan(folder);
  for (const char* json : {"", "--json"}) {
    std::vector<std::string> arguments = {"score", model, "--text", "abhab"};
    if (*json != '\0') arguments.emplace_back(json);
    expect_refused(arguments, cli::kFailure, "score: the loss of token 3 is NaN" + kEnd);
    arguments[3] = "abab";
    EXPECT_EQ(test::run_program(arguments).status, cli::kSuccess);
  }
}

TEST(NoNumbers, EmbedSaysWhichLineHasNone) {
  const ScratchDirectory folder;
  std::int32_t id = 0;
  const std::string model = encoder_with_a_nan(folder, id);
  const std::string word = models::ModelFile(model).tokenizer().pieces[static_cast<size_t>(id)];
  const std::string lines = folder.write("lines.txt", "a b\n" + word + "\n");
  const std::string because = "embed: the vector of line 2 is NaN" + kEnd;
  expect_refused({"embed", model, "--file", lines}, cli::kFailure, because);
  const std::size_t before = folder.file_count();
  expect_refused({"embed", model, "--file", lines, "-o", folder.file("out.npy")}, cli::kFailure,
                 because);
  EXPECT_EQ(folder.file_count(), before);
  expect_refused({"look", model, "--text", word}, cli::kFailure, "look: the log-sum-exp of token ");
}

TEST(NoNumbers, LookAndPruneWriteNoPage) {
  const ScratchDirectory folder;
  const std::string model = test::model_with_a_nan(folder);
  const std::size_t before = folder.file_count();
  const std::string page = folder.file("page.html"), curve = folder.file("curve.svg");
  expect_refused({"look", model, "--text", "abhab", "-o", page, "--json"}, cli::kFailure,
                 "look: the log-sum-exp of token 2 in head 0.0 is NaN" + kEnd);
  expect_refused({"prune", model, "--text", "abhab", "-o", curve}, cli::kFailure,
                 "prune: the loss with all heads on is NaN" + kEnd);
  EXPECT_EQ(folder.file_count(), before);
}

TEST(NoNumbers, LookChecksWhatComesAfterAttention) {
  const ScratchDirectory folder;
  const std::string model = test::tiny_llama_with(folder, 3, kNaN, "lm_head.weight");
  const std::string page = folder.file("page.html");
  const std::size_t before = folder.file_count();
  expect_refused({"look", model, "--text", "ab", "-o", page}, cli::kFailure,
                 "look: the loss of token 1 is NaN" + kEnd);
  expect_refused({"look", model, "--text", "a", "-o", page}, cli::kFailure,
                 "look: the logit of token id 3 is NaN" + kEnd);
  EXPECT_EQ(folder.file_count(), before);
}

}  // namespace
}  // namespace polyhead
