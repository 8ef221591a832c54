#include "models/model_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "models/checkpoint.hpp"
#include "models/fingerprint.hpp"
#include "models/formats/array.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/gguf.hpp"
#include "models/read_config.hpp"
#include "models/tokenizers/read_tokenizer.hpp"

namespace polyhead::inline v0::models {

using formats::FileError;
using formats::quote;
using formats::shape_text;

struct ModelFile::State {
  std::string path;
  ModelConfig config;
  std::string weight_format;
  std::uint64_t fingerprint = 0;
  std::vector<WeightTensor> tensors;
  std::map<std::string_view, std::size_t> by_name;
  std::shared_ptr<const void> owner;  ///< of names and data
};

namespace {

std::int64_t weights_of(const WeightTensor& tensor) { return formats::element_count(tensor.shape); }

std::string most_common_type(const std::vector<WeightTensor>& tensors) {
  std::array<std::int64_t, kWeightTypes> held{};
  for (const WeightTensor& tensor : tensors)
    held[static_cast<std::size_t>(tensor.type)] += weights_of(tensor);
  const auto most = std::max_element(held.begin(), held.end()) - held.begin();
  return weight_type_name(static_cast<WeightType>(most));
}

/// Tensors against the configuration: all there, of the right shapes, and none that nobody knows.
void check_tensors(const std::string& path, const ModelConfig& config,
                   const std::vector<WeightTensor>& tensors,
                   const std::map<std::string_view, std::size_t>& by_name) {
  std::size_t known = 0;
  std::map<std::string, ExpectedTensor> expected;
  for (ExpectedTensor& tensor : expected_tensors(config)) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) {
      if (!tensor.required) continue;
      throw FileError(path, "has no tensor " + quote(tensor.name) + ", which a " +
                                architecture_name(config.architecture) + " model needs");
    }
    const WeightTensor& there = tensors[found->second];
    if (there.shape != tensor.shape) {
      throw FileError(path, "tensor " + quote(tensor.name) + " has shape " +
                                shape_text(there.shape) + " (expected " + shape_text(tensor.shape) +
                                ")");
    }
    if (there.shape.size() == 1 && block_weights(there.type) != 1) {
      throw FileError(path, "tensor " + quote(tensor.name) + " has type " +
                                weight_type_name(there.type) + " (expected F32, F16 or BF16)");
    }
    ++known;
    std::string name = tensor.name;
    expected.emplace(std::move(name), std::move(tensor));
  }
  if (known == tensors.size()) return;
  for (const WeightTensor& tensor : tensors) {
    if (expected.contains(std::string(tensor.name))) continue;
    throw FileError(path, "has a tensor " + quote(tensor.name) + ", which a " +
                              architecture_name(config.architecture) +
                              " model as supported here does not have");
  }
}

/// What a GGUF file may have beside the weights of the model.
bool is_aside(const ModelConfig& config, std::string_view name) {
  return name == "rope_freqs.weight" ||
         (config.architecture == Architecture::bert && name.starts_with("cls"));
}

/// A checkpoint is opened by its folder or its weights.
void refuse_beside_weights(const std::string& path) {
  std::error_code ignored;
  if (!path.ends_with(".json") || !std::filesystem::is_regular_file(path, ignored)) return;
  throw FileError(path,
                  "holds no weights (expected the folder that it is in, a .safetensors file or a "
                  "GGUF file)");
}

void add_gguf(const std::string& path, ModelFile::State& state) {
  auto file = std::make_shared<const formats::Gguf>(path);
  state.config = config_from_gguf(*file);
  check_config(path, state.config);
  for (const formats::GgufTensor& tensor : file->tensors()) {
    if (is_aside(state.config, tensor.name)) continue;
    state.tensors.push_back(
        {tensor.name, tensor.type, tensor.shape, false, tensor.data, tensor.name});
  }
  state.owner = std::move(file);
}

void add_checkpoint(const std::string& path, ModelFile::State& state) {
  Checkpoint checkpoint = read_checkpoint(path);
  check_config(checkpoint.config_path, checkpoint.config);
  state.config = std::move(checkpoint.config);
  state.tensors = std::move(checkpoint.tensors);
  state.owner = std::move(checkpoint.owner);
}

}  // namespace

ModelFile::ModelFile(const std::string& path) {
  auto state = std::make_shared<State>();
  state->path = path;
  std::error_code ignored;
  if (path.ends_with(".safetensors") || std::filesystem::is_directory(path, ignored)) {
    add_checkpoint(path, *state);
  } else {
    refuse_beside_weights(path);
    add_gguf(path, *state);
  }
  Fingerprint fingerprint;
  for (std::size_t i = 0; i < state->tensors.size(); ++i) {
    const WeightTensor& tensor = state->tensors[i];
    if (!state->by_name.emplace(tensor.name, i).second)
      throw FileError(path, "has tensor " + quote(tensor.name) + " twice, under two names");
    fingerprint.add(tensor.name);
    fingerprint.add(weight_type_name(tensor.type));
    for (const std::int64_t extent : tensor.shape)
      fingerprint.add(static_cast<std::uint64_t>(extent));
  }
  check_tensors(path, state->config, state->tensors, state->by_name);
  state->fingerprint = fingerprint.value();
  state->weight_format = most_common_type(state->tensors);
  state_ = std::move(state);
}

const std::string& ModelFile::path() const { return state_->path; }
const ModelConfig& ModelFile::config() const { return state_->config; }
TokenizerSpec ModelFile::tokenizer() const { return read_tokenizer(state_->path); }
const std::string& ModelFile::weight_format() const { return state_->weight_format; }
std::uint64_t ModelFile::fingerprint() const { return state_->fingerprint; }
bool ModelFile::has(std::string_view name) const { return state_->by_name.contains(name); }
const std::vector<WeightTensor>& ModelFile::tensors() const { return state_->tensors; }

const WeightTensor& ModelFile::tensor(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  if (found == state_->by_name.end()) {
    throw FileError(state_->path, "has no tensor " + quote(name));
  }
  return state_->tensors[found->second];
}

}  // namespace polyhead::inline v0::models
