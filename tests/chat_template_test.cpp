// What templates of models say beside their format's marks: rendered as transformers does, or
// refused by name.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/chat.hpp"
#include "support/refusal.h"

namespace polyhead {
namespace {

using models::ChatFormat;
using models::ChatMessage;

const ChatMessage kSystem{"system", " Be brief. "}, kUser{"user", " Hi "};

const std::string kTurns =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";
const std::string kAsked = "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  for (; at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

ChatFormat chosen(const std::string& text, const char* name = "") {
  models::TokenizerSpec spec;
  spec.source = "model.gguf";
  spec.chat_template = text;
  return models::choose_chat(spec, name);
}

std::string render(const std::string& text, const std::vector<ChatMessage>& messages) {
  return models::render_chat(chosen(text), messages);
}

std::string refused(const std::string& text) {
  return test::refusal_of([&] { chosen(text); });
}

std::string system_refused(const std::string& text) {
  return test::refusal_of([&] { render(text, {kSystem, kUser}); });
}

TEST(ChatTemplate, ADefaultSystemMessageMayHoldQuotesAndBraces) {
  const auto told = [](const std::string& literal) {
    const std::string text = render(
        "{%- if messages[0]['role'] != 'system' %}{{- " + literal + " }}{%- endif %}" + kTurns,
        {kUser});
    return replaced(text, kAsked, "");
  };
  EXPECT_EQ(told(R"('<|im_start|>system\nAnswer within \\boxed{}.<|im_end|>\n')"),
            "<|im_start|>system\nAnswer within \\boxed{}.<|im_end|>\n");
  EXPECT_EQ(told(R"("<|im_start|>system\nYou're a helper.<|im_end|>\n")"),
            "<|im_start|>system\nYou're a helper.<|im_end|>\n");
  EXPECT_EQ(told(R"('<|im_start|>system\nYou\'re a \"helper\".<|im_end|>\n')"),
            "<|im_start|>system\nYou're a \"helper\".<|im_end|>\n");
}

std::string with_variable(const std::string& value) {
  return "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
         "{% set system_message = messages[0]['content'] %}{% else %}{% set rest = messages %}"
         "{% set system_message = " +
         value +
         " %}{% endif %}{% for message in rest %}{% if loop.index0 == 0 %}"
         "{{'<|im_start|>system\\n' + system_message + '<|im_end|>\\n'}}{% endif %}" +
         kTurns.substr(kTurns.find("{{"));
}

TEST(ChatTemplate, ADefaultSystemMessageMayStandInAVariable) {
  EXPECT_EQ(render(with_variable("'You help.'"), {kUser}),
            "<|im_start|>system\nYou help.<|im_end|>\n" + kAsked);
  EXPECT_EQ(render(with_variable("'You help.'"), {kSystem, kUser}),
            "<|im_start|>system\n Be brief. <|im_end|>\n" + kAsked);
  EXPECT_NE(refused(with_variable("''")).find("always writes a system message, but not which"),
            std::string::npos);
  EXPECT_NE(refused(with_variable("'You are ' + name")).find("writes 'You are '"),
            std::string::npos);
}

const std::string kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% elif true == true %}"
    "{% set rest = messages %}{% set system_message = 'You help.' %}{% endif %}"
    "{% for message in rest %}{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";

TEST(ChatTemplate, Llama2MayHaveADefaultSystemMessage) {
  EXPECT_EQ(render(kLlama2, {kUser}), "[INST] <<SYS>>\nYou help.\n<</SYS>>\n\n Hi [/INST]");
  const std::string never = replaced(kLlama2, "true == true", "false == true");
  EXPECT_EQ(render(never, {kUser}), "[INST] Hi [/INST]");
  const std::string once = replaced(kLlama2, "{{ bos_token + ", "{{ ");
  EXPECT_EQ(render(once, {kUser, {"assistant", "Yes"}, kUser}),
            "[INST] <<SYS>>\nYou help.\n<</SYS>>\n\n Hi [/INST] Yes </s>[INST] Hi [/INST]");
}

TEST(ChatTemplate, Llama2WithOtherWhiteSpaceIsRefused) {
  EXPECT_EQ(refused(replaced(kLlama2, "' [/INST]'", "'[/INST]'")),
            "chat: model.gguf has a chat template like llama2 that has other white space beside "
            "'[/INST]', which is not known; --chat-template llama2 insists");
  EXPECT_NE(refused(replaced(kLlama2, "<</SYS>>\\n\\n", "<</SYS>>\\n"))
                .find("has other white space beside 'message.content'"),
            std::string::npos);
  EXPECT_NE(refused(replaced(kLlama2, ".strip()", "")).find("does not strip"), std::string::npos);
}

const std::string kNemotron =
    R"({{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = "" %}{%- endif %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}{{- system_message }}{{- "<|eot_id|>" }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %})";

TEST(ChatTemplate, Llama3MayAlwaysWriteASystemMessage) {
  const std::string header = "<|start_header_id|>system<|end_header_id|>\n\n",
                    asked =
                        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                        "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(render(kNemotron, {kUser}), header + asked);
  EXPECT_EQ(render(kNemotron, {kSystem, kUser}), header + "Be brief." + asked);
  EXPECT_EQ(render(replaced(kNemotron, "\"\"", "\"Think.\""), {kUser}), header + "Think." + asked);
  const std::string as_is = replaced(replaced(kNemotron, "|trim", ""), " | trim", "");
  EXPECT_EQ(render(as_is, {kUser}), header + replaced(asked, "Hi", " Hi "));
  EXPECT_NE(refused(replaced(kNemotron, "|trim", "")).find("strips a part"), std::string::npos);
}

TEST(ChatTemplate, ContentsMayBeStripped) {
  for (const char* strip : {" | trim", "|trim", ".strip()"}) {
    const std::string text = replaced(kTurns, "['content']", std::string("['content']") + strip);
    EXPECT_EQ(render(text, {kSystem, kUser}),
              "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\n");
  }
  EXPECT_NE(refused(replaced(kTurns, "['content']", "['content'] | upper"))
                .find("writes 'upper', which it works out"),
            std::string::npos);
}

TEST(ChatTemplate, ASystemMessageWithoutAPlaceIsRefused) {
  const std::string yi =
      "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"
      "{% endif %}{% if system_message is defined %}{{ system_message }}{% endif %}" +
      kTurns;
  EXPECT_EQ(render(yi, {kUser}), kAsked);
  EXPECT_NE(system_refused(yi).find("writes a system message before its first mark; "
                                    "--chat-template chatml insists"),
            std::string::npos)
      << system_refused(yi);
  const std::string gemma =
      "{% for message in messages %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | "
      "trim + '<end_of_turn>\\n' }}{% endfor %}{{'<start_of_turn>model\\n'}}";
  const std::string bound = "{% set role = message['role'] %}" + gemma;
  EXPECT_NE(system_refused(bound).find("has no place for a system message"), std::string::npos);
  const std::string says =
      "{% if messages[0]['role'] == 'system' %}"
      "{{ raise_exception('System role not supported') }}{% endif %}" +
      bound;
  EXPECT_NE(system_refused(says).find("chat template says 'System role not supported'; "
                                      "--chat-template gemma insists"),
            std::string::npos);
  EXPECT_EQ(render(says, {kUser}), "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(models::render_chat(chosen(says, "gemma"), std::vector{kSystem, kUser}),
            "<start_of_turn>user\n Be brief. \n\nHi<end_of_turn>\n<start_of_turn>model\n");
}

TEST(ChatTemplate, MarksOfOtherFormatsAreRefused) {
  const std::string phi = replaced(kTurns, "'\\n' + message", "'<|im_sep|>' + message");
  EXPECT_EQ(refused(phi),
            "chat: model.gguf has a chat template like chatml that writes '<|im_sep|>', which is "
            "not known; --chat-template chatml insists");
  EXPECT_EQ(models::render_chat(chosen(phi, "chatml"), std::vector{kUser}), kAsked);
  const auto chatml_with = [](const std::string& what, const std::string& by) {
    return refused(replaced(kTurns, what, by));
  };
  EXPECT_NE(chatml_with("'<|im_end|>'", "eos_token").find("writes 'eos_token' where turns"),
            std::string::npos);
  EXPECT_NE(chatml_with("{% for", "\n{% for").find("accepted"), 0u);
  EXPECT_NE(chatml_with("assistant\\n", "assistant\\n<think>\\n\\n").find("opens an answer by"),
            std::string::npos);
  EXPECT_NE(chatml_with("{% for", "{% set mark = '<|x|>' %}{{ mark }}{% for")
                .find("keeps '<|x|>' in a variable"),
            std::string::npos);
  EXPECT_NE(chatml_with("{% for", "{{ '<|im_start|>system\\nYou.<|im_end|>\\n' }}{% for")
                .find("beside others"),
            std::string::npos);
}

/// What a template says besides, and whether its text begins with bos ("<s>" of the model).
std::string beginning(const std::string& text, bool tokenizer_adds, bool gguf) {
  models::TokenizerSpec spec;
  spec.pieces = {"<s>"};
  spec.bos = 0;
  spec.add_bos = tokenizer_adds;
  spec.chat_bos = gguf && tokenizer_adds;
  spec.chat_template = text;
  const std::string prompt = models::render_chat(models::choose_chat(spec, ""), std::vector{kUser});
  return prompt.substr(0, prompt.size() - kAsked.size());
}

TEST(ChatTemplate, BosIsThereWhereTheTemplateWritesIt) {
  const std::string first = "{% if loop.first %}{{ bos_token }}{% endif %}{{'<|im_start|>' + m";
  for (const bool adds : {false, true}) {
    EXPECT_EQ(beginning(kTurns, adds, false), "");
    EXPECT_EQ(beginning(kTurns, adds, true), adds ? "<s>" : "");          // as llama.cpp has it
    EXPECT_EQ(beginning("{{ bos_token }}" + kTurns, adds, true), "<s>");  // and not twice
    for (const std::string& text :
         {"{{ bos_token }}" + kTurns, "{{ '<s>' }}" + kTurns, "<s>" + kTurns,
          replaced(kTurns, "{{'<|im_start|>' + m", first)})
      EXPECT_EQ(beginning(text, adds, false), "<s>") << text;
  }
  const std::string each = replaced(kTurns, "{{'<|im_start|>'", "{{ bos_token + '<|im_start|>'");
  const std::string told =
      "{% if messages[0].role == 'system' %}{{ bos_token }}{% endif %}" + kTurns;
  for (const std::string& text :
       {each, told, "{{ bos_token + bos_token }}" + kTurns, kTurns + "{{ bos_token }}"})
    EXPECT_NE(refused(text).find("writes bos_token elsewhere than before the first turn"),
              std::string::npos)
        << text;
}

TEST(ChatTemplate, EscapesAreReadAsPythonDoes) {
  const auto told = [](const std::string& words) {
    return "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n" + words +
           "<|im_end|>\\n' }}{% endif %}" + kTurns;
  };
  EXPECT_EQ(chosen(told(R"(\u2019\x41\101\r\a\d\U0001f600\7x)")).default_system,
            "\u2019AA\r\a\\d\U0001f600\ax");
  for (const char* escape : {"\\u12 ", "\\ud83d\\ude00", "\\N{DASH}", "\\x4", "\\U00110000"})
    EXPECT_NE(refused(told(std::string("You ") + escape)).find("an escape"), std::string::npos);
}

const std::string kGemma =
    "{{ bos_token }}{% for message in messages %}{% set role = message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{{'<start_of_turn>model\\n'}}";

struct Replacement {
  const std::string &text, what, by;
};

/// What a template has beside its format's turns, and does to contents, is not left out.
TEST(ChatTemplate, OtherTurnsAreRefused) {
  const std::string content = "message['content']", header = "<|end_header_id|>\\n\\n' + ";
  const std::vector<Replacement> all{
      {kTurns, "'<|im_end|>'", "'\\n<|im_end|>'"},
      {kTurns, "'<|im_end|>'", "'\\t<|im_end|>'"},
      {kTurns, "'<|im_end|>'", "'<|im_end|><|im_end|>'"},
      {kTurns, "'<|im_end|>' + '\\n'", "'<|im_end|>' + '\\n' + eos_token"},
      {kTurns, "'\\n'}}", "'\\n' * 2}}"},
      {kTurns, "['role'] + '\\n'", "['role'] + '\\n\\n'"},
      {kTurns, "'<|im_start|>' +", "' <|im_start|>' +"},
      {kTurns, "'\\n' + " + content, "'\\n' + ' ' + " + content},
      {kTurns, "'\\n' + " + content, "'\\n' + 'assistant' + " + content},
      {kTurns, "'\\n' + " + content, "'\\n' + '<think>' + " + content},
      {kTurns, "'\\n' + " + content, "'\\n' + message['role'] + " + content},
      {kTurns, "'\\n' + " + content, "'\\n' + loop.length + " + content},
      {kTurns, "if add_generation_prompt %}", "if add_generation_prompt %} "},
      {kTurns, "in messages %}", "in messages if message.role != 'user' %}"},
      {kTurns, "in messages %}", "in messages[::-1] %}"},
      {kTurns, content, content + ".lstrip()"},
      {kTurns, content, content + ".rstrip()"},
      {kTurns, content, content + ".strip('\\n')"},
      {kTurns, content, content + ".split('there')[0]"},
      {kTurns, content, content + "[1:]"},
      {kTurns, content, content + " * 2"},
      {kTurns, content, content + " + message.content"},
      {kTurns, content, "messages[0]['content']"},
      {kTurns, content, "messages[-1]['content']"},
      {kTurns, content, "(" + content + " and 'user')"},
      {kTurns, content, "(" + content + " | string | length | string)"},
      {kTurns, content + " + '<|im_end|>'", "(" + content + " + '<|im_end|>') | trim"},
      {kNemotron, "'<|eot_id|>'", "'\\n<|eot_id|>'"},
      {kNemotron, "'<|eot_id|>'", "'<|eot_id|>\\n'"},
      {kNemotron, "'<|eot_id|>'", "'<|eot_id|><|eot_id|>'"},
      {kNemotron, header, "<|end_header_id|>\\n\\n\\n' + "},
      {kNemotron, header, "<|end_header_id|>\\n\\n ' + "},
      {kNemotron, header, header + "'user' + "},
      {kGemma, "'<end_of_turn>", "' <end_of_turn>"},
      {kGemma, "'<end_of_turn>", "'\\n<end_of_turn>"},
      {kGemma, "role + '\\n'", "role + '\\n\\n'"},
      {kGemma, "role + '\\n'", "role + '\\nuser'"},
      {kGemma, " | trim", " | trim + message.content | trim"},
      {kLlama2, "'[INST] '", "'[INST]  '"},
      {kLlama2, "' [/INST]'", "' [/INST] '"},
      {kLlama2, "<</SYS>>\\n\\n", "<</SYS>>\\n\\n\\n"}};
  EXPECT_EQ(refused(kGemma), "accepted");
  for (const auto& [text, what, by] : all) {
    const std::string refusal = refused(replaced(text, what, by));
    EXPECT_NE(refusal.find("which is not known"), std::string::npos) << what << " -> " << by;
  }
  const std::string told = replaced(kLlama2, "+ system_message +", "+ system_message.strip() +");
  EXPECT_NE(system_refused(told).find("strips a system message"), std::string::npos);
}

/// Qwen3's turns of the assistant take thoughts out, which those of others do not.
TEST(ChatTemplate, AnswersMayBeTakenApart) {
  const std::string answers =
      R"({% if message.role == "assistant" %}{% set content = message.content.split('</think>')[-1].lstrip('\n') %}{% if loop.last %}{{ '<|im_start|>' + message.role + '\n<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{% else %}{{ '<|im_start|>' + message.role + '\n' + content }}{% endif %}{{ '<|im_end|>\n' }}{% else %})";
  const std::string text =
      replaced(replaced(kTurns, "messages %}{{", "messages %}" + answers + "{{"), "{% endfor %}",
               "{% endif %}{% endfor %}");
  EXPECT_EQ(render(text, {kUser}), kAsked);
  EXPECT_NE(
      refused(replaced(text, R"("assistant")", R"("user")")).find("changes 'message.content'"),
      std::string::npos);
}

/// Branches that a conversation of plain texts does not take.
TEST(ChatTemplate, ToolsAndCommentsAreLeftOut) {
  const std::string tools =
      "{#- '<|im_sep|>' -#}{%- if tools %}{{- '<|im_start|>system\\nYou have tools.<|im_end|>' }}"
      "{%- endif %}{% if enable_thinking is defined and enable_thinking is false %}{{ 'x' }}"
      "{% endif %}";
  EXPECT_EQ(render(tools + kTurns, {kUser}), kAsked);
}

/// Every way through the branches must be turns of the format, white space and all.
TEST(ChatTemplate, EveryWayThroughTheBranchesMustFit) {
  const std::string end = " + '<|im_end|>' + '\\n'}}", content = "message['content']",
                    start = "{{'<|im_start|>' + message['role'] + '\\n' + ";
  const std::vector<Replacement> all{
      {kTurns, end, " + '<|im_end|>'}}{% if not loop.last %}{{'\\n'}}{% endif %}"},
      {kTurns, end, " + '<|im_end|>'}}{% if message.role == 'user' %}{{'\\n'}}{% endif %}"},
      {kTurns, end, "}}{% if not loop.last %}{{'<|im_end|>\\n'}}{% endif %}"},
      {kTurns, end + "{% endfor %}", " + '<|im_end|>'}}{% endfor %}{{'\\n'}}"},
      {kTurns, "{% endfor %}", "{% if loop.last %}{{'\\n'}}{% endif %}{% endfor %}"},
      {kTurns, "{% endfor %}", "{{'<|im_start|>assistant\\n'}}{% endfor %}"},
      {kTurns, start, "{% if loop.first %}" + start + "''}}{% endif %}{{"},
      {kTurns, start, "{% if message.name %}" + start + "''}}{% endif %}{{"},
      {kTurns, "+ " + content, "+ (" + content + " if message.name else '')"},
      {kTurns, "'\\n' + " + content, "('\\n' if loop.first else '') + " + content},
      {kTurns, "{% for",
       "{% if messages[0].role == 'system' %}{{'<|im_start|>system\\n' + messages[0].content + "
       "'<|im_end|>'}}{% endif %}{% for"},
      {kLlama2, "'[INST] ' + content", "('[INST]' if loop.last else '[INST] ') + content"},
      {kLlama2, "{{ bos_token + '[INST] ' + content",
       "{% if loop.last %}{{'[INST]'}}{% else %}{{'[INST] '}}{% endif %}{{ content"},
      {kLlama2, "loop.index0 == 0 and ", ""}};
  for (const auto& [text, what, by] : all) {
    const std::string refusal = refused(replaced(text, what, by));
    EXPECT_NE(refusal.find("which is not known"), std::string::npos) << what << " -> " << by;
  }
  EXPECT_NE(refused(replaced(kTurns, all[0].what, all[0].by))
                .find("has other white space beside '<|im_start|>'"),
            std::string::npos);
  EXPECT_NE(refused(replaced(kTurns, all[2].what, all[2].by))
                .find("writes '<|im_start|>' where turns of its format have something else"),
            std::string::npos);
}

/// A variable holds whole turns or what a turn has in one place.
TEST(ChatTemplate, VariablesEndWhereTurnsDo) {
  const auto turn = [](const std::string& before, const std::string& behind) {
    return "{% for message in messages %}{% set t = '" + before +
           "<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>" + behind +
           "' %}{{ t }}{% endfor %}{{ '<|im_start|>assistant\\n' }}";
  };
  EXPECT_EQ(render(turn("", "\\n"), {kUser}), kAsked);
  EXPECT_NE(refused(turn("\\n", "")).find("has other white space beside '\\x0a<|im_start|>'"),
            std::string::npos);
  EXPECT_NE(refused(turn("", "")).find("has other white space behind 't'"), std::string::npos);
  EXPECT_NE(refused(replaced(turn("", "\\n"), "{{ t }}", "{{ t | trim }}")).find("strips 't'"),
            std::string::npos);
  const auto content = [](const std::string& value) {
    return replaced(replaced(kTurns, "message['content']", "c"), "%}{{'<|im_start|>'",
                    "%}{% set c = " + value + " %}{{'<|im_start|>'");
  };
  EXPECT_EQ(render(content("message.content"), {kUser}), kAsked);
  for (const char* value :
       {"'\\n' + message.content", "message.content + '\\n'", "message.content + message.content"})
    EXPECT_NE(refused(content(value)).find("which is not known"), std::string::npos) << value;
  const std::string prefix =
      "{% set system_message = 'You help.' %}{% set p = '<<SYS>>\\n' + system_message + "
      "'\\n<</SYS>>\\n' %}{% for message in messages %}{{ '[INST] ' + (p if loop.first else '') + "
      "message.content.strip() + ' [/INST]' }}{% endfor %}";
  EXPECT_NE(refused(prefix).find("keeps a part of a turn in 'p'"), std::string::npos);
}

/// What llama2 strips with a system message in front keeps its own white space there.
TEST(ChatTemplate, Llama2StripsASystemMessageAndWhatFollowsAsOne) {
  const std::string apart =
      replaced(kLlama2, "\\n\\n' + message['content']", "\\n\\n' + message['content'].strip()");
  EXPECT_NE(refused(apart).find("'message.content'"), std::string::npos);
  const std::string prefix =
      replaced(replaced(kLlama2, "{% set content = '<<SYS>>", "{% set prefix = '<<SYS>>"),
               "\\n\\n' + message['content'] %}",
               "\\n\\n' %}{% set content = prefix + message['content'] %}");
  EXPECT_EQ(render(prefix, {kSystem, kUser}),
            "[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hi [/INST]");
}

TEST(ChatTemplate, Llama2HasBosWhereTheTemplateWritesIt) {
  const auto later = [](const std::string& text) {
    return models::render_chat(chosen(text),
                               std::vector<ChatMessage>{kUser, {"assistant", "Yes"}, kUser});
  };
  const std::string told = "[INST] <<SYS>>\nYou help.\n<</SYS>>\n\n Hi [/INST] Yes </s>";
  const auto bos = [&](const std::string& by) {
    return later(replaced(kLlama2, "{{ bos_token + '[INST] '", by + "{{ '[INST] '"));
  };
  EXPECT_EQ(later(kLlama2), told + "<s>[INST] Hi [/INST]");
  EXPECT_EQ(bos("{{ bos_token }}"), told + "<s>[INST] Hi [/INST]");
  EXPECT_EQ(bos("<s>"), "<s>" + told + "<s>[INST] Hi [/INST]");
  EXPECT_EQ(bos("{% if loop.first %}{{ bos_token }}{% endif %}"), told + "[INST] Hi [/INST]");
}

/// Conditions that are known, or in the same words as earlier ones.
TEST(ChatTemplate, BranchesMayBelongTogether) {
  const std::string qwen_coder =
      "{% if messages[0].role == 'system' %}{% set system_message = messages[0].content %}"
      "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
      "{% if system_message is defined %}{{ '<|im_start|>system\\n' + system_message }}"
      "{% else %}{% if tools %}{{ '<|im_start|>system\\nTools' }}{% endif %}{% endif %}"
      "{% if tools %}{{ 'x' }}{% endif %}{% if system_message is defined %}{{ '<|im_end|>\\n' }}"
      "{% endif %}" +
      replaced(kTurns, "in messages", "in rest");
  const std::string told = "<|im_start|>system\n Be brief. <|im_end|>\n" + kAsked;
  EXPECT_EQ(render(qwen_coder, {kSystem, kUser}), told);
  EXPECT_EQ(render(qwen_coder, {kUser}), kAsked);
  EXPECT_NE(refused(replaced(qwen_coder, "{% if system_message is defined %}{{ '<|im_end|>",
                             "{% if system_message %}{{ '<|im_end|>"))
                .find("which is not known"),
            std::string::npos);
  const std::string qwen1 =
      replaced(kTurns, " + '<|im_end|>' + '\\n'}}",
               "}}{% if (loop.last and add_generation_prompt) or not loop.last %}"
               "{{ '<|im_end|>' + '\\n'}}{% endif %}");
  EXPECT_EQ(render(qwen1, {kSystem, kUser}), told);
  const std::string vision = replaced(
      kTurns, "message['content'] + ",
      "''}}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
      "{% for item in message['content'] %}{% if item.type == 'text' %}{{ item.text }}{% endif %}"
      "{% endfor %}{% endif %}{{");
  EXPECT_EQ(render(vision, {kSystem, kUser}), told);
  const std::string roles = replaced(
      kTurns, "{{'<|im_start|>' + message['role'] + '\\n' + ",
      "{% if message.role == 'user' %}{{'<|im_start|>user\\n'}}{% elif message.role == 'system' %}"
      "{{'<|im_start|>system\\n'}}{% elif message.role == 'assistant' %}"
      "{{'<|im_start|>assistant\\n'}}{% endif %}{{");
  EXPECT_EQ(models::recognise_chat(roles)->not_known, "");
  EXPECT_NE(refused(replaced(roles, "== 'user'", "== 'human'")).find("which is not known"),
            std::string::npos);
}

const std::string kGemma3 =
    R"({{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Conversation roles must alternate") }}{%- endif -%}{%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%})";

