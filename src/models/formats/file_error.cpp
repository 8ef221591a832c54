#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::formats {

std::string quote(std::string_view name) {
  constexpr std::size_t kMost = 120;  // a line of a message
  constexpr const char* digits = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      text += c;
    }
  }
  return text + (name.size() > kMost ? "...'" : "'");
}

}  // namespace polyhead::inline v0::formats
