#include "cli/explain_vectors.hpp"

#include <algorithm>

#include "cli/table.hpp"

namespace polyhead::cli {

std::vector<int> chosen(std::size_t count, std::size_t most) {
  std::vector<int> indices;
  for (std::size_t i = 0; i < count; ++i) {
    if (count <= most || i < most / 2 || i >= count - most / 2)
      indices.push_back(static_cast<int>(i));
    else if (indices.back() != -1)
      indices.push_back(-1);
  }
  return indices;
}

namespace {

std::vector<int> chosen_numbers(std::size_t count) {
  return chosen(count, count > kMaxNumbers ? kCutNumbers : kMaxNumbers);
}

}  // namespace

std::string numbers(const std::vector<double>& values, std::size_t width) {
  std::string text;
  for (const int i : chosen_numbers(values.size())) {
    const std::string shown = i < 0 ? "…" : fixed(values[static_cast<std::size_t>(i)]);
    if (!text.empty()) text += "  ";
    if (i >= 0 && shown.size() < width) text.append(width - shown.size(), ' ');
    text += shown;
  }
  return text;
}

std::size_t widest(const Matrix& matrix) {
  std::size_t width = 0;
  for (const std::vector<double>& row : matrix) {
    for (const int i : chosen_numbers(row.size())) {
      if (i >= 0) width = std::max(width, fixed(row[static_cast<std::size_t>(i)]).size());
    }
  }
  return width;
}

std::string token(const std::vector<std::string>& tokens, std::int64_t index) {
  return printable(tokens[static_cast<std::size_t>(index)]);
}

}  // namespace polyhead::cli
