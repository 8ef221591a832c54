// config.json of a Hugging Face checkpoint as a description: the sizes that cost something. What
// the program runs is read by what runs it; here are the others, with experts or latents.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_input.hpp"
#include "cli/plan_model.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/read_config.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr int kMaxDepth = 16;  // vision parts nest a few objects

using cost::Layer;
using cost::ModelDescription;
using nlohmann::json;

constexpr std::int64_t kLargest = 1'000'000'000;
constexpr std::int64_t kMostLayers = 100'000;
constexpr const char* kKnownTypes =
    "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3, gemma3_text, gpt2, bert, "
    "deepseek_v2, deepseek_v3 or gpt_oss";

/// Keys of one object, refused by name.
struct Keys {
  const std::string& path;
  const json& object;

  [[noreturn]] void refuse(const std::string& what) const { throw formats::FileError(path, what); }

  const json* find(const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t whole(const char* key, const json& value) const {
    if (!value.is_number_integer() || value < 0 || value > kLargest) {
      refuse(std::string("'") + key + "' is " +
             formats::escape_controls(value.dump().substr(0, 40)) +
             "; expected a whole number from 0 to 10^9");
    }
    return value.get<std::int64_t>();
  }

  std::int64_t number(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) refuse(std::string("has no '") + key + "'");
    return whole(key, *value);
  }
  std::int64_t number(const char* key, std::int64_t otherwise) const {
    const json* value = find(key);
    return value == nullptr ? otherwise : whole(key, *value);
  }
  bool flag(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(std::string("'") + key + "' is neither true nor false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& expected) const {
    const json* value = find(key);
    if (value == nullptr) refuse(std::string("has no '") + key + "'; expected " + expected);
    if (!value->is_string()) {
      refuse(std::string("'") + key + "' is a JSON " + value->type_name() +
             "; expected text: " + expected);
    }
    return value->get<std::string>();
  }
};

/// Of the text part, where there is one, before the whole: a key that either has.
template <class Take>
auto first_of(const Keys& whole, const Take& take) {
  const json* const part = whole.find("text_config");
  if (part != nullptr && part->is_object()) {
    if (auto found = take(Keys{whole.path, *part})) return found;
  }
  return take(whole);
}

/// How weights are quantised: "" (not), fp8 (all) or mxfp4 (experts).
std::string quantised_by(const Keys& whole) {
  const json* const quantised =
      first_of(whole, [](const Keys& keys) { return keys.find("quantization_config"); });
  if (quantised == nullptr || !quantised->is_object()) return "";
  std::string method = Keys{whole.path, *quantised}.text("quant_method", "fp8 or mxfp4");
  if (method != "fp8" && method != "mxfp4") {
    whole.refuse("'quantization_config' is of quant_method " + formats::quote(method) +
                 "; expected fp8 or mxfp4: what others store is not in this file (plan the model "
                 "it was made of, with --weight-type)");
  }
  return method;
}

/// Of what is not quantised.
std::string plain_type(const Keys& whole) {
  const char* key = "dtype";
  const json* const type = first_of(whole, [&](const Keys& keys) {
    key = "dtype";
    const json* const now = keys.find(key);
    if (now != nullptr) return now;
    return keys.find(key = "torch_dtype");  // as it was called
  });
  if (type == nullptr) return "f32";
  for (const auto& [name, stored] :
       {std::pair{"bfloat16", "bf16"}, {"float16", "f16"}, {"float32", "f32"}}) {
    if (*type == name) return stored;
  }
  const std::string found = type->is_string() ? formats::quote(type->get<std::string>())
                                              : "a JSON " + std::string(type->type_name());
  whole.refuse(std::string("'") + key + "' is " + found +
               "; expected 'bfloat16', 'float16' or 'float32'");
}

std::int64_t layers_of(const Keys& keys, const char* key) {
  const std::int64_t layers = keys.number(key);
  if (layers < 1 || layers > kMostLayers) {
    keys.refuse(std::string("'") + key + "' is " + std::to_string(layers) +
                "; expected 1 to 100000 layers");
  }
  return layers;
}

Layer common_layer(const Keys& keys) {
  Layer layer;
  layer.count = layers_of(keys, "num_hidden_layers");
  layer.model_dim = keys.number("hidden_size");
  layer.q_heads = keys.number("num_attention_heads");
  if (layer.q_heads == 0) keys.refuse("'num_attention_heads' is 0; expected at least 1");
  layer.kv_heads = keys.number("num_key_value_heads", layer.q_heads);
  if (layer.kv_heads == 0 || layer.q_heads % layer.kv_heads != 0) {
    keys.refuse("'num_key_value_heads' is " + std::to_string(layer.kv_heads) +
                ", which does not divide the " + std::to_string(layer.q_heads) +
                " of 'num_attention_heads'");
  }
  layer.head_dim = keys.number("head_dim", layer.model_dim / layer.q_heads);
  layer.value_dim = layer.head_dim;
  layer.ffn.ffn_dim = keys.number("intermediate_size", 0);
  layer.norm_parameters = 2 * layer.model_dim;
  const bool bias = keys.flag("attention_bias", false);
  layer.biases = {bias, bias, bias, bias};
  return layer;
}

ModelDescription common_model(const Keys& keys) {
  ModelDescription model;
  model.vocab_size = keys.number("vocab_size", 0);
  model.context_length = keys.number("max_position_embeddings", 0);
  model.tied_output = keys.flag("tie_word_embeddings", false);
  model.other_parameters = keys.number("hidden_size", 0);
  return model;
}

/// Which layers, one by one, are of a kind: files mix kinds as they like.
using Which = std::vector<bool>;

template <class Condition>
Which layers_where(std::int64_t layers, const Condition& condition) {
  Which which;
  for (std::int64_t i = 0; i < layers; ++i) which.push_back(condition(i));
  return which;
}

bool holds(const Which& which, bool kind) { return std::ranges::count(which, kind) > 0; }

/// Those that are local by layer_types; `otherwise` without it.
Which listed_local(const Keys& keys, Which otherwise) {
  const json* const types = keys.find("layer_types");
  if (types == nullptr) return otherwise;
  if (!types->is_array() || types->size() != otherwise.size()) {
    keys.refuse("'layer_types' is not a list of " + std::to_string(otherwise.size()) + " elements");
  }
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      keys.refuse("'layer_types' holds something else than full_attention and sliding_attention");
  }
  return layers_where(static_cast<std::int64_t>(types->size()), [&](std::int64_t i) {
    return (*types)[static_cast<std::size_t>(i)] == "sliding_attention";
  });
}