TEST(ChatTemplate, Gemma3PutsItsSystemMessageIntoTheFirstTurn) {
  EXPECT_EQ(render(kGemma3, {kSystem, kUser, {"assistant", "Yes"}, kUser}),
            "<start_of_turn>user\n Be brief. \n\nHi<end_of_turn>\n<start_of_turn>model\n"
            "Yes<end_of_turn>\n<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
  const std::string each =
      replaced(kGemma3, "(first_user_prefix if loop.first else \"\")", "first_user_prefix");
  EXPECT_NE(refused(each).find("'first_user_prefix' where turns"), std::string::npos);
  const std::string one_line = replaced(kGemma3, "['content'] + '\\n\\n'", "['content'] + '\\n'");
  EXPECT_NE(refused(one_line).find("behind 'first_user_prefix'"), std::string::npos);
}

TEST(ChatTemplate, Llama3MayWriteTurnsFromAVariable) {
  const std::string text =
      R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})";
  EXPECT_EQ(render(text, {kSystem, kUser}),
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_NE(
      refused(replaced(text, "bos_token + content", "content + '\\n'")).find("which is not known"),
      std::string::npos);
}

/// Qwen 2.5 and QwQ: answers have branches of their own, for tools.
TEST(ChatTemplate, AnswersMayHaveBranchesForTools) {
  const std::string qwen =
      R"({%- if tools %}{{- '<|im_start|>system\nTools' }}{%- else %}{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %}{{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{%- endif %}{%- endif %}{%- for message in messages %}{%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- elif message.role == "assistant" %}{{- '<|im_start|>' + message.role }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}{%- for tool_call in message.tool_calls %}{{- '\n<tool_call>\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- elif message.role == "tool" %}{{- '<|im_start|>user' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";
  EXPECT_EQ(render(qwen, {kUser}), "<|im_start|>system\nYou are Qwen.<|im_end|>\n" + kAsked);
  const std::string qwq = replaced(
      qwen, R"( or (message.role == "assistant" and not message.tool_calls) %})",
      R"( %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- elif message.role == "assistant" and not message.tool_calls %}{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- elif message.role == "tool" %})");
  EXPECT_EQ(render(qwq, {kUser}), "<|im_start|>system\nYou are Qwen.<|im_end|>\n" + kAsked);
  EXPECT_NE(refused(replaced(qwq, "+ content + '<|im_end|>' + '\\n'", "+ content + '<|im_end|>'"))
                .find("which is not known"),
            std::string::npos);
}

TEST(ChatTemplate, AnyTextIsReadOrRefused) {
  for (const std::string& text : {kTurns, kLlama2, kNemotron, kGemma3}) {
    for (std::size_t end = 0; end <= text.size(); ++end)
      models::recognise_chat(std::string_view(text).substr(0, end));
    for (std::size_t begin = 0; begin < text.size(); ++begin)
      models::recognise_chat(std::string_view(text).substr(begin));
  }
}

}  // namespace
}  // namespace polyhead
