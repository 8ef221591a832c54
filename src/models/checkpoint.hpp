// A Hugging Face checkpoint: config.json and one or more safetensors files beside it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/formats/safetensors.hpp"
#include "models/model_file.hpp"

namespace polyhead::inline v0::models {

struct Checkpoint {
  ModelConfig config;
  std::string config_path;            ///< of config.json
  std::vector<WeightTensor> tensors;  ///< under canonical names; by file, then by name
  std::shared_ptr<const void> owner;  ///< of names and data
};

/// `path`: a folder with model.safetensors or, without that, model.safetensors.index.json, or one
/// .safetensors file with config.json beside it. Shards are plain names of files in the folder
/// itself: no path, no link out of it. Every tensor that the index promises must be in the shard it
/// names, and no tensor may stand in two. Throws FileError.
Checkpoint read_checkpoint(const std::string& path);

}  // namespace polyhead::inline v0::models
