// What a model and its sessions hold.
#pragma once

#include <vector>

#include "models/architecture.hpp"

namespace polyhead::inline v0::models {

struct Model::State {
  State(const ModelFile& from, const ModelOptions& options);

  ModelFile file;
  ModelConfig config;
  layers::Engine engine;
  ElementType activations;  ///< what products read: float32 or bfloat16
  std::vector<Block> blocks;
  Edges edges;
  layers::Linear output;  ///< without out() for encoders

  /// The residual stream of `pass` from its tokens.
  void embed(Pass& pass) const;
  void run_block(std::int64_t layer, Pass& pass) const;
  void run_blocks(Pass& pass) const;

  /// Both, where what goes into each layer is kept (layer_inputs.cpp): with all heads on this
  /// writes it, for tokens from `first`; else it starts from it, at the first layer with a head
  /// off.
  void run_from(LayerInputs& inputs, std::int64_t first, const RunOptions& options,
                Pass& pass) const;

  /// Refuses inputs that run_from() cannot start from, and makes room in those that it writes:
  /// whether it does.
  bool prepare_inputs(const char* call, LayerInputs& inputs, std::int64_t tokens,
                      const RunOptions& options) const;

  /// Logits of rows [first, first + count) of the residual stream: [count][vocab_size].
  void logits(Pass& pass, std::int64_t first, std::int64_t count, const Matrix& to) const;

  void check_ids(const char* call, std::span<const std::int32_t> ids) const;
  void check_heads(const char* call, const RunOptions& options) const;
  void check_form(const char* call, const CacheForm& form) const;
};

struct Session::State {
  std::vector<KvCache> caches;      ///< one a layer
  std::vector<LayerFrames> frames;  ///< one a layer, or none
  std::int64_t length = 0, capacity = 0;
  PassMemory memory;

  void truncate(std::int64_t to);
};

struct SequencePool::State {
  explicit State(const PagedCacheConfig& config) : cache(config) {}
  PagedCache cache;
  std::vector<LayerFrames> frames;  ///< one a layer, or none
  PagedBatch batch;
  PassMemory memory;
};

}  // namespace polyhead::inline v0::models
