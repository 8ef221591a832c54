#include "models/model_path.hpp"

#include <cstdlib>
#include <filesystem>

#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::models {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> models = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                                                 {"gemma3", "gemma-3-270m-q4_k_m.gguf"},
                                                 {"minilm", "all-MiniLM-L6-v2"}};
  return models;
}

std::string model_folder() {
  if (std::string folder = environment("POLYHEAD_MODELS"); !folder.empty()) return folder;
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) + "/polyhead/models";
}

std::string model_path(const std::string& place) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(place, ignored)) return place;
  for (const KnownModel& model : known_models()) {
    if (place != model.name) continue;
    std::string path = model_folder() + "/" + model.file;
    if (fs::exists(path, ignored)) return path;
    throw formats::FileError(
        path, std::string("does not exist; scripts/get-model ") + model.name + " fetches it");
  }
  return place;
}

}  // namespace polyhead::inline v0::models
