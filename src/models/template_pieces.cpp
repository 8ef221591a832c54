#include "models/template_pieces.hpp"

#include <algorithm>
#include <utility>

#include "models/template_expression.hpp"

namespace polyhead::inline v0::models {
namespace {

using Kind = TemplatePiece::Kind;

constexpr std::string_view kSpace = " \t\n\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::vector<TemplatePart> parts_of(std::string_view code) {
  std::vector<TemplatePart> parts;
  std::size_t begin = 0;
  const auto take_code = [&](std::size_t end) {
    if (end > begin) parts.push_back({false, std::string(code.substr(begin, end - begin))});
  };
  for (std::size_t at = 0; at < code.size();) {
    if (code[at] != '\'' && code[at] != '"') {
      ++at;
      continue;
    }
    take_code(at);
    parts.push_back({true, read_literal(code, at)});
    begin = at;
  }
  take_code(code.size());
  return parts;
}

/// Tags and the text between them, in order.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {
    if (text_.ends_with('\n')) text_.remove_suffix(1);  // Jinja drops the last line's end
  }

  /// False at the end. A comment comes out as a text of nothing.
  bool next(TemplatePiece& piece) {
    if (at_ >= text_.size()) return false;
    const std::size_t open = tag_from(at_);
    if (open > at_) {
      piece.kind = Kind::text;
      piece.source = between_tags(text_.substr(at_, open - at_), text_.substr(open));
      piece.parts = {{true, std::string(piece.source)}};
      at_ = open;
      after_ = After::text;
      return true;
    }
    take_tag(piece);
    return true;
  }

 private:
  enum class After : std::uint8_t { start, text, output, block, stripping };

  std::size_t tag_from(std::size_t from) const {
    for (std::size_t at = text_.find('{', from); at + 1 < text_.size();
         at = text_.find('{', at + 1)) {
      if (at == std::string_view::npos) break;
      const char next = text_[at + 1];
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return text_.size();
  }

  /// What is left of a text: tags with a dash take white space away, blocks (as transformers sets
  /// Jinja up) the line's end behind them and the white space before them on their line.
  std::string_view between_tags(std::string_view raw, std::string_view rest) const {
    bool line_begins = after_ == After::start;
    if (after_ == After::stripping) {
      raw.remove_prefix(std::min(raw.find_first_not_of(kSpace), raw.size()));
    } else if (after_ == After::block && raw.starts_with('\n')) {
      raw.remove_prefix(1);
      line_begins = true;
    }
    if (rest.size() < 3) return raw;
    if (rest[2] == '-') {
      const std::size_t last = raw.find_last_not_of(kSpace);
      return raw.substr(0, last == std::string_view::npos ? 0 : last + 1);
    }
    const std::size_t last = raw.find_last_not_of(" \t");
    const bool alone = last == std::string_view::npos ? line_begins : raw[last] == '\n';
    if (rest[1] == '{' || rest[2] == '+' || !alone) return raw;
    return raw.substr(0, last == std::string_view::npos ? 0 : last + 1);
  }

  void take_tag(TemplatePiece& piece) {
    const char type = text_[at_ + 1];
    std::size_t at = at_ + 2;
    const std::string_view close = type == '{' ? "}}" : type == '%' ? "%}" : "#}";
    while (at < text_.size() && text_.substr(at, 2) != close) {
      if (type != '#' && (text_[at] == '\'' || text_[at] == '"')) {
        read_literal(text_, at);
      } else {
        ++at;
      }
    }
    std::string_view inside = text_.substr(at_ + 2, at - at_ - 2);
    if (inside.starts_with('-') || inside.starts_with('+')) inside.remove_prefix(1);
    const bool strips = inside.ends_with('-');
    if (strips || inside.ends_with('+')) inside.remove_suffix(1);
    after_ = strips ? After::stripping : type == '{' ? After::output : After::block;
    at_ = std::min(at + 2, text_.size());
    piece.kind = type == '{' ? Kind::output : type == '%' ? Kind::statement : Kind::text;
    piece.source = type == '#' ? std::string_view() : trimmed(inside);
    piece.parts = parts_of(piece.source);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  After after_ = After::start;
};

bool about_more_than_text(std::string_view code) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"tool", "image", "video", "audio", "documents"},
      [&](std::string_view what) { return holds(code, what); });
}

/// Conditions that a conversation of plain texts does not meet. "not ...", "... and not ..." and
/// what names the user ("or message.role == 'user'") may be met all the same.
bool is_dead(std::string_view condition) {
  if (condition.starts_with("false")) return true;
  if (holds(condition, "enable_thinking is false")) return true;  // it is not given
  const bool user = holds(condition, "'user'") || holds(condition, "\"user\"");
  return !user && !condition.starts_with("not") &&
         about_more_than_text(condition.substr(0, condition.find(" and not ")));
}

