// JSON files beside a model's weights.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace polyhead::inline v0::models {

/// Parses one. Throws FileError when it cannot be read, is larger than 256 MiB, nests deeper than 64,
/// or is not JSON.
nlohmann::json read_json(const std::string& path);

/// Adds every piece of `vocabulary` ({piece: id}) and `added` ({id, content, special} each) to a
/// list by id with its kinds. Ids are 0 to their number - 1, each once, or FileError is thrown.
struct TokenizerSpec;
void fill_pieces(TokenizerSpec& spec, const nlohmann::json& vocabulary,
                 const nlohmann::json& added);

/// spec's id of `piece`, or -1. Linear: for a handful of names.
std::int32_t find_piece(const TokenizerSpec& spec, const std::string& piece);

}  // namespace polyhead::inline v0::models
