// Where a ModelConfig comes from, by format.
#pragma once

#include "models/config.hpp"
#include "models/formats/gguf.hpp"

namespace polyhead::inline v0::models {

/// From GGUF metadata. Throws FileError for architectures other than Architecture's and for what
/// changes a model's numbers and is not supported here (experts, other rotary scalings).
ModelConfig config_from_gguf(const formats::Gguf& file);

}  // namespace polyhead::inline v0::models
