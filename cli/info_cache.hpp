// What a file of saved caches is, for `polyhead info`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/console.hpp"

namespace polyhead::cli {

/// Whether a file begins as those of saved caches do. False where it cannot be read.
bool is_cache_file(const std::string& path);

/// Its tokens, sizes and fingerprint. Throws FileError for a damaged one.
void print_cache_file(const Console& console, const std::string& path);

/// The same as {path, kind, count, tokens, type, ..., fingerprint}.
nlohmann::ordered_json cache_file_json(const std::string& path);

}  // namespace polyhead::cli
