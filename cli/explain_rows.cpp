#include "cli/explain_rows.hpp"

#include <cmath>

#include "cli/json_text.hpp"
#include "models/formats/array.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {

using formats::FileError;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 16;  // { q: [ [ number ] ] }, and whatever else the file holds

}  // namespace

Array matrix_of(const json& from, const std::string& path, const std::string& name) {
  const auto refuse = [&](const std::string& what) { throw FileError(path, name + " " + what); };
  if (!from.is_array() || from.empty() || !from[0].is_array()) refuse("is not a list of rows");
  for (const json& row : from) {  // first: a file of few numbers may have a matrix of many
    if (!row.is_array() || row.size() != from[0].size()) refuse("has rows of different lengths");
  }
  const std::int64_t extents[] = {static_cast<std::int64_t>(from.size()),
                                  static_cast<std::int64_t>(from[0].size())};
  const OwnedArray matrix = allocate(ElementType::float32, extents);
  auto* out = static_cast<float*>(matrix.view.data);
  for (const json& row : from) {
    for (const json& number : row) {
      if (!number.is_number()) refuse("holds something else than numbers");
      const float value = number.get<float>();
      if (!std::isfinite(value)) refuse("holds " + number.dump() + ", too large for float32");
      *out++ = value;
    }
  }
  return matrix.array;
}

json parse_example(const std::string& path, const std::string& text) {
  return formats::parse_json(path, "the file", text, kMaxDepth);
}

ordered_json rows_json(const Array& rows) {
  ordered_json matrix = ordered_json::array();
  for (std::int64_t i = 0; i < rows.view.layout.extents[0]; ++i) {
    ordered_json& row = matrix.emplace_back(ordered_json::array());
    for (std::int64_t j = 0; j < rows.view.layout.extents[1]; ++j) {
      const std::int64_t index[] = {i, j};
      row.push_back(any_number(element(rows.view, index)));
    }
  }
  return matrix;
}

std::vector<Columns> equal_columns(std::int64_t width, const char* name, std::int64_t heads) {
  if (width == 0)
    throw InvalidArgument(std::string("explain: ") + name + " is 0 (expected at least 1)");
  if (heads < 1 || width % heads != 0) {
    throw InvalidArgument(std::string("explain: ") + name + " (" + std::to_string(width) +
                          ") is not a multiple of --heads (" + std::to_string(heads) + ")");
  }
  const std::int64_t dim = width / heads;
  std::vector<Columns> columns;
  for (std::int64_t h = 0; h < heads; ++h) columns.push_back({h * dim, (h + 1) * dim - 1});
  return columns;
}

std::vector<std::string> names_of(const std::vector<std::string>& tokens, std::int64_t count,
                                  const char* what) {
  if (tokens.empty()) {
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
    return names;
  }
  if (static_cast<std::int64_t>(tokens.size()) != count) {
    throw InvalidArgument("explain: tokens has " + std::to_string(tokens.size()) +
                          " names (expected " + std::to_string(count) + ", as many as " + what +
                          " has)");
  }
  return tokens;
}

void check_tokens_hold_numbers(const Array& array, const char* name) {
  const detail::Layout& layout = array.view.layout;  // [batch, tokens, heads, dim]
  if (layout.extents[1] == 0 || layout.extents[0] * layout.extents[2] * layout.extents[3] > 0)
    return;
  throw InvalidArgument(std::string("explain: ") + name + " has tokens without numbers: shape " +
                        formats::shape_text(layout) +
                        " as [batch, tokens, heads, dim] (expected at least one each)");
}

}  // namespace polyhead::cli
