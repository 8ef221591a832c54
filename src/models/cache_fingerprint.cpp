#include "models/cache_fingerprint.hpp"

#include <string_view>
#include <vector>

#include "base/checksum.hpp"
#include "models/fingerprint.hpp"

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

/// Of each tensor's bytes, so that they are read once for several fingerprints.
std::vector<std::uint64_t> checksums(const ModelFile& file) {
  std::vector<std::uint64_t> sums;
  sums.reserve(file.tensors().size());
  for (const WeightTensor& tensor : file.tensors()) sums.push_back(base::checksum(tensor.data));
  return sums;
}

/// The weights, and what decides how they are multiplied.
std::uint64_t of_weights(const std::vector<std::uint64_t>& tensors, const WeightRun& run) {
  Fingerprint hash;
  hash.add(static_cast<std::uint64_t>(run.weights));
  hash.add(isa_name(run.isa));
  for (const std::uint64_t sum : tensors) hash.add(sum);
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

WeightRun weight_run(const ModelOptions& options) {
  return {options.weights, resolve_isa(options.run.isa)};
}

CacheFingerprint cache_fingerprint(const ModelFile& file, const ModelOptions& options) {
  return {of_model(file), of_weights(checksums(file), weight_run(options)), of_rope(file.config()),
          0};
}

std::optional<WeightRun> run_of_weights(const ModelFile& file, std::uint64_t fingerprint) {
  const std::vector<std::uint64_t> tensors = checksums(file);
  for (const WeightForm weights : {WeightForm::float32, WeightForm::bfloat16}) {
    // Also those that this processor lacks.
    for (int isa = 1; isa_name(static_cast<Isa>(isa)) != std::string_view("unknown"); ++isa) {
      const WeightRun run{weights, static_cast<Isa>(isa)};
      if (of_weights(tensors, run) == fingerprint) return run;
    }
  }
  return {};
}

}  // namespace polyhead::inline v0::models
