// JSON as people can also read it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace polyhead::cli {

/// Indented, a line a member, rows of numbers on one line each. Text that is not UTF-8 has its bad
/// bytes replaced.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace polyhead::cli
