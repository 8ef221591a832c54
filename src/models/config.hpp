// What a model is: the sizes and choices that the architectures here differ in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/rope.h"

namespace polyhead::inline v0::models {

enum class Architecture : std::uint8_t { llama, gemma3, qwen2, qwen3, gpt2, bert };
enum class Norm : std::uint8_t { rms, layer };
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh };
enum class Pooling : std::uint8_t { none, mean, first };

/// What a llama's file says of its biases; one that says nothing may have some.
enum class Biases : std::uint8_t { may, none, all };

/// The attention of one layer.
struct LayerGeometry {
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t window = 0;         ///< keys a query sees, itself included; 0: all before it
  std::optional<RopeConfig> rope;  ///< none: learned positions
};

/// One model, as its file describes it. Sizes are checked against the tensors when it is opened.
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::string name;                   ///< as the file says, or the file's own name
  std::vector<LayerGeometry> layers;  ///< one each
  std::int64_t model_dim = 0, ffn_dim = 0, vocab_size = 0;
  std::int64_t context_length = 0;  ///< tokens the model was made for
  std::int64_t token_types = 0;     ///< bert; 0: none

  Norm norm = Norm::rms;
  float norm_eps = 1e-5f;
  bool norm_plus_one = false;  ///< RMS norms multiply by 1 + weight (gemma's safetensors)
  Activation activation = Activation::silu;
  bool gated_ffn = true;  ///< down(activation(gate(x)) * up(x)), else down(activation(up(x)))
  bool causal = true;
  bool qk_norm = false;
  Biases attention_biases = Biases::may, ffn_biases = Biases::may;
  float attention_scale = 0.0f;     ///< multiplies q.k
  float attention_soft_cap = 0.0f;  ///< 0: none
  float logit_soft_cap = 0.0f;      ///< 0: none
  float embedding_scale = 1.0f;     ///< multiplies token embeddings (gemma: sqrt(model_dim))
  bool tied_output = false;         ///< the output matrix is the token embedding
  Pooling pooling = Pooling::none;  ///< embedding models
};

// Far above any model, and so few that what they bound is soon done.
constexpr std::int64_t kMaxLayers = 4096;

const char* architecture_name(Architecture architecture);

/// What a configuration is read for: to run the model, or for its sizes alone. Then what changes
/// none of them (activations, rotations, large heads) is taken, be it supported or not.
enum class Reading : std::uint8_t { run, described };

/// Holds the numbers of a configuration against each other (sizes positive and of a size that can
/// be addressed, heads in whole groups, rotations possible) before anything is allocated by them.
/// Throws FileError naming `path`.
void check_config(const std::string& path, const ModelConfig& config,
                  Reading reading = Reading::run);

/// Which layer has keys or values of another shape than layer 0, with both; "" where all are alike,
/// as a pool of pages needs them.
std::string unlike_layer(const ModelConfig& config);

/// A tensor that an architecture has, under its canonical name.
struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< outermost first
  bool required = true;
};

/// All of them, required and optional, for one configuration.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

}  // namespace polyhead::inline v0::models
