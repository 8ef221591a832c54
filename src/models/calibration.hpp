// Frames for a layer's keys and values, found on a run.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/rows.hpp"
#include "models/blocks.hpp"
#include "models/config.hpp"
#include "models/model.hpp"
#include "models/rope_pairs.hpp"

namespace polyhead::inline v0::models {

/// How errors of a layer's values count for what it adds to the residual stream: the sum over a KV
/// head's query heads of W'W, where W is what the output projection (and the weight of a norm that
/// follows it) makes of their dims. [kv_heads * value_dim * value_dim]
std::vector<double> value_moments(const layers::Engine& engine, const Block& block);

/// Watches a run from position 0 and says in which frames its keys and values are best stored, over
/// all positions that a cache will serve and not only over those of the run: RoPE turns keys and
/// queries with the position.
///
/// Keys: c is a channel's mean. For int8, s is the square root of the keys' deviation over the
/// queries' magnitude, so that errors of equal size in every channel cost the scores least; the
/// cache rounds to nearest. For int4 rounding is shaped by the queries' second moment; were that
/// all there is to it, s would best be the deviation, so that codes reach equally far in every
/// channel. Between the two it does better on keys that are unlike the rest (docs/numerics.md).
///
/// int4's values: s is the channel's magnitude, and rounding is shaped by value_moments(). c is 0:
/// most weight falls on first tokens, whose values are small, and errors are as small as values
/// only where nothing was taken away.
class FrameObserver : public Observer {
 public:
  FrameObserver(const ModelConfig& config, const Crew& crew);

  void attending(std::int64_t layer, std::int64_t first_query,
                 AttentionArguments& arguments) override;
  void attended(const AttentionSeen&) override {}

  /// Of one layer, for positions 0 .. length - 1. Keys' centres are 0 where a soft-cap or a sink
  /// would notice them. `of_values`: value_moments() for int4.
  LayerFrames frames(std::int64_t layer, ElementType type, std::int64_t length,
                     const std::vector<double>& of_values) const;

 private:
  struct Seen {
    explicit Seen(const LayerGeometry& layer)
        : pairs(rope_pairs(layer)),
          keys(layer.kv_heads, layer.head_dim),
          queries(layer.kv_heads, layer.head_dim),
          values(layer.kv_heads, layer.value_dim) {}
    std::vector<RopePair> pairs;
    TurnedBackSums keys, queries, values;
    std::int64_t tokens = 0;
    bool centred = true;
  };

  const ModelConfig& config_;
  Crew crew_;
  std::vector<Seen> layers_;
};

}  // namespace polyhead::inline v0::models
