#include "cli/plan_input.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "cli/command.hpp"
#include "cli/model_options.hpp"
#include "cli/plan_model.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "models/model_path.hpp"
#include "models/read_config.hpp"

namespace polyhead::cli {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
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
                                  elements(tensor.shape)};
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
  std::vector<NamedShape> shapes;
  for (const models::WeightTensor& tensor : file.tensors())
    shapes.push_back({tensor.name, tensor.shape});
  cost::ModelDescription model = description_of(file.config(), shapes);
  model.id = path;
  model.name = file.config().name.empty() ? path : file.config().name;
  model.source = "read from " + path;
  model.weight_type = cost::storage_type(lower(file.weight_format())).name;
  model.stored = stored_in(file);
  return model;
}

std::string read_config(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw formats::FileError(path, "cannot be opened: " + error.message());
  if (size > models::kMaxConfigBytes) {
    throw formats::FileError(path, "has " + std::to_string(size) + " bytes (at most " +
                                       std::to_string(models::kMaxConfigBytes) + ")");
  }
  return read_text(path);
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
  try {
    return cost::model_preset(name);
  } catch (const InvalidArgument& error) {
    const std::string why = reason_of(error);
    if (why.find(name) == std::string::npos) throw;  // a name of thousands of letters
    const std::size_t hint = why.find("; did you mean ");
    throw InvalidArgument("plan: model '" + name +
                          "' is neither a preset (polyhead plan --list) nor a file" +
                          (hint == std::string::npos ? "" : why.substr(hint)));
  }
}

}  // namespace

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

std::string reason_of(const InvalidArgument& error) {
  constexpr std::string_view kBegins = "cost: ";
  std::string_view why = error.what();
  if (why.starts_with(kBegins)) why.remove_prefix(kBegins.size());
  return std::string(why);
}

std::string heads_text(const cost::ModelDescription& model) {
  const cost::Layer& layer = model.layers.front();
  if (layer.latent.given()) return "MLA";
  return std::to_string(layer.kv_heads);
}

}  // namespace polyhead::cli
