// The pieces of a JSON vocabulary by their ids.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// Sets spec's pieces and kinds from `vocabulary` ({piece: id}) and `added` (a list of {id,
/// content, special, normalized}), which may repeat pieces of the vocabulary. Throws FileError
/// unless the ids are 0 to their number - 1, each once.
void fill_pieces(TokenizerSpec& spec, const nlohmann::json& vocabulary,
                 const nlohmann::json& added);

/// spec's id of `piece`, or -1. Linear: for a handful of names.
std::int32_t find_piece(const TokenizerSpec& spec, const std::string& piece);

}  // namespace polyhead::inline v0::models
