#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::formats {

std::string escape_controls(std::string_view text) {
  constexpr const char* digits = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  bool second = false;  // the byte after 0xC2 that makes a C1 control
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    const bool first = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    if (byte < 0x20 || byte == 0x7f || first || second) {
      shown += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      shown += text[i];
    }
    second = first;
  }
  return shown;
}

std::string quote(std::string_view name) {
  constexpr std::size_t kMost = 120;  // a line of a message
  return "'" + escape_controls(name.substr(0, kMost)) + (name.size() > kMost ? "...'" : "'");
}

}  // namespace polyhead::inline v0::formats
