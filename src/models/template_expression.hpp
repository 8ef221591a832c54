// What an expression of a Jinja template writes: texts and values one after the other, and what is
// done to them. Nothing is worked out.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::models {

/// "'<s>' + (a.b | trim if c else '')": literal, fork of c, value a.b, otherwise, literal, join.
struct Written {
  enum class Kind : std::uint8_t { literal, value, fork, otherwise, join } kind = Kind::value;
  std::string text;       ///< of a literal; a value's path ("messages[0].content"); a condition
  bool stripped = false;  ///< by .strip() or | trim
  std::string changed;    ///< by what else first ("[1:]"); empty: by nothing
};

std::vector<Written> what_is_written(std::string_view expression);

/// Whether a name may have such a character.
inline bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// `use` gets each name of code, those in its literals too.
template <class Use>
void each_name(std::string_view code, const Use& use) {
  for (std::size_t at = 0; at < code.size();) {
    std::size_t end = at;
    while (end < code.size() && in_name(code[end])) ++end;
    if (end > at && std::isdigit(static_cast<unsigned char>(code[at])) == 0)
      use(code.substr(at, end - at));
    at = std::max(end, at + 1);
  }
}

/// The literal that begins at text[at], a quote, its escapes undone as Python does; `at` goes
/// behind it. Escapes that Python refuses, and those of surrogates, come out as a zero byte.
std::string read_literal(std::string_view text, std::size_t& at);

}  // namespace polyhead::inline v0::models
