#include "models/formats/file_error.hpp"

#include <algorithm>
#include <sstream>

namespace polyhead::inline v0::formats {

namespace {

/// How many bytes `text` begins with that steer a terminal; 0: none.
std::size_t steering_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (byte(0) == 0xc2) return byte(1) >= 0x80 && byte(1) < 0xa0 ? 2 : 0;
  if (byte(0) != 0xe2) return 0;
  const bool embeds = byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae;    // U+202A .. U+202E
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;  // U+2066 .. U+2069
  return embeds || isolates ? 3 : 0;
}

}  // namespace

FileError too_large(const std::string& path, double value, ElementType type) {
  std::ostringstream what;
  what << "holds " << value << ", too large for " << element_name(type);
  return {path, what.str()};
}

std::string escape_controls(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t steering = steering_bytes(text);
    for (const char c : text.substr(0, steering)) {
      const auto byte = static_cast<unsigned char>(c);
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
    if (steering == 0) shown += text[0];
    text.remove_prefix(std::max<std::size_t>(steering, 1));
  }
  return shown;
}

std::string quote(std::string_view name) {
  constexpr std::size_t kMost = 120;  // a line of a message
  return "'" + escape_controls(name.substr(0, kMost)) + (name.size() > kMost ? "...'" : "'");
}

}  // namespace polyhead::inline v0::formats
