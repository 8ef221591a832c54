// Keys and values of a layer in frames in which codes lose least, the queries that go with such
// keys, and the way back of what attention makes of such values.
#pragma once

#include <cstdint>

#include "layers/rows.hpp"
#include "models/model.hpp"

namespace polyhead::inline v0::models {

/// Turns q, k and v [.., tokens, heads, dim] of one chunk into `frames`, where they lie: for each
/// KV head, with a frame's centre c, its stretch s and H the orthonormal Walsh-Hadamard transform
/// of runs of the largest power of two that divides the dims,
///   k' = H ((k - c) / s),   q' = H (s q),   so that q'.k' = q.k - q.c,
/// and v' = H ((v - c) / s) with the values' own frame, where there is one. A row's scores all move
/// by q.c, which the softmax does not see. Where a frame says how to round (shaped_rounding.hpp),
/// k' and v' leave it rounded. float32; a row's result depends on that row alone and is the same
/// bits on every instruction set.
void enter_frames(const Crew& crew, const LayerFrames& frames, const ConstView& q,
                  const ConstView& k, const ConstView& v);

/// Weighted means of v', [.., tokens, query heads, dim], become those of v, where they lie:
/// o = s (H o') + c, as the weights of a row sum to 1.
void leave_frame(const Crew& crew, const CodeFrame& values, std::int64_t kv_heads,
                 const ConstView& out);

}  // namespace polyhead::inline v0::models
