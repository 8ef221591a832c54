#include "models/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/formats/mapped_file.hpp"
#include "models/read_config.hpp"

namespace polyhead::inline v0::models {
namespace {

namespace fs = std::filesystem;
using formats::FileError;
using formats::quote;
using formats::Safetensors;

constexpr std::size_t kMaxIndexBytes = 64u << 20;
constexpr std::size_t kMaxShards = 1024;  // files that are mapped at once
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kPooling = "1_Pooling";
constexpr const char* kIndex = "model.safetensors.index.json";

/// A small file; none when there is no such file.
std::optional<std::string> small_file(const fs::path& path, std::size_t most) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const formats::MappedFile file(path.string());
  if (file.size() > most) {
    throw FileError(path.string(), "has " + std::to_string(file.size()) + " bytes (at most " +
                                       std::to_string(most) + ")");
  }
  return std::string(reinterpret_cast<const char*>(file.data()), file.size());
}

struct DType {
  std::string_view name;
  WeightType type;
};
constexpr std::array<DType, 3> kDTypes{
    {{"F32", WeightType::float32}, {"F16", WeightType::float16}, {"BF16", WeightType::bfloat16}}};

/// Whether links in `folder` may lead to files in `place`, both canonical: into the folder itself
/// and, since Hugging Face's cache has links alone in `snapshots/REVISION`, from there to `blobs`.
bool links_may_lead_to(const fs::path& place, const fs::path& folder) {
  const fs::path snapshots = folder.parent_path();
  return place == folder ||
         (snapshots.filename() == "snapshots" && place == snapshots.parent_path() / "blobs");
}

/// A shard's place, if its name is a plain one and no link leads elsewhere.
std::string shard_path(const std::string& index, const fs::path& folder, const std::string& name) {
  if (name.empty() || name.find_first_of(std::string("/\\\0", 3)) != std::string::npos ||
      name == "." || name == ".." || !name.ends_with(".safetensors")) {
    throw FileError(index, "names the shard " + quote(name) +
                               " (expected the plain name of a .safetensors file beside it)");
  }
  const fs::path path = folder / name;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) throw FileError(path.string(), "cannot be opened: " + error.message());
  const fs::path home = fs::canonical(folder.empty() ? fs::path(".") : folder, error);
  if (error || !links_may_lead_to(real.parent_path(), home)) {
    throw FileError(path.string(), "is a link out of the model's folder");
  }
  return path.string();
}

/// A module's place in the folder, a plain name; `otherwise` where the list does not say.
std::string module_path(const std::string& list, const nlohmann::json& module,
                        const std::string& otherwise) {
  if (!module.contains("path")) return otherwise;
  const auto& given = module["path"];
  std::string path = given.is_string() ? given.get<std::string>() : given.dump();
  if (!given.is_string() || path.find_first_of(std::string("/\\\0", 3)) != std::string::npos ||
      path == "." || path == ".." || path.empty() != otherwise.empty()) {
    throw FileError(list, "has a module at 'path' " + quote(path) + " (expected " +
                              (otherwise.empty() ? "''" : "a folder's plain name") + ")");
  }
  return path;
}

/// Sentence Transformers' list of what runs one after the other: the model, its pooling, and a
/// norm, which is always taken. The pooling's folder; none without a list.
std::optional<std::string> pooling_folder(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const auto modules = formats::read_json(path, kMaxConfigBytes, 4);
  if (!modules.is_array()) throw FileError(path, "is not a list of modules");
  std::optional<std::string> pooling;
  for (const auto& module : modules) {
    const bool named = module.is_object() && module.contains("type") && module["type"].is_string();
    const std::string type = named ? module["type"].get<std::string>() : "";
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Transformer") {
      module_path(path, module, "");
    } else if (name == "Pooling") {
      if (pooling) throw FileError(path, "has more than one module of type Pooling");
      pooling = module_path(path, module, kPooling);
    } else if (name != "Normalize") {
      throw FileError(path, "has a module of type " + quote(type) +
                                " (expected Transformer, Pooling and Normalize)");
    }
  }
  if (!pooling) throw FileError(path, "has no module of type Pooling");
  return pooling;
}

Pooling read_pooling(const fs::path& folder, Pooling otherwise) {
  const auto listed = pooling_folder((folder / "modules.json").string());
  const std::string path = (folder / listed.value_or(kPooling) / "config.json").string();
  const auto text = small_file(path, kMaxConfigBytes);
  if (text) return pooling_from_json(path, *text);
  if (listed) throw FileError(path, "is missing: modules.json names its folder");
  return otherwise;
}

using WeightMap = std::map<std::string, std::set<std::string>>;  // shard: its tensors

WeightMap read_index(const std::string& path) {
  const auto index = formats::read_json(path, kMaxIndexBytes, 4);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FileError(path, "has no table 'weight_map'");
  }
  WeightMap shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      throw FileError(path, "tensor " + quote(tensor) + " has no shard's name");
    shards[shard.get<std::string>()].insert(tensor);
    if (shards.size() > kMaxShards) {
      throw FileError(path, "names more than " + std::to_string(kMaxShards) + " shards");
    }
  }
  if (shards.empty()) throw FileError(path, "names no shards");
  return shards;
}

