// Tensors of a model's file made into packed weights.
#pragma once

#include <string>
#include <vector>

#include "models/blocks.hpp"
#include "models/model.hpp"

namespace polyhead::inline v0::models {

/// Reads weights of one file by their canonical names, for one engine.
class Loader {
 public:
  Loader(const ModelFile& file, const layers::Engine& engine, ElementType weights);

  const ModelConfig& config() const { return file_.config(); }
  bool has(const std::string& name) const { return file_.has(name); }

  /// `name`.weight and, where there is one, `name`.bias.
  NormWeights norm(const std::string& name) const;

  /// y = x W^T + b of `name`.weight and `name`.bias.
  layers::Linear linear(const std::string& name) const;

  /// attn_q, attn_k, attn_v (or attn_qkv) and attn_output of layer `index`, with its geometry,
  /// masks and modifiers.
  layers::Layer attention(std::int64_t index) const;

  FeedForward feed_forward(std::int64_t index) const;

  /// A whole tensor as float32.
  std::vector<float> floats(const std::string& name) const;

 private:
  /// Rows of a matrix, and its bias where there is one.
  struct Part {
    std::string name;
    std::int64_t first = 0, count = 0;
  };
  layers::Linear stacked(const std::vector<Part>& parts) const;
  Part whole(const std::string& name) const;

  const ModelFile& file_;
  layers::Engine engine_;
  ElementType weights_;
  mutable base::LargePages pages_;  // where matrices go, one after the other, as a token reads them
};

/// "blk.N." before a tensor of layer N.
std::string block_name(std::int64_t layer, const char* tensor);

}  // namespace polyhead::inline v0::models
