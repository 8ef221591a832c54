// Which tokens end an answer, beside a model's end-of-text token.
#pragma once

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// Adds the control tokens that chat formats end a turn with (<|im_end|>, <end_of_turn>,
/// <|eot_id|>,
/// ...) to spec.end_of_turn.
void add_known_ends(TokenizerSpec& spec);

/// Adds one id, unless it is there, is eos, or is -1.
void add_end(TokenizerSpec& spec, std::int32_t id);

}  // namespace polyhead::inline v0::models
