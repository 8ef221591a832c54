// Chat templates out of files that nobody has looked at: what stands within itself thousands of
// times neither fills the stack nor takes long.
#include <gtest/gtest.h>

#include <string>

#include "models/chat.hpp"
#include "support/refusal.h"
#include "support/small_stack.h"

namespace polyhead {
namespace {

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (; times > 0; --times) all += text;
  return all;
}

/// chatml's turns with something before a role and before a content.
std::string turns(const std::string& role, const std::string& content) {
  return "{% for message in messages %}{{ '" + role + "<|im_start|>' + message['role'] + '\\n' + " +
         content +
         "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|im_start|>assistant\\n' }}{% endif %}";
}

std::string not_known(const std::string& text) {
  std::string found;
  test::on_small_stack([&] { found = models::recognise_chat(text)->not_known; });
  return found;
}

TEST(ChatHostile, WhatStandsWithinItself) {
  if (test::kSanitized) GTEST_SKIP() << "frames are larger under a sanitizer";
  EXPECT_EQ(not_known(turns("", "")), "");
  EXPECT_FALSE(not_known(turns(repeated("<s>", 10000), "")).empty());
  EXPECT_FALSE(not_known(turns("", repeated("a if b else ", 2500))).empty());
  const std::string nots = repeated("not ", 8000);
  EXPECT_FALSE(not_known("{% if " + nots + "a %}x{% endif %}" + turns("", "")).empty());
}

TEST(ChatHostile, LongTextsAreNotRead) {
  models::TokenizerSpec spec;
  spec.source = "model.gguf";
  const std::string plain = turns("", "");
  const std::string comment(models::kMostTemplateBytes - plain.size() - 4, '.');
  spec.chat_template = "{#" + comment + "#}" + plain;
  EXPECT_EQ(models::choose_chat(spec, "").format, models::ChatTemplate::chatml);
  spec.chat_template = "{#." + comment + "#}" + plain;
  EXPECT_EQ(test::refusal_of([&] { models::choose_chat(spec, ""); }),
            "chat: model.gguf has a chat template of 32769 bytes, expected at most 32768; name one "
            "of chatml, gemma, llama2, llama3");
}

}  // namespace
}  // namespace polyhead
