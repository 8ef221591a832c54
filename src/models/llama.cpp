// Llama 2 and 3, SmolLM2, Mistral: RMS norms before each part, RoPE, grouped heads, gated SiLU; a
// window where the configuration has one. Source: Touvron et al. 2023; Jiang et al. 2023.
#include "models/architecture.hpp"

namespace polyhead::inline v0::models {

const Rules kLlama{load_pre_norm, run_pre_norm};

}  // namespace polyhead::inline v0::models
