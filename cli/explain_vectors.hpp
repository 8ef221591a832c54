// Vectors and names of tokens as `polyhead explain` prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/explain_case.hpp"

namespace polyhead::cli {

constexpr std::size_t kMaxNumbers = 8;  // numbers of a vector that is shown whole
constexpr std::size_t kCutNumbers =
    4;  // and of a longer one, which then leaves room for its neighbours

/// Indices 0 .. count - 1, or the first and last ones with a -1 between them where there are too
/// many.
std::vector<int> chosen(std::size_t count, std::size_t most);

/// Numbers of a vector in columns as wide as the widest number of the tables it stands in.
std::string numbers(const std::vector<double>& values, std::size_t width);

/// Of what numbers() shows of any row.
std::size_t widest(const Matrix& matrix);

std::string token(const std::vector<std::string>& tokens, std::int64_t index);

}  // namespace polyhead::cli
