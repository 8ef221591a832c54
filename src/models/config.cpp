#include "models/config.hpp"

#include <cmath>
#include <utility>

#include "base/limits.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;

constexpr std::int64_t kMaxSize = std::int64_t{1}
                                  << 31;  // of one axis: products of two stay in 63 bits

void check_size(const std::string& path, const std::string& what, std::int64_t value,
                std::int64_t most = kMaxSize, std::int64_t least = 1) {
  if (value < least || value > most) {
    throw FileError(path, what + " is " + std::to_string(value) + " (expected " +
                              std::to_string(least) + " to " + std::to_string(most) + ")");
  }
}

void check_layer(const std::string& path, const LayerGeometry& layer, std::size_t index,
                 Reading reading) {
  const std::string of = " of layer " + std::to_string(index);
  const std::int64_t most = reading == Reading::run ? base::kMaxDim : kMaxSize;
  check_size(path, "head_dim" + of, layer.head_dim, most);
  check_size(path, "value_dim" + of, layer.value_dim, most);
  check_size(path, "q_heads" + of, layer.q_heads, kMaxSize / base::kMaxDim);
  check_size(path, "kv_heads" + of, layer.kv_heads, layer.q_heads);
  if (layer.q_heads % layer.kv_heads != 0) {
    throw FileError(path, "q_heads (" + std::to_string(layer.q_heads) + ")" + of +
                              " is not a multiple of kv_heads (" + std::to_string(layer.kv_heads) +
                              ")");
  }
  if (layer.window < 0) {
    throw FileError(path, "window" + of + " is " + std::to_string(layer.window));
  }
  if (layer.rope) {
    try {
      rope_frequencies(*layer.rope, layer.head_dim);
      rope_attention_factor(*layer.rope);
    } catch (const InvalidArgument& error) {
      throw FileError(path, std::string("rotary embedding") + of + ": " + error.what());
    }
  }
}

std::string heads_text(const LayerGeometry& layer) {
  return std::to_string(layer.kv_heads) + " KV heads (keys of " + std::to_string(layer.head_dim) +
         ", values of " + std::to_string(layer.value_dim) + ")";
}

void check_finite(const std::string& path, const char* what, float value) {
  if (!std::isfinite(value) || value < 0.0f) {
    throw FileError(path, std::string(what) + " is " + std::to_string(value) +
                              " (expected a finite number from 0)");
  }
}

/// Collects the tensors of a model by its architecture.
class Expectation {
 public:
  explicit Expectation(const ModelConfig& config) : config_(config) {}

