// JSON as people can also read it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace polyhead::cli {

/// Indented, a line a member, rows of numbers on one line each. Text that is not UTF-8 has its bad
/// bytes replaced.
std::string json_text(const nlohmann::ordered_json& value);

/// A number given by its decimal digits, however many: json_text() writes them as they are.
nlohmann::ordered_json whole_number(const std::string& digits);

}  // namespace polyhead::cli
