// Model files small enough to be made in a test: every architecture as GGUF, and safetensors by
// hand.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "support/gguf_builder.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead::test {

/// Two layers, model_dim 8, 4 query heads, 2 KV heads (gpt2, bert: 4) of 4 dims (2), 6 tokens.
inline models::ModelConfig tiny_config(models::Architecture architecture) {
  using models::Architecture;
  models::ModelConfig config;
  config.architecture = architecture;
  const bool plain = architecture == Architecture::gpt2 || architecture == Architecture::bert;
  models::LayerGeometry layer;
  layer.q_heads = 4;
  layer.kv_heads = plain ? 4 : 2;
  layer.head_dim = layer.value_dim = plain ? 2 : 4;
  config.layers.assign(2, layer);
  config.model_dim = 8;
  config.ffn_dim = 12;
  config.vocab_size = 6;
  config.context_length = 32;
  config.token_types = architecture == Architecture::bert ? 2 : 0;
  config.norm = plain ? models::Norm::layer : models::Norm::rms;
  config.gated_ffn = !plain;
  config.qk_norm = architecture == Architecture::gemma3 || architecture == Architecture::qwen3;
  config.tied_output = true;
  return config;
}

/// `change` may alter or drop (shape empty) each tensor.
inline GgufBuilder tiny_gguf(models::Architecture architecture,
                             const std::function<void(models::ExpectedTensor&)>& change = nullptr) {
  using models::Architecture;
  const models::ModelConfig config = tiny_config(architecture);
  const std::string a = models::architecture_name(architecture), prefix = a + ".";
  GgufBuilder file;
  file.set("general.architecture", a).set("general.name", std::string("tiny"));
  file.set(prefix + "block_count", 2u).set(prefix + "context_length", 32u);
  file.set(prefix + "embedding_length", 8u).set(prefix + "feed_forward_length", 12u);
  file.set(prefix + "attention.head_count", 4u);
  if (config.norm == models::Norm::rms) {
    file.set(prefix + "attention.head_count_kv", 2u);
    file.set(prefix + "attention.key_length", 4u).set(prefix + "attention.value_length", 4u);
    file.set(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
    file.set(prefix + "rope.freq_base", 5e5f);
  } else {
    file.set(prefix + "attention.layer_norm_epsilon", 1e-6f);
  }
  if (architecture == Architecture::gemma3) file.set(prefix + "attention.sliding_window", 16u);
  for (models::ExpectedTensor tensor : expected_tensors(config)) {
    if (!tensor.required) continue;
    if (change) change(tensor);
    if (tensor.shape.empty()) continue;
    std::uint64_t count = 1;
    std::vector<std::uint64_t> shape;
    for (const std::int64_t extent : tensor.shape)
      count *= shape.emplace_back(static_cast<std::uint64_t>(extent));
    file.tensor(tensor.name, 0, shape, std::string(count * 4, '\0'));
  }
  return file;
}

/// A tensor of a safetensors file; its data are zeros unless given.
struct StoredTensor {
  std::string name, dtype = "F32";
  std::vector<std::int64_t> shape;
  std::string data;
};

inline std::string safetensors_file(const std::vector<StoredTensor>& tensors) {
  std::string header = "{", data;
  for (const StoredTensor& tensor : tensors) {
    std::string shape;
    std::size_t count = 1;
    for (const std::int64_t extent : tensor.shape) {
      shape.append(shape.empty() ? "" : ",").append(std::to_string(extent));
      count *= static_cast<std::size_t>(extent);
    }
    const std::size_t begin = data.size();
    data += tensor.data.empty() ? std::string(count * (tensor.dtype == "F32" ? 4 : 2), '\0')
                                : tensor.data;
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  header += "}";
  return raw<std::uint64_t>(header.size()) + header + data;
}

/// Text of a llama's config.json; `more` begins with a comma.
inline std::string llama_config(const std::string& more = "", const std::string& type = "llama") {
  return "{\"model_type\":\"" + type +
         "\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
         "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":6,"
         "\"max_position_embeddings\":32" +
         more + "}";
}

/// The tensors that belong to it; `q` and `kv`: rows of its projections.
inline std::vector<StoredTensor> llama_tensors(std::int64_t q = 8, std::int64_t kv = 4) {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", "BF16", {6, 8}, ""},
          {"model.norm.weight", "BF16", {8}, ""},
          {"lm_head.weight", "BF16", {6, 8}, ""},
          {layer + "input_layernorm.weight", "BF16", {8}, ""},
          {layer + "self_attn.q_proj.weight", "BF16", {q, 8}, ""},
          {layer + "self_attn.k_proj.weight", "BF16", {kv, 8}, ""},
          {layer + "self_attn.v_proj.weight", "BF16", {kv, 8}, ""},
          {layer + "self_attn.o_proj.weight", "BF16", {8, q}, ""},
          {layer + "post_attention_layernorm.weight", "BF16", {8}, ""},
          {layer + "mlp.gate_proj.weight", "BF16", {12, 8}, ""},
          {layer + "mlp.up_proj.weight", "BF16", {12, 8}, ""},
          {layer + "mlp.down_proj.weight", "BF16", {8, 12}, ""}};
}

/// A folder with that llama's weights, and any text as its config.json and, after a NUL, as its
/// index of shards: then the weights are in shard.safetensors.
class CheckpointOfText : public ScratchDirectory {
 public:
  CheckpointOfText() { write(kWhole, safetensors_file(llama_tensors())); }

  /// Writes both; the folder's path.
  std::string write_text(std::string_view text) const {
    const std::size_t end = text.find('\0');
    write("config.json", std::string(text.substr(0, end)));
    const std::string index = file("model.safetensors.index.json");
    std::filesystem::remove(index);
    const bool sharded = end != std::string_view::npos;
    if (sharded) write("model.safetensors.index.json", std::string(text.substr(end + 1)));
    const std::string from = file(sharded ? kWhole : kShard);
    if (std::filesystem::exists(from))
      std::filesystem::rename(from, file(sharded ? kShard : kWhole));
    return file("");
  }

 private:
  static constexpr const char* kWhole = "model.safetensors";
  static constexpr const char* kShard = "shard.safetensors";
};

/// What opening a model is refused with, without the folder's name; "accepted" where it is not.
inline std::string refusal(const ScratchDirectory& folder, const std::string& path) {
  try {
    const models::ModelFile file(path);
  } catch (const formats::FileError& error) {
    std::string message = error.what();
    for (const std::string home = folder.file(""); message.find(home) != std::string::npos;)
      message.erase(message.find(home), home.size());
    return message;
  }
  return "accepted";
}

/// A checkpoint's folder.
struct CheckpointFolder : ScratchDirectory {
  explicit CheckpointFolder(const std::string& config) { write("config.json", config); }
  CheckpointFolder(const std::string& config, const std::vector<StoredTensor>& tensors)
      : CheckpointFolder(config) {
    write("model.safetensors", safetensors_file(tensors));
  }
  std::string path() const { return file(""); }
  std::string refused() const { return refusal(*this, path()); }
};

}  // namespace polyhead::test
