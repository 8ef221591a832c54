#include "cli/json_text.hpp"

#include <algorithm>
#include <cmath>

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

std::string on_one_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

bool is_simple(const ordered_json& value) {
  return std::none_of(value.begin(), value.end(),
                      [](const ordered_json& element) { return element.is_structured(); });
}

void append(std::string& text, const ordered_json& value, std::size_t depth) {
  const bool list = value.is_array();
  if (value.is_binary()) {  // the digits of a whole number that no 64 bits hold
    text.append(value.get_binary().begin(), value.get_binary().end());
    return;
  }
  if (!value.is_structured() || value.empty()) {
    text += on_one_line(value);
    return;
  }
  const bool one_line = list && is_simple(value);
  const std::string line = one_line ? "" : "\n" + std::string(2 * (depth + 1), ' ');
  text += list ? '[' : '{';
  bool first = true;
  for (const auto& [key, element] : value.items()) {
    text += first ? line : one_line ? ", " : "," + line;
    first = false;
    if (!list) text += on_one_line(key) + ": ";
    append(text, element, depth + 1);
  }
  if (!one_line) text += "\n" + std::string(2 * depth, ' ');
  text += list ? ']' : '}';
}

}  // namespace

ordered_json whole_number(const std::string& digits) {
  constexpr std::size_t kAlwaysFit = 18;  // 2^63 has 19 digits
  if (digits.size() <= kAlwaysFit) return std::stoll(digits);
  return ordered_json::binary({digits.begin(), digits.end()});
}

ordered_json any_number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0.0 ? ordered_json("inf") : ordered_json(nullptr);
}

ordered_json any_numbers(const std::vector<double>& row) {
  ordered_json list = ordered_json::array();
  for (const double value : row) list.push_back(any_number(value));
  return list;
}

ordered_json any_numbers(const std::vector<std::vector<double>>& rows) {
  ordered_json list = ordered_json::array();
  for (const std::vector<double>& row : rows) list.push_back(any_numbers(row));
  return list;
}

std::string json_text(const ordered_json& value) {
  std::string text;
  append(text, value, 0);
  return text + "\n";
}

}  // namespace polyhead::cli
