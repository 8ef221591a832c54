#include "models/cache_fingerprint.hpp"

#include "models/fingerprint.hpp"
#include "polyhead/isa.h"

namespace polyhead::inline v0::models {
namespace {

/// What the configuration says of numbers that are no weights.
std::uint64_t of_model(const ModelFile& file) {
  const ModelConfig& config = file.config();
  Fingerprint hash;
  hash.add(file.fingerprint());
  hash.add(architecture_name(config.architecture));
  for (const auto choice :
       {static_cast<int>(config.norm), static_cast<int>(config.activation), int{config.gated_ffn},
        int{config.norm_plus_one}, int{config.causal}, int{config.qk_norm}}) {
    hash.add(static_cast<std::uint64_t>(choice));
  }
  for (const float number : {config.norm_eps, config.attention_scale, config.attention_soft_cap,
                             config.embedding_scale}) {
    hash.add(double{number});
  }
  for (const LayerGeometry& layer : config.layers)
    hash.add(static_cast<std::uint64_t>(layer.window));
  return hash.value();
}

/// The weights, and what decides how they are multiplied.
std::uint64_t of_weights(const ModelFile& file, const ModelOptions& options) {
  Fingerprint hash;
  hash.add(static_cast<std::uint64_t>(options.weights));
  hash.add(isa_name(resolve_isa(options.run.isa)));
  for (const WeightTensor& tensor : file.tensors()) hash.add(tensor.data);
  return hash.value();
}

std::uint64_t of_rope(const ModelConfig& config) {
  Fingerprint hash;
  for (const LayerGeometry& layer : config.layers) {
    hash.add(std::uint64_t{layer.rope.has_value()});
    if (!layer.rope) continue;
    hash.add(static_cast<std::uint64_t>(layer.rope->pairing));
    hash.add(rope_attention_factor(*layer.rope));
    for (const double frequency : rope_frequencies(*layer.rope, layer.head_dim))
      hash.add(frequency);
  }
  return hash.value();
}

}  // namespace

CacheFingerprint cache_fingerprint(const ModelFile& file, const ModelOptions& options) {
  return {of_model(file), of_weights(file, options), of_rope(file.config()), 0};
}

}  // namespace polyhead::inline v0::models
