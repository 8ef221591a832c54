// A Hugging Face config.json as a ModelConfig.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/joined.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/json_fields.hpp"
#include "models/read_config.hpp"
#include "models/rope_json.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::quote;
using nlohmann::json;

constexpr int kMaxDepth = 16;  // vision parts nest a few objects

struct ModelType {
  const char* name;
  Architecture architecture;
};
constexpr std::array<ModelType, 8> kModelTypes{{{"llama", Architecture::llama},
                                                {"mistral", Architecture::llama},
                                                {"gemma3_text", Architecture::gemma3},
                                                {"gemma3", Architecture::gemma3},
                                                {"qwen2", Architecture::qwen2},
                                                {"qwen3", Architecture::qwen3},
                                                {"gpt2", Architecture::gpt2},
                                                {"bert", Architecture::bert}}};

Architecture architecture_of(const Fields& fields) {
  const std::string type = fields.text("model_type", "");
  const auto* found = std::ranges::find(kModelTypes, type, &ModelType::name);
  if (found != kModelTypes.end()) return found->architecture;
  fields.refuse("model_type", "is " + quote(type) + " (expected one of " +
                                  base::joined(kModelTypes, ", ", &ModelType::name) + ")");
}

Activation activation_of(const Fields& fields, const char* name, const char* otherwise) {
  const std::string text = fields.text(name, otherwise);
  if (text == "silu" || text == "swish") return Activation::silu;
  if (text == "gelu") return Activation::gelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (fields.described()) return Activation::silu;
  fields.refuse(
      name, "is " + quote(text) + " (expected silu, swish, gelu, gelu_new or gelu_pytorch_tanh)");
}

/// llama, mistral, gemma3, qwen2 and qwen3: RMS norms, gated feed-forward, rotary positions.
class Decoder {
 public:
  Decoder(const Fields& fields, Architecture architecture)
      : fields_(fields), architecture_(architecture) {}

  void read(ModelConfig& config) {
    const bool gemma = architecture_ == Architecture::gemma3;
    config.model_dim = size("hidden_size", 2304);
    config.ffn_dim = size("intermediate_size", 9216);
    config.context_length = size("max_position_embeddings", 131072);
    config.norm_eps = static_cast<float>(fields_.real("rms_norm_eps", 1e-6));
    config.norm_plus_one = gemma;
    config.activation = gemma ? activation_of(fields_, "hidden_activation", "gelu_pytorch_tanh")
                              : activation_of(fields_, "hidden_act", "silu");
    config.qk_norm = gemma || architecture_ == Architecture::qwen3;
    config.tied_output = fields_.boolean("tie_word_embeddings", gemma);
    if (gemma) {
      const char* const cap = "final_logit_softcapping";
      if (fields_.has(cap) && !fields_.described())
        config.logit_soft_cap = static_cast<float>(fields_.positive(cap, 1.0));
      config.embedding_scale = std::sqrt(static_cast<float>(config.model_dim));
    }
    if (architecture_ == Architecture::llama) {
      config.attention_biases = biases("attention_bias");
      config.ffn_biases = biases("mlp_bias");
    } else {
      fields_.never("attention_bias");
    }
    fields_.never_run("use_bidirectional_attention");
    read_layers(config);
    double scalar = static_cast<double>(config.layers.front().head_dim);
    if (gemma && !fields_.described()) scalar = fields_.positive("query_pre_attn_scalar", 256.0);
    config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  }

 private:
  /// Published Gemma 3 files leave out what is as in Transformers' Gemma3TextConfig.
  std::int64_t size(const char* key, std::int64_t of_gemma) const {
    return architecture_ == Architecture::gemma3 ? fields_.integer(key, of_gemma)
                                                 : fields_.integer(key);
  }

  Biases biases(const char* name) const {
    if (!fields_.has(name)) return Biases::may;
    return fields_.boolean(name, false) ? Biases::all : Biases::none;
  }