/// A statement that has an end, and what holds within it.
struct Frame {
  bool skipped = false, about_system = false, about_generation = false;
  bool about_assistant = false, first_turn = false, in_loop = false;
};

/// "... and not ..." asks for more than that.
bool is_assistant(std::string_view condition) {
  const std::string_view asked = condition.substr(0, condition.find(" and not "));
  return holds(asked, "assistant") && !holds(asked, "user") && !holds(asked, "!=") &&
         !holds(asked, "not ") && !holds(asked, "system") && !holds(condition, " or ");
}

class Live {
 public:
  bool skipped() const { return top().skipped; }

  void mark(TemplatePiece& piece) const {
    piece.depth = frames_.size() - 1;
    piece.about_system = top().about_system;
    piece.about_generation = top().about_generation;
    piece.about_assistant = top().about_assistant;
    piece.first_turn = top().first_turn;
    piece.in_loop = top().in_loop;
  }

  void enter(std::string_view statement) {
    const std::size_t end = std::min(statement.find_first_of(" (\t\n"), statement.size());
    const std::string_view word = statement.substr(0, end);
    const std::string_view rest = trimmed(statement.substr(end));
    if (word == "if") {
      frames_.push_back(within(top(), rest));
    } else if (word == "elif" && frames_.size() > 1) {
      const bool system = top().about_system;
      frames_.pop_back();
      frames_.push_back(within(top(), rest));
      frames_.back().about_system |= system;
    } else if (word == "else" && frames_.size() > 1) {
      const bool system = top().about_system;
      frames_.back() = frames_[frames_.size() - 2];
      frames_.back().about_system = system;
    } else if (word == "for" || word == "macro" || word == "call" || word == "filter" ||
               (word == "set" && !holds(rest, "="))) {
      frames_.push_back(top());
      frames_.back().skipped |= word == "macro" || (word == "for" && about_more_than_text(rest));
      frames_.back().in_loop |= word == "for";
    } else if (word.starts_with("end") && word != "endgeneration" && frames_.size() > 1) {
      frames_.pop_back();
    }
  }

 private:
  const Frame& top() const { return frames_.back(); }

  static Frame within(const Frame& outer, std::string_view condition) {
    const bool generation = holds(condition, "add_generation_prompt") &&
                            !condition.starts_with("not") && !holds(condition, " or ");
    Frame inner = outer;
    inner.skipped |= is_dead(condition);
    inner.about_system |= holds(condition, "system");
    inner.about_generation |= generation;
    inner.about_assistant |= is_assistant(condition);
    inner.first_turn |= is_first_turn(condition) && !holds(condition, " and ");
    return inner;
  }

  std::vector<Frame> frames_{Frame()};
};

}  // namespace

std::vector<TemplatePiece> live_pieces(std::string_view text) {
  std::vector<TemplatePiece> pieces;
  Reader reader(text);
  Live live;
  for (TemplatePiece piece; reader.next(piece);) {
    if (piece.kind == Kind::statement) live.enter(piece.source);
    if (live.skipped() || piece.source.empty()) continue;
    live.mark(piece);
    pieces.push_back(piece);
  }
  return pieces;
}

bool is_set(const TemplatePiece& piece) {
  return piece.kind == Kind::statement && piece.source.starts_with("set ");
}

std::string_view bound_name(const TemplatePiece& piece) {
  if (piece.kind != Kind::statement) return "";
  std::string_view rest = piece.source;
  if (!rest.starts_with("set ") && !rest.starts_with("for ")) return "";
  rest.remove_prefix(4);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest.substr(
      0, static_cast<std::size_t>(std::ranges::find_if_not(rest, in_name) - rest.begin()));
}

const std::string* sole_literal(const TemplatePiece& piece) {
  if (!is_set(piece) || piece.parts.size() != 2 || !piece.parts[1].literal) return nullptr;
  const std::string_view code = trimmed(piece.parts[0].text);
  return code.find('=') + 1 == code.size() ? &piece.parts[1].text : nullptr;
}

bool is_first_turn(std::string_view condition) {
  const bool first = holds(condition, "loop.first") || holds(condition, "loop.index0 == 0") ||
                     holds(condition, "loop.index == 1");
  return first && !holds(condition, "not ") && !holds(condition, " or ");
}

bool is_written(const std::vector<TemplatePart>& parts, std::size_t index) {
  if (!parts[index].literal) return false;
  if (index == 0) return true;
  const std::string_view before = trimmed(parts[index - 1].text);
  if (parts[index - 1].literal || before.empty()) return true;
  const char last = before.back();
  if (last == '(') {
    const char caller = before.size() > 1 ? before[before.size() - 2] : ' ';
    return !in_name(caller);
  }
  const bool compared = before.ends_with("==") || before.ends_with("!=");
  const bool sought =
      before == "if" || before == "in" || before.ends_with(" in") || before.ends_with(" if");
  return !compared && !sought && last != '[' && last != ',';
}

}  // namespace polyhead::inline v0::models
