// A Hugging Face config.json as a ModelConfig.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/read_config.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using formats::quote;
using nlohmann::json;

constexpr int kMaxDepth = 16;  // vision parts nest a few objects

/// One object of the file; null counts as absent.
class Fields {
 public:
  Fields(const std::string& path, const json& from, Reading reading = Reading::run,
         std::string prefix = "")
      : path_(path), from_(from), prefix_(std::move(prefix)), reading_(reading) {
    if (!from.is_object()) {
      throw FileError(path, prefix_.empty()
                                ? "is not an object"
                                : quote(prefix_.substr(0, prefix_.size() - 1)) + " is no object");
    }
  }

  bool has(const char* name) const { return given(name) && !from_[name].is_null(); }
  bool given(const char* name) const { return from_.contains(name); }  ///< if as null
  const json& at(const char* name) const { return from_[name]; }
  Fields object(const char* name) const {
    return Fields(path_, from_[name], reading_, prefix_ + name + ".");
  }
  bool described() const { return reading_ == Reading::described; }

  [[noreturn]] void refuse(const char* name, const std::string& why) const {
    throw FileError(path_, quote(prefix_ + name) + " " + why);
  }

  std::int64_t integer(const char* name) const {
    if (!has(name)) refuse(name, "is missing");
    const json& value = from_[name];
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() >
             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))) {
      refuse(name, "is not a whole number");
    }
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return has(name) ? integer(name) : otherwise;
  }
  double real(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_number()) refuse(name, "is not a number");
    return from_[name].get<double>();
  }
  bool boolean(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_boolean()) refuse(name, "is neither true nor false");
    return from_[name].get<bool>();
  }
  /// Numbers, at most `most` of them.
  std::vector<float> reals(const char* name, std::size_t most) const {
    if (!has(name)) refuse(name, "is missing");
    const json& list = from_[name];
    if (!list.is_array() || list.size() > most ||
        !std::all_of(list.begin(), list.end(), [](const json& x) { return x.is_number(); })) {
      refuse(name, "is not a list of at most " + std::to_string(most) + " numbers");
    }
    return list.get<std::vector<float>>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_string()) refuse(name, "is not text");
    return from_[name].get<std::string>();
  }
  /// For what would change the numbers and is not supported.
  void only(const char* name, const std::string& found, const std::string& expected) const {
    if (found != expected) refuse(name, "is " + quote(found) + " (expected " + expected + ")");
  }
  void never(const char* name) const {
    if (boolean(name, false)) refuse(name, "is true, which is not supported");
  }
  /// For what changes no size.
  void never_run(const char* name) const {
    if (!described()) never(name);
  }

 private:
  const std::string& path_;
  const json& from_;
  std::string prefix_;
  Reading reading_;
};

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
  std::string known;
  for (const ModelType& model : kModelTypes) {
    if (type == model.name) return model.architecture;
    known += std::string(known.empty() ? "" : ", ") + model.name;
  }
  fields.refuse("model_type", "is " + quote(type) + " (expected one of " + known + ")");
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
    config.attention_soft_cap = static_cast<float>(fields_.real("attn_logit_softcapping", 0.0));
    config.logit_soft_cap = static_cast<float>(fields_.real("final_logit_softcapping", 0.0));
    if (gemma) config.embedding_scale = std::sqrt(static_cast<float>(config.model_dim));
    if (architecture_ == Architecture::llama) {
      config.attention_biases = fields_.boolean("attention_bias", false);
      config.ffn_biases = fields_.boolean("mlp_bias", false);
    } else {
      fields_.never("attention_bias");
    }
    fields_.never_run("use_bidirectional_attention");
    read_layers(config);
    const double scalar = gemma ? fields_.real("query_pre_attn_scalar", 256.0)
                                : static_cast<double>(config.layers.front().head_dim);
    config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  }

 private:
  /// Published Gemma 3 files leave out what is as in Transformers' Gemma3TextConfig.
  std::int64_t size(const char* key, std::int64_t of_gemma) const {
    return architecture_ == Architecture::gemma3 ? fields_.integer(key, of_gemma)
                                                 : fields_.integer(key);
  }

  void read_layers(ModelConfig& config) const {
    const std::int64_t count = size("num_hidden_layers", 26);
    if (count < 1 || count > kMaxLayers) {
      fields_.refuse("num_hidden_layers", "is " + std::to_string(count) + " (expected 1 to " +
                                              std::to_string(kMaxLayers) + ")");
    }
    LayerGeometry layer;
    const bool gemma = architecture_ == Architecture::gemma3;
    layer.q_heads = size("num_attention_heads", 8);
    layer.kv_heads =
        fields_.integer("num_key_value_heads", gemma ? std::int64_t{4} : layer.q_heads);
    const std::int64_t fair = layer.q_heads > 0 ? config.model_dim / layer.q_heads : 0;
    layer.head_dim = fields_.integer("head_dim", gemma ? std::int64_t{256} : fair);
    layer.value_dim = layer.head_dim;
    const std::vector<bool> local = local_layers(count);
    const std::int64_t window = window_size();
    LayerGeometry windowed = layer;
    if (!fields_.described()) {
      layer.rope = rope("full_attention", config);
      windowed.rope = gemma ? rope("sliding_attention", config) : layer.rope;
    }
    windowed.window = window;
    for (const bool is_local : local) config.layers.push_back(is_local ? windowed : layer);
  }

  /// Of layers that have one. Absent it is what Transformers takes then, null is none.
  std::int64_t window_size() const {
    constexpr std::int64_t kOfTransformers = 4096;
    const bool qwen = architecture_ == Architecture::qwen2 || architecture_ == Architecture::qwen3;
    if (fields_.text("model_type", "") == "llama") return 0;
    if (qwen && !fields_.boolean("use_sliding_window", false)) return 0;
    return fields_.integer("sliding_window", fields_.given("sliding_window") ? 0 : kOfTransformers);
  }

  std::vector<bool> local_layers(std::int64_t count) const {
    const auto layers = static_cast<std::size_t>(count);
    std::vector<bool> local(layers, false);
    if (fields_.has("layer_types") && architecture_ != Architecture::llama) {
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
      return local;
    }
    if (architecture_ == Architecture::llama) return std::vector<bool>(layers, true);
    if (architecture_ == Architecture::gemma3) {
      const std::int64_t pattern =
          fields_.integer("sliding_window_pattern", fields_.integer("_sliding_window_pattern", 6));
      if (pattern < 1) fields_.refuse("sliding_window_pattern", "is not positive");
      for (std::size_t i = 0; i < layers; ++i)
        local[i] = (static_cast<std::int64_t>(i) + 1) % pattern != 0;
      return local;
    }
    if (!fields_.boolean("use_sliding_window", false)) return local;  // qwen
    const std::int64_t first =
        std::clamp<std::int64_t>(fields_.integer("max_window_layers", 28), 0, count);
    std::fill(local.begin() + first, local.end(), true);
    return local;
  }

  /// rope_parameters, by layer type or for all, or the older rope_theta and rope_scaling.
  RopeConfig rope(const char* layer_type, ModelConfig& config) const {
    const bool gemma = architecture_ == Architecture::gemma3;
    const bool local = gemma && std::string_view(layer_type) == "sliding_attention";
    RopeConfig rope;
    rope.pairing = RopePairing::half_split;
    rope.base = local ? fields_.real("rope_local_base_freq", 10000.0)
                      : fields_.real("rope_theta", gemma ? 1e6 : 10000.0);
    refuse_partial(fields_);
    if (fields_.has("rope_parameters")) {
      const Fields all = fields_.object("rope_parameters");
      if (all.has(layer_type)) {
        read_scaling(all.object(layer_type), config, rope);
      } else if (!gemma) {
        read_scaling(all, config, rope);
      }
    }
    if (!local && fields_.has("rope_scaling")) {
      read_scaling(fields_.object("rope_scaling"), config, rope);
    }
    return rope;
  }

  static void refuse_partial(const Fields& from) {
    if (from.real("partial_rotary_factor", 1.0) != 1.0)
      from.refuse("partial_rotary_factor", "is not 1");
  }

  void read_scaling(const Fields& from, ModelConfig& config, RopeConfig& rope) const {
    refuse_partial(from);
    rope.base = from.real("rope_theta", rope.base);
    const std::string type = from.text("rope_type", from.text("type", "default"));
    // Dynamic NTK changes frequencies only beyond max_position_embeddings, the context here.
    if (type == "default" || type == "dynamic") return;
    if (type == "longrope") return read_longrope(from, config, rope);
    const auto require = [&](const char* name) {
      if (!from.has(name)) from.refuse(name, "is missing (rope_type " + quote(type) + ")");
    };
    if (type == "linear" || type == "llama3") require("factor");
    rope.factor = from.real("factor", 1.0);
    rope.original_length = from.integer("original_max_position_embeddings", config.context_length);
    if (type == "linear") {
      rope.scaling = RopeScaling::linear;
    } else if (type == "llama3") {
      rope.scaling = RopeScaling::llama3;
      require("low_freq_factor");
      require("high_freq_factor");
      rope.low_freq_factor = from.real("low_freq_factor", rope.low_freq_factor);
      rope.high_freq_factor = from.real("high_freq_factor", rope.high_freq_factor);
    } else if (type == "yarn") {
      rope.scaling = RopeScaling::yarn;
      rope.beta_fast = from.real("beta_fast", rope.beta_fast);
      rope.beta_slow = from.real("beta_slow", rope.beta_slow);
      rope.truncate = from.boolean("truncate", rope.truncate);
      rope.mscale = from.real("mscale", rope.mscale);
      rope.mscale_all_dim = from.real("mscale_all_dim", rope.mscale_all_dim);
      if (from.has("attention_factor")) rope.attention_factor = from.real("attention_factor", 1.0);
    } else {
      from.refuse("rope_type", "is " + quote(type) + " (expected default, linear, llama3, yarn, " +
                                   "longrope or dynamic)");
    }
  }

  /// LongRoPE has one divisor a pair for texts up to the original length and others for longer
  /// ones, where a token's rotation depends on how long its text becomes. A token here has the same
  /// bits in any text, so the original length is the context. Source: Ding et al. 2024.
  void read_longrope(const Fields& from, ModelConfig& config, RopeConfig& rope) const {
    const std::int64_t most = config.context_length;
    const std::int64_t length =
        from.integer("original_max_position_embeddings",
                     fields_.integer("original_max_position_embeddings", most));
    if (length < 2) from.refuse("original_max_position_embeddings", "is not at least 2");
    const double stretch =
        from.real("factor", static_cast<double>(most) / static_cast<double>(length));
    const double factor =
        stretch <= 1.0 ? 1.0
                       : std::sqrt(1.0 + std::log(stretch) / std::log(static_cast<double>(length)));
    rope.frequency_divisors =
        from.reals("short_factor", static_cast<std::size_t>(base::kMaxDim / 2));
    rope.scaling = RopeScaling::yarn;  // of factor 1: frequencies as they are, cos and sin times
    rope.attention_factor = from.real("attention_factor", factor);
    rope.original_length = length;
    config.context_length = std::min(most, length);
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

void read_gpt2(const Fields& fields, ModelConfig& config) {
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
  config.vocab_size = fields.integer("vocab_size", gemma ? std::int64_t{262208} : std::int64_t{0});
  if (config.architecture == Architecture::gpt2) {
    read_gpt2(fields, config);
  } else if (config.architecture == Architecture::bert) {
    read_bert(fields, config);
  } else {
    Decoder(fields, config.architecture).read(config);
  }
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