/// The kinds of layers that a model mixes: with a window or without, with experts or without.
struct Kinds {
  Which local, sparse;
  std::int64_t window = 0, dense_ffn_dim = 0;
};

/// "local", "global", "dense", "experts", "local dense": what tells a kind from the others.
std::string kind_name(const Kinds& kinds, bool local, bool sparse) {
  std::string name;
  if (holds(kinds.local, true)) name = local ? "local" : "global";
  if (holds(kinds.sparse, true) && holds(kinds.sparse, false))
    name.append(name.empty() ? "" : " ").append(sparse ? "experts" : "dense");
  return name;
}

/// `layer`, which has experts, as often as it is of each kind.
std::vector<Layer> layers_of_kinds(const Layer& layer, const Kinds& kinds) {
  std::vector<Layer> layers;
  for (const bool local : {true, false}) {
    for (const bool sparse : {false, true}) {
      Layer one = layer;
      one.count = 0;
      for (std::size_t i = 0; i < kinds.local.size(); ++i)
        one.count += kinds.local[i] == local && kinds.sparse[i] == sparse;
      if (one.count == 0) continue;
      one.name = kind_name(kinds, local, sparse);
      if (local) one.window = kinds.window;
      if (!sparse) {
        one.ffn.experts = one.ffn.experts_used = one.ffn.shared_dim = 0;
        one.ffn.router_bias = false;
        one.ffn.ffn_dim = kinds.dense_ffn_dim;
      }
      layers.push_back(one);
    }
  }
  return layers;
}

