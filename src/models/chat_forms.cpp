#include "models/chat_forms.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/template_expression.hpp"

namespace polyhead::inline v0::models {
namespace {

using Kind = TemplatePiece::Kind;

// What stands in a turn for something that is worked out. A variable may stand for a content; a
// system message within a turn of the user is kTold, which a message's own content is not.
constexpr char kRole = '\x01', kContent = '\x02', kTold = '\x03', kTurn = '\x04', kBos = '\x05',
               kEos = '\x06';
constexpr std::array<std::string_view, 3> kBosTexts{"<s>", "<bos>", "<|begin_of_text|>"};

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

/// Each of `turns`, with R for each role.
std::vector<std::string> with_roles(std::initializer_list<const char*> turns,
                                    std::initializer_list<const char*> roles) {
  std::vector<std::string> all;
  for (const char* turn : turns) {
    for (const char* role : roles) all.push_back(replaced(turn, "R", role));
  }
  return all;
}

/// The turns of a format; of an answer to come the opening.
std::vector<std::string> turns_of(const ChatFormat& chat) {
  switch (chat.format) {
    case ChatTemplate::chatml: {
      auto turns = with_roles({"<|im_start|>R\n\x02<|im_end|>\n",
                               "<|im_start|>R\n<think>\n\x02\n</think>\n\n\x02<|im_end|>\n"},
                              {"\x01", "system", "user", "assistant"});
      turns.insert(turns.end(), {"<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"});
      return turns;
    }
    case ChatTemplate::gemma: {
      auto turns = with_roles(
          {"<start_of_turn>R\n\x02<end_of_turn>\n", "<start_of_turn>R\n\x03\x02<end_of_turn>\n",
           "<start_of_turn>R\n\x03\n\n\x02<end_of_turn>\n"},
          {"\x01", "user", "model", "assistant"});
      turns.emplace_back("<start_of_turn>model\n");
      return turns;
    }
    case ChatTemplate::llama2:
      return {"[INST] \x02 [/INST]", "[INST] <<SYS>>\n\x02\n<</SYS>>\n\n\x02 [/INST]",
              "<<SYS>>\n\x02\n<</SYS>>\n\n", " \x02 </s>"};
    case ChatTemplate::llama3:
      break;
  }
  constexpr const char* kHeader = "<|start_header_id|>R<|end_header_id|>\n\n";
  const std::string header = kHeader, turn = header + "\x02<|eot_id|>";
  const std::string day = "Today Date: ", &dates = chat.system_opening;
  const std::string dated =
      header + dates.substr(0, dates.find(day)) + day + "\x03\n\n\x02<|eot_id|>";
  auto turns = with_roles({turn.c_str(), dated.c_str()}, {"\x01", "system", "user", "assistant"});
  turns.push_back(replaced(header, "R", "assistant"));
  return turns;
}

/// All the places in turns that what was written may have led to.
class Places {
 public:
  explicit Places(std::vector<std::string> turns) : turns_(std::move(turns)) { begin(); }

  using Set = std::set<std::pair<std::size_t, std::size_t>>;  ///< turn, and how much of it
  Set now;

  void begin() {
    now.clear();
    add_beginnings(now);
  }

  void anywhere() {
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
      for (std::size_t at = 0; at < turns_[turn].size(); ++at) now.emplace(turn, at);
    }
  }

  /// False: no turn goes on so.
  bool write(std::string_view text) {
    for (const char c : text) {
      if (c == kTurn || c == kBos) {
        std::erase_if(now, [](const auto& place) { return place.second != 0; });
      } else {
        step(c);
      }
      if (now.empty()) return false;
    }
    return true;
  }

  /// Whether white space was written that a turn begins with, and not the turn.
  bool hangs() const {
    return std::ranges::all_of(now, [&](const auto& place) {
      return place.second > 0 && is_blank(turns_[place.first].substr(0, place.second));
    });
  }

 private:
  void add_beginnings(Set& places) const {
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) places.emplace(turn, 0);
  }

  void step(char c) {
    Set next;
    for (const auto& [turn, at] : now) {
      const char expected = turns_[turn][at];
      if (c != expected && (c != kTold || expected != kContent)) continue;
      if (at + 1 < turns_[turn].size()) {
        next.emplace(turn, at + 1);
      } else {
        add_beginnings(next);
      }
    }
    now = std::move(next);
  }

