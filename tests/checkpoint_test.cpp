// Hugging Face checkpoints: their configuration and tensors by canonical names, or a refusal with
// the reason.
#include "models/model_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/scratch_directory.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using models::Activation;
using models::Architecture;
using models::ModelConfig;
using models::ModelFile;
using test::llama_config;
using test::llama_tensors;
using test::raw;
using test::refusal;
using test::safetensors_file;
using test::ScratchDirectory;
using test::StoredTensor;

using Folder = test::CheckpointFolder;

TEST(Checkpoint, ReadsALlamaCheckpoint) {
  const Folder folder(
      llama_config(",\"rope_theta\":500000.0,\"rms_norm_eps\":1e-5,\"rope_scaling\":"
                   "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":"
                   "1.0,\"high_freq_factor\":4.0,"
                   "\"original_max_position_embeddings\":16}"),
      llama_tensors());
  for (const std::string& path : {folder.path(), folder.file("model.safetensors")}) {
    const ModelFile file(path);
    const ModelConfig& config = file.config();
    EXPECT_EQ(config.architecture, Architecture::llama);
    ASSERT_EQ(config.layers.size(), 1u);
    const models::LayerGeometry& layer = config.layers[0];
    EXPECT_EQ(layer.kv_heads, 2);
    EXPECT_EQ(layer.head_dim, 2);
    EXPECT_EQ(layer.window, 0);
    EXPECT_EQ(layer.rope->pairing, RopePairing::half_split);
    EXPECT_EQ(layer.rope->scaling, RopeScaling::llama3);
    EXPECT_EQ(layer.rope->base, 500000.0);
    EXPECT_EQ(layer.rope->original_length, 16);
    EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
    EXPECT_FALSE(config.tied_output);
    EXPECT_EQ(file.weight_format(), "BF16");
    EXPECT_TRUE(file.has("blk.0.attn_output.weight"));
    EXPECT_EQ(file.tensor("blk.0.ffn_norm.weight").shape, std::vector<std::int64_t>{8});
  }
}

TEST(Checkpoint, NamesItselfAfterItsFolder) {
  const Folder folder(llama_config(), llama_tensors());
  const ModelFile file(folder.path());
  EXPECT_EQ(file.config().name,
            std::filesystem::path(folder.file("x")).parent_path().filename().string());
  EXPECT_EQ(ModelFile(folder.file("model.safetensors")).config().name, "model");
}

TEST(Checkpoint, MistralHasItsWindow) {
  const Folder folder(llama_config(",\"sliding_window\":4,\"head_dim\":4", "mistral"),
                      llama_tensors(16, 8));
  const ModelFile file(folder.path());
  EXPECT_EQ(file.config().architecture, Architecture::llama);
  EXPECT_EQ(file.config().layers[0].window, 4);
  EXPECT_EQ(file.config().layers[0].head_dim, 4);
  const Folder none(llama_config(",\"sliding_window\":null", "mistral"), llama_tensors());
  EXPECT_EQ(ModelFile(none.path()).config().layers[0].window, 0);
  const Folder absent(llama_config("", "mistral"), llama_tensors());
  EXPECT_EQ(ModelFile(absent.path()).config().layers[0].window, 4096) << "what Transformers takes";
  const Folder llama(llama_config(",\"sliding_window\":4"), llama_tensors());
  EXPECT_EQ(ModelFile(llama.path()).config().layers[0].window, 0) << "a Llama has none";
  const Folder full(llama_config(",\"layer_types\":[\"full_attention\"]", "mistral"),
                    llama_tensors());
  EXPECT_EQ(ModelFile(full.path()).config().layers[0].window, 0) << "it says so layer by layer";
}