/// Windows of mixtral, qwen3_moe and gpt_oss. What a file leaves out is that of Transformers.
void find_windows(const Keys& keys, const std::string& type, std::int64_t layers, Kinds& kinds) {
  const bool gpt = type == "gpt_oss", qwen = type == "qwen3_moe";
  kinds.local = Which(static_cast<std::size_t>(layers), true);
  if (gpt) {  // every other one, the first among them
    kinds.local =
        listed_local(keys, layers_where(layers, [](std::int64_t i) { return i % 2 == 0; }));
  }
  if (qwen) {  // the later ones
    const std::int64_t whole = keys.number("max_window_layers", 28);
    kinds.local =
        listed_local(keys, layers_where(layers, [&](std::int64_t i) { return i >= whole; }));
  }
  const bool given = keys.object.contains("sliding_window");  // null is none
  const std::int64_t otherwise = gpt ? 128 : qwen ? 4096 : 0;
  kinds.window = keys.number("sliding_window", given ? 0 : otherwise);
  if (qwen && !keys.flag("use_sliding_window", false))
    kinds.local.assign(kinds.local.size(), false);
  if ((gpt || qwen) && kinds.window == 0 && holds(kinds.local, true) &&
      keys.find("layer_types") != nullptr)
    keys.refuse("has 'layer_types' of sliding_attention and no 'sliding_window'");
  if (kinds.window == 0) kinds.local.assign(kinds.local.size(), false);
}

/// Every how many layers there are experts.
std::int64_t step_of_experts(const Keys& keys, const char* key) {
  const std::int64_t step = keys.number(key, 1);
  if (step == 0) keys.refuse(std::string("'") + key + "' is 0; expected at least 1");
  return step;
}

/// qwen3_moe's layers with experts, by Transformers' rule.
Which sparse_of_qwen(const Keys& keys, const Layer& layer) {
  const std::int64_t step = step_of_experts(keys, "decoder_sparse_step");
  Which dense(static_cast<std::size_t>(layer.count), layer.ffn.experts == 0);
  if (const json* const listed = keys.find("mlp_only_layers")) {
    if (!listed->is_array()) keys.refuse("'mlp_only_layers' is not a list of layers");
    for (const json& one : *listed) {
      const std::int64_t at = keys.whole("mlp_only_layers", one);
      if (at < layer.count) dense[static_cast<std::size_t>(at)] = true;
    }
  }
  return layers_where(layer.count, [&](std::int64_t i) {
    return !dense[static_cast<std::size_t>(i)] && (i + 1) % step == 0;
  });
}

/// experts_used of `experts`, which the file has under `key`.
std::int64_t used_of(const Keys& keys, const char* key, std::int64_t experts) {
  if (experts == 0) return 0;
  const std::int64_t used = keys.number("num_experts_per_tok");
  if (used < 1 || used > experts) {
    keys.refuse("'num_experts_per_tok' is " + std::to_string(used) + "; expected 1 to the " +
                std::to_string(experts) + " of '" + key + "'");
  }
  return used;
}

/// mixtral, qwen3_moe and gpt_oss.
ModelDescription with_experts(const Keys& keys, const std::string& type) {
  Layer layer = common_layer(keys);
  const bool gpt = type == "gpt_oss", qwen = type == "qwen3_moe";
  layer.qk_norm = qwen;
  if (gpt) {
    layer.biases = {true, true, true, true};
    layer.sinks = true;
    layer.ffn.biases = true;
  }
  const char* const experts = qwen ? "num_experts" : "num_local_experts";
  layer.ffn.experts = keys.number(experts);
  layer.ffn.experts_used = used_of(keys, experts, layer.ffn.experts);
  Kinds kinds;
  find_windows(keys, type, layer.count, kinds);
  kinds.sparse = qwen ? sparse_of_qwen(keys, layer) : Which(kinds.local.size(), true);
  if (holds(kinds.sparse, false)) kinds.dense_ffn_dim = keys.number("intermediate_size");
  layer.ffn.ffn_dim = keys.number("moe_intermediate_size", layer.ffn.ffn_dim);
  ModelDescription model = common_model(keys);
  model.layers = layers_of_kinds(layer, kinds);
  return model;
}

