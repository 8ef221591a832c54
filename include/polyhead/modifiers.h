// What happens to a score between q.k and the softmax, and to a weight after it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// The place of one score.
struct ScoreAt {
  std::int64_t batch;  ///< sequence
  std::int64_t head;   ///< query head
  std::int64_t query;  ///< index within the sequence's queries
  std::int64_t q_pos;  ///< position under the alignment; `end` where none is stated
  std::int64_t kv_pos;
};

/// A tile of scores handed to a user's modifier: score (key, lane) at scores[key * lane_count +
/// lane]. Lanes past the valid ones and masked pairs are included; what they become is discarded.
struct ScoreTile {
  float* scores;
  int key_count, lane_count;
  std::int64_t batch, first_kv_pos;
  const std::int64_t *head, *query, *q_pos;  ///< [lane_count]
};

/// A user's score function, a tile at a time. Derive from ScoreModifier<Self> below rather than
/// from this.
class TileModifier {
 public:
  virtual ~TileModifier() = default;
  virtual void apply(const ScoreTile& tile) const = 0;
};

/// CRTP base: Self provides `float operator()(float score, polyhead::ScoreAt at) const`, a pure
/// function; this base makes the loop over a tile, which the user's own build vectorises. A score
/// of -inf hides the pair.
template <class Self>
class ScoreModifier : public TileModifier {
 public:
  void apply(const ScoreTile& tile) const override {
    const Self& self = static_cast<const Self&>(*this);
    for (int key = 0; key < tile.key_count; ++key) {
      float* row = tile.scores + static_cast<std::int64_t>(key) * tile.lane_count;
      for (int lane = 0; lane < tile.lane_count; ++lane) {
        row[lane] = self(row[lane], ScoreAt{tile.batch, tile.head[lane], tile.query[lane],
                                            tile.q_pos[lane], tile.first_kv_pos + key});
      }
    }
  }
};

/// ALiBi: score - slope_h * |q_pos - kv_pos|. Slopes are float32 [q_heads]; use_default_slopes
/// takes the closed form for any number of heads. Source: Press et al. 2022.
struct Alibi {
  bool use_default_slopes = false;
  ConstView slopes{};
  bool given() const { return use_default_slopes || slopes.given(); }
};

/// Dropout on the weights: each is zeroed with `probability`, the others are divided by
/// (1 - probability). Random numbers are Philox4x32-10 keyed by (seed, sequence id, head, q_pos,
/// kv_pos): the same whatever the tiling or batching. Sources: Srivastava et al. 2014; Salmon et
/// al. 2011 (Philox).
struct Dropout {
  float probability = 0.0f;  ///< in [0, 1)
  std::uint64_t seed = 0;
  ConstView sequence_ids{};  ///< int32/int64 [batch]; the batch index where not given
};

inline constexpr int kMaxCustomModifiers = 4;

/// In the order in which they apply:
///   s = scale * q.k;  s = soft_cap * tanh(s / soft_cap);  s += bias;  s -= slope * distance;
///   custom[0], custom[1], ...
/// then the mask, the softmax (with `sink` in its denominator) and dropout. In float32; what that
/// errs by is in docs/numerics.md. Sources: Gemma Team 2024 (soft-cap), OpenAI 2025 (gpt-oss:
/// sink).
struct Modifiers {
  std::optional<float> scale{};  ///< finite; default 1 / sqrt(head_dim)
  float soft_cap = 0.0f;         ///< 0 is none; else within 1e-30 .. 1e30
  /// [batch|1, q_heads|1, q_len|1, kv_len|1], float32/float16/bfloat16; -inf hides, unless a
  /// modifier of one's own makes another score of it. Of sequences of different lengths indexed
  /// within each, and as long as the longest or longer.
  ConstView bias{};
  Alibi alibi{};
  std::array<const TileModifier*, kMaxCustomModifiers> custom{};
  /// float32 [q_heads]: one more logit a head, in the denominator only; finite, or -inf for none
  ConstView sink{};
  Dropout dropout{};
};

/// The closed-form ALiBi slope of `head`, 0 .. heads - 1, among `heads` (any number from 1 on): for
/// a power of two 2^(-8 (head + 1) / heads); the rest take every second slope of the next power of
/// two. Throws InvalidArgument for a head that is none of them. Source: Press et al. 2022.
float alibi_slope(std::int64_t head, std::int64_t heads);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