  void read_layers(ModelConfig& config) const {
    const std::int64_t count = size("num_hidden_layers", 26);
    if (count < 1 || count > kMaxLayers) {
      fields_.refuse("num_hidden_layers", "is " + std::to_string(count) + " (expected 1 to " +
                                              std::to_string(kMaxLayers) + ")");
    }
    LayerGeometry layer;
    const bool gemma = architecture_ == Architecture::gemma3;
    read_heads(config, layer);
    const std::vector<bool> local = local_layers(count);
    LayerGeometry windowed = layer;
    if (!fields_.described()) {
      layer.rope = rope_from_json(fields_, gemma ? RopeOf::gemma_global : RopeOf::all, config);
      windowed.rope = gemma ? rope_from_json(fields_, RopeOf::gemma_local, config) : layer.rope;
    }
    if (any(local)) windowed.window = window_size();
    for (const bool is_local : local) config.layers.push_back(is_local ? windowed : layer);
  }

  /// What Transformers takes where a key is left out; 0: what follows from the others.
  struct HeadDefaults {
    std::int64_t kv_heads = 0, head_dim = 0;
  };
  HeadDefaults head_defaults() const {
    switch (architecture_) {
      case Architecture::gemma3:
        return {4, 256};
      case Architecture::qwen2:
        return {32, 0};
      case Architecture::qwen3:
        return {32, 128};
      default:
        return {is_mistral() ? 8 : 0, 0};
    }
  }

  /// A null is not left out: what it means follows from the others too, but for gemma.
  std::int64_t heads_field(const char* name, std::int64_t left_out, std::int64_t follows) const {
    const bool null = fields_.given(name) && architecture_ != Architecture::gemma3;
    return fields_.integer(name, left_out == 0 || null ? follows : left_out);
  }

  void read_heads(const ModelConfig& config, LayerGeometry& layer) const {
    const HeadDefaults otherwise = head_defaults();
    layer.q_heads = size("num_attention_heads", 8);
    if (layer.q_heads < 1) fields_.refuse_value("num_attention_heads", "at least 1");
    const char* const kv_heads = "num_key_value_heads";
    layer.kv_heads = heads_field(kv_heads, otherwise.kv_heads, layer.q_heads);
    if (layer.kv_heads < 1 || layer.q_heads % layer.kv_heads != 0) {
      const char* const found = fields_.has(kv_heads) ? "is " : "is missing, which stands for ";
      fields_.refuse(kv_heads, found + std::to_string(layer.kv_heads) +
                                   ", which does not divide the " + std::to_string(layer.q_heads) +
                                   " of " + fields_.full_name("num_attention_heads"));
    }
    layer.head_dim = heads_field("head_dim", otherwise.head_dim, config.model_dim / layer.q_heads);
    layer.value_dim = layer.head_dim;
  }

  bool is_mistral() const { return fields_.text("model_type", "") == "mistral"; }
  static bool any(const std::vector<bool>& local) {
    return std::ranges::find(local, true) != local.end();
  }

  /// Of layers that have one. Absent it is what Transformers takes then.
  std::int64_t window_size() const {
    constexpr std::int64_t kOfTransformers = 4096;
    if (!fields_.given("sliding_window")) return kOfTransformers;
    const std::int64_t window = fields_.integer("sliding_window", 0);
    if (window < 1) {
      fields_.refuse_value("sliding_window", "at least 1, since there are layers that have it");
    }
    return window;
  }

  std::vector<bool> listed_layers(std::size_t layers) const {
    std::vector<bool> local(layers, false);
    const json& types = fields_.at("layer_types");
    if (!types.is_array() || types.size() != layers) {
      fields_.refuse("layer_types", "is not a list of " + std::to_string(layers) + " elements");
    }
    for (std::size_t i = 0; i < layers; ++i) {
      if (types[i] != "full_attention" && types[i] != "sliding_attention") {
        fields_.refuse("layer_types",
                       "holds something else than full_attention and sliding_attention");
      }
      local[i] = types[i] == "sliding_attention";
    }
    if (any(local)) refuse_local();
    return local;
  }

  /// Where Transformers has no window, whatever the list says.
  void refuse_local() const {
    const std::string found = "holds sliding_attention (expected full_attention alone ";
    if (architecture_ == Architecture::llama && !is_mistral())
      fields_.refuse("layer_types", found + "of a llama)");
    const bool qwen = architecture_ == Architecture::qwen2 || architecture_ == Architecture::qwen3;
    if (qwen && !fields_.boolean("use_sliding_window", false))
      fields_.refuse("layer_types", found + "where 'use_sliding_window' is not true)");
  }

