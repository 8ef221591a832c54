// JSON read in one place: a parser takes seconds to compile wherever it is used.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace polyhead::test {

/// Throws nlohmann::json::parse_error.
nlohmann::json json_of(const std::string& text);
nlohmann::json json_file(const std::string& path);

}  // namespace polyhead::test
