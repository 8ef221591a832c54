// What the text of a chat template says, as far as it is one of the known formats: the template is
// taken apart and never run, and what remains unknown is told, so that nobody is answered out of
// another prompt than the model was trained on.
#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "models/chat.hpp"
#include "models/chat_forms.hpp"
#include "models/formats/file_error.hpp"
#include "models/template_expression.hpp"
#include "models/template_pieces.hpp"

namespace polyhead::inline v0::models {
namespace {

using Kind = TemplatePiece::Kind;
using Words = std::span<const std::string_view>;

constexpr std::string_view kSystemTurn = "<|im_start|>system\n", kTurnEnd = "<|im_end|>";
constexpr std::string_view kSystemHeader = "<|start_header_id|>system<|end_header_id|>\n\n";
constexpr char kWorkedOut = '\x01';
constexpr std::string_view kUnread{"\0", 1};  ///< an escape that Python refuses
constexpr std::string_view kThink = "<think>\n";

// What each format's turns are made of, beside white space.
constexpr std::array<std::string_view, 10> kChatml{
    "<|im_start|>", kTurnEnd,   "system", "user",  "assistant",
    "<think>",      "</think>", "<s>",    "<bos>", "<|begin_of_text|>"};
constexpr std::array<std::string_view, 6> kGemma{"<start_of_turn>", "<end_of_turn>", "user",
                                                 "model",           "assistant",     "<bos>"};
constexpr std::array<std::string_view, 7> kLlama3{"<|start_header_id|>",
                                                  "<|end_header_id|>",
                                                  "<|eot_id|>",
                                                  "<|begin_of_text|>",
                                                  "system",
                                                  "user",
                                                  "assistant"};
constexpr std::array<std::string_view, 6> kLlama2{"[INST]",   "[/INST]", "<<SYS>>",
                                                  "<</SYS>>", "<s>",     "</s>"};
// Names in what a template works out that say nothing of the form.
constexpr std::string_view kNames =
    " message messages role content reasoning_content text item loop first last index0 length "
    "bos_token eos_token namespace raise_exception if else and or not is in defined string none "
    "None true false strip lstrip rstrip split trim add_generation_prompt ";

/// `text` from the first that is neither white space nor one of `words`.
std::string_view leftover(std::string_view text, Words words) {
  while (!text.empty()) {
    const auto word = std::ranges::find_if(words, [&](auto w) { return text.starts_with(w); });
    if (word == words.end() && !is_blank(text.substr(0, 1))) break;
    text.remove_prefix(word == words.end() ? 1 : word->size());
  }
  return text;
}

/// The code of a piece, without its literals.
std::string code_of(const TemplatePiece& piece) {
  std::string code;
  for (const TemplatePart& part : piece.parts) code += part.literal ? "''" : part.text;
  return code;
}

/// `text` from behind `mark` to the first of `ends`; empty where there is no mark.
std::string_view between(std::string_view text, std::string_view mark, std::string_view ends) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(ends));
}

/// The dates of a llama3 template: the one that it names itself, also where it would take today's
/// (strftime_now), so that a prompt is the same every day.
std::string dates_of(std::string_view text) {
  constexpr std::string_view kKnowledge = "Cutting Knowledge Date: ";
  const std::string_view knowledge = between(text, kKnowledge, "\\\n\"'");
  const std::string_view today = between(text, "date_string = \"", "\"");
  if (knowledge.empty() || today.empty()) return "";
  return std::string(kKnowledge)
      .append(knowledge)
      .append("\nToday Date: ")
      .append(today)
      .append("\n\n");
}

/// Jinja reads "\r\n" and "\r" as "\n".
std::string with_plain_line_ends(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    plain += text[i] == '\r' ? '\n' : text[i];
  }
  return plain;
}

class Recogniser {
 public:
  Recogniser(std::string_view text, ChatTemplate format) : text_(text), pieces_(live_pieces(text)) {
    chat_.format = format;
  }

