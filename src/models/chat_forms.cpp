#include "models/chat_forms.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "models/chat_places.hpp"
#include "models/formats/file_error.hpp"
#include "models/template_expression.hpp"

namespace polyhead::inline v0::models {
namespace {

using Kind = TemplatePiece::Kind;

constexpr std::size_t kMostMet = 8;  ///< conditions that a way keeps in mind; bounds the time
constexpr std::array<std::string_view, 3> kBosTexts{"<s>", "<bos>", "<|begin_of_text|>"};

std::string_view last_member(std::string_view path) {
  return path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1);
}

bool is_content(std::string_view name) {
  return name == "content" || name == "text" || name == "reasoning_content";
}

class FormsReader {
 public:
  FormsReader(const std::vector<TemplatePiece>& pieces, const ChatFormat& chat)
      : pieces_(pieces), chat_(chat), places_(turns_of(chat)) {}

  FormsRead read() {
    for (const TemplatePiece& piece : pieces_) {
      if (is_set(piece)) name_variable(piece);
    }
    for (std::size_t at = 0; at < pieces_.size(); at = next(at)) read_piece(pieces_[at]);
    check_end();
    return std::move(read_);
  }

 private:
  /// Branches of which one is taken: the ways that take none yet, and the ends of earlier ones.
  struct Fork {
    Places::Ways rest{}, done{};
    std::vector<std::string> conditions{};
  };

  void not_known(const std::string& what) {
    if (read_.not_known.empty()) read_.not_known = what;
  }

  /// The piece to read behind pieces_[at]. A loop is read twice: for the first turn, and for those
  /// behind it.
  std::size_t next(std::size_t at) {
    const TemplatePiece& piece = pieces_[at];
    if (piece.kind != Kind::statement) return at + 1;
    if (first_word(piece) == "for" && !loop_) loop_ = at;
    if (first_word(piece) != "endfor" || piece.in_loop || !loop_) return at + 1;
    places_.later = !places_.later;
    if (places_.later) return *loop_;
    loop_.reset();
    return at + 1;
  }

  void read_piece(const TemplatePiece& piece) {
    piece_ = &piece;
    const bool writes = piece.kind != Kind::statement;
    if (writes && holds(piece.source, "raise_exception")) {
      places_.ways.clear();
    } else if (!writes && !is_set(piece)) {
      follow(piece);
    } else if (!places_.ways.empty()) {
      writes ? write_piece(piece) : write_variable(piece);
    }
  }

  static std::string_view first_word(const TemplatePiece& piece) {
    return piece.source.substr(0, piece.source.find_first_of(" (\t\n"));
  }

  static std::string_view value_of(const TemplatePiece& piece) {
    return piece.source.substr(std::min(piece.source.find('=') + 1, piece.source.size()));
  }

  /// What a variable stands for: whole turns, what a turn begins with, a content (as kTold) or a
  /// role, in this order where it is set more than once.
  void name_variable(const TemplatePiece& piece) {
    char& what = variables_.try_emplace(std::string(bound_name(piece)), kRole).first->second;
    const std::vector<Written> steps = what_is_written(value_of(piece));
    bool role = !steps.empty();
    for (const Written& step : steps) {
      if (step.kind == Written::Kind::literal) {
        if (begins_turn(step.text)) what = kTurn;
        role &= step.text == "model" || step.text == "user" || step.text == "assistant" ||
                step.text == "system";
      } else if (step.kind == Written::Kind::value) {
        role &= last_member(step.text) == "role";
      }
    }
    if (what != kTurn && is_prefix(steps)) what = kPrefix;
    if (what == kRole && !role) what = kTold;
  }

  /// Whether a system message has behind it what parts it from the user's.
  bool is_prefix(const std::vector<Written>& steps) const {
    const bool first = chat_.format == ChatTemplate::gemma || chat_.format == ChatTemplate::llama2;
    return first && steps.size() > 1 && steps.back().kind == Written::Kind::literal &&
           steps.back().text.ends_with("\n\n");
  }

  bool begins_turn(std::string_view text) const {
    return holds(text, "<|im_") || holds(text, "_of_turn>") || holds(text, "<|start_header_id|>") ||
           holds(text, "<|eot_id|>") || holds(text, "[INST]");
  }

