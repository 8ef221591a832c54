#include "models/chat.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/joined.hpp"
#include "models/tokenizers/unicode.hpp"
#include "polyhead/error.h"

namespace polyhead::inline v0::models {
namespace {

/// In the order of ChatTemplate.
constexpr std::array<const char*, 4> kNames{"chatml", "gemma", "llama2", "llama3"};

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

[[noreturn]] void refuse(std::size_t index, const std::string& what) {
  throw InvalidArgument("render_chat: message " + std::to_string(index) + " " + what);
}

std::string insists(ChatTemplate format) {
  return "; --chat-template " + std::string(chat_template_name(format)) + " insists";
}

ChatFormat known(const TokenizerSpec& spec, ChatFormat own) {
  if (!own.not_known.empty()) {
    throw InvalidArgument("chat: " + spec.source + " has a chat template like " +
                          chat_template_name(own.format) + " that " + own.not_known +
                          ", which is not known" + insists(own.format));
  }
  return own;
}

ChatFormat insisted_on(ChatFormat own) {
  own.not_known.clear();
  own.no_system.clear();
  return own;
}

/// With the model's own bos, where the format or the file wants one and the template spells none.
ChatFormat with_bos(ChatFormat chat, const TokenizerSpec& spec) {
  const bool named = spec.bos >= 0 && static_cast<std::size_t>(spec.bos) < spec.pieces.size();
  if (named && (spec.chat_bos || (chat.begins_with_bos && chat.bos.empty())))
    chat.bos = spec.pieces[static_cast<std::size_t>(spec.bos)];
  return chat;
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
  for (const ChatMessage& message : messages) {
    add(message.role,
        chat.strips.value_or(false) ? std::string(strip(message.content)) : message.content);
  }
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

std::string llama2(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  const Turns turns = take_turns(messages);
  const std::string& system = turns.system != nullptr ? turns.system->content : chat.default_system;
  const bool told = turns.system != nullptr || !system.empty();
  std::string prefix = told ? "<<SYS>>\n" + system + "\n<</SYS>>\n\n" : "";
  std::string text;
  for (const ChatMessage& turn : turns.rest) {
    const std::string content = std::exchange(prefix, "") + turn.content;
    if (turn.role == "user") {
      if (!text.empty() && !chat.one_bos) text += chat.bos.empty() ? "<s>" : chat.bos;
      text += "[INST] ";
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
    text += chat.strips.value_or(true) ? strip(content) : content;
    text += "<|eot_id|>";
  };
  const bool told = !messages.empty() && messages[0].role == "system";
  if (!told && (!opening.empty() || !chat.default_system.empty() || chat.always_system))
    add("system", chat.default_system);
  for (const ChatMessage& message : messages) add(message.role, message.content);
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

std::string turns_of(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  switch (chat.format) {
    case ChatTemplate::chatml:
      return chatml(chat, messages);
    case ChatTemplate::gemma:
      return gemma(messages);
    case ChatTemplate::llama2:
      return llama2(chat, messages);
    case ChatTemplate::llama3:
      break;
  }
  return llama3(chat, messages);
}

std::string why_unknown(const std::string& text) {
  if (text.empty()) return " has no chat template";
  if (text.size() <= kMostTemplateBytes) return " has a chat template that is not known";
  return " has a chat template of " + std::to_string(text.size()) + " bytes, expected at most " +
         std::to_string(kMostTemplateBytes);
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

ChatFormat choose_chat(const TokenizerSpec& spec, std::string_view name) {
  const std::optional<ChatFormat> own = recognise_chat(spec.chat_template);
  if (name.empty()) {
    if (own) return with_bos(known(spec, *own), spec);
    throw InvalidArgument("chat: " + spec.source + why_unknown(spec.chat_template) +
                          "; name one of " + base::joined(kNames));
  }
  const std::optional<ChatTemplate> named = chat_template_named(name);
  if (!named) {
    throw InvalidArgument("chat: template '" + std::string(name) + "' is not known (expected " +
                          base::joined(kNames) + ")");
  }
  if (own && own->format == *named) return with_bos(insisted_on(*own), spec);
  ChatFormat chat;
  chat.format = *named;
  chat.begins_with_bos = spec.add_bos;
  return with_bos(chat, spec);
}

std::string render_chat(const ChatFormat& chat, std::span<const ChatMessage> messages) {
  check_roles(messages);
  if (!chat.no_system.empty() && !messages.empty() && messages[0].role == "system") {
    refuse(0, "is from the system, but the model's chat template " + chat.no_system +
                  insists(chat.format));
  }
  return chat.bos + turns_of(chat, messages);
}

}  // namespace polyhead::inline v0::models
