// Conversations as the text a chat model was trained on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// The built-in formats. A template that comes with a model is looked at and never run.
enum class ChatTemplate : std::uint8_t { chatml, gemma, llama2, llama3 };

/// A format, and what a model's template writes besides.
struct ChatFormat {
  ChatTemplate format = ChatTemplate::chatml;
  std::string
      default_system;  ///< chatml, llama2, llama3: where a conversation has no system message
  std::string
      system_opening;  ///< llama3 (Llama 3.1, 3.2): dates before any system message, or alone
  std::string answer_opening;    ///< chatml (QwQ, Qwen3 Thinking): what each answer begins with
  bool always_system = false;    ///< llama3 (Nemotron): a system message even of no words
  bool one_bos = false;          ///< llama2 (Vigogne): none before further turns of the user
  bool begins_with_bos = false;  ///< the template writes bos before the first turn
  std::string bos;               ///< what the text begins with: choose_chat has it from the model
  std::optional<bool> strips;    ///< white space around contents; none: all but chatml do
  std::string not_known;         ///< what the template does that no format has ("writes 'x'")
  std::string no_system;         ///< the same for a system message alone
};

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
};

std::optional<ChatTemplate> chat_template_named(std::string_view name);
const char* chat_template_name(ChatTemplate format);
std::span<const char* const> chat_template_names();

/// Longer templates are not read: what that takes may grow with the square of their length.
inline constexpr std::size_t kMostTemplateBytes = 32768;

/// Which format the text of a template writes, told by the marks it must hold ("<|im_start|>",
/// "<start_of_turn>", "<|start_header_id|>", "[INST]" with "<<SYS>>"); none for others and for a
/// text of more than kMostTemplateBytes. What it writes beside the format's own words is read or
/// left in `not_known` and `no_system`.
std::optional<ChatFormat> recognise_chat(std::string_view template_text);

/// The format named on a command line or, where `name` is empty, the one of the model's own
/// template. Throws InvalidArgument with the list of names, or where the template does what is not
/// known; the name of its format insists. A named format that is not the template's begins with bos
/// where the tokenizer puts it before any text.
ChatFormat choose_chat(const TokenizerSpec& spec, std::string_view name);

/// The conversation, and the opening of the assistant's next turn. To be encoded without
/// add_special (the text has the bos that the template writes) and with parse_special: marks inside
/// contents count as well, as they do elsewhere.
///
/// Equal to what `transformers` makes of the models' own templates: gemma and llama2 put the system
/// message into the first user turn and want user and assistant to take turns; all but chatml strip
/// white space around contents, unless the template does otherwise. Throws InvalidArgument for an
/// unknown role, a system message that the template has no place for or that is not the first
/// (gemma, llama2), or turns out of turn.
std::string render_chat(const ChatFormat& chat, std::span<const ChatMessage> messages);

}  // namespace polyhead::inline v0::models
