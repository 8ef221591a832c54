// Which queries meet which keys: the calls of a phase, for one sequence and one layer.
#pragma once

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {

struct Calls {
  Count calls;                    ///< weights are read once in each
  Count queries;                  ///< rows of x, all calls together
  Count new_keys;                 ///< rows that keys and values are made of
  Count full;                     ///< pairs, each call a rectangle
  Count visible;                  ///< pairs that are seen
  Count keys_read;                ///< keys that each call must read, summed over calls
  std::vector<Factor> rectangle;  ///< full as factors, where one call makes it
};

Calls calls_of(const Layer& layer, const Workload& workload, Phase phase);

/// The pairs as factors of a term, counted as the workload says.
std::vector<Factor> pair_factors(const Calls& calls, const Workload& workload);

/// Keys and values of a token, as they are read: an encoder's are no cache, but have bytes all the
/// same.
Count key_bytes(const Layer& layer, const Workload& workload);

inline bool trains(Phase phase) {
  return phase == Phase::training || phase == Phase::training_recompute;
}
inline bool decodes(Phase phase) {
  return phase == Phase::decode_step || phase == Phase::generation;
}

}  // namespace polyhead::inline v0::cost