  std::vector<bool> local_layers(std::int64_t count) const {
    const auto layers = static_cast<std::size_t>(count);
    if (fields_.has("layer_types")) return listed_layers(layers);
    std::vector<bool> local(layers, false);
    if (architecture_ == Architecture::gemma3) {
      const std::int64_t pattern = fields_.integer("sliding_window_pattern", 6);
      if (pattern < 1) fields_.refuse("sliding_window_pattern", "is not positive");
      for (std::size_t i = 0; i < layers; ++i)
        local[i] = (static_cast<std::int64_t>(i) + 1) % pattern != 0;
      return local;
    }
    if (fields_.given("sliding_window") && !fields_.has("sliding_window")) return local;  // null
    if (architecture_ == Architecture::llama) return std::vector(layers, is_mistral());
    if (!fields_.boolean("use_sliding_window", false)) return local;  // qwen
    const std::int64_t first =
        std::clamp<std::int64_t>(fields_.integer("max_window_layers", 28), 0, count);
    std::fill(local.begin() + first, local.end(), true);
    return local;
  }

  const Fields& fields_;
  Architecture architecture_;
};

/// gpt2 and bert: layer norms, learned positions, every head its own keys.
void add_plain_layers(const Fields& fields, const char* layers_name, const char* heads_name,
                      ModelConfig& config) {
  const std::int64_t count = fields.integer(layers_name);
  if (count < 1 || count > kMaxLayers) {
    fields.refuse(layers_name, "is " + std::to_string(count) + " (expected 1 to " +
                                   std::to_string(kMaxLayers) + ")");
  }
  LayerGeometry layer;
  layer.q_heads = layer.kv_heads = fields.integer(heads_name);
  if (layer.q_heads < 1 || config.model_dim % layer.q_heads != 0) {
    fields.refuse(heads_name, "is " + std::to_string(layer.q_heads) + ", which does not divide " +
                                  std::to_string(config.model_dim));
  }
  layer.head_dim = layer.value_dim = config.model_dim / layer.q_heads;
  config.layers.assign(static_cast<std::size_t>(count), layer);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(layer.head_dim)));
}

/// What gpt2's fields are called in other architectures stands for the same.
void refuse_other_sizes_of_gpt2(const Fields& fields) {
  for (const auto& [name, other] : {std::pair{"n_embd", "hidden_size"},
                                    {"n_layer", "num_hidden_layers"},
                                    {"n_head", "num_attention_heads"},
                                    {"n_positions", "max_position_embeddings"}}) {
    if (!fields.has(other) || fields.integer(other) == fields.integer(name)) continue;
    fields.refuse(other, "is " + std::to_string(fields.integer(other)) + ", and " +
                             fields.full_name(name) + " is " +
                             std::to_string(fields.integer(name)) + " (expected one of them)");
  }
}

void read_gpt2(const Fields& fields, ModelConfig& config) {
  refuse_other_sizes_of_gpt2(fields);
  config.model_dim = fields.integer("n_embd");
  config.ffn_dim =
      fields.integer("n_inner", 4 * std::clamp<std::int64_t>(config.model_dim, 0, 1 << 30));
  config.context_length = fields.integer("n_positions");
  config.norm = Norm::layer;
  config.norm_eps = static_cast<float>(fields.real("layer_norm_epsilon", 1e-5));
  config.activation = activation_of(fields, "activation_function", "gelu_new");
  config.gated_ffn = false;
  config.tied_output = fields.boolean("tie_word_embeddings", true);
  fields.never_run("scale_attn_by_inverse_layer_idx");
  fields.never("add_cross_attention");
  add_plain_layers(fields, "n_layer", "n_head", config);
  if (!fields.boolean("scale_attn_weights", true)) config.attention_scale = 1.0f;
}