TEST(Checkpoint, BiasesThatTheConfigPromisesMustBeThere) {
  EXPECT_EQ(Folder(llama_config(), llama_tensors()).refused(), "accepted");
  EXPECT_NE(Folder(llama_config(",\"attention_bias\":true"), llama_tensors())
                .refused()
                .find("blk.0.attn_q.bias"),
            std::string::npos);
  EXPECT_NE(Folder(llama_config(",\"mlp_bias\":true"), llama_tensors())
                .refused()
                .find("blk.0.ffn_gate.bias"),
            std::string::npos);
  std::vector<StoredTensor> biased = llama_tensors();
  biased.push_back({"model.layers.0.self_attn.q_proj.bias", "BF16", {8}, ""});
  EXPECT_EQ(Folder(llama_config(), biased).refused(), "accepted");
  EXPECT_EQ(Folder(llama_config(",\"mlp_bias\":false"), biased).refused(), "accepted");
  EXPECT_EQ(Folder(llama_config(",\"attention_bias\":false"), biased).refused(),
            "model.safetensors: has a tensor 'model.layers.0.self_attn.q_proj.bias', and "
            "config.json says that 'attention_bias' is false");
  std::vector<StoredTensor> norm = llama_tensors();
  norm.push_back({"model.norm.bias", "BF16", {8}, ""});
  EXPECT_EQ(
      Folder(llama_config(",\"attention_bias\":false,\"mlp_bias\":false"), norm).refused(),
      ": has a tensor 'output_norm.bias', which a llama model as supported here does not have");
}

TEST(Checkpoint, ReadsAGpt2Checkpoint) {
  const std::string config =
      R"({"model_type":"gpt2","n_embd":4,"n_layer":1,"n_head":2,"n_positions":8,"vocab_size":3})";
  std::string qkv;
  for (int i = 0; i < 48; ++i) qkv += raw(static_cast<float>(i));  // [in = 4, out = 12]
  const Folder folder(config, {{"wte.weight", "F32", {3, 4}, ""},
                               {"wpe.weight", "F32", {8, 4}, ""},
                               {"ln_f.weight", "F32", {4}, ""},
                               {"ln_f.bias", "F32", {4}, ""},
                               {"h.0.ln_1.weight", "F32", {4}, ""},
                               {"h.0.ln_1.bias", "F32", {4}, ""},
                               {"h.0.attn.bias", "F32", {1, 1, 8, 8}, ""},
                               {"h.0.attn.c_attn.weight", "F32", {4, 12}, qkv},
                               {"h.0.attn.c_attn.bias", "F32", {12}, ""},
                               {"h.0.attn.c_proj.weight", "F32", {4, 4}, ""},
                               {"h.0.attn.c_proj.bias", "F32", {4}, ""},
                               {"h.0.ln_2.weight", "F32", {4}, ""},
                               {"h.0.ln_2.bias", "F32", {4}, ""},
                               {"h.0.mlp.c_fc.weight", "F32", {4, 16}, ""},
                               {"h.0.mlp.c_fc.bias", "F32", {16}, ""},
                               {"h.0.mlp.c_proj.weight", "F32", {16, 4}, ""},
                               {"h.0.mlp.c_proj.bias", "F32", {4}, ""}});
  const ModelFile file(folder.path());
  EXPECT_EQ(file.config().activation, Activation::gelu_tanh);
  EXPECT_EQ(file.config().ffn_dim, 16);
  EXPECT_TRUE(file.config().tied_output);
  const models::WeightTensor& weights = file.tensor("blk.0.attn_qkv.weight");
  EXPECT_EQ(weights.shape, (std::vector<std::int64_t>{12, 4}));
  EXPECT_TRUE(weights.transposed);
  std::vector<float> row(4);
  dequantise_rows(weights, 5, 1, row.data());
  EXPECT_EQ(row, (std::vector<float>{5, 17, 29, 41}));
}

