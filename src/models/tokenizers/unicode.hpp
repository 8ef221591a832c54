// What the tokenizers, and the program's tables, need to know of Unicode; utf8proc has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::models {

/// One character of a text: a code point, or one byte that belongs to none.
struct Character {
  std::int32_t code = -1;    ///< -1: not UTF-8
  std::uint32_t length = 1;  ///< bytes
};

/// The character at the front of `text`, which is not empty. Overlong forms, surrogates and what is
/// beyond U+10FFFF are single bytes without a code.
Character first_character(std::string_view text);

void append_utf8(std::string& text, std::int32_t code);

/// Classes by Unicode's general category; false for code -1.
bool is_letter(std::int32_t code);           ///< L: \p{L}
bool is_number(std::int32_t code);           ///< N: \p{N}
bool is_punctuation(std::int32_t code);      ///< P
bool is_nonspacing_mark(std::int32_t code);  ///< Mn
bool is_control(std::int32_t code);          ///< Cc, Cf, Co, Cs: C without what is unassigned
bool is_space(std::int32_t code);            ///< the property White_Space: \s

/// Columns of a terminal that it takes: 0, 1 or 2; a byte that is no character (code -1) takes 1.
int columns_of(std::int32_t code);

/// The canonical decomposition (NFD) of `codes`. Linear but for the sorting of combining marks.
std::vector<std::int32_t> decompose(const std::vector<std::int32_t>& codes);

/// `text` in form NFC; bytes that are not UTF-8 stay where they are.
std::string compose(std::string_view text);

/// The lower case of one character, which may be several; without regard to its neighbours.
void append_lower(std::vector<std::int32_t>& codes, std::int32_t code);

}  // namespace polyhead::inline v0::models