  bool has_mark(std::string_view text) const {
    return begins_turn(text) || holds(text, "[/INST]") || holds(text, "SYS>>") ||
           holds(text, "</s>");
  }

  bool mentions_content(std::string_view code) const {
    bool does = false;
    each_name(code, [&](std::string_view name) {
      const auto variable = variables_.find(std::string(name));
      does |= is_content(name) || (variable != variables_.end() && variable->second != kRole &&
                                   contents_.contains(variable->first));
    });
    return does;
  }

  void write_variable(const TemplatePiece& piece) {
    const std::string name(bound_name(piece));
    const char what = variables_.at(name);
    const std::string_view value = value_of(piece);
    const bool marks = std::ranges::any_of(
        piece.parts, [&](const TemplatePart& p) { return p.literal && has_mark(p.text); });
    const bool whole = what == kTurn || what == kPrefix;
    if (mentions_content(value)) contents_.insert(name);
    if (sole_literal(piece) != nullptr ? !whole : !marks && !mentions_content(value)) return;
    Places value_places(what == kTurn ? turns_of(chat_) : values_of(chat_.format, what));
    value_places.later = places_.later;
    std::swap(places_, value_places);
    write_steps(what_is_written(value));
    check_end(name);
    std::swap(places_, value_places);
  }

  void write_piece(const TemplatePiece& piece) {
    first_ = piece.first_turn;
    if (piece.kind == Kind::text) {
      write_literal(piece.source);
    } else {
      write_steps(what_is_written(piece.source));
    }
  }

  void write_steps(const std::vector<Written>& steps) {
    std::vector<Fork> forks;
    bool first = piece_->first_turn;
    for (const Written& step : steps) {
      switch (step.kind) {
        case Written::Kind::fork:
          forks.emplace_back();
          take(forks.back(), step.text);
          first |= step.text.find_first_not_of(' ') == step.text.find("loop.first");
          break;
        case Written::Kind::otherwise:
          take_rest(forks.back());
          first = piece_->first_turn;
          break;
        case Written::Kind::join:
          join(forks);
          break;
        case Written::Kind::literal:
          if (!step.changed.empty()) not_known("changes " + formats::quote(step.text));
          first_ = first;
          write_literal(step.text);
          break;
        case Written::Kind::value:
          first_ = first;
          write_value(step);
      }
    }
  }

  /// Goes on in the branch of `condition`, as far as that is met.
  void take(Fork& fork, std::string_view condition) {
    while (condition.starts_with(' ')) condition.remove_prefix(1);
    const Places::Ways all = std::exchange(places_.ways, {});
    if (const std::optional<bool> met = is_met(condition)) {
      (*met ? places_.ways : fork.rest) = all;
    } else {
      fork.conditions.emplace_back(condition);
      assume(all, fork.conditions.back(), true, places_.ways);
      assume(all, fork.conditions.back(), false, fork.rest);
    }
  }

  void take_rest(Fork& fork) {
    fork.done.insert(places_.ways.begin(), places_.ways.end());
    places_.ways = std::exchange(fork.rest, {});
  }

  void join(std::vector<Fork>& forks) {
    Fork fork = std::move(forks.back());
    forks.pop_back();
    places_.ways.insert(fork.done.begin(), fork.done.end());
    if (!all_roles(fork.conditions)) places_.ways.insert(fork.rest.begin(), fork.rest.end());
    for (const std::string& condition : fork.conditions) places_.forget(condition);
    if (places_.few()) return;
    not_known("has too many branches within a turn");
    places_.begin();
  }

  /// Of a variable's value, or of all.
  void check_end(const std::string& variable = "") {
    const bool all = variable.empty();
    if (places_.short_of_space())
      not_known("has other white space behind " + (all ? "its turns" : formats::quote(variable)));
    if (!places_.ended())
      not_known(all ? "ends within a turn"
                    : "keeps a part of a turn in " + formats::quote(variable));
  }