std::vector<StoredTensor> bert_tensors() {
  const std::string e = "embeddings.", l = "encoder.layer.0.";
  return {{e + "word_embeddings.weight", "F32", {3, 4}, ""},
          {e + "position_embeddings.weight", "F32", {8, 4}, ""},
          {e + "token_type_embeddings.weight", "F32", {2, 4}, ""},
          {e + "position_ids", "I64", {1, 1}, std::string(8, '\0')},
          {e + "LayerNorm.gamma", "F32", {4}, ""},
          {e + "LayerNorm.beta", "F32", {4}, ""},
          {l + "attention.self.query.weight", "F32", {4, 4}, ""},
          {l + "attention.self.query.bias", "F32", {4}, ""},
          {l + "attention.self.key.weight", "F32", {4, 4}, ""},
          {l + "attention.self.key.bias", "F32", {4}, ""},
          {l + "attention.self.value.weight", "F32", {4, 4}, ""},
          {l + "attention.self.value.bias", "F32", {4}, ""},
          {l + "attention.output.dense.weight", "F32", {4, 4}, ""},
          {l + "attention.output.dense.bias", "F32", {4}, ""},
          {l + "attention.output.LayerNorm.weight", "F32", {4}, ""},
          {l + "attention.output.LayerNorm.bias", "F32", {4}, ""},
          {l + "intermediate.dense.weight", "F32", {6, 4}, ""},
          {l + "intermediate.dense.bias", "F32", {6}, ""},
          {l + "output.dense.weight", "F32", {4, 6}, ""},
          {l + "output.dense.bias", "F32", {4}, ""},
          {l + "output.LayerNorm.weight", "F32", {4}, ""},
          {l + "output.LayerNorm.bias", "F32", {4}, ""},
          {"pooler.dense.weight", "F32", {4, 4}, ""}};
}

constexpr const char* kBertConfig =
    R"({"model_type":"bert","hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,)"
    R"("intermediate_size":6,"max_position_embeddings":8,"vocab_size":3})";

TEST(Checkpoint, ReadsABertCheckpoint) {
  const Folder folder(kBertConfig, bert_tensors());
  const ModelFile file(folder.path());
  EXPECT_FALSE(file.config().causal);
  EXPECT_EQ(file.config().token_types, 2);
  EXPECT_EQ(file.config().pooling, models::Pooling::mean);
  EXPECT_EQ(file.config().activation, Activation::gelu);
  EXPECT_TRUE(file.has("token_embd_norm.weight")) << "old names of a norm: gamma, beta";
  EXPECT_TRUE(file.has("blk.0.layer_output_norm.bias"));
  EXPECT_EQ(file.tensors().size(), 21u) << "pooler and position_ids are no part of it";

  std::filesystem::create_directory(folder.file("1_Pooling"));
  folder.write("1_Pooling/config.json", R"({"pooling_mode_cls_token":true})");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::first);
  folder.write("1_Pooling/config.json", R"({"pooling_mode_max_tokens":true})");
  EXPECT_EQ(folder.refused(),
            "1_Pooling/config.json: 'pooling_mode_max_tokens' is true, which is not supported");
  folder.write("1_Pooling/config.json", R"({"embedding_dimension":4,"pooling_mode":"cls"})");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::first);
  folder.write("1_Pooling/config.json", R"({"pooling_mode":["mean"]})");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::mean);
  folder.write("1_Pooling/config.json", R"({"pooling_mode":["mean","max"]})");
  EXPECT_EQ(folder.refused(),
            "1_Pooling/config.json: 'pooling_mode' is [\"mean\",\"max\"] (expected mean or cls)");
}

TEST(Checkpoint, RefusesModulesBehindThePooling) {
  const Folder folder(kBertConfig, bert_tensors());
  std::filesystem::create_directory(folder.file("1_Pooling"));
  folder.write("1_Pooling/config.json", R"({"pooling_mode":"mean"})");
  const std::string begin = R"([{"type":"sentence_transformers.models.Transformer"},
                                {"type":"sentence_transformers.models.Pooling"},
                                {"type":"sentence_transformers.models.Normalize"})";
  folder.write("modules.json", begin + "]");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::mean);
  folder.write("modules.json", begin + R"(,{"type":"sentence_transformers.models.Dense"}])");
  EXPECT_EQ(folder.refused(),
            "modules.json: has a module of type 'sentence_transformers.models.Dense' (expected "
            "Transformer, Pooling and Normalize)");
  folder.write("modules.json", R"([{"type":"sentence_transformers.models.Transformer"}])");
  EXPECT_EQ(folder.refused(), "modules.json: has no module of type Pooling");
  folder.write("modules.json", begin + R"(,{"type":"x.Pooling"}])");
  EXPECT_EQ(folder.refused(), "modules.json: has more than one module of type Pooling");
  folder.write("modules.json", "{}");
  EXPECT_EQ(folder.refused(), "modules.json: is not a list of modules");
}

