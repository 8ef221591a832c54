// How a frame follows from what was measured of a layer's rows.
#pragma once

#include <cstdint>
#include <vector>

#include "frames/rope_pairs.hpp"
#include "polyhead/code_frame.h"

namespace polyhead::inline v0::frames {

/// s = deviation^range / weight^(1 - range), a weight being the root of how errors of the channel
/// count; without a centre the deviation is the magnitude.
struct FrameKind {
  double range;
  bool centred;
  double damping = 0.0;  ///< of shaped rounding; 0: to nearest
};

/// The frame of all heads of `dim` dims. Errors e of a head's rows count e' M e; `errors` are the
/// M, [heads * dim * dim].
CodeFrame frame_of(const TurnedBackSums::Averages& rows, const std::vector<double>& errors,
                   std::int64_t dim, const FrameKind& kind);

}  // namespace polyhead::inline v0::frames
