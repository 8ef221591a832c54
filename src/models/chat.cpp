#include "models/chat.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "models/tokenizers/unicode.hpp"
#include "polyhead/error.h"

namespace polyhead::inline v0::models {
namespace {

/// In the order of ChatTemplate.
constexpr std::array<const char*, 4> kNames{"chatml", "gemma", "llama2", "llama3"};

std::string list_of_names() {
  std::string list;
  for (const char* name : kNames) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

/// Python's str.strip, which the templates call.
std::string_view strip(std::string_view text) {
  const auto space = [](std::int32_t code) { return is_space(code) || (code >= 28 && code < 32); };
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    if (!space(c.code)) {
      begin = std::min(begin, at);
      end = at + c.length;
    }
    at += c.length;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

/// The default system message of a chatml template: what it writes between the marks as plain
/// text. A line's end may be spelled as one or as \n.
std::string default_system_of(std::string_view text) {
  constexpr std::string_view kOpen = "<|im_start|>system", kClose = "<|im_end|>";
  for (std::size_t at = text.find(kOpen); at != std::string_view::npos;
       at = text.find(kOpen, at + 1)) {
    std::string_view rest = text.substr(at + kOpen.size());
    if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with("\n")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const std::size_t end = rest.find(kClose);
    if (end == std::string_view::npos || end == 0) continue;
    const std::string_view plain = rest.substr(0, end);
    // A quote or a brace: the template goes on to write something that it works out.
    if (plain.find_first_of("'\"{}\\") == std::string_view::npos) return std::string(plain);
  }
  return "";
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

/// What a chatml template writes of an answer itself.
std::string answer_opening_of(std::string_view text) {
  constexpr std::string_view kThink = "<think>\n";
  for (const std::string_view opening :
       {"<|im_start|>assistant\\n<think>\\n'", "<|im_start|>assistant\\n<think>\\n\""}) {
    if (text.find(opening) != std::string_view::npos) return std::string(kThink);
  }
  return "";
}

[[noreturn]] void refuse(std::size_t index, const std::string& what) {
  throw InvalidArgument("render_chat: message " + std::to_string(index) + " " + what);
}

void check_roles(std::span<const ChatMessage> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      refuse(i, "has the role '" + role + "' (expected system, user or assistant)");
  }
}

/// A leading system message taken off, and the turns behind it, user first.
struct Turns {
  const ChatMessage* system = nullptr;
  std::span<const ChatMessage> rest;
};

Turns take_turns(std::span<const ChatMessage> messages) {
  Turns turns{nullptr, messages};
  if (!messages.empty() && messages[0].role == "system")
    turns = {&messages[0], messages.subspan(1)};
  for (std::size_t i = 0; i < turns.rest.size(); ++i) {
    const char* expected = i % 2 == 0 ? "user" : "assistant";
    if (turns.rest[i].role != expected) {
      refuse(i + (turns.system != nullptr ? 1 : 0),
             "is from the " + turns.rest[i].role + " (expected the " + expected + ")");
    }
  }
  return turns;
}

std::string chatml(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  std::string text;
  const auto add = [&](const std::string& role, const std::string& content) {
    text += "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
  };
  const bool told = !messages.empty() && messages[0].role == "system";
  if (!told && !chat.default_system.empty()) add("system", chat.default_system);
  for (const ChatMessage& message : messages) add(message.role, message.content);
  return text + "<|im_start|>assistant\n" + chat.answer_opening;
}

std::string gemma(std::span<const ChatMessage> messages) {
  const Turns turns = take_turns(messages);
  std::string prefix = turns.system != nullptr ? turns.system->content + "\n\n" : "";
  std::string text;
  for (const ChatMessage& turn : turns.rest) {
    text += turn.role == "user" ? "<start_of_turn>user\n" : "<start_of_turn>model\n";
    text += std::exchange(prefix, "");
    text += strip(turn.content);
    text += "<end_of_turn>\n";
  }
  return text + "<start_of_turn>model\n";
}

std::string llama2(std::span<const ChatMessage> messages) {
  const Turns turns = take_turns(messages);
  std::string prefix =
      turns.system != nullptr ? "<<SYS>>\n" + turns.system->content + "\n<</SYS>>\n\n" : "";
  std::string text;
  for (const ChatMessage& turn : turns.rest) {
    const std::string content = std::exchange(prefix, "") + turn.content;
    if (turn.role == "user") {
      text += text.empty() ? "[INST] " : "<s>[INST] ";
      text += strip(content);
      text += " [/INST]";
    } else {
      text += ' ';
      text += strip(content);
      text += " </s>";
    }
  }
  return text;
}

std::string llama3(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  std::string text, opening = chat.system_opening;
  const auto add = [&](const std::string& role, std::string_view content) {
    text += "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
    text += std::exchange(opening, "");
    text += strip(content);
    text += "<|eot_id|>";
  };
  const bool told = !messages.empty() && messages[0].role == "system";
  if (!told && !opening.empty()) add("system", "");
  for (const ChatMessage& message : messages) add(message.role, message.content);
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

}  // namespace

std::optional<ChatTemplate> chat_template_named(std::string_view name) {
  const auto at = std::ranges::find(kNames, name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<ChatTemplate>(at - kNames.begin());
}

std::span<const char* const> chat_template_names() { return kNames; }

const char* chat_template_name(ChatTemplate format) {
  return kNames[static_cast<std::size_t>(format)];
}

std::optional<ChatFormat> recognise_chat(std::string_view template_text) {
  const auto holds = [&](std::string_view mark) {
    return template_text.find(mark) != std::string_view::npos;
  };
  ChatFormat chat;
  if (holds("<|im_start|>")) {
    chat.format = ChatTemplate::chatml;
    chat.default_system = default_system_of(template_text);
    chat.answer_opening = answer_opening_of(template_text);
  } else if (holds("<start_of_turn>")) {
    chat.format = ChatTemplate::gemma;
  } else if (holds("<|start_header_id|>")) {
    chat.format = ChatTemplate::llama3;
    chat.system_opening = dates_of(template_text);
  } else if (holds("[INST]") && holds("<<SYS>>")) {
    chat.format = ChatTemplate::llama2;
  } else {
    return std::nullopt;
  }
  return chat;
}

ChatFormat choose_chat(const TokenizerSpec& spec, std::string_view name) {
  const std::optional<ChatFormat> own = recognise_chat(spec.chat_template);
  if (name.empty()) {
    if (own) return *own;
    throw InvalidArgument("chat: " + spec.source +
                          (spec.chat_template.empty() ? " has no chat template"
                                                      : " has a chat template that is not known") +
                          "; name one of " + list_of_names());
  }
  const std::optional<ChatTemplate> named = chat_template_named(name);
  if (!named) {
    throw InvalidArgument("chat: template '" + std::string(name) + "' is not known (expected " +
                          list_of_names() + ")");
  }
  if (own && own->format == *named) return *own;
  ChatFormat chat;
  chat.format = *named;
  return chat;
}

std::string render_chat(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  check_roles(messages);
  switch (chat.format) {
    case ChatTemplate::chatml:
      return chatml(chat, messages);
    case ChatTemplate::gemma:
      return gemma(messages);
    case ChatTemplate::llama2:
      return llama2(messages);
    case ChatTemplate::llama3:
      break;
  }
  return llama3(chat, messages);
}

}  // namespace polyhead::inline v0::models
