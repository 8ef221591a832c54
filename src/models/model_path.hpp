// Where a model named on a command line lies.
#pragma once

#include <string>
#include <vector>

namespace polyhead::inline v0::models {

/// A model that `scripts/get-model NAME` fetches.
struct KnownModel {
  const char* name;
  const char* file;  ///< in the cache folder
};
const std::vector<KnownModel>& known_models();

/// The folder that scripts/get-model fills: the environment variable POLYHEAD_MODELS where set,
/// else polyhead/models in XDG_CACHE_HOME or ~/.cache.
std::string model_folder();

/// `place` itself where it exists or is no known name, else the known model's place in the folder.
/// Throws FileError, saying how to fetch it, where a known model is not there.
std::string model_path(const std::string& place);

}  // namespace polyhead::inline v0::models