  std::vector<ExpectedTensor> collect() {
    const std::int64_t model = config_.model_dim;
    const Architecture a = config_.architecture;
    const bool learned = a == Architecture::gpt2 || a == Architecture::bert;
    matrix("token_embd", config_.vocab_size, model);
    if (learned) matrix("position_embd", config_.context_length, model);
    if (config_.token_types > 0) matrix("token_types", config_.token_types, model);
    if (a == Architecture::bert) {
      norm("token_embd_norm", model);
    } else {
      norm("output_norm", model);
      if (!config_.tied_output) matrix("output", config_.vocab_size, model);
    }
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
      prefix_ = "blk." + std::to_string(i) + ".";
      layer(config_.layers[i]);
    }
    return std::move(list_);
  }

 private:
  enum class Bias : std::uint8_t { none, optional, required };

  void add(const std::string& name, std::vector<std::int64_t> shape, bool required = true) {
    list_.push_back({prefix_ + name, std::move(shape), required});
  }
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
              Bias bias = Bias::none) {
    add(name + ".weight", {rows, columns});
    if (bias != Bias::none) add(name + ".bias", {rows}, bias == Bias::required);
  }
  void norm(const std::string& name, std::int64_t size) {
    add(name + ".weight", {size});
    if (config_.norm == Norm::layer) add(name + ".bias", {size});
  }

  /// Of a layer's matrices, where the file may say that it has them.
  Bias bias(Biases said) const {
    if (said == Biases::all || config_.norm == Norm::layer) return Bias::required;
    if (said == Biases::none) return Bias::none;
    return config_.architecture == Architecture::llama ? Bias::optional : Bias::none;
  }

  void layer(const LayerGeometry& layer) {
    const Architecture a = config_.architecture;
    const std::int64_t model = config_.model_dim;
    const std::int64_t q = layer.q_heads * layer.head_dim, k = layer.kv_heads * layer.head_dim;
    const std::int64_t v = layer.kv_heads * layer.value_dim;
    const Bias attention = bias(config_.attention_biases), ffn = bias(config_.ffn_biases);
    const Bias projections = a == Architecture::qwen2 ? Bias::required : attention;
    if (a != Architecture::bert) norm("attn_norm", model);
    if (a == Architecture::gpt2) {
      matrix("attn_qkv", q + k + v, model, projections);
    } else {
      matrix("attn_q", q, model, projections);
      matrix("attn_k", k, model, projections);
      matrix("attn_v", v, model, projections);
    }
    if (config_.qk_norm) {
      norm("attn_q_norm", layer.head_dim);
      norm("attn_k_norm", layer.head_dim);
    }
    matrix("attn_output", model, layer.q_heads * layer.value_dim, attention);
    if (a == Architecture::gemma3) norm("post_attention_norm", model);
    norm(a == Architecture::bert ? "attn_output_norm" : "ffn_norm", model);
    if (config_.gated_ffn) matrix("ffn_gate", config_.ffn_dim, model, ffn);
    matrix("ffn_up", config_.ffn_dim, model, ffn);
    matrix("ffn_down", model, config_.ffn_dim, ffn);
    if (a == Architecture::gemma3) norm("post_ffw_norm", model);
    if (a == Architecture::bert) norm("layer_output_norm", model);
  }

  const ModelConfig& config_;
  std::string prefix_;
  std::vector<ExpectedTensor> list_;
};

}  // namespace

const char* architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "llama";
    case Architecture::gemma3:
      return "gemma3";
    case Architecture::qwen2:
      return "qwen2";
    case Architecture::qwen3:
      return "qwen3";
    case Architecture::gpt2:
      return "gpt2";
    case Architecture::bert:
      return "bert";
  }
  return "";
}

void check_config(const std::string& path, const ModelConfig& config, Reading reading) {
  check_size(path, "the number of layers", static_cast<std::int64_t>(config.layers.size()),
             kMaxLayers);
  check_size(path, "model_dim", config.model_dim);
  check_size(path, "ffn_dim", config.ffn_dim);
  check_size(path, "vocab_size", config.vocab_size);
  check_size(path, "context_length", config.context_length);
  check_size(path, "token_types", config.token_types, kMaxSize, 0);
  for (std::size_t i = 0; i < config.layers.size(); ++i)
    check_layer(path, config.layers[i], i, reading);
  if (reading == Reading::described) return;
  check_finite(path, "the norms' epsilon", config.norm_eps);
  check_finite(path, "the attention's scale", config.attention_scale);
  check_finite(path, "the attention's soft-cap", config.attention_soft_cap);
  check_finite(path, "the logits' soft-cap", config.logit_soft_cap);
  check_finite(path, "the embedding's scale", config.embedding_scale);
}

std::string unlike_layer(const ModelConfig& config) {
  const LayerGeometry& first = config.layers.front();
  for (std::size_t i = 1; i < config.layers.size(); ++i) {
    const LayerGeometry& layer = config.layers[i];
    if (layer.kv_heads == first.kv_heads && layer.head_dim == first.head_dim &&
        layer.value_dim == first.value_dim)
      continue;
    return "layer " + std::to_string(i) + " has " + heads_text(layer) +
           ", expected those of layer 0, " + heads_text(first);
  }
  return "";
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  return Expectation(config).collect();
}

}  // namespace polyhead::inline v0::models