TEST(Checkpoint, ReadsThePoolingWhereModulesSay) {
  const Folder folder(kBertConfig, bert_tensors());
  const auto modules = [&](const std::string& model, const std::string& pooling) {
    folder.write("modules.json", R"([{"type":"x.Transformer","path":)" + model +
                                     R"(},{"type":"x.Pooling","path":)" + pooling + "}]");
  };
  for (const char* name : {"1_Pooling", "pool"})
    std::filesystem::create_directory(folder.file(name));
  folder.write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})");
  folder.write("pool/config.json", R"({"pooling_mode_cls_token":true})");
  modules("\"\"", "\"pool\"");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::first);
  modules("\"\"", "\"1_Pooling\"");
  EXPECT_EQ(ModelFile(folder.path()).config().pooling, models::Pooling::mean);
  modules("\"\"", "\"2_Pooling\"");
  EXPECT_EQ(folder.refused(), "2_Pooling/config.json: is missing: modules.json names its folder");
  for (const char* name : {"", "..", "a/b", "../pool"}) {
    modules("\"\"", std::string("\"") + name + "\"");
    EXPECT_EQ(folder.refused(), std::string("modules.json: has a module at 'path' '") + name +
                                    "' (expected a folder's plain name)");
  }
  modules("\"\"", "5");
  EXPECT_EQ(folder.refused(),
            "modules.json: has a module at 'path' '5' (expected a folder's plain name)");
  modules("\"0_Transformer\"", "\"pool\"");
  EXPECT_EQ(folder.refused(), "modules.json: has a module at 'path' '0_Transformer' (expected '')");
}

std::string gemma_config(const std::string& more) {
  return llama_config(",\"head_dim\":4,\"sliding_window\":16,\"query_pre_attn_scalar\":16" + more,
                      "gemma3_text");
}

TEST(Checkpoint, ReadsAGemmaCheckpoint) {
  std::vector<StoredTensor> tensors = llama_tensors(16, 8);
  const std::string layer = "model.layers.0.";
  tensors.push_back({layer + "self_attn.q_norm.weight", "BF16", {4}, ""});
  tensors.push_back({layer + "self_attn.k_norm.weight", "BF16", {4}, ""});
  tensors.push_back({layer + "pre_feedforward_layernorm.weight", "BF16", {8}, ""});
  tensors.push_back({layer + "post_feedforward_layernorm.weight", "BF16", {8}, ""});
  const std::string bases[] = {
      ",\"rope_theta\":2e6,\"rope_local_base_freq\":3e4",
      ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":2e6,\"rope_type\":\"default\"},"
      "\"sliding_attention\":{\"rope_theta\":3e4,\"rope_type\":\"default\"}}"};
  for (const std::string& base : bases) {
    const Folder local(gemma_config(base), tensors);
    const Folder global(gemma_config(base + ",\"layer_types\":[\"full_attention\"]"), tensors);
    const ModelFile file(local.path());
    EXPECT_TRUE(file.config().norm_plus_one);
    EXPECT_TRUE(file.config().tied_output);
    EXPECT_EQ(file.config().activation, Activation::gelu_tanh);
    EXPECT_FLOAT_EQ(file.config().attention_scale, 0.25f);
    EXPECT_EQ(file.config().layers[0].window, 16);
    EXPECT_EQ(file.config().layers[0].rope->base, 3e4);
    EXPECT_EQ(ModelFile(global.path()).config().layers[0].window, 0);
    EXPECT_EQ(ModelFile(global.path()).config().layers[0].rope->base, 2e6);
    EXPECT_TRUE(file.has("blk.0.post_attention_norm.weight"));
    EXPECT_TRUE(file.has("blk.0.post_ffw_norm.weight"));
    EXPECT_TRUE(file.has("blk.0.ffn_norm.weight"));
  }
  // Published files leave out what is as in Transformers' Gemma3TextConfig.
  const Folder sparse(R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text",
      "hidden_size":8,"intermediate_size":6,"num_hidden_layers":1,"vocab_size":6}})");
  EXPECT_EQ(sparse.refused(), "model.safetensors: cannot be opened: No such file or directory");
  // The text part of a model that also sees.
  for (StoredTensor& tensor : tensors) {
    if (tensor.name != "lm_head.weight") tensor.name = "language_model." + tensor.name;
  }
  tensors.push_back({"vision_tower.embeddings.weight", "BF16", {2, 2}, ""});
  const Folder whole("{\"model_type\":\"gemma3\",\"text_config\":" + gemma_config("") + "}",
                     tensors);
  EXPECT_EQ(ModelFile(whole.path()).tensors().size(), 15u);
}

