// Qwen 2 and 3: as Llama, with biases on q, k and v (2) or RMS norms on each head of q and k (3),
// which the loader finds in the file. Source: Yang et al. 2024; Yang et al. 2025.
#include "models/architecture.hpp"

namespace polyhead::inline v0::models {

const Rules kQwen{load_pre_norm, run_pre_norm};

}  // namespace polyhead::inline v0::models