  /// Puts into `such` those of `ways` in which a condition may be met, or not be.
  static void assume(const Places::Ways& ways, const std::string& condition, bool met,
                     Places::Ways& such) {
    for (Places::Way way : ways) {
      const bool full = way.met.size() == kMostMet && !way.met.contains(condition);
      if (full || way.met.emplace(condition, met).first->second == met) such.insert(std::move(way));
    }
  }

  /// What is known of a condition in a conversation of texts that waits for an answer, and in this
  /// reading of a loop.
  std::optional<bool> is_met(std::string_view condition) const {
    const bool one = !holds(condition, " and ") && !holds(condition, " or ");
    bool turned = false;
    for (; one && condition.starts_with("not "); turned = !turned) condition.remove_prefix(4);
    const std::optional<bool> met = is_met_as_told(condition, one);
    return met ? std::optional(*met != turned) : std::nullopt;
  }

  /// The same of a condition without "not" before it; `one`: without "and" and "or" as well.
  std::optional<bool> is_met_as_told(std::string_view condition, bool one) const {
    if (is_first_turn(condition) && places_.later) return false;
    if (is_first_turn(condition) && one && piece_->in_loop) return true;
    if (holds(condition, "add_generation_prompt") && holds(condition, "not loop.last") && !one)
      return true;
    const std::vector<Written> steps = what_is_written(condition);
    if (steps.size() != 1 || !is_content(last_member(steps[0].text))) return std::nullopt;
    if (steps[0].changed.ends_with("is string") && one) return true;
    if (steps[0].changed.ends_with("is not string") && one) return false;
    // Answers of no words may be written otherwise: a prompt has none.
    if (steps[0].changed.empty() && piece_->about_assistant) return true;
    return std::nullopt;
  }

  /// Whether branches on a message's role leave none out.
  bool all_roles(const std::vector<std::string>& conditions) const {
    std::string named;
    for (const std::string& condition : conditions) {
      if (holds(condition, "==") && !holds(condition, " and ") && !holds(condition, "not "))
        named += condition;
    }
    return holds(named, "user") && holds(named, "assistant") &&
           (holds(named, "system") || chat_.format == ChatTemplate::gemma);
  }

  /// Loops are taken. The beginning of a branch that is left out is not there, and the `else`
  /// behind it is taken.
  void follow(const TemplatePiece& piece) {
    const std::string_view word = first_word(piece);
    const std::string_view condition = piece.source.substr(word.size());
    if (word == "elif" || word == "else") {
      if (forks_.size() < piece.depth) forks_.push_back({std::exchange(places_.ways, {})});
      if (forks_.empty()) return;
      take_rest(forks_.back());
      if (word == "elif") take(forks_.back(), condition);
    } else if (word.starts_with("end")) {
      while (forks_.size() > piece.depth) join(forks_);
      chosen_ &= word != "endfor";
    } else {
      while (forks_.size() < piece.depth) forks_.push_back({});
      chosen_ |= word == "for" && (holds(piece.source, " if ") || holds(piece.source, "::"));
      if (word == "if") take(forks_.back(), condition);
    }
    if (holds(word, "for")) places_.forget();  // what is asked of another message is another thing
  }

  void write(std::string_view text, const std::string& name) {
    if (chosen_ && !text.empty()) not_known("leaves out messages or has them in another order");
    const Fit fit = places_.write(text);
    if (fit == Fit::fits) return;
    if (fit == Fit::other_space && !is_blank(name)) {
      not_known("has other white space beside " + formats::quote(name));
    } else {
      not_known("writes " + formats::quote(name) +
                " where turns of its format have something else");
    }
    places_.begin();  // one mistake is told once
  }

