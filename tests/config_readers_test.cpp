// One config.json is for what runs a model and for what plans one. Where the first takes a file,
// the second says the same of it; what the first refuses, the second does, unless it changes no
// size.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/plan_input.hpp"
#include "models/formats/file_error.hpp"
#include "models/read_config.hpp"
#include "polyhead/cost.h"
#include "support/json.hpp"

namespace polyhead {
namespace {

using nlohmann::json;

json tiny_config(const std::string& name) {
  return test::json_file(std::string(POLYHEAD_TEST_DATA "/tiny/") + name + "/config.json");
}

/// {window: layers}.
std::map<std::int64_t, std::int64_t> windows_of(const models::ModelConfig& config) {
  std::map<std::int64_t, std::int64_t> layers;
  for (const models::LayerGeometry& layer : config.layers) ++layers[layer.window];
  return layers;
}
std::map<std::int64_t, std::int64_t> windows_of(const cost::ModelDescription& model) {
  std::map<std::int64_t, std::int64_t> layers;
  for (const cost::Layer& layer : model.layers) layers[layer.window] += layer.count;
  return layers;
}

void expect_the_same(const json& file) {
  SCOPED_TRACE(file.dump());
  const std::string text = file.dump();
  const models::ModelConfig run = models::config_from_json("config.json", text);
  models::check_config("config.json", run);
  const cost::ModelDescription planned = cli::model_of_config("config.json", text);
  EXPECT_EQ(windows_of(run), windows_of(planned));
  EXPECT_EQ(run.vocab_size, planned.vocab_size);
  if (planned.output_matrix) {
    EXPECT_EQ(run.tied_output, planned.tied_output);
  }
  if (file.dump().find("longrope") == std::string::npos) {
    EXPECT_EQ(run.context_length, planned.context_length);
  } else {  // a plan has what the model was made for, a run what its rotations here reach
    EXPECT_LT(run.context_length, planned.context_length);
  }
  for (const cost::Layer& layer : planned.layers) {
    const models::LayerGeometry& first = run.layers.front();
    EXPECT_EQ(layer.q_heads, first.q_heads);
    EXPECT_EQ(layer.kv_heads, first.kv_heads);
    EXPECT_EQ(layer.head_dim, first.head_dim);
    EXPECT_EQ(layer.value_dim, first.value_dim);
    EXPECT_EQ(layer.model_dim, run.model_dim);
    EXPECT_EQ(layer.ffn.ffn_dim, run.ffn_dim);
    EXPECT_EQ(layer.ffn.gated, run.gated_ffn);
    EXPECT_EQ(layer.qk_norm, run.qk_norm);
    EXPECT_EQ(layer.attends == cost::Attends::causal, run.causal);
  }
  cost::Count weights = 0;
  for (const models::ExpectedTensor& tensor : models::expected_tensors(run)) {
    cost::Count elements = tensor.required ? 1 : 0;
    for (const std::int64_t extent : tensor.shape) elements = elements * cost::Count(extent);
    weights = weights + elements;
  }
  if (run.architecture == models::Architecture::bert)  // planned with a pooler, run without
    weights = weights + cost::Count(run.model_dim * (run.model_dim + 1));
  EXPECT_EQ(weights.str(), cost::parameters(planned).value.str());
}

TEST(ConfigReaders, SayTheSameOfEveryArchitecture) {
  for (const char* name :
       {"bert", "dynamic", "gemma3", "gpt2", "llama3", "longrope", "mistral", "qwen2", "qwen3"})
    expect_the_same(tiny_config(name));
}

struct Change {
  const char* name;
  json patch;  // null removes a key, kNull sets it to null
};
const json kNull = "null";

json changed(const Change& change) {
  json file = tiny_config(change.name);
  file.merge_patch(change.patch);
  for (auto& [key, value] : file.items()) {
    if (value == kNull) value = nullptr;
  }
  return file;
}

TEST(ConfigReaders, SayTheSameOfWindowsBiasesAndWhatIsLeftOut) {
  const json absent;
  for (const Change& change : std::vector<Change>{
           {"mistral", {{"sliding_window", absent}}},
           {"llama3", {{"sliding_window", 5}}},
           {"llama3",
            {{"head_dim", absent},
             {"hidden_size", 16},
             {"num_attention_heads", 4},
             {"num_key_value_heads", 2}}},
           {"llama3", {{"tie_word_embeddings", true}}},
           {"llama3", {{"attention_bias", true}}},
           {"llama3", {{"mlp_bias", true}}},
           {"llama3", {{"tie_word_embeddings", absent}}},
           {"qwen2",
            {{"layer_types", absent},
             {"use_sliding_window", true},
             {"max_window_layers", 1},
             {"sliding_window", 4}}},
           {"qwen2",
            {{"layer_types", absent},
             {"use_sliding_window", true},
             {"max_window_layers", 0},
             {"sliding_window", absent}}},
           {"qwen3",
            {{"layer_types", {"full_attention", "sliding_attention"}},
             {"use_sliding_window", true},
             {"sliding_window", 4}}},
           {"gemma3", {{"layer_types", absent}}},
           {"gemma3",
            {{"layer_types", absent}, {"num_hidden_layers", 7}, {"sliding_window_pattern", 3}}},
           {"gemma3",
            {{"layer_types", absent}, {"sliding_window", absent}, {"num_hidden_layers", 13}}},
           {"gemma3",
            {{"num_attention_heads", absent},
             {"num_key_value_heads", absent},
             {"head_dim", absent},
             {"tie_word_embeddings", absent}}},
           {"gpt2", {{"n_inner", absent}}},
           {"bert", {{"type_vocab_size", absent}}},
           {"gemma3",
            {{"num_attention_heads", kNull},
             {"num_key_value_heads", kNull},
             {"head_dim", kNull},
             {"vocab_size", kNull},
             {"max_position_embeddings", kNull}}},
           {"gemma3",
            {{"hidden_size", absent},
             {"intermediate_size", absent},
             {"num_hidden_layers", absent},
             {"layer_types", absent}}},
           {"gemma3",
            {{"layer_types", {"full_attention", "full_attention", "full_attention"}},
             {"sliding_window", kNull}}},
           {"gemma3", {{"mlp_bias", true}, {"model_type", "gemma3"}}},
           {"llama3", {{"num_key_value_heads", kNull}, {"head_dim", kNull}}},
           {"llama3", {{"layer_types", {"full_attention", "full_attention"}}}},
           {"mistral",
            {{"sliding_window", 4}, {"layer_types", {"full_attention", "full_attention"}}}},
           {"mistral",
            {{"sliding_window", 4}, {"layer_types", {"full_attention", "sliding_attention"}}}},
           {"qwen3",
            {{"layer_types", absent},
             {"use_sliding_window", true},
             {"max_window_layers", 0},
             {"sliding_window", kNull}}},
           {"mistral", {{"sliding_window", kNull}}},
           {"mistral", {{"attention_bias", true}}},
           {"qwen2", {{"mlp_bias", true}}},
           {"qwen2", {{"use_sliding_window", kNull}, {"sliding_window", 4}}},
           {"gpt2",
            {{"n_inner", kNull}, {"num_key_value_heads", 1}, {"tie_word_embeddings", kNull}}},
           {"bert", {{"num_key_value_heads", 1}, {"head_dim", 1}, {"type_vocab_size", kNull}}},
       }) {
    expect_the_same(changed(change));
  }
}

TEST(ConfigReaders, SayTheSameOfATextPart) {
  for (const char* type : {"gemma3_text", "llama"}) {
    json inner = tiny_config("gemma3");
    inner["model_type"] = type;
    inner.erase("vocab_size");
    expect_the_same({{"model_type", "gemma3"}, {"text_config", inner}, {"vocab_size", 7}});
  }
  expect_the_same({{"model_type", "gemma3"}, {"text_config", json::object()}});
  expect_the_same({{"model_type", "gemma3"},
                   {"text_config", tiny_config("gemma3")},
                   {"max_position_embeddings", 1 << 20}});
}

TEST(ConfigReaders, RefuseTheSame) {
  const json absent;
  for (const Change& change : std::vector<Change>{
           {"llama3", {{"layer_types", 3}, {"num_key_value_heads", 3}}},
           {"llama3", {{"intermediate_size", absent}}},
           {"llama3", {{"max_position_embeddings", kNull}}},
           {"llama3", {{"vocab_size", absent}}},
           {"llama3", {{"head_dim", -8}}},
           {"mistral", {{"sliding_window", -4}}},
           {"qwen2", {{"layer_types", {"full_attention"}}}},
           {"qwen2", {{"layer_types", {"chunked_attention", "full_attention"}}}},
           {"qwen3", {{"layer_types", "full_attention"}}},
           {"qwen3", {{"attention_bias", true}}},
           {"llama3", {{"layer_types", {"sliding_attention", "full_attention"}}}},
           {"mistral", {{"sliding_window", 0}}},
           {"mistral",
            {{"sliding_window", kNull}, {"layer_types", {"full_attention", "sliding_attention"}}}},
           {"qwen2", {{"layer_types", {"full_attention", "sliding_attention"}}}},
           {"gemma3", {{"layer_types", kNull}, {"sliding_window", kNull}}},
           {"gemma3", {{"sliding_window", 0}}},
           {"gemma3", {{"sliding_window_pattern", 0}, {"layer_types", absent}}},
           {"gemma3", {{"text_config", 1}, {"model_type", "gemma3"}}},
           {"gpt2", {{"n_positions", absent}}},
           {"gpt2", {{"n_head", 7}}},
           {"gpt2", {{"num_attention_heads", 4}}},
           {"gpt2", {{"max_position_embeddings", 32}}},
           {"gpt2", {{"add_cross_attention", true}}},
           {"bert", {{"is_decoder", true}}},
           {"bert", {{"type_vocab_size", -1}}},
           {"bert", {{"type_vocab_size", std::int64_t{1} << 62}}},
           {"bert", {{"intermediate_size", absent}}},
       }) {
    const std::string text = changed(change).dump();
    SCOPED_TRACE(text);
    std::string why = "taken", planned = why;
    try {
      models::check_config("c.json", models::config_from_json("c.json", text));
    } catch (const formats::FileError& error) {
      why = error.what();
    }
    try {
      cli::model_of_config("c.json", text);
    } catch (const formats::FileError& error) {
      planned = error.what();
    }
    EXPECT_NE(why, "taken");
    const std::string ranges = " (expected 1 to ";  // heads that are planned may be larger
    EXPECT_EQ(why.substr(0, why.find(ranges)), planned.substr(0, planned.find(ranges)));
  }
}

TEST(ConfigReaders, APlanTakesWhatOnlyARunCannotDo) {
  for (const Change& change : std::vector<Change>{
           {"llama3", {{"hidden_act", "relu"}}},
           {"llama3", {{"use_bidirectional_attention", true}}},
           {"llama3", {{"head_dim", 1024}}},
           {"llama3", {{"rope_scaling", {{"rope_type", "spiral"}}}}},
           {"llama3", {{"rope_scaling", {{"rope_type", "linear"}}}}},
           {"llama3", {{"partial_rotary_factor", 0.5}}},
           {"llama3", {{"final_logit_softcapping", 30}}},
           {"gpt2", {{"attn_logit_softcapping", 50}}},
           {"gemma3", {{"query_pre_attn_scalar", 0}}},
           {"gemma3", {{"final_logit_softcapping", 0}}},
           {"llama3", {{"rms_norm_eps", -1}}},
           {"llama3", {{"quantization_config", {{"quant_method", "fp8"}}}}},
           {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}},
           {"bert", {{"hidden_act", "relu"}}},
       }) {
    const std::string text = changed(change).dump(), plain = tiny_config(change.name).dump();
    SCOPED_TRACE(text);
    EXPECT_THROW(models::check_config("c.json", models::config_from_json("c.json", text)),
                 formats::FileError);
    const cost::ModelDescription planned = cli::model_of_config("c.json", text);
    if (change.patch.contains("head_dim")) {
      EXPECT_EQ(planned.layers[0].head_dim, 1024);
    } else {
      EXPECT_EQ(cost::parameters(planned).value.str(),
                cost::parameters(cli::model_of_config("c.json", plain)).value.str());
    }
  }
}

}  // namespace
}  // namespace polyhead
