// Rows of all heads side by side: from JSON and back, and cut into heads.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/arrays.hpp"
#include "cli/explain_case.hpp"

namespace polyhead::cli {

/// The JSON text of the file `path`, of a few levels. Throws FileError.
nlohmann::json parse_example(const std::string& path, const std::string& text);

/// A JSON list of equally long lists of numbers. Throws FileError that calls it `name`.
Array matrix_of(const nlohmann::json& from, const std::string& path, const std::string& name);

nlohmann::ordered_json rows_json(const Array& rows);

/// Rows of `width` columns cut into so many heads; `name` is what messages call the width. Throws
/// InvalidArgument.
std::vector<Columns> equal_columns(std::int64_t width, const char* name, std::int64_t heads);

/// `tokens`, or the indices where there are none. Throws InvalidArgument for more or fewer than
/// `count`, as many as `what` has.
std::vector<std::string> names_of(const std::vector<std::string>& tokens, std::int64_t count,
                                  const char* what);

/// A file of a few bytes may promise any number of tokens without a number in them. Throws
/// InvalidArgument.
void check_tokens_hold_numbers(const Array& array, const char* name);

}  // namespace polyhead::cli