  void write_literal(std::string_view text) {
    if (text.find_first_of(kNoText) != std::string_view::npos)
      return not_known("has an escape or a control character in " +
                       formats::quote(std::string(text)));
    if (holds(text, "<think>") && !piece_->about_assistant && !piece_->about_generation)
      return not_known("writes " + formats::quote(std::string(text)));
    std::size_t begin = 0;
    for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at)) {
      const auto begins = [&](std::string_view bos) { return text.substr(at).starts_with(bos); };
      const auto* const bos = std::ranges::find_if(kBosTexts, begins);
      if (bos == kBosTexts.end()) {
        ++at;
        continue;
      }
      write_plain(text.substr(begin, at - begin));
      read_.bos = *bos;
      write_bos();
      begin = at += bos->size();
    }
    write_plain(text.substr(begin));
  }

  void write_plain(std::string_view text) {
    std::string plain(text);
    if (!chat_.default_system.empty())
      plain = replaced(plain, chat_.default_system, std::string(1, kTold));
    begun_ |= !is_blank(text);
    write(plain, std::string(text));
  }

  void write_value(const Written& value) {
    const char what = meaning(value.text);
    if (what == '\0')
      return not_known("writes " + formats::quote(value.text) + ", which it works out");
    if (!value.changed.empty() && !piece_->about_assistant)
      return not_known("changes " + formats::quote(value.text) + " by " +
                       formats::quote(value.changed));
    if (value.stripped && (what == kTurn || what == kPrefix))
      return not_known("strips " + formats::quote(value.text));
    if (what == kBos) return write_bos();
    count(value, what);
    if (what == kEos)
      return write(chat_.format == ChatTemplate::llama2 ? "</s>" : "\x06", value.text);
    const bool content = what == kContent || what == kTold;
    if ((content || what == kPrefix) && !begun_ && piece_->kind == Kind::output)
      return;  // told as `no_system`
    // llama2 strips a system message and what follows it as one.
    const bool told = chat_.format == ChatTemplate::llama2 ? !value.stripped : what == kTold;
    write(std::string(1, !content ? what : told ? kTold : kContent), value.text);
  }

  /// kRole and the like; 0: none of them.
  char meaning(const std::string& path) {
    const std::string_view last = last_member(path);
    if (last == "bos_token") return kBos;
    if (last == "eos_token") return kEos;
    const auto variable = variables_.find(path);
    if (variable != variables_.end()) return variable->second;
    if (last == "role") return kRole;
    if (!is_content(last)) return '\0';
    if (!path.starts_with("messages")) return kContent;
    const bool system =
        path.starts_with("messages[0].") && (!piece_->in_loop || piece_->about_system);
    return system ? kTold : '\0';
  }

  /// Contents count where they are written or set to a variable, one by name of its own only
  /// where it is stripped.
  void count(const Written& value, char what) {
    if (what != kContent && what != kTold) return;
    const bool variable = variables_.contains(value.text);
    if (variable && !value.stripped) return;
    if (!value.stripped) {
      ++read_.as_is;
      return;
    }
    ++read_.stripped;
    const bool system = value.text.starts_with("messages[0].") ||
                        (variable && (holds(value.text, "system") || holds(value.text, "prefix")));
    read_.system_stripped += system ? 1 : 0;
  }

  /// Once before the first turn; of llama2 before each turn of the user, or once before all.
  void write_bos() {
    const bool each = chat_.format == ChatTemplate::llama2 && piece_->in_loop;
    const bool here = each              ? !bos_before_all_ && !piece_->about_assistant
                      : piece_->in_loop ? first_ && !bos_before_all_
                                        : !begun_ && !piece_->about_system && !bos_before_all_;
    if (!here) return not_known("writes bos_token elsewhere than before the first turn");
    if (!piece_->in_loop) bos_before_all_ = true;
    read_.bos_each |= each && !first_;
    read_.begins_with_bos = true;
    write(std::string(1, kBos), "bos_token");
  }

  const std::vector<TemplatePiece>& pieces_;
  const ChatFormat& chat_;
  Places places_;
  FormsRead read_;
  std::map<std::string, char> variables_;
  std::set<std::string> contents_;  ///< variables that hold what messages say
  std::vector<Fork> forks_;
  std::optional<std::size_t> loop_;  ///< where the outermost one begins
  const TemplatePiece* piece_ = nullptr;
  bool first_ = false;           ///< what is written now only the first turn has
  bool begun_ = false;           ///< something was written
  bool chosen_ = false;          ///< in a loop over some messages, or in another order
  bool bos_before_all_ = false;  ///< outside of the loop over messages
};

}  // namespace

FormsRead read_forms(const std::vector<TemplatePiece>& pieces, const ChatFormat& chat) {
  return FormsReader(pieces, chat).read();
}

}  // namespace polyhead::inline v0::models
