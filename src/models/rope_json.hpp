// The rotary embedding that a config.json gives a decoder's layers.
#pragma once

#include "models/config.hpp"
#include "models/json_fields.hpp"

namespace polyhead::inline v0::models {

/// Which layers: gemma3's have two embeddings, those of the others are all alike.
enum class RopeOf : std::uint8_t { all, gemma_global, gemma_local };

/// rope_parameters, by layer type in gemma3, or the older rope_theta and rope_scaling. LongRoPE
/// shortens the configuration's context.
RopeConfig rope_from_json(const Fields& fields, RopeOf layers, ModelConfig& config);

}  // namespace polyhead::inline v0::models
