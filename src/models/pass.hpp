// One chunk of tokens on its way through the blocks of a model.
#pragma once

#include <cstdint>

#include "models/model.hpp"
#include "models/rows.hpp"

namespace polyhead::inline v0::models {

/// Buffers of one call in flight, kept from chunk to chunk.
struct PassMemory {
  layers::Buffer residual, normed, result, hidden, activated, logits, lse;
  layers::Scratch attention;
};

/// The sequences of a pool that a step continues.
struct PooledSequences {
  PagedCache* cache = nullptr;
  const PagedBatch* batch = nullptr;    ///< with the step's tokens
  std::vector<std::int64_t> sequences;  ///< their numbers
  std::vector<std::int64_t> starts;     ///< position of each one's first row
};

/// The tokens of one chunk: rows of one sequence that continues a cache, of several that continue
/// a pool's, or of several whole ones.
struct Tokens {
  std::span<const std::int32_t> ids;
  std::int64_t first = 0;                  ///< position of the first, with a cache
  std::vector<KvCache>* caches = nullptr;  ///< one a layer; none: the rows see each other only
  std::vector<std::int64_t> offsets;  ///< without caches: where each sequence begins, and the end
  PooledSequences pooled{};           ///< with `offsets`; without a cache: none
  std::span<const LayerFrames> frames{};  ///< of the caches or the pool; empty: none
};

/// The residual stream of a chunk and the steps that change it. Architectures are sequences of
/// these steps. Every step gives a row the same bits whatever rows run beside it.
class Pass {
 public:
  Pass(const ModelConfig& config, const layers::Engine& engine, ElementType activations,
       const Tokens& tokens, PassMemory& memory, const RunOptions& options);

  const Tokens& tokens() const { return tokens_; }
  const std::vector<std::int64_t>& positions() const { return positions_; }
  const Matrix& residual() const { return residual_; }

  void normalise(const NormWeights& weights);           ///< input = norm(residual)
  void normalise_residual(const NormWeights& weights);  ///< input = residual = norm(residual)
  void normalise_result(const NormWeights& weights);    ///< result = norm(result)
  void attend(const Block& block, std::int64_t layer);  ///< result = attention(input)
  void feed_forward(const FeedForward& network);        ///< result = network(input)
  void add_result();                                    ///< residual += result

  /// Moves these rows, ascending, to the front of the residual stream; the others are lost.
  void keep_rows(std::span<const std::int64_t> rows);

  /// Norm of rows [first, first + count) of the residual stream, as the output product reads it.
  Matrix normalised_rows(const NormWeights& weights, std::int64_t first, std::int64_t count);

  /// input * linear, into `to`.
  void multiply(const Matrix& input, const layers::Linear& linear, const Matrix& to);

 private:
  AttentionArguments prepare(const Block& block, std::int64_t layer);
  void read_pool(const Block& block, std::int64_t layer, AttentionArguments& arguments) const;
  void switch_off(std::int64_t layer, const Matrix& heads, std::int64_t value_dim) const;

  const ModelConfig& config_;
  const layers::Engine& engine_;
  ElementType activations_;
  const Tokens& tokens_;
  PassMemory& memory_;
  const RunOptions& options_;
  NormKind norm_;
  std::vector<std::int64_t> positions_;
  Matrix residual_, input_, result_;
};

}  // namespace polyhead::inline v0::models
