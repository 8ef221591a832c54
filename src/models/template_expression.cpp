#include "models/template_expression.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "models/tokenizers/unicode.hpp"

namespace polyhead::inline v0::models {
namespace {

using Kind = Written::Kind;
using Steps = std::vector<Written>;

constexpr int kDeepest = 50;  ///< parentheses and choices within each other; further ones: changes

/// A code point of `digits` (at most) digits at text[at]; exactly as many where base is 16.
void read_code(std::string_view text, std::size_t& at, std::size_t digits, int base,
               std::string& plain) {
  const std::string_view given = text.substr(std::min(at, text.size()), digits);
  std::uint32_t code = 0;
  const char* const end = given.data() + given.size();
  const auto read = std::from_chars(given.data(), end, code, base);
  const auto length = static_cast<std::size_t>(read.ptr - given.data());
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  at += length;
  if ((base == 16 && length != digits) || surrogate || code > 0x10FFFF) code = 0;
  append_utf8(plain, static_cast<std::int32_t>(code));
}

/// The escape whose letter is text[at].
void read_escape(std::string_view text, std::size_t& at, std::string& plain) {
  constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
  const char c = text[at];
  if (c >= '0' && c <= '7') return read_code(text, at, 3, 8, plain);
  ++at;
  if (c == 'x') return read_code(text, at, 2, 16, plain);
  if (c == 'u') return read_code(text, at, 4, 16, plain);
  if (c == 'U') return read_code(text, at, 8, 16, plain);
  if (const std::size_t letter = kLetters.find(c); letter != std::string_view::npos) {
    plain += kMeant[letter];
  } else if (c == 'N') {  // a character by its name
    plain += '\0';
  } else if (c != '\n') {  // no escape; before a line's end: nothing
    plain.append(1, '\\').append(1, c);
  }
}

class Reader {
 public:
  explicit Reader(std::string_view code) : code_(code) {}

  Steps read() {
    Steps steps = choice();
    if (more()) change(steps, code_.substr(at_));
    return steps;
  }

 private:
  bool more() {
    while (at_ < code_.size() && std::isspace(static_cast<unsigned char>(code_[at_])) != 0) ++at_;
    return at_ < code_.size();
  }
  bool next_is(char c) { return more() && code_[at_] == c; }
  bool take(char c) {
    const bool there = next_is(c);
    at_ += there ? 1 : 0;
    return there;
  }

  std::string_view name() {
    const std::size_t begin = at_;
    while (at_ < code_.size() && in_name(code_[at_])) ++at_;
    return code_.substr(begin, at_ - begin);
  }

  bool take_word(std::string_view word) {
    const std::size_t begin = more() ? at_ : code_.size();
    if (name() == word) return true;
    at_ = begin;
    return false;
  }

  /// Up to a closing bracket of an outer one, or the word `stop` outside of brackets.
  std::string_view rest_of_group(std::string_view stop = "") {
    const std::size_t begin = at_;
    for (int depth = 0; at_ < code_.size();) {
      const char c = code_[at_];
      const std::size_t before = at_;
      if (c == '\'' || c == '"') {
        read_literal(code_, at_);
      } else if (in_name(c)) {
        if (name() == stop && depth == 0) return code_.substr(begin, (at_ = before) - begin);
      } else if ((c == ')' || c == ']') && depth-- == 0) {
        break;
      } else {
        depth += c == '(' || c == '[' ? 1 : 0;
        ++at_;
      }
    }
    return code_.substr(begin, at_ - begin);
  }

  /// What stands between brackets, of which the first one is taken.
  std::string_view bracketed() {
    const std::string_view inside = rest_of_group();
    if (at_ < code_.size()) ++at_;
    return inside;
  }

  static void change(Steps& steps, std::string_view by) {
    if (steps.empty()) steps.emplace_back();
    if (steps.front().changed.empty()) steps.front().changed = by.empty() ? "?" : by;
  }

  Steps choice() {
    Steps steps = sum();
    if (!take_word("if")) return steps;
    steps.insert(steps.begin(), {Kind::fork, std::string(rest_of_group("else")), false, ""});
    if (take_word("else")) {
      steps.push_back({Kind::otherwise, "", false, ""});
      append(steps, other_choice());
    }
    steps.push_back({Kind::join, "", false, ""});
    return steps;
  }

