// A config.json as polyhead plan reads it: sizes, windows, types, refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/plan_input.hpp"
#include "models/formats/file_error.hpp"
#include "polyhead/cost.h"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::ScratchDirectory;

// config.json of published checkpoints, the keys that matter: the sums are those of the presets.
TEST(PlanConfig, PublishedShapes) {
  const auto parameters = [](const char* text) {
    return cost::parameters(cli::model_of_config("config.json", text)).value.str();
  };
  const auto preset = [](const char* id) {
    return cost::parameters(cost::model_preset(id)).value.str();
  };
  EXPECT_EQ(parameters(R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
            preset("llama-3-8b"));
  EXPECT_EQ(parameters(R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
      "n_positions": 1024, "vocab_size": 50257})"),
            preset("gpt-2-small"));
  EXPECT_EQ(parameters(R"({"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12,
      "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
      "max_position_embeddings": 512, "type_vocab_size": 2})"),
            preset("bert-base"));
  EXPECT_EQ(parameters(R"({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": null,
      "intermediate_size": 3072, "vocab_size": 151936, "max_position_embeddings": 40960,
      "tie_word_embeddings": true})"),
            preset("qwen3-0.6b"));
  EXPECT_EQ(parameters(R"({"model_type": "deepseek_v3", "hidden_size": 7168,
      "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
      "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
      "first_k_dense_replace": 3, "vocab_size": 129280})"),
            preset("deepseek-v3"));
  EXPECT_EQ(parameters(R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
      "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
      "attention_bias": true, "vocab_size": 201088})"),
            preset("gpt-oss-20b"));
  const char* const gemma = R"({"model_type": "gemma3_text", "hidden_size": 640,
      "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
      "intermediate_size": 2048, "vocab_size": 262144, "sliding_window": 512})";
  EXPECT_EQ(parameters(gemma), preset("gemma-3-270m"));
  cost::Workload work;
  work.prompt = 30000;
  EXPECT_EQ(cost::kv_cache_bytes(cli::model_of_config("config.json", gemma), work).value,
            cost::kv_cache_bytes(cost::model_preset("gemma-3-270m"), work).value)
      << "three global layers, fifteen that keep their window";
}

// As they are published: what is missing is as in Transformers' Gemma3TextConfig.
TEST(PlanConfig, SparseFilesOfGemma) {
  const cost::ModelDescription model = cli::model_of_config("config.json", R"({
      "model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
      "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
      "head_dim": 128, "num_attention_heads": 32, "num_hidden_layers": 62,
      "num_key_value_heads": 16, "sliding_window": 1024}})");
  EXPECT_EQ(cost::parameters(model).value,
            cost::parameters(cost::model_preset("gemma-3-27b")).value);
  EXPECT_EQ(model.weight_type, "bf16");
  EXPECT_EQ(model.context_length, 131072);
  ASSERT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.layers[1].count, 10);
  EXPECT_EQ(
      cli::model_of_config("config.json", R"({"model_type": "gemma3_text"})").layers[0].head_dim,
      256);
}

const std::string kTwelveLayers = R"({"hidden_size": 64, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    "max_position_embeddings": 4096, )";

TEST(PlanConfig, WindowsAsTheFilesSay) {
  const auto local = [](const std::string& type, const std::string& more) {
    const cost::ModelDescription model = cli::model_of_config(
        "config.json",
        kTwelveLayers + R"("sliding_window": 16, "model_type": ")" + type + "\"" + more + "}");
    std::int64_t layers = 0;
    for (const cost::Layer& layer : model.layers) layers += layer.window > 0 ? layer.count : 0;
    return layers;
  };
  EXPECT_EQ(local("mistral", ""), 12);
  EXPECT_THROW(local("qwen2", R"(, "layer_types": ["sliding_attention"])"), formats::FileError);
  EXPECT_EQ(local("llama", ""), 0);
  EXPECT_EQ(local("gemma3_text", ""), 10);
  EXPECT_EQ(local("gemma3_text", R"(, "sliding_window_pattern": 3)"), 8);
  EXPECT_EQ(local("gemma3_text", R"(, "_sliding_window_pattern": 3)"), 10) << "never read";
  EXPECT_EQ(local("qwen2", ""), 0);
  EXPECT_EQ(local("qwen2", R"(, "use_sliding_window": true, "max_window_layers": 12)"), 0);
  EXPECT_EQ(local("qwen2", R"(, "use_sliding_window": true, "max_window_layers": 5)"), 7);
}

TEST(PlanConfig, WindowsThatFilesLeaveOutAreThoseOfTransformers) {
  const auto window = [](const std::string& type, const std::string& more) {
    return cli::model_of_config("config.json",
                                kTwelveLayers + R"("model_type": ")" + type + "\"" + more + "}")
        .layers[0]
        .window;
  };
  const std::string null = R"(, "sliding_window": null)";
  EXPECT_EQ(window("mistral", ""), 4096);
  EXPECT_EQ(window("mistral", null), 0);
  EXPECT_EQ(window("gemma3_text", ""), 4096);
  EXPECT_THROW(window("gemma3_text", null), formats::FileError);
  EXPECT_EQ(window("qwen3", ""), 0);
  EXPECT_EQ(window("qwen3", R"(, "use_sliding_window": true, "max_window_layers": 0)"), 4096);
  EXPECT_EQ(window("llama", ""), 0);
}

