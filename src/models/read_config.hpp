// Where a ModelConfig comes from, by format.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "models/config.hpp"
#include "models/formats/gguf.hpp"

namespace polyhead::inline v0::models {

/// Of a config.json, which has a few KiB.
inline constexpr std::size_t kMaxConfigBytes = 1u << 20;

/// From GGUF metadata. Throws FileError for architectures other than Architecture's and for what
/// changes a model's numbers and is not supported here (experts, other rotary scalings).
ModelConfig config_from_gguf(const formats::Gguf& file);

/// From a Hugging Face config.json, likewise; `path` is its name in messages. Architectures by
/// model_type: llama, mistral (llama with a window), gemma3_text, gemma3 (its text part), qwen2,
/// qwen3, gpt2, bert. The name is left empty; embedding models pool by the mean.
///
/// Read to be described, weights that the file calls quantised are not refused, layers have no
/// rotations, and the context is what the model was made for; with LongRoPE a run has less.
ModelConfig config_from_json(const std::string& path, std::string_view text,
                             Reading reading = Reading::run);

/// Whether config_from_json takes this model_type.
bool runs_model_type(std::string_view model_type);

/// Sentence Transformers' config.json of a pooling.
Pooling pooling_from_json(const std::string& path, std::string_view text);

/// What a tensor of a Hugging Face checkpoint is called here.
struct CanonicalName {
  std::string name;         ///< empty: no part of the model as run here (a pooler, a mask)
  bool transposed = false;  ///< gpt2's matrices
};

/// None where the architecture has no such tensor.
std::optional<CanonicalName> canonical_name(Architecture architecture, std::string_view name);

}  // namespace polyhead::inline v0::models
