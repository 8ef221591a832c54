// GPT-2: layer norms with biases before each part, learned positions, no RoPE, one GELU product in
// the feed-forward network, biases everywhere. Source: Radford et al. 2019.
#include "models/architecture.hpp"

namespace polyhead::inline v0::models {

const Rules kGpt2{load_pre_norm, run_pre_norm};

}  // namespace polyhead::inline v0::models
