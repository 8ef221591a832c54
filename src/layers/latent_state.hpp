// What a latent attention layer holds.
#pragma once

#include <vector>

#include "layers/layer_state.hpp"
#include "polyhead/latent.h"

namespace polyhead::inline v0 {

namespace layers {

/// A latent attention layer, checked and packed.
struct Latent {
  LatentConfig config;  ///< as it was given
  Layer core;           ///< engine, activation, mask, modifiers, rotation, output projection
  Linear q_down;        ///< without out() where q comes straight from x
  Linear q, kv_down;
  std::vector<Linear> to_key;      ///< a head: [nope_dim, kv_rank]
  std::vector<Linear> absorb_key;  ///< its transpose, [kv_rank, nope_dim]
  std::vector<Linear> to_value;    ///< a head: [value_dim, kv_rank]
  std::vector<float> q_norm, kv_norm;
};

/// The config, if it and the weights fit together; throws otherwise.
LatentConfig check_latent(const LatentConfig& config, const LatentWeights& weights);

}  // namespace layers

struct LatentAttention::State : layers::Latent {};

}  // namespace polyhead::inline v0