TEST(Checkpoint, QwenWindowsOnlyWhereItSaysSo) {
  std::vector<StoredTensor> tensors = llama_tensors();
  for (const auto& [name, size] : {std::pair("q", 8), std::pair("k", 4), std::pair("v", 4)}) {
    tensors.push_back(
        {"model.layers.0.self_attn." + std::string(name) + "_proj.bias", "BF16", {size}, ""});
  }
  const auto window = [&](const std::string& more) {
    const Folder folder(llama_config(",\"sliding_window\":16" + more, "qwen2"), tensors);
    return ModelFile(folder.path()).config().layers[0].window;
  };
  EXPECT_EQ(window(""), 0);
  EXPECT_EQ(window(",\"use_sliding_window\":true,\"max_window_layers\":0"), 16);
  EXPECT_EQ(window(",\"use_sliding_window\":true,\"max_window_layers\":1"), 0);
  const std::string listed = ",\"layer_types\":[\"sliding_attention\"]";
  EXPECT_EQ(window(",\"use_sliding_window\":true" + listed), 16);
  EXPECT_EQ(Folder(llama_config(listed, "qwen2"), tensors).refused(),
            "config.json: 'layer_types' holds sliding_attention (expected full_attention alone "
            "where 'use_sliding_window' is not true)");
  const Folder unbiased(llama_config("", "qwen2"), llama_tensors());
  EXPECT_EQ(unbiased.refused(), ": has no tensor 'blk.0.attn_q.bias', which a qwen2 model needs");
}