std::vector<Safetensors> open_shards(const fs::path& folder) {
  const std::string index = (folder / kIndex).string();
  std::vector<Safetensors> files;
  std::set<std::string> seen;
  for (const auto& [shard, promised] : read_index(index)) {
    Safetensors& file = files.emplace_back(shard_path(index, folder, shard));
    std::set<std::string> there;
    for (std::string& name : file.names()) {
      if (!seen.insert(name).second) {
        throw FileError(file.path(), "tensor " + quote(name) + " stands in another shard too");
      }
      there.insert(std::move(name));
    }
    for (const std::string& name : promised) {
      if (!there.contains(name)) {
        throw FileError(file.path(), "has no tensor " + quote(name) + ", which the index promises");
      }
    }
  }
  return files;
}

/// What the tensors' names and bytes belong to.
struct Owner {
  std::vector<Safetensors> files;
  std::vector<std::string> names, file_names;
};

WeightTensor weight_of(const Safetensors& file, const std::string& theirs, bool transposed) {
  const Safetensors::Stored stored = file.stored(theirs);
  const auto* type = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DType& d) { return d.name == stored.dtype; });
  if (type == kDTypes.end()) {
    throw FileError(file.path(), "tensor " + quote(theirs) + " has type " + quote(stored.dtype) +
                                     " (expected F32, F16 or BF16)");
  }
  WeightTensor weight;
  weight.type = type->type;
  weight.shape.assign(stored.shape.begin(), stored.shape.end());
  weight.transposed = transposed;
  if (transposed) std::reverse(weight.shape.begin(), weight.shape.end());
  weight.data = stored.data;
  return weight;
}

/// A bias that the configuration says is not there: Transformers would run without it.
void check_bias(const Checkpoint& of, const Safetensors& file, const std::string& theirs,
                std::string_view name) {
  const auto is_of = [&](const char* part) { return name.find(part) != std::string_view::npos; };
  const bool attention = is_of(".attn_");
  if (!name.ends_with(".bias") || is_of("norm") || (!attention && !is_of(".ffn_"))) return;
  if ((attention ? of.config.attention_biases : of.config.ffn_biases) != Biases::none) return;
  throw FileError(file.path(), "has a tensor " + quote(theirs) + ", and " + of.config_path +
                                   " says that '" + (attention ? "attention_bias" : "mlp_bias") +
                                   "' is false");
}

/// The output matrix of a file whose output is tied.
struct TiedOutput {
  WeightTensor weight;
  std::string file, name;
};

/// It is dropped where it is the embedding once more. Where it is not, versions of Transformers
/// differ in which of the two they run.
void check_tied(const Checkpoint& of, const TiedOutput& output) {
  const auto embedding = std::ranges::find(of.tensors, "token_embd.weight", &WeightTensor::name);
  if (embedding == of.tensors.end()) return;  // refused where tensors are counted
  const WeightTensor& weight = output.weight;
  if (weight.type == embedding->type && weight.shape == embedding->shape &&
      std::ranges::equal(weight.data, embedding->data)) {
    return;
  }
  throw FileError(output.file, "has a tensor " + quote(output.name) +
                                   " that differs from the token embedding, and " + of.config_path +
                                   " says that they are one ('tie_word_embeddings')");
}

void collect_tensors(Checkpoint& to, Owner& owner) {
  std::optional<TiedOutput> tied;
  for (const Safetensors& file : owner.files) {
    for (const std::string& theirs : file.names()) {
      const auto canonical = canonical_name(to.config.architecture, theirs);
      if (!canonical) {
        throw FileError(file.path(), "has a tensor " + quote(theirs) + ", which a " +
                                         architecture_name(to.config.architecture) +
                                         " model as supported here does not have");
      }
      if (canonical->name.empty()) continue;
      WeightTensor weight = weight_of(file, theirs, canonical->transposed);
      if (to.config.tied_output && canonical->name == "output.weight") {
        tied = {std::move(weight), file.path(), theirs};
        continue;
      }
      check_bias(to, file, theirs, canonical->name);
      to.tensors.push_back(std::move(weight));
      owner.names.push_back(canonical->name);
      owner.file_names.push_back(theirs);
    }
  }
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    to.tensors[i].name = owner.names[i];
    to.tensors[i].file_name = owner.file_names[i];
  }
  if (tied) check_tied(to, *tied);
}

}  // namespace

Checkpoint read_checkpoint(const std::string& path) {
  Checkpoint checkpoint;
  const fs::path given(path);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(given, ignored);
  const fs::path folder = is_folder ? given : given.parent_path();

  const std::string& config_path = checkpoint.config_path = (folder / "config.json").string();
  const auto config = small_file(config_path, kMaxConfigBytes);
  if (!config) throw FileError(config_path, "is missing: a model's weights need it beside them");
  checkpoint.config = config_from_json(config_path, *config);
  checkpoint.config.name =
      is_folder
          ? fs::absolute(given / "", ignored).lexically_normal().parent_path().filename().string()
          : given.stem().string();
  if (checkpoint.config.architecture == Architecture::bert) {
    checkpoint.config.pooling = read_pooling(folder, checkpoint.config.pooling);
  }

  auto owner = std::make_shared<Owner>();
  if (!is_folder) {
    owner->files.emplace_back(path);
  } else if (!fs::exists(folder / kWeights, ignored) && fs::exists(folder / kIndex, ignored)) {
    owner->files = open_shards(folder);
  } else {  // also beside an index, as Transformers has it
    owner->files.emplace_back((folder / kWeights).string());
  }
  collect_tensors(checkpoint, *owner);
  checkpoint.owner = std::move(owner);
  return checkpoint;
}

}  // namespace polyhead::inline v0::models
