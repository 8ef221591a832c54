// What the architectures differ in beyond their configuration: one file each, one row here.
#pragma once

#include "models/loader.hpp"
#include "models/pass.hpp"

namespace polyhead::inline v0::models {

/// Everything outside the layers.
struct Edges {
  std::vector<float> positions;    ///< [context][model_dim]: learned; empty: none
  std::vector<float> token_types;  ///< [model_dim]: the first one; empty: none
  NormWeights embedding_norm, output_norm;
};

/// How one architecture reads its layers and runs them.
struct Rules {
  Block (*load)(const Loader& from, std::int64_t layer);
  void (*run)(const Block& block, std::int64_t layer, Pass& pass);
};

const Rules& rules_of(Architecture architecture);

extern const Rules kLlama, kGemma3, kQwen, kGpt2, kBert;

/// x += attention(norm(x)); x += feed_forward(norm(x)).
void run_pre_norm(const Block& block, std::int64_t layer, Pass& pass);

/// attn_norm, attention, ffn_norm and feed-forward of a layer.
Block load_pre_norm(const Loader& from, std::int64_t layer);

}  // namespace polyhead::inline v0::models