  ChatFormat read() {
    if (chat_.format == ChatTemplate::llama3) chat_.system_opening = dates_of(text_);
    for (const TemplatePiece& piece : pieces_) {
      if (const std::string_view name = bound_name(piece); !name.empty()) bound_.insert(name);
    }
    for (const TemplatePiece& piece : pieces_) {
      if (piece.kind == Kind::statement) {
        read_statement(piece);
      } else {
        read_output(piece);
      }
    }
    const FormsRead forms = read_forms(pieces_, chat_);
    read_stripping(forms);
    read_opening();
    read_place_of_system();
    if (!forms.not_known.empty()) not_known(forms.not_known);
    chat_.begins_with_bos = forms.begins_with_bos;
    chat_.bos = forms.bos;
    chat_.one_bos = chat_.format == ChatTemplate::llama2 && !forms.bos_each;
    return std::move(chat_);
  }

 private:
  Words words() const {
    switch (chat_.format) {
      case ChatTemplate::chatml:
        return kChatml;
      case ChatTemplate::gemma:
        return kGemma;
      case ChatTemplate::llama2:
        return kLlama2;
      case ChatTemplate::llama3:
        break;
    }
    return kLlama3;
  }

  void not_known(const std::string& what) {
    if (chat_.not_known.empty()) chat_.not_known = what;
  }

  void take_default(std::string_view system) {
    if (holds(system, kUnread)) not_known("has an escape that is none of text");
    if (chat_.format == ChatTemplate::gemma) {
      not_known("says " + formats::quote(std::string(system)));
    } else if (!chat_.default_system.empty() && chat_.default_system != system) {
      not_known("has two default system messages");
    }
    chat_.default_system = system;
  }

  void check_literal(std::string_view text) {
    if (chat_.format == ChatTemplate::llama3 && !chat_.system_opening.empty() &&
        (text.starts_with("Cutting Knowledge Date: ") || text == "Today Date: "))
      return;
    const std::string_view rest = leftover(text, words());
    if (!rest.empty()) not_known("writes " + formats::quote(std::string(rest)));
  }

  void read_statement(const TemplatePiece& piece) {
    if (!is_set(piece)) return;
    const std::string_view name = bound_name(piece);
    if (const std::string* value = sole_literal(piece)) {
      const bool words_of_its_own = !leftover(*value, words()).empty();
      if (words_of_its_own && (holds(name, "system") || holds(name, "prompt"))) {
        take_default(*value);
      } else if (holds(*value, "<") || holds(*value, "[")) {
        not_known("keeps " + formats::quote(*value) + " in a variable");
      } else if (name != "date_string") {
        check_literal(*value);
      }
      return;
    }
    for (std::size_t i = 0; i < piece.parts.size(); ++i) {
      if (!is_written(piece.parts, i)) continue;
      check_literal(piece.parts[i].text);
      begun_ |= !is_blank(piece.parts[i].text);
    }
    const std::string code = code_of(piece);
    if (holds(code, "content")) check_names(code.substr(std::string_view("set ").size()));
    outline(piece);
  }

  void read_output(const TemplatePiece& piece) {
    if (holds(piece.source, "raise_exception")) {
      read_exception(piece);
      return;
    }
    for (std::size_t i = 0; i < piece.parts.size(); ++i) {
      const TemplatePart& part = piece.parts[i];
      if (!is_written(piece.parts, i)) continue;
      read_literal(part.text, piece);
      if (piece.about_generation) opening_ += part.text;
      if (!is_blank(part.text)) begun_ = true;
    }
    outline(piece);
    if (piece.kind == Kind::text) return;
    const std::string code = code_of(piece);
    check_names(code);
    if (!begun_ && (holds(code, "system") || holds(code, "content")))
      chat_.no_system = "writes a system message before its first mark";
  }

  void check_names(const std::string& code) {
    each_name(code, [&](std::string_view name) {
      if (!holds(kNames, std::string(" ").append(name).append(" ")) && !bound_.contains(name))
        not_known("writes " + formats::quote(std::string(name)) + ", which it works out");
    });
  }

  /// What is written, with kWorkedOut for what is not a literal.
  void outline(const TemplatePiece& piece) {
    for (std::size_t i = 0; i < piece.parts.size(); ++i) {
      const TemplatePart& part = piece.parts[i];
      if (is_written(piece.parts, i)) {
        outline_ += part.text;
        continue;
      }
      if (!part.literal && std::ranges::any_of(part.text, in_name)) outline_ += kWorkedOut;
    }
  }

  void read_exception(const TemplatePiece& piece) {
    for (const TemplatePart& part : piece.parts) {
      if (part.literal && holds(part.text, "ystem role not supported"))
        chat_.no_system = "says " + formats::quote(part.text);
    }
  }

