#include "cli/stream_text.hpp"

#include <algorithm>

#include "cli/console.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead::cli {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// How a text begins: `length` bytes that are a character, or are none, or may become one.
struct Beginning {
  enum Kind { whole, broken, incomplete } kind;
  std::size_t length;
};

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// By RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
Beginning beginning_of(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {Beginning::whole, 1};
  if (first < 0xc2 || first > 0xf4) return {Beginning::broken, 1};
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() > 1) {
    const auto second = static_cast<unsigned char>(text[1]);
    const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (second < least || second > most) return {Beginning::broken, 1};
  }
  for (std::size_t i = 2; i < std::min(length, text.size()); ++i) {
    if (!continues(text[i])) return {Beginning::broken, i};
  }
  if (text.size() < length) return {Beginning::incomplete, text.size()};
  return {Beginning::whole, length};
}

}  // namespace

void TextStream::put(std::string_view character) {
  text_ += character;
  if (out_ == nullptr) return;
  if (!terminal_ || character == "\n" || character == "\t")
    *out_ << character;
  else
    *out_ << formats::escape_controls(character);
}

void TextStream::write(std::string_view bytes) {
  pending_ += bytes;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Beginning begins = beginning_of(rest);
    if (begins.kind == Beginning::incomplete) break;
    put(begins.kind == Beginning::whole ? rest.substr(0, begins.length) : kReplacement);
    rest.remove_prefix(begins.length);
  }
  pending_ = std::string(rest);
  if (out_ != nullptr) flush(*out_);
}

std::string whole_characters(std::string_view bytes) {
  TextStream characters;
  characters.write(bytes);
  characters.finish();
  return characters.text();
}

void TextStream::finish() {
  if (!pending_.empty()) put(kReplacement);
  pending_.clear();
  if (out_ != nullptr) flush(*out_);
}

}  // namespace polyhead::cli
