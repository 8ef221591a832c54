// GGUF metadata as a ModelConfig.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/joined.hpp"
#include "base/limits.hpp"
#include "base/number_text.hpp"
#include "base/weight_type.hpp"
#include "models/formats/file_error.hpp"
#include "models/read_config.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using formats::Gguf;
using formats::quote;

constexpr std::int64_t kGemmaPattern = 6;  // one layer in six sees everything, where no key says so
constexpr double kGemmaLocalBase = 10000.0;
constexpr std::int64_t kGemma27bLayers = 62;  // its scale is by model_dim / heads, not by head_dim

constexpr std::array kArchitectures{Architecture::llama, Architecture::gemma3, Architecture::qwen2,
                                    Architecture::qwen3, Architecture::gpt2,   Architecture::bert};

Architecture architecture_of(const Gguf& file) {
  const auto name = file.text("general.architecture");
  if (!name) throw FileError(file.path(), "has no metadata 'general.architecture'");
  const auto* found = std::ranges::find(kArchitectures, *name, architecture_name);
  if (found != kArchitectures.end()) return *found;
  throw FileError(file.path(), "has architecture " + quote(*name) + " (expected one of " +
                                   base::joined(kArchitectures, ", ", architecture_name) + ")");
}

class Reader {
 public:
  explicit Reader(const Gguf& file) : file_(file) {
    config_.architecture = architecture_of(file);
    prefix_ = std::string(architecture_name(config_.architecture)) + ".";
  }

  ModelConfig read() {
    const Architecture a = config_.architecture;
    refuse_parts();
    refuse_experts();
    config_.name = name();
    config_.model_dim = required("embedding_length");
    config_.context_length = required("context_length");
    config_.ffn_dim = same_in_all_layers("feed_forward_length");
    config_.vocab_size = rows_of("token_embd.weight");
    config_.tied_output = a != Architecture::bert && !has_tensor("output.weight");
    const bool layer_norm = a == Architecture::gpt2 || a == Architecture::bert;
    config_.norm = layer_norm ? Norm::layer : Norm::rms;
    config_.norm_eps = required_real(layer_norm ? "attention.layer_norm_epsilon"
                                                : "attention.layer_norm_rms_epsilon");
    config_.activation = a == Architecture::bert     ? Activation::gelu
                         : a == Architecture::gpt2   ? Activation::gelu_tanh
                         : a == Architecture::gemma3 ? Activation::gelu_tanh
                                                     : Activation::silu;
    config_.gated_ffn = !layer_norm;
    config_.qk_norm = a == Architecture::gemma3 || a == Architecture::qwen3;
    config_.attention_soft_cap = soft_cap("attn_logit_softcapping");
    config_.logit_soft_cap = soft_cap("final_logit_softcapping");
    if (a == Architecture::gemma3) {
      config_.embedding_scale = std::sqrt(static_cast<float>(config_.model_dim));
    }
    if (a == Architecture::bert) read_encoder();
    check_direction();
    read_layers();
    config_.attention_scale = attention_scale();
    return std::move(config_);
  }

 private:
  std::string key(const char* name) const { return prefix_ + name; }

  std::int64_t required(const char* name) const {
    const auto value = file_.integer(key(name));
    if (!value) throw FileError(file_.path(), "has no metadata " + quote(key(name)));
    return *value;
  }
  float required_real(const char* name) const {
    const auto value = file_.real(key(name));
    if (!value) throw FileError(file_.path(), "has no metadata " + quote(key(name)));
    return static_cast<float>(*value);
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return file_.integer(key(name)).value_or(otherwise);
  }
  double real(const char* name, double otherwise) const {
    return file_.real(key(name)).value_or(otherwise);
  }

  [[noreturn]] void refuse(const char* name, double found, const std::string& expected) const {
    throw FileError(file_.path(), "metadata " + quote(key(name)) + " is " +
                                      base::number_text(found) + " (expected " + expected + ")");
  }

  float soft_cap(const char* name) const {
    const double cap = real(name, 0.0);
    if (cap != 0.0 && config_.architecture != Architecture::gemma3)
      refuse(name, cap, std::string("none of a ") + architecture_name(config_.architecture));
    return static_cast<float>(cap);
  }

  /// A number for each layer: one for all, or an array.
  std::vector<std::int64_t> by_layer(const char* name, std::int64_t otherwise) const {
    const auto layers = static_cast<std::size_t>(layer_count());
    if (!file_.is_array(key(name))) return std::vector(layers, integer(name, otherwise));
    auto list = file_.integers(key(name)).value_or(std::vector<std::int64_t>{});
    if (list.size() != layers) {
      throw FileError(file_.path(), "metadata " + quote(key(name)) + " has " +
                                        std::to_string(list.size()) + " elements (expected " +
                                        std::to_string(layers) + ", one a layer)");
    }
    return list;
  }