  /// What stands behind "else", where another choice may be.
  Steps other_choice() {
    Steps steps;
    if (depth_ == kDeepest) {
      change(steps, rest_of_group());
      return steps;
    }
    ++depth_;
    steps = choice();
    --depth_;
    return steps;
  }

  static void append(Steps& steps, Steps more) {
    steps.insert(steps.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }

  Steps sum() {
    Steps steps = operand();
    while (take('+') || take('~')) append(steps, operand());
    const std::size_t begin = at_;
    const bool ends = !more() || code_[at_] == ')' || take_word("if") || take_word("else");
    at_ = begin;
    if (!ends) change(steps, rest_of_group());
    return steps;
  }

  Steps operand() {
    Steps steps;
    if (!more()) return steps;
    const char c = code_[at_];
    if (c == '(' && depth_ < kDeepest) {
      ++at_;
      ++depth_;
      steps = choice();
      --depth_;
      if (!take(')')) change(steps, rest_of_group());
    } else if (c == '\'' || c == '"') {
      steps.push_back({Kind::literal, "", false, ""});
      while (next_is('\'') || next_is('"')) steps[0].text += read_literal(code_, at_);
    } else if (in_name(c)) {
      steps.push_back({Kind::value, std::string(name()), false, ""});
    } else {
      change(steps, rest_of_group());
    }
    while (more() && read_suffix(steps)) {
    }
    return steps;
  }

  bool read_suffix(Steps& steps) {
    const std::size_t begin = at_;
    if (take('.')) {
      const std::string_view member(name());
      if (!next_is('(')) return add_to_path(steps, "." + std::string(member), begin);
      ++at_;
      const bool plain = bracketed().find_first_not_of(' ') == std::string_view::npos;
      return strip(steps, member == "strip" && plain, begin);
    }
    if (take('|')) {
      more();
      const std::string_view filter = name();
      const std::size_t end = at_;
      const bool arguments = take('(');
      if (arguments) {
        bracketed();
      } else {
        at_ = end;
      }
      if (filter == "string" && !arguments) return true;
      return strip(steps, filter == "trim" && !arguments, begin);
    }
    if (take('[')) return index(steps, begin);
    if (!take('(')) return false;
    bracketed();
    change(steps, code_.substr(begin, at_ - begin));
    return true;
  }

  bool index(Steps& steps, std::size_t begin) {
    const std::string_view inside = bracketed();
    const bool quoted = inside.size() > 2 && (inside[0] == '\'' || inside[0] == '"');
    if (quoted && std::ranges::all_of(inside.substr(1, inside.size() - 2), in_name))
      return add_to_path(steps, "." + std::string(inside.substr(1, inside.size() - 2)), begin);
    return add_to_path(steps, inside == "0" ? "[0]" : "", begin);
  }

  /// The first value alone has a path; nothing: that is no part of one.
  bool add_to_path(Steps& steps, const std::string& part, std::size_t begin) {
    const bool value = steps.size() == 1 && steps[0].kind == Kind::value && !steps[0].stripped;
    const bool changed = !steps.empty() && !steps[0].changed.empty();
    if (part.empty() || !value || changed) {
      change(steps, code_.substr(begin, at_ - begin));
    } else {
      steps[0].text += part;
    }
    return true;
  }

  bool strip(Steps& steps, bool plain, std::size_t begin) {
    if (plain && steps.size() == 1 && steps[0].kind == Kind::value) {
      steps[0].stripped = true;
    } else {
      change(steps, code_.substr(begin, at_ - begin));
    }
    return true;
  }

  std::string_view code_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string read_literal(std::string_view text, std::size_t& at) {
  const char quote = text[at++];
  std::string plain;
  while (at < text.size() && text[at] != quote) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      read_escape(text, ++at, plain);
    } else {
      plain += text[at++];
    }
  }
  if (at < text.size()) ++at;
  return plain;
}

std::vector<Written> what_is_written(std::string_view expression) {
  return Reader(expression).read();
}

}  // namespace polyhead::inline v0::models