  /// A text that is written: its own words of a system message are taken out of it.
  void read_literal(std::string_view text, const TemplatePiece& piece) {
    if (chat_.format == ChatTemplate::llama3 && text.ends_with(kSystemHeader)) {
      chat_.always_system |= piece.depth == 0;
    }
    const std::size_t at =
        chat_.format == ChatTemplate::chatml ? text.find(kSystemTurn) : std::string_view::npos;
    if (at == std::string_view::npos) return check_literal(text);
    const std::string_view rest = text.substr(at + kSystemTurn.size());
    const std::size_t end = rest.find(kTurnEnd);
    check_literal(text.substr(0, at));
    if (end == std::string_view::npos || end == 0) {
      bare_system_ |= end != 0 && rest.empty() && !piece.about_system;
      return check_literal(rest);
    }
    if (!piece.about_system) not_known("says its system message beside others");
    take_default(rest.substr(0, end));
    check_literal(rest.substr(end));
  }

  void read_stripping(const FormsRead& forms) {
    const int stripped = forms.stripped, as_is = forms.as_is, system = forms.system_stripped;
    const bool prefixes =
        chat_.format == ChatTemplate::gemma || chat_.format == ChatTemplate::llama2;
    if (prefixes) {
      if (stripped == system) not_known("does not strip what messages say");
      if (system > 0) chat_.no_system = "strips a system message";
    } else if (stripped > 0 && as_is > 0) {
      not_known("strips a part of what messages say");
    } else if (stripped + as_is > 0) {
      chat_.strips = stripped > 0;
    }
  }

  void read_opening() {
    const std::array<std::string_view, 4> openings{
        "<|im_start|>assistant\n", "<start_of_turn>model\n", "",
        "<|start_header_id|>assistant<|end_header_id|>\n\n"};
    const std::string_view expected = openings[static_cast<std::size_t>(chat_.format)];
    if (!holds(outline_, expected)) not_known("does not write " + formats::quote(expected));
    if (opening_.empty() || opening_ == expected) return;
    const bool thinks = opening_ == std::string(expected).append(kThink);
    if (thinks && chat_.format == ChatTemplate::chatml) {
      chat_.answer_opening = kThink;
    } else {
      not_known("opens an answer by " + formats::quote(opening_));
    }
  }

  void read_place_of_system() {
    if (bare_system_ && chat_.default_system.empty())
      not_known("always writes a system message, but not which");
    if (chat_.no_system.empty() && !has_place_of_system())
      chat_.no_system = "has no place for a system message";
  }

  bool has_place_of_system() const {
    switch (chat_.format) {
      case ChatTemplate::chatml:
        return holds(outline_, "<|im_start|>system") || holds(outline_, "<|im_start|>\x01");
      case ChatTemplate::gemma:
        return holds(text_, "messages[0]['content']") || holds(text_, "messages[0].content") ||
               holds(text_, "messages[0][\"content\"]");
      case ChatTemplate::llama2:
      case ChatTemplate::llama3:
        break;
    }
    return true;
  }

  std::string_view text_;
  std::vector<TemplatePiece> pieces_;
  ChatFormat chat_;
  std::set<std::string_view> bound_;  ///< variables that the template sets
  std::string opening_;               ///< of an answer
  std::string outline_;
  bool begun_ = false;        ///< something was written
  bool bare_system_ = false;  ///< a system turn around a variable, without a condition
};

}  // namespace

std::optional<ChatFormat> recognise_chat(std::string_view given) {
  if (given.size() > kMostTemplateBytes) return std::nullopt;
  const std::string template_text = with_plain_line_ends(given);
  const auto read = [&](ChatTemplate format) { return Recogniser(template_text, format).read(); };
  if (holds(template_text, "<|im_start|>")) return read(ChatTemplate::chatml);
  if (holds(template_text, "<start_of_turn>")) return read(ChatTemplate::gemma);
  if (holds(template_text, "<|start_header_id|>")) return read(ChatTemplate::llama3);
  if (holds(template_text, "[INST]") && holds(template_text, "<<SYS>>"))
    return read(ChatTemplate::llama2);
  return std::nullopt;
}

}  // namespace polyhead::inline v0::models
