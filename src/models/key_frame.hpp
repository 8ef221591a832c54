// Keys of a layer in the frame in which 4 bits lose least, and the queries that go with them.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/rows.hpp"
#include "models/config.hpp"
#include "models/model.hpp"
#include "models/rope_pairs.hpp"

namespace polyhead::inline v0::models {

/// Turns q and k [.., tokens, heads, head_dim] of one chunk into `frame`, where they lie: for each
/// KV head, with its centre c, its stretch s and H the orthonormal Walsh-Hadamard transform of runs
/// of the largest power of two that divides head_dim,
///   k' = H ((k - c) / s),   q' = H (s q),   so that q'.k' = q.k - q.c.
/// A row's scores all move by q.c, which the softmax does not see. float32; a row's result depends
/// on that row alone and is the same bits on every instruction set.
void enter_frame(const Crew& crew, const KeyFrame& frame, const ConstView& q, const ConstView& k);

/// Frames for the keys and queries of a run from position 0 that it observes: c is a channel's
/// mean, s the square root of the keys' deviation over the queries' magnitude, so that errors of
/// equal size in every channel cost the scores least. Both as they would be over the positions a
/// cache will serve, not only over those of the run: RoPE turns a mean with the position.
class KeyFrameObserver : public Observer {
 public:
  explicit KeyFrameObserver(const ModelConfig& config);

  void attending(std::int64_t layer, std::int64_t first_query,
                 AttentionArguments& arguments) override;
  void attended(const AttentionSeen&) override {}

  /// One a layer, for positions 0 .. length - 1. Centres are 0 where a soft-cap or a sink would
  /// notice them.
  std::vector<KeyFrame> frames(std::int64_t length) const;

 private:
  struct Seen {
    explicit Seen(const LayerGeometry& layer)
        : head_dim(layer.head_dim),
          pairs(rope_pairs(layer)),
          keys(layer.kv_heads, layer.head_dim),
          queries(layer.kv_heads, layer.head_dim) {}
    std::int64_t head_dim;
    std::vector<RopePair> pairs;
    TurnedBackSums keys, queries;
    bool centred = true;
  };
  std::vector<Seen> layers_;
};

}  // namespace polyhead::inline v0::models