TEST(Checkpoint, RefusesConfigurationsInWords) {
  const auto with = [](const std::string& config) {
    return Folder(config, llama_tensors()).refused();
  };
  EXPECT_EQ(with("{}"),
            "config.json: 'model_type' is '' (expected one of llama, mistral, gemma3_text, gemma3, "
            "qwen2, qwen3, gpt2, bert)");
  EXPECT_EQ(with("[]"), "config.json: is not an object");
  EXPECT_EQ(with(R"({"model_type":"mixtral"})"),
            "config.json: 'model_type' is 'mixtral' (expected one of llama, mistral, gemma3_text, "
            "gemma3, qwen2, qwen3, gpt2, bert)");
  EXPECT_EQ(with(llama_config(",\"head_dim\":2.5")),
            "config.json: 'head_dim' is not a whole number");
  EXPECT_EQ(with(llama_config(",\"head_dim\":2,\"head_dim\":2")),
            "config.json: the file: 'head_dim' stands twice");
  EXPECT_EQ(with(llama_config(",\"rope_scaling\":{\"type\":\"su\",\"factor\":2.0}")),
            "config.json: 'rope_scaling.rope_type' is 'su' (expected default, linear, llama3, "
            "yarn, longrope or dynamic)");
  EXPECT_EQ(with(llama_config(",\"rope_scaling\":{\"type\":\"linear\"}")),
            "config.json: 'rope_scaling.factor' is missing (rope_type 'linear')");
  EXPECT_EQ(with(llama_config(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}")),
            "config.json: 'rope_scaling.low_freq_factor' is missing (rope_type 'llama3')");
  EXPECT_EQ(with(llama_config(",\"rope_parameters\":{\"partial_rotary_factor\":0.5}")),
            "config.json: 'rope_parameters.partial_rotary_factor' is not 1");
  EXPECT_EQ(
      with(llama_config(",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,\"2\"]}")),
      "config.json: 'rope_scaling.short_factor' is not a list of at most 384 numbers");
  EXPECT_EQ(with(llama_config(",\"hidden_act\":\"relu\"")),
            "config.json: 'hidden_act' is 'relu' (expected silu, swish, gelu, gelu_new or "
            "gelu_pytorch_tanh)");
  EXPECT_EQ(with(llama_config(",\"quantization_config\":{}")),
            "config.json: 'quantization_config' is given; quantised safetensors are not supported");
  EXPECT_EQ(with(llama_config(",\"head_dim\":9223372036854775807")),
            "config.json: head_dim of layer 0 is 9223372036854775807 (expected 1 to 768)");
  EXPECT_EQ(with(R"({"model_type":"llama","hidden_size":8})"),
            "config.json: 'intermediate_size' is missing");
  EXPECT_EQ(Folder("{").refused().substr(0, 34), "config.json: the file is not JSON:");
  const ScratchDirectory none;
  none.write("model.safetensors", safetensors_file(llama_tensors()));
  EXPECT_EQ(refusal(none, none.file("model.safetensors")),
            "config.json: is missing: a model's weights need it beside them");
}

TEST(Checkpoint, RefusesTensorsOfACheckpointThatDoNotFit) {
  std::vector<StoredTensor> tensors = llama_tensors();
  tensors.push_back({"model.layers.0.mlp.experts.0.w1.weight", "BF16", {1}, ""});
  EXPECT_EQ(Folder(llama_config(), tensors).refused(),
            "model.safetensors: has a tensor 'model.layers.0.mlp.experts.0.w1.weight', which a "
            "llama model as supported here does not have");
  tensors = llama_tensors();
  tensors[0].dtype = "I16";
  EXPECT_EQ(Folder(llama_config(), tensors).refused(),
            "model.safetensors: tensor 'model.embed_tokens.weight' has type 'I16' (expected F32, "
            "F16 or BF16)");
  tensors = llama_tensors();
  tensors.push_back({"model.layers.00.input_layernorm.weight", "BF16", {8}, ""});
  EXPECT_EQ(Folder(llama_config(), tensors).refused(),
            ": has a tensor 'blk.00.attn_norm.weight', which a llama model as supported here does "
            "not have");
  tensors = llama_tensors();
  tensors.push_back({"norm.weight", "BF16", {8}, ""});
  EXPECT_EQ(Folder(llama_config(), tensors).refused(),
            ": has tensor 'output_norm.weight' twice, under two names");
}

// Shards.

std::string index_of(const std::vector<std::pair<std::string, std::string>>& map) {
  std::string text;
  for (const auto& [tensor, shard] : map)
    text += (text.empty() ? "\"" : ",\"") + tensor + "\":\"" + shard + "\"";
  return "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + text + "}}";
}

struct Sharded : Folder {
  Sharded() : Folder(llama_config()) {
    const std::vector<StoredTensor> all = llama_tensors();
    write("a.safetensors", safetensors_file({all.begin(), all.begin() + 5}));
    write("b.safetensors", safetensors_file({all.begin() + 5, all.end()}));
    for (std::size_t i = 0; i < all.size(); ++i)
      map.emplace_back(all[i].name, i < 5 ? "a.safetensors" : "b.safetensors");
    index();
  }
  void index() const { write("model.safetensors.index.json", index_of(map)); }
  std::vector<std::pair<std::string, std::string>> map;
};

TEST(Checkpoint, ReadsShards) {
  const Sharded folder;
  const ModelFile file(folder.path());
  EXPECT_EQ(file.tensors().size(), 12u);
  EXPECT_TRUE(file.has("blk.0.ffn_down.weight"));
}

TEST(Checkpoint, AWholeFileGoesBeforeAnIndex) {
  const Sharded folder;
  folder.write("model.safetensors", "nothing");
  EXPECT_NE(folder.refused().find("model.safetensors: "), std::string::npos);
  folder.write("model.safetensors", safetensors_file(llama_tensors()));
  std::filesystem::remove(folder.file("b.safetensors"));
  EXPECT_EQ(ModelFile(folder.path()).tensors().size(), 12u);
}

