// The text of a Jinja template taken apart: what it writes as it stands, and what it works out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::models {

/// Of an expression: a literal, its escapes undone, or the code between literals.
struct TemplatePart {
  bool literal = false;
  std::string text;
};

/// A template's text between tags (one literal part, without the white space that tags take away),
/// the expression of {{ }}, or the statement of {% %}.
struct TemplatePiece {
  enum class Kind : std::uint8_t { text, output, statement } kind = Kind::text;
  std::string_view source;  ///< between the tags; of the template's own memory
  std::vector<TemplatePart> parts;
  std::size_t depth = 0;          ///< statements around it
  bool about_system = false;      ///< within a condition on a system message
  bool about_generation = false;  ///< within the condition add_generation_prompt
  bool about_assistant = false;   ///< within a condition that only turns of the assistant meet
  bool first_turn = false;        ///< within a condition that the first turn of a loop alone meets
  bool in_loop = false;
};

inline bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\n\r") == std::string_view::npos;
}

/// What a template may write in a conversation without tools, images and the like: branches on
/// those are left out, as are macros and comments; of other branches all are kept.
std::vector<TemplatePiece> live_pieces(std::string_view text);

/// "set NAME = VALUE", "for NAME in ...": NAME, or nothing.
std::string_view bound_name(const TemplatePiece& piece);
bool is_set(const TemplatePiece& piece);
/// The one literal that a variable is set to, or none.
const std::string* sole_literal(const TemplatePiece& piece);

/// Whether the first turn of a loop alone meets a condition, if it does.
bool is_first_turn(std::string_view condition);

/// Whether a part of an expression is a text that it writes: not a key, an argument or one side of
/// a comparison.
bool is_written(const std::vector<TemplatePart>& parts, std::size_t index);

}  // namespace polyhead::inline v0::models
