// Chat formats against what transformers makes of the models' own templates (5.23.0; without the
// bos token in front, which a ChatFormat has from its model).
#include "models/chat.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"
#include "support/golden_model.hpp"

namespace polyhead {
namespace {

using models::ChatFormat;
using models::ChatMessage;
using models::ChatTemplate;

const ChatMessage kSystem{"system", " Be brief. "}, kUser{"user", "  Hi there\n"},
    kAnswer{"assistant", " Hello! "}, kAgain{"user", "Why?"};

std::string render(ChatTemplate format, const std::vector<ChatMessage>& messages) {
  ChatFormat chat;
  chat.format = format;
  return models::render_chat(chat, messages);
}

TEST(Chat, Chatml) {
  EXPECT_EQ(render(ChatTemplate::chatml, {kUser}),
            "<|im_start|>user\n  Hi there\n<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render(ChatTemplate::chatml, {kSystem, kUser, kAnswer, kAgain}),
            "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n  Hi there\n<|im_end|>\n"
            "<|im_start|>assistant\n Hello! <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(Chat, Gemma) {
  EXPECT_EQ(render(ChatTemplate::gemma, {kUser}),
            "<start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(render(ChatTemplate::gemma, {kSystem, kUser, kAnswer, kAgain}),
            "<start_of_turn>user\n Be brief. \n\nHi there<end_of_turn>\n<start_of_turn>model\n"
            "Hello!<end_of_turn>\n<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n");
}

TEST(Chat, Llama2) {
  EXPECT_EQ(render(ChatTemplate::llama2, {kUser}), "[INST] Hi there [/INST]");
  EXPECT_EQ(render(ChatTemplate::llama2, {kUser, kAnswer, kAgain}),
            "[INST] Hi there [/INST] Hello! </s><s>[INST] Why? [/INST]");
  EXPECT_EQ(render(ChatTemplate::llama2, {kSystem, kUser, kAnswer, kAgain}),
            "[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n  Hi there [/INST] Hello! </s>"
            "<s>[INST] Why? [/INST]");
}

TEST(Chat, Llama3) {
  EXPECT_EQ(render(ChatTemplate::llama3, {kSystem, kUser, kAnswer, kAgain}),
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(Chat, StripsAsPythonDoes) {
  EXPECT_EQ(render(ChatTemplate::llama2, {{"user", "\u2003\u00a0x \u3000y\x1f\u2029"}}),
            "[INST] x \u3000y [/INST]");
  EXPECT_EQ(render(ChatTemplate::llama2, {{"user", " \n"}}), "[INST]  [/INST]");
}

TEST(Chat, RefusesWhatTheFormatsCannotSay) {
  for (const ChatTemplate format : {ChatTemplate::gemma, ChatTemplate::llama2}) {
    EXPECT_THROW(render(format, {kUser, kUser}), InvalidArgument);
    EXPECT_THROW(render(format, {kAnswer}), InvalidArgument);
    EXPECT_THROW(render(format, {kUser, kSystem}), InvalidArgument);
  }
  for (const ChatTemplate format :
       {ChatTemplate::chatml, ChatTemplate::gemma, ChatTemplate::llama2, ChatTemplate::llama3})
    EXPECT_THROW(render(format, {{"tool", "x"}}), InvalidArgument);
}

TEST(Chat, RecognisesTemplatesByTheirMarks) {
  const auto format_of = [](const char* text) { return models::recognise_chat(text)->format; };
  EXPECT_EQ(format_of("{{ '<|im_start|>' + message.role }}"), ChatTemplate::chatml);
  EXPECT_EQ(format_of("{{ bos_token }}{{ '<start_of_turn>' + role }}"), ChatTemplate::gemma);
  EXPECT_EQ(format_of("{{ '<|start_header_id|>' + message['role'] }}"), ChatTemplate::llama3);
  EXPECT_EQ(format_of("'<<SYS>>\\n' + system ... '[INST] ' + content"), ChatTemplate::llama2);
  EXPECT_FALSE(models::recognise_chat("[INST] alone is Mistral's"));
  EXPECT_FALSE(models::recognise_chat(""));
}

TEST(Chat, TakesTheDefaultSystemMessageFromTheTemplate) {
  const auto system_of = [](const char* text) {
    return models::recognise_chat(text)->default_system;
  };
  EXPECT_EQ(system_of("{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}"), "You help.");
  EXPECT_EQ(system_of("{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}"), "You help.");
  EXPECT_EQ(system_of("{{ '<|im_start|>system\\n' + content + '<|im_end|>' }}"
                      "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}"),
            "You help.");
  EXPECT_EQ(system_of("{{ '<|im_start|>' + role + '\\n' + content + '<|im_end|>' }}"), "");
  EXPECT_EQ(system_of("<|im_start|>system\n"), "");
}

// Llama 3.1 and 3.2 write dates before the system message, or alone; where the template would take
// today's, the one that it names itself, so that a prompt is the same every day.
TEST(Chat, TakesTheDatesOfLlama3FromTheTemplate) {
  const char* const llama =
      R"({%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}{{- system_message }}{{- "<|eot_id|>" }})";
  const ChatFormat chat = *models::recognise_chat(llama);
  const std::string dates =
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  const std::string asked =
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(models::render_chat(chat, std::vector{kUser}), dates + asked);
  EXPECT_EQ(models::render_chat(chat, std::vector{kSystem, kUser}), dates + "Be brief." + asked);
  EXPECT_EQ(
      models::recognise_chat("<|start_header_id|> Cutting Knowledge Date: 2023")->system_opening,
      "");
}

TEST(Chat, TakesTheOpeningOfAnAnswerFromTheTemplate) {
  const ChatFormat chat = *models::recognise_chat(
      R"({{ '<|im_start|>' + role }}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %})");
  EXPECT_EQ(models::render_chat(chat, std::vector{kUser}),
            "<|im_start|>user\n  Hi there\n<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

TEST(Chat, IsChosenByNameOrByTheModel) {
  models::TokenizerSpec spec;
  spec.source = "model.gguf";
  EXPECT_THROW(models::choose_chat(spec, ""), InvalidArgument);
  EXPECT_EQ(models::choose_chat(spec, "llama2").format, ChatTemplate::llama2);
  spec.chat_template =
      "{% if messages[0]['role'] != 'system' %}"
      "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
      "{{ '<|im_start|>assistant\n' }}";
  EXPECT_EQ(models::choose_chat(spec, "").default_system, "You help.");
  EXPECT_EQ(models::choose_chat(spec, "chatml").default_system, "You help.");
  EXPECT_EQ(models::choose_chat(spec, "gemma").default_system, "");
  try {
    models::choose_chat(spec, "vicuna");
    ADD_FAILURE() << "an unknown name was taken";
  } catch (const InvalidArgument& refusal) {
    EXPECT_STREQ(refusal.what(),
                 "chat: template 'vicuna' is not known (expected chatml, gemma, llama2, llama3)");
  }
  for (const char* name : {"chatml", "gemma", "llama2", "llama3"})
    EXPECT_STREQ(models::chat_template_name(*models::chat_template_named(name)), name);
}

TEST(Chat, SmolLm2SaysWhoItIs) {
  const std::string path = test::fetched_model("smollm2");
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const models::Tokenizer tokenizer(models::read_tokenizer(path));
  const ChatFormat chat = models::choose_chat(tokenizer.spec(), "");
  const std::vector<ChatMessage> messages{{"user", "Hi"}};
  const std::string text = models::render_chat(chat, messages);
  EXPECT_EQ(text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<std::int32_t> ids = tokenizer.encode(text, {false, true});
  EXPECT_EQ(ids.front(), 1);  // <|im_start|>, which is a token and not its letters
  EXPECT_TRUE(tokenizer.ends_answer(2));
}

}  // namespace
}  // namespace polyhead