void read_bert(const Fields& fields, ModelConfig& config) {
  config.model_dim = fields.integer("hidden_size");
  config.ffn_dim = fields.integer("intermediate_size");
  config.context_length = fields.integer("max_position_embeddings");
  config.token_types = fields.integer("type_vocab_size", 2);
  config.norm = Norm::layer;
  config.norm_eps = static_cast<float>(fields.real("layer_norm_eps", 1e-12));
  config.activation = activation_of(fields, "hidden_act", "gelu");
  config.gated_ffn = false;
  config.causal = false;
  config.pooling = Pooling::mean;
  fields.never("is_decoder");
  fields.never("add_cross_attention");
  fields.only("position_embedding_type", fields.text("position_embedding_type", "absolute"),
              "absolute");
  add_plain_layers(fields, "num_hidden_layers", "num_attention_heads", config);
}

/// Transformers passes over a soft-cap of scores even in gemma3, and has one of logits only there.
void refuse_soft_caps(const Fields& fields, Architecture architecture) {
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    const bool read = architecture == Architecture::gemma3 && name[0] == 'f';
    if (read || fields.real(name, 0.0) == 0.0) continue;
    fields.refuse_value(name, std::string("null or 0 of a ") + architecture_name(architecture));
  }
}

/// Which of the two counts depends on the version of Transformers.
void check_tied(const Fields& whole, const Fields& part, bool tied) {
  const char* const name = "tie_word_embeddings";
  if (!whole.has(name) || whole.boolean(name, tied) == tied) return;
  whole.refuse(name, std::string("is ") + (tied ? "false" : "true") + ", and " +
                         part.full_name(name) + (tied ? " is true" : " is false") +
                         (part.has(name) ? "" : " where it is missing"));
}

}  // namespace

bool runs_model_type(std::string_view model_type) {
  return std::ranges::find(kModelTypes, model_type, &ModelType::name) != kModelTypes.end();
}

ModelConfig config_from_json(const std::string& path, std::string_view text, Reading reading) {
  const json parsed = formats::parse_json(path, "the file", text, kMaxDepth);
  const Fields whole(path, parsed, reading);
  ModelConfig config;
  config.architecture = architecture_of(whole);
  const bool gemma = config.architecture == Architecture::gemma3;
  if (reading == Reading::run && whole.has("quantization_config")) {
    whole.refuse("quantization_config", "is given; quantised safetensors are not supported");
  }
  const bool nested = gemma && whole.has("text_config");
  const Fields fields = nested ? whole.object("text_config") : whole;
  if (reading == Reading::run) refuse_soft_caps(fields, config.architecture);
  if (config.architecture == Architecture::gpt2) {
    read_gpt2(fields, config);
  } else if (config.architecture == Architecture::bert) {
    read_bert(fields, config);
  } else {
    Decoder(fields, config.architecture).read(config);
  }
  config.vocab_size =
      gemma ? fields.integer("vocab_size", std::int64_t{262208}) : fields.integer("vocab_size");
  if (nested) check_tied(whole, fields, config.tied_output);
  return config;
}

/// Sentence Transformers from version 6 on: one name, or a list of them.
Pooling pooling_named(const Fields& fields) {
  const json& given = fields.at("pooling_mode");
  const json& mode = given.is_array() && given.size() == 1 ? given.front() : given;
  if (mode == "mean") return Pooling::mean;
  if (mode == "cls") return Pooling::first;
  fields.refuse("pooling_mode", "is " + formats::escape_controls(given.dump().substr(0, 60)) +
                                    " (expected mean or cls)");
}

Pooling pooling_from_json(const std::string& path, std::string_view text) {
  const json parsed = formats::parse_json(path, "the file", text, kMaxDepth);
  const Fields fields(path, parsed);
  if (fields.has("pooling_mode")) return pooling_named(fields);
  for (const char* other : {"pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                            "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"}) {
    fields.never(other);
  }
  const bool first = fields.boolean("pooling_mode_cls_token", false);
  if (first == fields.boolean("pooling_mode_mean_tokens", !first)) {
    fields.refuse("pooling_mode_mean_tokens", "and 'pooling_mode_cls_token' are not one of two");
  }
  return first ? Pooling::first : Pooling::mean;
}

}  // namespace polyhead::inline v0::models