  std::vector<std::string> turns_;
};

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
    for (const TemplatePiece& piece : pieces_) {
      piece_ = &piece;
      if (piece.kind != Kind::statement) {
        if (!holds(piece.source, "raise_exception")) write_piece(piece);
      } else if (is_set(piece)) {
        write_variable(piece);
      } else {
        follow(piece);
      }
    }
    check_end_of_branch();
    return std::move(read_);
  }

 private:
  /// The ways to one place: those at the branches' beginning and at the ends of earlier ones.
  struct Fork {
    Places::Set entry, done;
    bool may_skip = false;  ///< no branch need be taken
  };

  void not_known(const std::string& what) {
    if (read_.not_known.empty()) read_.not_known = what;
  }

  static std::string_view value_of(const TemplatePiece& piece) {
    return piece.source.substr(std::min(piece.source.find('=') + 1, piece.source.size()));
  }

  /// What a variable stands for: a whole turn, a content (as kTold) or a role, in this order where
  /// it is set more than once.
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
    if (what != kTurn && !role) what = kTold;
  }

  bool begins_turn(std::string_view text) const {
    return holds(text, "<|im_") || holds(text, "_of_turn>") || holds(text, "<|start_header_id|>") ||
           holds(text, "<|eot_id|>") || holds(text, "[INST]");
  }

  bool mentions_content(std::string_view code) const {
    for (std::size_t at = 0; at < code.size();) {
      std::size_t end = at;
      while (end < code.size() && in_name(code[end])) ++end;
      const std::string name(code.substr(at, end - at));
      const auto variable = variables_.find(name);
      if (is_content(name)) return true;
      if (variable != variables_.end() && variable->second != kRole && contents_.contains(name))
        return true;
      at = std::max(end, at + 1);
    }
    return false;
  }

  void write_variable(const TemplatePiece& piece) {
    const std::string_view value = value_of(piece);
    const bool writes = std::ranges::any_of(
        piece.parts, [&](const TemplatePart& p) { return p.literal && begins_turn(p.text); });
    const bool sole = piece.parts.size() == 2 && piece.parts[1].literal;
    if (mentions_content(value)) contents_.insert(std::string(bound_name(piece)));
    if (sole || (!writes && !mentions_content(value))) return;
    const Places::Set before = places_.now;
    places_.anywhere();
    write_steps(what_is_written(value));
    places_.now = before;
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
          forks.push_back({places_.now, {}, true});
          first |= step.text.find_first_not_of(' ') == step.text.find("loop.first");
          break;
        case Written::Kind::otherwise:
          turn_to_next_branch(forks.back(), true);
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

  void turn_to_next_branch(Fork& fork, bool last) {
    check_end_of_branch();
    fork.done.insert(places_.now.begin(), places_.now.end());
    places_.now = fork.entry;
    if (last) fork.may_skip = false;
  }

  void join(std::vector<Fork>& forks) {
    check_end_of_branch();
    Fork& fork = forks.back();
    places_.now.insert(fork.done.begin(), fork.done.end());
    if (fork.may_skip) places_.now.insert(fork.entry.begin(), fork.entry.end());
    forks.pop_back();
  }

  void check_end_of_branch() {
    if (places_.hangs()) not_known("writes white space behind its last mark");
  }

  /// Loops are taken, conditions perhaps. The beginning of a branch that is left out is not there.
  void follow(const TemplatePiece& piece) {
    const std::string_view word = piece.source.substr(0, piece.source.find_first_of(" (\t\n"));
    if (word == "elif" || word == "else") {
      if (forks_.size() < piece.depth) {
        forks_.push_back({places_.now, {}, true});
      } else if (!forks_.empty()) {
        turn_to_next_branch(forks_.back(), word == "else");
      }
    } else if (word.starts_with("end")) {
      while (forks_.size() > piece.depth) join(forks_);
      chosen_ &= word != "endfor";
    } else {
      while (forks_.size() < piece.depth) forks_.push_back({places_.now, {}, word == "if"});
      chosen_ |= word == "for" && (holds(piece.source, " if ") || holds(piece.source, "::"));
    }
  }

  void write(std::string_view text, const std::string& name) {
    if (chosen_ && !text.empty()) not_known("leaves out messages or has them in another order");
    if (places_.write(text)) return;
    not_known("writes " + formats::quote(name) + " where turns of its format have something else");
    places_.anywhere();  // one mistake is told once
  }

  void write_literal(std::string_view text) {
    if (std::ranges::any_of(text, [](char c) { return c >= '\0' && c <= kEos; }))
      return not_known("has an escape or a control character in " +
                       formats::quote(std::string(text)));
    if (holds(text, "<think>") && !piece_->about_assistant && !piece_->about_generation)
      return not_known("writes " + formats::quote(std::string(text)));
    for (const std::string_view bos : kBosTexts) {
      const std::size_t at = text.find(bos);
      if (at == std::string_view::npos) continue;
      write_literal(text.substr(0, at));
      read_.bos = bos;
      write_bos();
      return write_literal(text.substr(at + bos.size()));
    }
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
    if (what == kBos) return write_bos();
    count(value, what);
    if (what == kEos)
      return write(chat_.format == ChatTemplate::llama2 ? "</s>" : "\x06", value.text);
    const bool content = what == kContent || what == kTold;
    if (content && !begun_ && piece_->kind == Kind::output) return;  // told as `no_system`
    write(std::string(1, what), value.text);
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

  /// Contents count where they are written or set to a variable, one by name of its own only where
  /// it is stripped.
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
  const TemplatePiece* piece_ = nullptr;
  bool first_ = false;           ///< what is written now only the first turn has
  bool begun_ = false;           ///< something was written
  bool chosen_ = false;          ///< in a loop over some messages, or in another order
  bool bos_before_all_ = false;  ///< outside of the loop over messages
};

}  // namespace

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

FormsRead read_forms(const std::vector<TemplatePiece>& pieces, const ChatFormat& chat) {
  return FormsReader(pieces, chat).read();
}

}  // namespace polyhead::inline v0::models
