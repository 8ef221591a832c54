// Switching heads off, one by one and together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/console.hpp"
#include "models/model.hpp"

namespace polyhead::cli {

/// One head off alone.
struct HeadLoss {
  std::int64_t layer = 0, head = 0;
  double nll = 0, change = 0;  ///< nats a token; against all heads on
};

/// So many heads off, the least missed first.
struct CurvePoint {
  std::size_t off = 0;
  double nll = 0;
};

struct Pruning {
  double nll = 0;                 ///< all heads on
  std::vector<HeadLoss> heads;    ///< by ascending change, then layer and head
  std::vector<CurvePoint> curve;  ///< from none off to all
};

/// Mean negative log-likelihood of ids[1..] with each head's output replaced by zeros, alone and
/// then the heads in the order of their changes, at `points` counts evenly spaced (at most one a
/// head). Runs the ids 1 + heads + points times, each from the first layer that differs from the
/// run with all heads on; what that one's layers were given is kept (LayerInputs). Sources: Michel
/// et al. 2019, section 4; Voita et al. 2019. Throws InvalidArgument, also where a
/// loss is no number.
Pruning prune_heads(const models::Model& model, std::span<const std::int32_t> ids,
                    std::int64_t points, const Console& console);

}  // namespace polyhead::cli
