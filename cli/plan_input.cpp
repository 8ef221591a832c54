#include "cli/plan_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command.hpp"
#include "cli/list_text.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "models/model_path.hpp"

namespace polyhead::cli {
namespace {

constexpr std::uintmax_t kLargestConfig = std::uintmax_t{1} << 24;  // no config.json is longer

struct Unit {
  const char* name;
  double factor;
};
constexpr Unit kUnits[] = {{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40},
                           {"k", 1e3},     {"K", 1e3},     {"M", 1e6},     {"G", 1e9},
                           {"B", 1e9},     {"T", 1e12},    {"P", 1e15},    {"", 1}};

[[noreturn]] void beyond(const std::string& option, const std::string& text) {
  throw UsageError(option + ": '" + text + "' is beyond 2^40");
}

[[noreturn]] void bad_number(const std::string& option, const std::string& text,
                             const char* expected) {
  throw UsageError(option + ": '" + text + "' is not " + expected);
}

/// The number and what stands behind it; false where there is no number.
bool read_number(std::string text, double& value, std::string& rest) {
  std::erase_if(text, [](char c) { return c == ',' || c == '_'; });
  if (text.empty() || (!std::isdigit(static_cast<unsigned char>(text[0])) && text[0] != '.'))
    return false;
  if (text.size() > 1 && (text[1] == 'x' || text[1] == 'X')) return false;
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  rest = end;
  return std::isfinite(value);
}

cost::Layer layer_of(const models::ModelConfig& config, const models::LayerGeometry& geometry,
                     const models::ModelFile& file) {
  cost::Layer layer;
  layer.model_dim = config.model_dim;
  layer.q_heads = geometry.q_heads;
  layer.kv_heads = geometry.kv_heads;
  layer.head_dim = geometry.head_dim;
  layer.value_dim = geometry.value_dim;
  layer.window = geometry.window;
  layer.attends = config.causal ? cost::Attends::causal : cost::Attends::all;
  const bool fused = file.has("blk.0.attn_qkv.bias");
  layer.biases = {fused || file.has("blk.0.attn_q.bias"), fused || file.has("blk.0.attn_k.bias"),
                  fused || file.has("blk.0.attn_v.bias"), file.has("blk.0.attn_output.bias")};
  layer.qk_norm = config.qk_norm;
  layer.ffn.ffn_dim = config.ffn_dim;
  layer.ffn.gated = config.gated_ffn;
  layer.ffn.biases = file.has("blk.0.ffn_up.bias");
  if (layer.window > 0 && !config.causal) layer.window = 0;
  return layer;
}

bool alike(const cost::Layer& a, const cost::Layer& b) {
  return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim && a.window == b.window;
}

std::int64_t elements(const models::WeightTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= extent;
  return count;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Norms of one layer and of the whole model, as the tensors have them.
void count_norms(const models::ModelFile& file, cost::ModelDescription& model) {
  std::int64_t of_layer = 0, others = 0;
  for (const models::WeightTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    const bool in_layer = name.starts_with("blk.");
    const bool norm = name.find("norm") != std::string_view::npos;
    const bool of_heads = name.find("attn_q_norm") != std::string_view::npos ||
                          name.find("attn_k_norm") != std::string_view::npos;
    if (in_layer && norm && !of_heads && name.starts_with("blk.0.")) of_layer += elements(tensor);
    if (!in_layer && (norm || name.starts_with("token_types"))) others += elements(tensor);
    if (name == "position_embd.weight") model.position_rows = tensor.shape[0];
  }
  for (cost::Layer& layer : model.layers) layer.norm_parameters = of_layer;
  model.other_parameters = others;
}

/// The part of cost::parameters() that a tensor belongs to.
const char* part_of(std::string_view name) {
  const bool in_layer = name.starts_with("blk.");
  const auto has = [&](const char* word) { return name.find(word) != std::string_view::npos; };
  if (in_layer && (has("attn_q_norm") || has("attn_k_norm"))) return "attention";
  if (has("norm")) return in_layer ? "norms" : "other";
  if (in_layer) return has("ffn_") ? "feed_forward" : "attention";
  if (name.starts_with("token_types")) return "other";
  return name.starts_with("output.") ? "output" : "embedding";
}

/// Every tensor under its own type, as the file has it.
std::vector<cost::StoredWeights> stored_in(const models::ModelFile& file) {
  std::vector<cost::StoredWeights> stored;
  for (const models::WeightTensor& tensor : file.tensors()) {
    const cost::StoredWeights one{part_of(tensor.name),
                                  cost::storage_type(lower(weight_type_name(tensor.type))),
                                  elements(tensor)};
    const auto same = std::find_if(stored.begin(), stored.end(), [&](const auto& entry) {
      return entry.part == one.part && entry.type.name == one.type.name;
    });
    if (same == stored.end())
      stored.push_back(one);
    else
      same->weights += one.weights;
  }
  return stored;
}

cost::ModelDescription model_of_file(const std::string& path) {
  const models::ModelFile file(path);
  const models::ModelConfig& config = file.config();
  cost::ModelDescription model;
  model.id = path;
  model.name = config.name.empty() ? path : config.name;
  model.source = "read from " + path;
  for (const models::LayerGeometry& geometry : config.layers) {
    const cost::Layer layer = layer_of(config, geometry, file);
    bool found = false;
    for (cost::Layer& known : model.layers) {
      if (!alike(known, layer)) continue;
      ++known.count;
      found = true;
      break;
    }
    if (!found) model.layers.push_back(layer);
  }
  if (model.layers.size() > 1) {
    for (cost::Layer& layer : model.layers) layer.name = layer.window > 0 ? "local" : "global";
  }
  model.vocab_size = config.vocab_size;
  model.tied_output = config.tied_output;
  model.output_matrix = config.causal;
  model.context_length = config.context_length;
  model.weight_type = cost::storage_type(lower(file.weight_format())).name;
  model.stored = stored_in(file);
  count_norms(file, model);
  return model;
}

std::string read_config(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw formats::FileError(path, "cannot be opened: " + error.message());
  if (size > kLargestConfig) {
    throw formats::FileError(
        path, "has " + std::to_string(size) + " bytes; a config.json has at most 16 MiB");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw formats::FileError(path, "cannot be read");
  return text.str();
}

/// A preset, or else the file of a model that scripts/get-model fetches.
cost::ModelDescription model_of_name(const std::string& name) {
  for (const models::KnownModel& model : models::known_models()) {
    const auto& presets = cost::model_presets();
    const bool preset = std::ranges::any_of(presets, [&](const cost::ModelDescription& one) {
      return one.id == name || std::ranges::count(one.aliases, name) > 0;
    });
    if (name == model.name && !preset) return find_model(models::model_path(name));
  }
  return cost::model_preset(name);
}

}  // namespace

double parse_amount(const std::string& option, const std::string& text, Amount of) {
  constexpr double kMost = 9e18;  // whole numbers of 64 bits hold it
  const bool flops = of == Amount::flops_a_second;
  const char* const expected = of == Amount::bytes            ? "an amount such as 80GB or 80GiB"
                               : of == Amount::bytes_a_second ? "a rate such as 3.35TB or 3.35TB/s"
                                                              : "a rate such as 989T or 989TFLOP/s";
  double value = 0;
  std::string unit;
  if (!read_number(text, value, unit) || value <= 0) bad_number(option, text, expected);
  std::vector<std::string_view> endings{"B"};
  if (of == Amount::bytes_a_second) endings = {"B/s", "B"};
  if (flops) endings = {"FLOPS", "FLOP/s"};
  for (const std::string_view ending : endings) {
    if (!unit.ends_with(ending)) continue;
    unit.erase(unit.size() - ending.size());
    break;
  }
  for (const Unit& known : kUnits) {
    if (unit == known.name && unit != "B") return std::min(value * known.factor, kMost);
  }
  bad_number(option, text, expected);
}

std::int64_t parse_count(const std::string& option, const std::string& text) {
  constexpr const char* kExpected = "a whole number such as 4096, 32k (32,000) or 32Ki (32,768)";
  double value = 0;
  std::string unit;
  if (!read_number(text, value, unit)) bad_number(option, text, kExpected);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double whole = value * known.factor;
    if (whole != std::floor(whole)) bad_number(option, text, kExpected);
    if (whole > static_cast<double>(cost::kUnlimited)) beyond(option, text);
    return static_cast<std::int64_t>(whole);
  }
  bad_number(option, text, kExpected);
}

std::vector<std::int64_t> parse_counts(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> counts;
  for (const std::string& item : full_pieces_of(option, text))
    counts.push_back(parse_count(option, item));
  return counts;
}

cost::ModelDescription find_model(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool there = fs::exists(name, error);
  const bool is_path = there || name.find('/') != std::string::npos || name.ends_with(".gguf") ||
                       name.ends_with(".json") || name.ends_with(".safetensors");
  if (!is_path) return model_of_name(name);
  if (name.ends_with(".gguf")) return model_of_file(name);
  fs::path config = name;
  if (fs::is_directory(config, error))
    config /= "config.json";
  else if (name.ends_with(".safetensors"))
    config = config.parent_path() / "config.json";
  else if (!name.ends_with(".json"))
    return model_of_file(name);
  return model_of_config(config.string(), read_config(config.string()));
}

std::string heads_text(const cost::ModelDescription& model) {
  const cost::Layer& layer = model.layers.front();
  if (layer.latent.given()) return "MLA";
  return std::to_string(layer.kv_heads);
}

}  // namespace polyhead::cli
