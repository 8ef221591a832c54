// JSON as people can also read it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace polyhead::cli {

/// Indented, a line a member, rows of numbers on one line each. Text that is not UTF-8 has its bad
/// bytes replaced.
std::string json_text(const nlohmann::ordered_json& value);

/// A number given by its decimal digits, however many: json_text() writes them as they are.
nlohmann::ordered_json whole_number(const std::string& digits);

/// A number that may be none that JSON has: "nan", "inf", and null for -inf, the score of a pair
/// that is hidden.
nlohmann::ordered_json any_number(double value);

/// Lists of them.
nlohmann::ordered_json any_numbers(const std::vector<double>& row);
nlohmann::ordered_json any_numbers(const std::vector<std::vector<double>>& rows);

}  // namespace polyhead::cli
