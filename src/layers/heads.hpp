// What happens to the heads of q and k between the projection and attention: normalisation and
// RoPE.
#pragma once

#include "layers/rows.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0::layers {

/// Heads, or the same part of each, in the columns of a row.
struct HeadColumns {
  std::int64_t first = 0, heads = 0, dim = 0;
  const float* norm = nullptr;  ///< [dim]: RMS weights; none: not normalised
  std::int64_t stride = 0;      ///< from head to head; 0: dim, side by side
  bool turns = true;            ///< by the rotation, where there is one
};

/// A stage over projected rows: each head of each part is normalised and turned, in float32, then
/// the row is rounded where it is to be bfloat16.
struct Dressing {
  float* rows = nullptr;
  std::int64_t pitch = 0;  ///< bytes
  std::int64_t count = 0, columns = 0;
  HeadColumns parts[2];  ///< heads of 0 are skipped
  float norm_eps = 0.0f;
  const position::Rotation* rotation = nullptr;
  const std::int64_t* positions = nullptr;  ///< [count], with a rotation
  std::byte* narrow = nullptr;              ///< where the rounded rows go, or none
  std::int64_t narrow_pitch = 0;            ///< bytes
};

void dress(const Engine& engine, const Dressing& dressing, Buffer& scratch);

}  // namespace polyhead::inline v0::layers