ModelDescription deepseek(const Keys& keys, const std::string& type) {
  Layer layer = common_layer(keys);
  layer.latent = {keys.number("q_lora_rank", 0), keys.number("kv_lora_rank"),
                  keys.number("qk_nope_head_dim"), keys.number("qk_rope_head_dim")};
  layer.kv_heads = layer.q_heads;
  layer.head_dim = layer.latent.nope_dim + layer.latent.rope_dim;
  layer.value_dim = keys.number("v_head_dim");
  Kinds kinds;
  kinds.dense_ffn_dim = layer.ffn.ffn_dim;
  layer.ffn.experts = keys.number("n_routed_experts", 0);
  layer.ffn.experts_used = used_of(keys, "n_routed_experts", layer.ffn.experts);
  layer.ffn.ffn_dim = keys.number("moe_intermediate_size", 0);
  layer.ffn.shared_dim = keys.number("n_shared_experts", 0) * layer.ffn.ffn_dim;
  layer.ffn.router_bias = type == "deepseek_v3";
  const std::int64_t first = keys.number("first_k_dense_replace", 0);
  const std::int64_t step = step_of_experts(keys, "moe_layer_freq");
  kinds.local = Which(static_cast<std::size_t>(layer.count), false);
  kinds.sparse = layers_where(layer.count, [&](std::int64_t i) {
    return layer.ffn.experts > 0 && i >= first && i % step == 0;
  });
  ModelDescription model = common_model(keys);
  model.layers = layers_of_kinds(layer, kinds);
  return model;
}

/// What the program itself runs, read as it reads it.
ModelDescription as_run(const std::string& path, const std::string& text) {
  constexpr models::Reading kReading = models::Reading::described;
  const models::ModelConfig config = models::config_from_json(path, text, kReading);
  models::check_config(path, config, kReading);
  const std::vector<models::ExpectedTensor> tensors = models::expected_tensors(config);
  std::vector<NamedShape> shapes;
  for (const models::ExpectedTensor& tensor : tensors) {
    if (tensor.required) shapes.push_back({tensor.name, tensor.shape});
  }
  ModelDescription model = description_of(config, shapes);
  if (config.architecture == models::Architecture::bert) {  // its pooler, which is not run
    const std::int64_t pooler[] = {config.model_dim, config.model_dim + 1};
    model.other_parameters += elements(pooler);
  }
  return model;
}

}  // namespace

ModelDescription model_of_config(const std::string& path, const std::string& text) {
  const json parsed = formats::parse_json(path, "the file", text, kMaxDepth);
  if (!parsed.is_object()) throw formats::FileError(path, "is not a JSON object");
  const Keys keys{path, parsed};
  const std::string type = keys.text("model_type", kKnownTypes), quantised = quantised_by(keys);
  ModelDescription model;
  if (models::runs_model_type(type)) {
    model = as_run(path, text);
  } else if (type == "deepseek_v2" || type == "deepseek_v3") {
    model = deepseek(keys, type);
  } else if (type == "mixtral" || type == "qwen3_moe" || type == "gpt_oss") {
    model = with_experts(keys, type);
  } else {
    keys.refuse("has model_type " + formats::quote(type) + "; expected " + kKnownTypes);
  }
  model.id = model.name = path;
  model.source = "read from " + path;
  model.weight_type = plain_type(keys);
  if (quantised == "mxfp4") model.expert_type = "mxfp4";
  try {
    cost::check(model);
  } catch (const InvalidArgument& error) {
    keys.refuse(reason_of(error));
  }
  if (quantised != "fp8") return model;
  const std::string plain = model.weight_type;
  model = cost::with_vocabulary_as(std::move(model), plain);
  model.weight_type = "fp8";
  return model;
}

}  // namespace polyhead::cli