TEST(Checkpoint, ShardsArePlainNames) {
  for (const char* name : {"../a.safetensors", "/a.safetensors", "x/a.safetensors", "..", ".", "",
                           "a.bin", "x\\\\a.safetensors", "a.safetensors\\u0000.safetensors"}) {
    Sharded folder;
    folder.map[0].second = name;
    folder.index();
    const std::string message = folder.refused();
    EXPECT_NE(message.find("(expected the plain name of a .safetensors file beside it)"),
              std::string::npos)
        << message;
  }
}

TEST(Checkpoint, NoLinkLeadsOutOfTheFolder) {
  const Sharded folder;
  const ScratchDirectory elsewhere;
  std::filesystem::rename(folder.file("b.safetensors"), elsewhere.file("b.safetensors"));
  EXPECT_EQ(folder.refused(), "b.safetensors: cannot be opened: No such file or directory");
  std::filesystem::create_symlink(elsewhere.file("b.safetensors"), folder.file("b.safetensors"));
  EXPECT_EQ(folder.refused(), "b.safetensors: is a link out of the model's folder");
  std::filesystem::remove(folder.file("b.safetensors"));
  std::filesystem::rename(elsewhere.file("b.safetensors"), folder.file("c.safetensors"));
  std::filesystem::create_symlink("c.safetensors", folder.file("b.safetensors"));
  EXPECT_EQ(folder.refused(), "accepted");
}

// Hugging Face's cache: a snapshot's files are links to blobs, two folders up.
TEST(Checkpoint, ReadsShardsOfASnapshot) {
  namespace fs = std::filesystem;
  const Sharded files;
  const ScratchDirectory cache;
  const fs::path snapshot = cache.file("snapshots/0123abcd"), blobs = cache.file("blobs");
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  for (const char* name :
       {"config.json", "model.safetensors.index.json", "a.safetensors", "b.safetensors"}) {
    fs::rename(files.file(name), blobs / (std::string("blob-") + name));
    fs::create_symlink(std::string("../../blobs/blob-") + name, snapshot / name);
  }
  const auto refused = [&] { return refusal(cache, snapshot.string()); };
  EXPECT_EQ(refused(), "accepted");
  EXPECT_EQ(ModelFile(snapshot.string()).tensors().size(), 12u);
  // From another folder than snapshots/, or into another than blobs/, such a link leads out.
  fs::rename(blobs, cache.file("elsewhere"));
  fs::create_directory_symlink("elsewhere", blobs);
  EXPECT_NE(refused().find("a.safetensors: is a link out of the model's folder"), std::string::npos)
      << refused();
  fs::remove(blobs);
  fs::rename(cache.file("elsewhere"), blobs);
  fs::rename(cache.file("snapshots"), cache.file("copies"));
  EXPECT_NE(refusal(cache, cache.file("copies/0123abcd")).find("is a link out of"),
            std::string::npos);
}

TEST(Checkpoint, TheIndexKeepsItsPromises) {
  Sharded missing;
  missing.map[0].second = "b.safetensors";
  missing.index();
  EXPECT_EQ(missing.refused(),
            "b.safetensors: has no tensor 'model.embed_tokens.weight', which the index promises");
  Sharded twice;
  std::filesystem::copy(twice.file("a.safetensors"), twice.file("c.safetensors"));
  twice.map.emplace_back("model.norm.weight2", "c.safetensors");
  twice.index();
  EXPECT_EQ(twice.refused(), "c.safetensors: tensor 'lm_head.weight' stands in another shard too");
  const Sharded empty;
  empty.write("model.safetensors.index.json", "{\"weight_map\":{}}");
  EXPECT_EQ(empty.refused(), "model.safetensors.index.json: names no shards");
  empty.write("model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
  EXPECT_EQ(empty.refused(), "model.safetensors.index.json: tensor 'a' has no shard's name");
  empty.write("model.safetensors.index.json", "[]");
  EXPECT_EQ(empty.refused(), "model.safetensors.index.json: has no table 'weight_map'");
}

}  // namespace
}  // namespace polyhead
