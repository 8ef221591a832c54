// config.json of a Hugging Face checkpoint as a description: the sizes that cost something.
#include <nlohmann/json.hpp>

#include "cli/plan_input.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"

namespace polyhead::cli {
namespace {

constexpr int kMaxDepth = 16;  // vision parts nest a few objects

using cost::Layer;
using cost::ModelDescription;
using nlohmann::json;

constexpr std::int64_t kLargest = 1'000'000'000;
constexpr std::int64_t kMostLayers = 100'000;

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
  std::string text(const char* key) const {
    const json* value = find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
};

/// How weights are quantised: "" (not), fp8 (all) or mxfp4 (experts).
std::string quantised_by(const Keys& keys) {
  const json* quantised = keys.find("quantization_config");
  if (quantised == nullptr || !quantised->is_object()) return "";
  std::string method = Keys{keys.path, *quantised}.text("quant_method");
  if (method != "fp8" && method != "mxfp4") {
    keys.refuse("'quantization_config' is of quant_method " + formats::quote(method) +
                "; expected fp8 or mxfp4: what others store is not in this file (plan the model "
                "it was made of, with --weight-type)");
  }
  return method;
}

/// Of what is not quantised.
std::string plain_type(const Keys& keys) {
  std::string type = keys.text("dtype").empty() ? keys.text("torch_dtype") : keys.text("dtype");
  if (type == "bfloat16") return "bf16";
  return type == "float16" ? "f16" : "f32";
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
  layer.head_dim = keys.number("head_dim", layer.model_dim / layer.q_heads);
  layer.value_dim = layer.head_dim;
  layer.ffn.ffn_dim = keys.number("intermediate_size", 0);
  layer.ffn.biases = keys.flag("mlp_bias", false);
  layer.norm_parameters = 2 * layer.model_dim;
  const bool bias = keys.flag("attention_bias", false);
  layer.biases = {bias, bias, bias, bias};
  return layer;
}

ModelDescription common_model(const Keys& keys, bool tied) {
  ModelDescription model;
  model.vocab_size = keys.number("vocab_size", 0);
  model.context_length = keys.number("max_position_embeddings", 0);
  model.tied_output = keys.flag("tie_word_embeddings", tied);
  model.other_parameters = keys.number("hidden_size", 0);
  model.weight_type = plain_type(keys);
  return model;
}

/// The layer as local and global ones: by layer_types, or as many local ones as `local` says.
std::vector<Layer> windowed(const Keys& keys, const Layer& layer, std::int64_t window,
                            std::int64_t local) {
  if (window == 0) local = 0;
  if (const json* types = keys.find("layer_types"); types != nullptr && types->is_array()) {
    local = 0;
    for (const json& type : *types) {
      local += type == "sliding_attention" || type == "chunked_attention" ? 1 : 0;
    }
    if (static_cast<std::int64_t>(types->size()) != layer.count) {
      keys.refuse("'layer_types' lists " + std::to_string(types->size()) + " layers; expected " +
                  std::to_string(layer.count));
    }
    if (local > 0 && window == 0) keys.refuse("has sliding layers and no 'sliding_window'");
  }
  Layer windows = layer, whole = layer;
  windows.name = "local";
  windows.count = local;
  windows.window = window;
  whole.name = local > 0 ? "global" : "";
  whole.count = layer.count - local;
  std::vector<Layer> layers;
  if (windows.count > 0) layers.push_back(windows);
  if (whole.count > 0) layers.push_back(whole);
  return layers;
}

/// Of layers that have one. Absent it is what Transformers takes then, null is none.
std::int64_t window_of(const Keys& keys, const std::string& type) {
  const bool none = type == "mixtral" || keys.object.contains("sliding_window");
  return keys.number("sliding_window", none ? 0 : type == "gpt_oss" ? 128 : 4096);
}

/// Whether a model of this type has windows at all.
bool has_windows(const Keys& keys, const std::string& type) {
  if (type == "llama") return false;
  return !type.starts_with("qwen") || keys.flag("use_sliding_window", false);
}

/// Where the file has no layer_types and there is a window.
std::int64_t local_layers(const Keys& keys, const std::string& type, const Layer& layer) {
  if (type.starts_with("qwen"))  // the later ones
    return layer.count - std::min(layer.count, keys.number("max_window_layers", 28));
  if (type != "gemma3_text" && type != "gpt_oss") return layer.count;
  const std::int64_t pattern =  // every such layer is global
      type == "gpt_oss"
          ? 2
          : keys.number("sliding_window_pattern", keys.number("_sliding_window_pattern", 6));
  if (pattern == 0) keys.refuse("'sliding_window_pattern' is 0; expected at least 1");
  return layer.count - layer.count / pattern;
}

/// What Gemma 3's files leave out is as in Transformers' Gemma3TextConfig.
json with_gemma_defaults(json config) {
  const json defaults = {{"vocab_size", 262208},      {"hidden_size", 2304},
                         {"intermediate_size", 9216}, {"num_hidden_layers", 26},
                         {"num_attention_heads", 8},  {"num_key_value_heads", 4},
                         {"head_dim", 256},           {"max_position_embeddings", 131072}};
  for (const auto& [key, value] : defaults.items()) {
    if (!config.contains(key)) config[key] = value;
  }
  return config;
}

ModelDescription llama_like(const Keys& keys, const std::string& type) {
  Layer layer = common_layer(keys);
  if (type == "qwen2") layer.biases = {true, true, true, false};
  layer.qk_norm = type == "qwen3" || type == "qwen3_moe" || type == "gemma3_text";
  if (type == "gemma3_text") layer.norm_parameters = 4 * layer.model_dim;
  if (type == "gpt_oss") {
    layer.biases = {true, true, true, true};
    layer.sinks = true;
    layer.ffn.biases = true;
  }
  const bool experts = type == "qwen3_moe" || type == "gpt_oss" || type == "mixtral";
  if (experts) {
    layer.ffn.experts = keys.number(type == "qwen3_moe" ? "num_experts" : "num_local_experts");
    layer.ffn.experts_used = keys.number("num_experts_per_tok");
    layer.ffn.ffn_dim = keys.number("moe_intermediate_size", layer.ffn.ffn_dim);
  }
  ModelDescription model = common_model(keys, type == "gemma3_text");
  model.layers = has_windows(keys, type)
                     ? windowed(keys, layer, window_of(keys, type), local_layers(keys, type, layer))
                     : std::vector{layer};
  if (quantised_by(keys) == "mxfp4") model.expert_type = "mxfp4";
  return model;
}

ModelDescription deepseek(const Keys& keys, const std::string& type) {
  Layer dense = common_layer(keys);
  dense.latent = {keys.number("q_lora_rank", 0), keys.number("kv_lora_rank"),
                  keys.number("qk_nope_head_dim"), keys.number("qk_rope_head_dim")};
  dense.kv_heads = dense.q_heads;
  dense.head_dim = dense.latent.nope_dim + dense.latent.rope_dim;
  dense.value_dim = keys.number("v_head_dim");
  dense.name = "dense";
  Layer experts = dense;
  experts.name = "experts";
  experts.ffn.experts = keys.number("n_routed_experts", 0);
  experts.ffn.experts_used = keys.number("num_experts_per_tok", 0);
  experts.ffn.ffn_dim = keys.number("moe_intermediate_size", 0);
  experts.ffn.shared_dim = keys.number("n_shared_experts", 0) * experts.ffn.ffn_dim;
  experts.ffn.router_bias = type == "deepseek_v3";
  dense.count = experts.ffn.experts == 0
                    ? dense.count
                    : std::min(dense.count, keys.number("first_k_dense_replace", 0));
  experts.count -= dense.count;
  ModelDescription model = common_model(keys, false);
  if (dense.count > 0) model.layers.push_back(dense);
  if (experts.count > 0) model.layers.push_back(experts);
  return model;
}

void give_biases(Layer& layer) {
  layer.biases = {true, true, true, true};
  layer.ffn.gated = false;
  layer.ffn.biases = true;
  layer.norm_parameters = 4 * layer.model_dim;
}

ModelDescription gpt2(const Keys& keys) {
  Layer layer;
  layer.count = layers_of(keys, "n_layer");
  layer.model_dim = keys.number("n_embd");
  layer.q_heads = layer.kv_heads = keys.number("n_head");
  if (layer.q_heads == 0) keys.refuse("'n_head' is 0; expected at least 1");
  layer.head_dim = layer.value_dim = layer.model_dim / layer.q_heads;
  layer.ffn.ffn_dim = keys.number("n_inner", 4 * layer.model_dim);
  give_biases(layer);
  ModelDescription model = common_model(keys, true);
  model.layers = {layer};
  model.context_length = model.position_rows = keys.number("n_positions", 1024);
  model.other_parameters = 2 * layer.model_dim;
  return model;
}

ModelDescription bert(const Keys& keys) {
  Layer layer = common_layer(keys);
  give_biases(layer);
  layer.attends = cost::Attends::all;
  ModelDescription model = common_model(keys, true);
  model.layers = {layer};
  model.output_matrix = false;
  model.position_rows = model.context_length;
  model.other_parameters = (2 + keys.number("type_vocab_size", 2)) * layer.model_dim +
                           layer.model_dim * (layer.model_dim + 1);  // norm, types, pooler
  return model;
}

}  // namespace

ModelDescription model_of_config(const std::string& path, const std::string& text) {
  json parsed = formats::parse_json(path, "the file", text, kMaxDepth);
  if (!parsed.is_object()) throw formats::FileError(path, "is not a JSON object");
  std::string type = Keys{path, parsed}.text("model_type");
  if (type == "gemma3") {  // text and pictures: the text model is the one that plans
    if (!parsed.contains("text_config") || !parsed["text_config"].is_object())
      throw formats::FileError(path, "is a gemma3 without 'text_config'");
    json inner = parsed["text_config"];
    for (const char* outer : {"dtype", "torch_dtype", "quantization_config"}) {
      if (parsed.contains(outer) && !inner.contains(outer)) inner[outer] = parsed[outer];
    }
    parsed = std::move(inner);
    type = "gemma3_text";
  }
  if (type == "gemma3_text") parsed = with_gemma_defaults(std::move(parsed));
  const Keys keys{path, parsed};
  ModelDescription model;
  if (type == "gpt2") {
    model = gpt2(keys);
  } else if (type == "bert") {
    model = bert(keys);
  } else if (type == "deepseek_v2" || type == "deepseek_v3") {
    model = deepseek(keys, type);
  } else if (type == "llama" || type == "mistral" || type == "mixtral" || type == "qwen2" ||
             type == "qwen3" || type == "qwen3_moe" || type == "gemma3_text" || type == "gpt_oss") {
    model = llama_like(keys, type);
  } else {
    keys.refuse("has model_type " + formats::quote(type) +
                "; expected llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3, gemma3_text, "
                "gpt2, bert, deepseek_v2, deepseek_v3 or gpt_oss");
  }
  model.id = model.name = path;
  model.source = "read from " + path;
  cost::check(model);
  if (quantised_by(keys) != "fp8") return model;
  const std::string plain = model.weight_type;
  model = cost::with_vocabulary_as(std::move(model), plain);
  model.weight_type = "fp8";
  return model;
}

}  // namespace polyhead::cli
