#include "cli/escape.hpp"

#include <nlohmann/json.hpp>

#include "cli/stream_text.hpp"

namespace polyhead::cli {

std::string json_for_script(const nlohmann::ordered_json& value) {
  const std::string text =
      value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string text_for_markup(std::string_view text) {
  std::string safe;
  for (const char c : whole_characters(text)) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      safe += c;
    }
  }
  return safe;
}

}  // namespace polyhead::cli
