// polyhead info: what it says of models' files.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using models::Architecture;
using nlohmann::json;
using test::GgufBuilder;
using test::Outcome;
using test::tiny_gguf;

Outcome info(const GgufBuilder& model, bool as_json = false,
             const std::vector<std::string>& more = {}) {
  const test::ScratchDirectory folder;
  const std::string path = folder.write("m.gguf", model.build());
  std::vector<std::string> arguments{"info", path};
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (as_json) arguments.emplace_back("--json");
  return test::run_program(arguments);
}

TEST(Info, JsonHasEveryLayer) {
  GgufBuilder model = tiny_gguf(Architecture::gemma3);
  model.set("gemma3.attention.sliding_window_pattern", 2u);
  const Outcome done = info(model, true);
  ASSERT_EQ(done.status, cli::kSuccess) << done.err;
  const json found = test::json_of(done.out);
  EXPECT_EQ(found["architecture"], "gemma3");
  EXPECT_EQ(found["name"], "tiny");
  // Two layers, 2 KV heads, 4 elements of a key and 4 of a value.
  EXPECT_EQ(found["kv_bytes_per_token"]["float32"], 2 * 2 * 8 * 4);
  EXPECT_EQ(found["kv_bytes_per_token"]["bfloat16"], 2 * 2 * 8 * 2);
  ASSERT_EQ(found["layers"].size(), 2u);
  EXPECT_EQ(found["layers"][0]["window"], 16);
  EXPECT_EQ(found["layers"][0]["rope"]["base"], 10000.0);
  EXPECT_EQ(found["layers"][1]["window"], 0);
  EXPECT_EQ(found["layers"][1]["rope"]["base"], 500000.0);
  EXPECT_EQ(found["layers"][1]["kv_heads"], 2);
  // token_embd 6 x 8; q and output 16 x 8, k and v 8 x 8; three of 12 x 8; norms of 8 and of 4.
  EXPECT_EQ(found["parts"][0]["parameters"], 48);
  EXPECT_EQ(found["parts"][1]["parameters"], 2 * (2 * 128 + 2 * 64));
  EXPECT_EQ(found["parts"][2]["parameters"], 2 * 3 * 96);
  EXPECT_EQ(found["parts"][3]["parameters"], 8 + 2 * (4 * 8 + 2 * 4));
  EXPECT_EQ(found["parameters"], 48 + 768 + 576 + 88);
  EXPECT_EQ(found["parts"][0]["bytes"], 48 * 4);
}

TEST(Info, TensorsAreThoseOfTheFile) {
  const GgufBuilder model = tiny_gguf(Architecture::llama);
  EXPECT_FALSE(test::json_of(info(model, true).out).contains("tensors"));
  const json found = test::json_of(info(model, true, {"--tensors"}).out);
  std::size_t bytes = 0;
  for (const json& tensor : found["tensors"]) {
    bytes += tensor["bytes"].get<std::size_t>();
    EXPECT_EQ(tensor["name"], tensor["canonical"]);
    if (tensor["name"] != "blk.0.attn_k.weight") continue;
    EXPECT_EQ(tensor["shape"], json({8, 8}));
    EXPECT_EQ(tensor["type"], "F32");
    EXPECT_EQ(tensor["bytes"], 8 * 8 * 4);
  }
  EXPECT_EQ(bytes, found["parameters"].get<std::size_t>() * 4);
  const std::string told = info(model, false, {"--tensors"}).out;
  EXPECT_NE(told.find("\n  blk.0.attn_k.weight "), std::string::npos) << told;
  EXPECT_EQ(info(model).out.find("blk.0.attn_k.weight"), std::string::npos);
}

// GPT-2's matrices lie transposed in safetensors.
TEST(Info, TensorsOfACheckpointHaveItsNamesAndShapes) {
  const json found =
      test::run_program_json({"info", POLYHEAD_TEST_DATA "/tiny/gpt2", "--tensors"})["tensors"];
  const auto named = [&](const std::string& name) {
    const auto at = std::ranges::find_if(found, [&](const json& t) { return t["name"] == name; });
    return at == found.end() ? json() : *at;
  };
  const json up = named("transformer.h.0.mlp.c_fc.weight");
  ASSERT_FALSE(up.is_null()) << found;
  EXPECT_EQ(up["canonical"], "blk.0.ffn_up.weight");
  EXPECT_LT(up["shape"][0], up["shape"][1]) << "[in, out]";
  const Outcome told = test::run_program({"info", POLYHEAD_TEST_DATA "/tiny/gpt2", "--tensors"});
  const std::size_t at = told.out.find("  transformer.h.0.mlp.c_fc.weight ");
  ASSERT_NE(at, std::string::npos) << told.out;
  EXPECT_NE(told.out.substr(at, told.out.find('\n', at) - at).find("blk.0.ffn_up.weight"),
            std::string::npos);
}

TEST(Info, EqualLayersShareARow) {
  const Outcome llama = info(tiny_gguf(Architecture::llama));
  EXPECT_NE(llama.out.find("  0-1           4         2         4          4  all before  "
                           "base 500000, interleaved\n"),
            std::string::npos)
      << llama.out;
  EXPECT_NE(llama.out.find("KV cache      128 bytes a token in float32, 64 bytes in bfloat16"),
            std::string::npos)
      << llama.out;
  const Outcome bert = info(tiny_gguf(Architecture::bert));
  EXPECT_NE(bert.out.find("every token sees every other; pooling: mean"), std::string::npos)
      << bert.out;
  EXPECT_EQ(bert.out.find("KV cache"), std::string::npos) << bert.out;
}

TEST(Info, NamesFromFilesDoNotSteerTheTerminal) {
  GgufBuilder model = tiny_gguf(Architecture::gpt2);
  model.remove("general.name").set("general.name", std::string("\x1b[2Jx\r\n"));
  const std::string told = info(model).out;
  EXPECT_NE(told.find("calls itself  \\x1b[2Jx\\x0d\\x0a\n"), std::string::npos) << told;
  EXPECT_EQ(told.find('\x1b'), std::string::npos);
  GgufBuilder other;
  other.set("general.architecture", std::string("\x1b]0;x\x07"));
  const Outcome refused = info(other);
  EXPECT_EQ(refused.status, cli::kFailure);
  EXPECT_EQ(refused.err.find('\x1b'), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace polyhead
