// The parts that transformers are made of: norms, attention with its projections, feed-forward
// networks.
#pragma once

#include <vector>

#include "layers/layer_state.hpp"
#include "models/config.hpp"

namespace polyhead::inline v0::models {

/// Weights of a normalisation over the columns of a row: x / sqrt(mean(x^2) + eps) * weight, or
/// (x - mean) / sqrt(variance + eps) * weight + bias.
struct NormWeights {
  std::vector<float> weight, bias;  ///< bias: empty for Norm::rms
  bool given() const { return !weight.empty(); }
};

/// down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
struct FeedForward {
  layers::Linear gate, up, down;
};

/// One layer of a transformer. Norms that an architecture lacks are not given.
struct Block {
  layers::Layer attention;
  FeedForward feed_forward;
  NormWeights attention_norm, post_attention_norm, feed_forward_norm, post_feed_forward_norm;
};

}  // namespace polyhead::inline v0::models