  std::int64_t same_in_all_layers(const char* name) const {
    const auto list = by_layer(name, -1);
    if (std::adjacent_find(list.begin(), list.end(), std::not_equal_to<>()) != list.end()) {
      throw FileError(file_.path(),
                      "metadata " + quote(key(name)) + " differs by layer, which is not supported");
    }
    return list.front() == -1 ? required(name) : list.front();
  }

  std::int64_t layer_count() const {
    const std::int64_t layers = required("block_count");
    if (layers < 1 || layers > kMaxLayers) {
      throw FileError(file_.path(), "metadata " + quote(key("block_count")) + " is " +
                                        std::to_string(layers) + " (expected 1 to " +
                                        std::to_string(kMaxLayers) + ")");
    }
    return layers;
  }

  void refuse_parts() const {
    const std::int64_t parts = file_.integer("split.count").value_or(0);
    if (parts > 1) {
      throw FileError(file_.path(), "is one of the " + std::to_string(parts) +
                                        " parts of a split model (join them with llama.cpp's "
                                        "gguf-split)");
    }
  }

  void refuse_experts() const {
    if (integer("expert_count", 0) > 0) {
      throw FileError(file_.path(), "is a mixture of experts, which is not supported");
    }
  }

  std::string name() const {
    const auto text = file_.text("general.name");
    return text && !text->empty() ? std::string(*text)
                                  : std::filesystem::path(file_.path()).stem().string();
  }

  bool has_tensor(std::string_view name) const { return file_.tensor(name) != nullptr; }
  std::int64_t rows_of(std::string_view name) const {
    const formats::GgufTensor* tensor = file_.tensor(name);
    if (tensor == nullptr || tensor->shape.size() != 2) {
      throw FileError(file_.path(), "has no matrix " + quote(name));
    }
    return tensor->shape.front();
  }

  /// Files may say which way attention looks; it is known by the architecture.
  void check_direction() const {
    const auto causal = file_.boolean(key("attention.causal"));
    if (causal && *causal != config_.causal) {
      throw FileError(file_.path(), "metadata " + quote(key("attention.causal")) + " is " +
                                        (*causal ? "true" : "false") + " (expected " +
                                        (config_.causal ? "true" : "false") + " of " +
                                        architecture_name(config_.architecture) + ")");
    }
  }

  void read_encoder() {
    config_.causal = false;
    config_.token_types = has_tensor("token_types.weight") ? rows_of("token_types.weight") : 0;
    const std::int64_t pooling = integer("pooling_type", 1);  // llama_pooling_type
    if (pooling < 0 || pooling > 2) {
      throw FileError(file_.path(), "metadata " + quote(key("pooling_type")) + " is " +
                                        std::to_string(pooling) +
                                        " (expected 0 none, 1 mean or 2 first)");
    }
    config_.pooling = pooling == 0 ? Pooling::none : pooling == 1 ? Pooling::mean : Pooling::first;
  }

  void read_layers() {
    const auto q_heads = by_layer("attention.head_count", 0);
    const auto kv_heads = by_layer("attention.head_count_kv", 0);
    const std::int64_t window = integer("attention.sliding_window", 0);
    const std::vector<bool> local = local_layers(window);
    for (std::size_t i = 0; i < q_heads.size(); ++i) {
      LayerGeometry layer;
      layer.q_heads = q_heads[i];
      layer.kv_heads = kv_heads[i] == 0 ? q_heads[i] : kv_heads[i];
      const std::int64_t fair = layer.q_heads > 0 ? config_.model_dim / layer.q_heads : 0;
      layer.head_dim = integer("attention.key_length", fair);
      layer.value_dim = integer("attention.value_length", fair);
      layer.window = local[i] ? window : 0;
      if (config_.norm == Norm::rms) layer.rope = rope(layer, local[i]);
      config_.layers.push_back(std::move(layer));
    }
  }

  /// gemma3 alternates where it has a window, and is all global without; llama (Mistral) has its
  /// window in every layer; qwen's files do not say which layers theirs is for, and models in use
  /// have none.
  std::vector<bool> local_layers(std::int64_t window) const {
    const auto layers = static_cast<std::size_t>(layer_count());
    if (config_.architecture != Architecture::gemma3) {
      return std::vector<bool>(layers, config_.architecture == Architecture::llama);
    }
    std::vector<bool> local(layers);
    if (window == 0) return local;  // whatever the pattern says: llama.cpp does not read it then
    if (file_.is_array(key("attention.sliding_window_pattern"))) {
      const auto given = by_layer("attention.sliding_window_pattern", 0);
      std::transform(given.begin(), given.end(), local.begin(),
                     [](std::int64_t windowed) { return windowed != 0; });
      return local;
    }
    const std::int64_t pattern = integer("attention.sliding_window_pattern", kGemmaPattern);
    if (pattern < 1) {
      throw FileError(file_.path(), "metadata " + quote(key("attention.sliding_window_pattern")) +
                                        " is " + std::to_string(pattern));
    }
    for (std::size_t i = 0; i < layers; ++i) {
      local[i] = (static_cast<std::int64_t>(i) + 1) % pattern != 0;
    }
    return local;
  }

