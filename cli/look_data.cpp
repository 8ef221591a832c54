#include "cli/look_data.hpp"

#include <cctype>
#include <string_view>

#include "models/tokenizers/unicode.hpp"

namespace polyhead::cli {
namespace {

/// Punctuation and symbols of ASCII; punctuation of Latin-1, general punctuation, and that of
/// Greek, Arabic, Devanagari and East Asian scripts.
bool is_delimiting(std::int32_t c) {
  if (c < 0x80) return c > 0x20 && std::ispunct(c) != 0;
  const auto within = [&](std::int32_t low, std::int32_t high) { return c >= low && c <= high; };
  return c == 0xa1 || c == 0xab || c == 0xb7 || c == 0xbb || c == 0xbf || c == 0x37e ||
         c == 0x589 || c == 0x60c || c == 0x61b || c == 0x61f || c == 0x6d4 ||
         within(0x964, 0x965) || within(0x2010, 0x2027) || within(0x2030, 0x205e) ||
         within(0x3001, 0x3003) || within(0x3008, 0x3011) || within(0xff01, 0xff0f) ||
         within(0xff1a, 0xff20) || within(0xff3b, 0xff3d) || within(0xff5b, 0xff65);
}

bool is_delimiter(std::string_view bytes) {
  bool any = false;
  while (!bytes.empty()) {
    const auto [point, length] = models::first_character(bytes);
    if (point < 0) return false;
    const bool line_end = point == '\n' || point == '\r' || point == 0x85 || point == 0x2028;
    if (!line_end && !is_delimiting(point) && point != ' ' && point != '\t') return false;
    any = any || (point != ' ' && point != '\t');
    bytes.remove_prefix(length);
  }
  return any;
}

}  // namespace

std::string token_bytes(const LookData& look, std::size_t index) {
  return std::string(look.tokenizer->bytes(look.ids[index]));
}

std::vector<std::uint8_t> delimiters_of(const models::Tokenizer& tokenizer,
                                        const std::vector<std::int32_t>& ids) {
  std::vector<std::uint8_t> flags;
  flags.reserve(ids.size());
  for (const std::int32_t id : ids) {
    flags.push_back(tokenizer.is_control(id) || is_delimiter(tokenizer.bytes(id)));
  }
  return flags;
}

}  // namespace polyhead::cli