TEST(PlanConfig, WindowsThatAreListedAndLeftOutAreRefused) {
  const std::string experts = R"("num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
      "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
      "layer_types": ["sliding_attention", "full_attention"], "model_type": ")";
  const auto layers = [&](const std::string& more) {
    return cli::model_of_config("c.json", "{" + experts + more + "}").layers.size();
  };
  const std::string null = R"(", "sliding_window": null)", use = R"(, "use_sliding_window": true)";
  for (const std::string& file : {"gpt_oss" + null, "qwen3_moe" + null + use}) {
    try {
      layers(file);
      ADD_FAILURE() << file;
    } catch (const formats::FileError& error) {
      EXPECT_STREQ(error.what(),
                   "c.json: has 'layer_types' of sliding_attention and no 'sliding_window'");
    }
  }
  EXPECT_EQ(layers("qwen3_moe" + null), 1u) << "full attention, as it says";
  EXPECT_EQ(layers("gpt_oss\""), 2u);
  EXPECT_EQ(layers("qwen3_moe\"" + use), 2u);
}

/// "count name ffn_dim/experts/window" of each group of layers, and the parameters of them all.
std::string groups_of(const std::string& text) {
  const cost::ModelDescription model = cli::model_of_config("c.json", text);
  std::string groups;
  for (const cost::Layer& layer : model.layers) {
    groups += (groups.empty() ? "" : ", ") + std::to_string(layer.count) +
              (layer.name.empty() ? "" : " " + layer.name) + " " +
              std::to_string(layer.ffn.ffn_dim) + "/" + std::to_string(layer.ffn.experts) + "/" +
              std::to_string(layer.window);
  }
  return groups;
}

std::string refused(const std::string& text) {
  try {
    cli::model_of_config("c.json", text);
  } catch (const formats::FileError& error) {
    return error.what();
  }
  return "no FileError";
}

// Which layers have experts, by the rule of Transformers' Qwen3MoeDecoderLayer: those that
// mlp_only_layers does not list, where their number counted from 1 is a multiple of
// decoder_sparse_step.
TEST(PlanConfig, LayersWithExpertsAsQwensFilesSay) {
  const std::string twelve = kTwelveLayers + R"("model_type": "qwen3_moe", "num_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
  EXPECT_EQ(groups_of(twelve + "}"), "12 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "decoder_sparse_step": 1, "mlp_only_layers": []})"),
            "12 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "decoder_sparse_step": 5})"),
            "10 dense 128/0/0, 2 experts 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "mlp_only_layers": [0, 7]})"),
            "2 dense 128/0/0, 10 experts 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "decoder_sparse_step": 3, "mlp_only_layers": [2, 3, 900]})"),
            "9 dense 128/0/0, 3 experts 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "decoder_sparse_step": 2, "use_sliding_window": true,
      "sliding_window": 16, "max_window_layers": 9})"),
            "1 local dense 128/0/16, 2 local experts 32/4/16, 5 global dense 128/0/0, "
            "4 global experts 32/4/0")
      << "layers 9 to 11 have a window, 1, 3, ... 11 experts";
  EXPECT_EQ(refused(twelve + R"(, "decoder_sparse_step": 0})"),
            "c.json: 'decoder_sparse_step' is 0; expected at least 1");
  EXPECT_EQ(refused(twelve + R"(, "mlp_only_layers": 3})"),
            "c.json: 'mlp_only_layers' is not a list of layers");
  EXPECT_EQ(refused(twelve + R"(, "mlp_only_layers": [-1]})"),
            "c.json: 'mlp_only_layers' is -1; expected a whole number from 0 to 10^9");
}

// A layer has experts from first_k_dense_replace on, where its number is a multiple of
// moe_layer_freq.
TEST(PlanConfig, LayersWithExpertsAsDeepSeeksFilesSay) {
  const std::string twelve = kTwelveLayers + R"("model_type": "deepseek_v3", "kv_lora_rank": 16,
      "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
  EXPECT_EQ(groups_of(twelve + "}"), "12 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "first_k_dense_replace": 3, "moe_layer_freq": 1})"),
            "3 dense 128/0/0, 9 experts 32/4/0");
  EXPECT_EQ(groups_of(twelve + R"(, "first_k_dense_replace": 3, "moe_layer_freq": 2})"),
            "8 dense 128/0/0, 4 experts 32/4/0")
      << "layers 4, 6, 8 and 10";
  EXPECT_EQ(groups_of(twelve + R"(, "first_k_dense_replace": 30})"), "12 128/0/0");
  EXPECT_EQ(refused(twelve + R"(, "moe_layer_freq": 0})"),
            "c.json: 'moe_layer_freq' is 0; expected at least 1");
}