  RopeConfig rope(const LayerGeometry& layer, bool local) const {
    RopeConfig rope;
    rope.pairing = config_.architecture == Architecture::llama ? RopePairing::interleaved
                                                               : RopePairing::half_split;
    rope.rotary_dims = integer("rope.dimension_count", layer.head_dim);
    if (config_.architecture == Architecture::gemma3) {
      rope.rotary_dims = layer.head_dim;
      rope.base = local ? real("rope.freq_base_swa", kGemmaLocalBase) : real("rope.freq_base", 1e6);
      if (local) return rope;  // only layers that see everything are stretched
    } else {
      rope.base = real("rope.freq_base", 10000.0);
    }
    read_scaling(rope);
    if (const formats::GgufTensor* divisors = file_.tensor("rope_freqs.weight")) {
      if (divisors->type != WeightType::float32 || divisors->shape.size() != 1 ||
          divisors->shape[0] > base::kMaxDim / 2) {
        throw FileError(
            file_.path(),
            "tensor 'rope_freqs.weight' is not a row of F32, one for each pair of a head");
      }
      rope.frequency_divisors.resize(static_cast<std::size_t>(divisors->shape[0]));
      std::memcpy(rope.frequency_divisors.data(), divisors->data.data(), divisors->data.size());
    }
    return rope;
  }

  void read_scaling(RopeConfig& rope) const {
    const std::string_view type = file_.text(key("rope.scaling.type")).value_or("");
    const double factor = real("rope.scaling.factor", real("rope.scale_linear", 1.0));
    if (type == "none" || factor == 0.0 || (type.empty() && factor == 1.0)) return;
    refuse_other_yarn(type == "yarn");
    rope.factor = factor;
    if (type == "linear" || type.empty()) {
      rope.scaling = RopeScaling::linear;
    } else if (type == "yarn") {
      rope.scaling = RopeScaling::yarn;
      rope.original_length =
          integer("rope.scaling.original_context_length", config_.context_length);
      rope.beta_fast = real("rope.scaling.yarn_beta_fast", rope.beta_fast);
      rope.beta_slow = real("rope.scaling.yarn_beta_slow", rope.beta_slow);
      if (const auto factor_of = file_.real(key("rope.scaling.attn_factor"))) {
        // ggml multiplies by 1 + 0.1 ln(factor) besides.
        rope.attention_factor = *factor_of * (1.0 + 0.1 * std::log(factor));
      }
    } else {
      throw FileError(file_.path(), "metadata " + quote(key("rope.scaling.type")) + " is " +
                                        quote(type) + " (expected none, linear or yarn)");
    }
  }

  /// What of YaRN llama.cpp's versions take differently: only their defaults.
  void refuse_other_yarn(bool yarn) const {
    const double mixed = real("rope.scaling.yarn_ext_factor", -1.0);  // below 0: not given
    if (mixed >= 0.0 && mixed != (yarn ? 1.0 : 0.0))
      refuse("rope.scaling.yarn_ext_factor", mixed, yarn ? "1 of yarn" : "0 of linear");
    for (const auto& [name, usual] : {std::pair{"rope.scaling.yarn_attn_factor", 1.0},
                                      {"rope.scaling.yarn_log_multiplier", 0.0}}) {
      if (real(name, usual) != usual)
        refuse(name, real(name, usual), usual == 0.0 ? "none" : "1 or none");
    }
  }

  float attention_scale() const {
    const LayerGeometry& layer = config_.layers.front();
    const bool by_model = config_.architecture == Architecture::gemma3 &&
                          static_cast<std::int64_t>(config_.layers.size()) == kGemma27bLayers;
    const std::int64_t dim =
        by_model && layer.q_heads > 0 ? config_.model_dim / layer.q_heads : layer.head_dim;
    const double scale = dim > 0 ? 1.0 / std::sqrt(static_cast<double>(dim)) : 0.0;
    return static_cast<float>(real("attention.scale", scale));
  }

  const Gguf& file_;
  ModelConfig config_;
  std::string prefix_;
};

}  // namespace

ModelConfig config_from_gguf(const Gguf& file) { return Reader(file).read(); }

}  // namespace polyhead::inline v0::models
