// Cosines and sines of positions, and the rotation itself, for the layer and the public apply_rope.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/rope.h"

namespace polyhead::inline v0::position {

/// Throws InvalidArgument, prefixed with `call`, unless `config` makes sense for heads of head_dim.
void check_rope(const char* call, const RopeConfig& config, std::int64_t head_dim);

/// cos and sin of every pair at a position, scaled by the attention factor. A position is split
/// into a multiple of kStep and a rest, cos(a + b) = cos a cos b - sin a sin b in double, so runs
/// of positions cost no trigonometry; the same formula serves every position, so a value depends on
/// the position alone.
class Rotation {
 public:
  /// The configuration is valid. `tables`: memory for the kStep rests, worth it for more than a few
  /// tokens.
  Rotation(const RopeConfig& config, std::int64_t head_dim, bool tables);

  std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies_.size()); }
  RopePairing pairing() const { return pairing_; }

  /// Memory that a run of calls to `at` shares; `anchors` holds 2 * pairs().
  struct Cursor {
    double* anchors;
    std::int64_t anchor = -1;  ///< the multiple of kStep they are for: never -1
  };

  /// cos and sin, pairs() each, at `position`.
  void at(std::int64_t position, Cursor& cursor, float* cos, float* sin) const;

 private:
  static constexpr std::int64_t kStep = 64;  // 64 KiB of tables for 64 pairs
  void turn(std::int64_t position, double* cos_then_sin) const;

  RopePairing pairing_;
  double factor_;
  std::vector<double> frequencies_;
  std::vector<double> rests_;  // [kStep][cos, sin][pairs], or empty
};

/// Rotates one head in place: the first 2 * pairs() of its elements.
void rotate(float* head, const Rotation& rotation, const float* cos, const float* sin);

/// From so many tokens on a table of rests pays.
inline constexpr std::int64_t kTableTokens = 128;

/// What rotate_heads works on: doubles.
constexpr std::int64_t turning_doubles(std::int64_t pairs) { return 4 * pairs; }

/// apply_rope on checked arguments, prepared and without allocation: x [batch, tokens, heads, dim],
/// positions int32 or int64 [batch, tokens], `memory` of turning_doubles(pairs) elements.
void rotate_heads(const View& x, const ConstView& positions, const Rotation& rotation,
                  double* memory);

}  // namespace polyhead::inline v0::position