TEST(PlanConfig, ImpossibleSizesAreRefusedWithTheFile) {
  const auto refused = [](const std::string& more, std::int64_t model_dim = 64) -> std::string {
    try {
      cli::model_of_config("c.json", R"({"num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 64,
          "hidden_size": )" + std::to_string(model_dim) +
                                         ", " + more + "}");
    } catch (const formats::FileError& error) {
      return error.what();
    }
    return "no FileError";
  };
  EXPECT_EQ(refused(R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5)"),
            "c.json: 'num_experts_per_tok' is 5; expected 1 to the 4 of 'num_local_experts'");
  EXPECT_EQ(refused(R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                "num_key_value_heads": 3)"),
            "c.json: 'num_key_value_heads' is 3, which does not divide the 4 of "
            "'num_attention_heads'");
  EXPECT_NE(refused(R"("model_type": "bert", "type_vocab_size": 2147483648)", 1'000'000'000)
                .find("c.json: other_parameters ("),
            std::string::npos);
  EXPECT_EQ(refused(R"("model_type": "bert", "type_vocab_size": -2)"),
            "c.json: token_types is -2 (expected 0 to 2147483648)");
}

TEST(PlanConfig, FilesAndTheirRefusals) {
  const ScratchDirectory directory;
  const std::string path = directory.write("config.json", R"({"model_type": "mistral",
      "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
      "max_position_embeddings": 32768, "sliding_window": 4096})");
  const json made = test::run_program_json({"plan", path, "--context", "32k"});
  EXPECT_EQ(made["models"][0]["parameters"], 7241732096);
  EXPECT_EQ(made["cases"][0]["kv_cache_bytes"], 32 * 4096 * 4096) << "the window's tokens only";
  const std::string small = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8,
      "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 100,
      "max_position_embeddings": 64, "dtype": "bfloat16")";
  const auto weights = [&](const std::string& more) {
    const auto model = cli::model_of_config("c.json", small + more + "}");
    return cost::weight_bytes(model, {}).value;
  };
  EXPECT_EQ(weights(R"(, "quantization_config": {"quant_method": "fp8"})") + weights(""),
            cost::Count(3) * weights("") / 2 + cost::Count(2 * 100 * 8))
      << "fp8 is half of bfloat16 but for the two matrices of the vocabulary";
  const auto refused = [](const char* text) -> std::string {
    try {
      cli::model_of_config("c.json", text);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_EQ(refused("[1]"), "c.json: is not a JSON object");
  EXPECT_TRUE(refused("{}").starts_with("c.json: has no 'model_type'; expected llama, mistral, "))
      << refused("{}");
  EXPECT_TRUE(refused(R"({"model_type": 7})")
                  .starts_with("c.json: 'model_type' is a JSON number; expected text: llama, "))
      << refused(R"({"model_type": 7})");
  EXPECT_NE(refused("[1").find("c.json: the file is not JSON"), std::string::npos);
  const std::string deep(400'000, '[');
  EXPECT_NE(refused((R"({"model_type": "llama", "num_hidden_layers": )" + deep + "1" +
                     std::string(deep.size(), ']') + "}")
                        .c_str())
                .find("c.json: the file: nested too deeply"),
            std::string::npos);
  EXPECT_NE(refused(R"({"model_type": "llama", "model_type": "bert"})").find("twice"),
            std::string::npos);
  EXPECT_NE(refused(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8,
      "num_attention_heads": 4, "quantization_config": {"quant_method": "awq", "bits": 4}})")
                .find("'quantization_config' is of quant_method 'awq'; expected fp8 or mxfp4"),
            std::string::npos);
  EXPECT_NE(refused(R"({"model_type": "mamba"})").find("has model_type 'mamba'"),
            std::string::npos);
  EXPECT_EQ(refused(R"({"model_type": "llama"})"), "c.json: 'hidden_size' is missing");
  EXPECT_NE(refused(R"({"model_type": "deepseek_v3"})").find("has no 'num_hidden_layers'"),
            std::string::npos);
  const auto with = [&](const char* key, const char* value) {
    return refused(
        (small.substr(0, small.rfind("\"dtype")) + '"' + key + "\": " + value + "}").c_str());
  };
  EXPECT_EQ(with("dtype", "\"float8\""),
            "c.json: 'dtype' is 'float8'; expected 'bfloat16', 'float16' or 'float32'");
  EXPECT_EQ(with("torch_dtype", "\"auto\""),
            "c.json: 'torch_dtype' is 'auto'; expected 'bfloat16', 'float16' or 'float32'");
  EXPECT_NE(with("dtype", "5").find("'dtype' is a JSON number"), std::string::npos);
  EXPECT_NE(with("head_dim", "1e9").find("'head_dim' is not a whole number"), std::string::npos);
  EXPECT_NE(with("head_dim", "3000000000").find("head_dim of layer 0 is 3000000000"),
            std::string::npos);
  for (const std::string heads : {"3", "0"}) {
    EXPECT_EQ(with("num_key_value_heads", heads.c_str()),
              "c.json: 'num_key_value_heads' is " + heads +
                  ", which does not divide the 4 of 'num_attention_heads'");
  }
}

}  // namespace
}  // namespace polyhead
