// What holds for tokenizers of any vocabulary: the order of merges, special tokens, time, and
// specifications that contradict themselves.
#include "models/tokenizers/tokenizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/split.hpp"
#include "polyhead/error.h"
#include "support/random.h"

namespace polyhead {
namespace {

using formats::FileError;
using models::SpacePrefix;
using models::Tokenizer;
using models::TokenizerKind;
using models::TokenizerSpec;
using models::TokenKind;
using Ids = std::vector<std::int32_t>;

void add(TokenizerSpec& spec, const std::string& piece, TokenKind kind = TokenKind::normal,
         float score = 0.0f) {
  spec.pieces.push_back(piece);
  spec.kinds.push_back(kind);
  spec.scores.push_back(score);
}

/// <unk>, <s>, </s>, then letters a to d, then all pieces of two and more letters with some score.
TokenizerSpec letters(test::Random& random) {
  TokenizerSpec spec;
  spec.source = "letters";
  spec.kind = TokenizerKind::sentence_piece;
  add(spec, "<unk>", TokenKind::unknown);
  add(spec, "<s>", TokenKind::control);
  add(spec, "</s>", TokenKind::control);
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  for (const char* letter : {"a", "b", "c", "d"}) add(spec, letter, TokenKind::normal, -1000.0f);
  for (std::size_t from = 3; from < 60; ++from) {
    std::string piece = spec.pieces[from] + static_cast<char>('a' + random.below(4));
    if (random.below(3) == 0) piece = spec.pieces[from] + spec.pieces[from];
    if (std::find(spec.pieces.begin(), spec.pieces.end(), piece) != spec.pieces.end()) continue;
    add(spec, piece, TokenKind::normal, static_cast<float>(-random.below(20)));
  }
  return spec;
}

/// The definition: of all neighbours that join, the one of the highest score, then the leftmost,
/// again and again.
Ids merged_by_definition(const TokenizerSpec& spec, const std::string& text) {
  const auto find = [&](const std::string& piece) {
    const auto at = std::find(spec.pieces.begin() + 3, spec.pieces.end(), piece);
    return at == spec.pieces.end() ? -1 : static_cast<int>(at - spec.pieces.begin());
  };
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    std::optional<std::size_t> best;
    float score = 0.0f;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const int id = find(parts[i] + parts[i + 1]);
      if (id < 0) continue;
      const float its = spec.scores[static_cast<std::size_t>(id)];
      if (!best || its > score) best = i, score = its;
    }
    if (!best) break;
    parts[*best] += parts[*best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(*best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(find(part));
  return ids;
}

TEST(Tokenizer, MergesInTheOrderOfTheDefinition) {
  test::Random random(11);
  for (int round = 0; round < 60; ++round) {
    const TokenizerSpec spec = letters(random);
    const Tokenizer tokenizer(spec);
    std::string text;
    for (std::int64_t left = 1 + random.below(120); left > 0; --left)
      text += static_cast<char>('a' + random.below(round % 2 == 0 ? 4 : 2));
    EXPECT_EQ(tokenizer.encode(text), merged_by_definition(spec, text)) << text;
  }
}

TEST(Tokenizer, UnknownCharactersAreOneTokenARun) {
  test::Random random(3);
  const Tokenizer tokenizer(letters(random));
  const Ids ids = tokenizer.encode("axx\xffx\xc3\xa9");
  EXPECT_EQ(ids, (Ids{3, 0}));
  EXPECT_EQ(tokenizer.decode(ids), "a");
}

TEST(Tokenizer, ControlTokensAreTextUnlessAskedFor) {
  test::Random random(5);
  TokenizerSpec spec = letters(random);
  spec.add_bos = spec.add_eos = true;
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("<s>", {false, false}), Ids{0});  // no <, s, > among the letters
  EXPECT_EQ(tokenizer.encode("<s>", {false, true}), Ids{1});
  EXPECT_EQ(tokenizer.encode("a</s>", {true, true}), (Ids{1, 3, 2, 2}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{1, 2}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 3, 0, 2}), "a");
  EXPECT_EQ(tokenizer.bytes(1), "<s>");
  EXPECT_TRUE(tokenizer.is_control(0));
  EXPECT_TRUE(tokenizer.is_control(1));
  EXPECT_FALSE(tokenizer.is_control(3));
  EXPECT_TRUE(tokenizer.ends_answer(2));
  EXPECT_FALSE(tokenizer.ends_answer(1));
  EXPECT_FALSE(tokenizer.ends_answer(-1));
}

TEST(Tokenizer, UserDefinedTokensAreFoundLongestFirst) {
  test::Random random(5);
  TokenizerSpec spec = letters(random);
  const auto first = static_cast<std::int32_t>(spec.pieces.size());
  for (const char* piece : {"<", "<b", "<b>", "<bold>"}) add(spec, piece, TokenKind::user_defined);
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("<b><bo<bold><"), (Ids{first + 2, first + 1, 0, first + 3, first}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<b>a<bold>")), "<b>a<bold>");
}

TEST(Tokenizer, IdsOutOfRangeAreRefused) {
  test::Random random(5);
  const Tokenizer tokenizer(letters(random));
  const auto size = static_cast<std::int32_t>(tokenizer.size());
  for (const std::int32_t id : {-1, size, std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_THROW(tokenizer.bytes(id), InvalidArgument);
    EXPECT_THROW(tokenizer.is_control(id), InvalidArgument);
    EXPECT_THROW(tokenizer.decode(Ids{3, id}), InvalidArgument);
    EXPECT_FALSE(tokenizer.ends_answer(id));
  }
}

TEST(Split, CutsWithoutGapsInLinearTime) {
  std::string text;
  for (const char* part : {"a", "1", " ", "\n", "!", "'", "\xff", "\xe2\x80\xa8", "\xcc\x81"}) {
    for (int i = 0; i < 40000; ++i) text += part;
  }
  for (const char* name : {"gpt2", "smollm", "llama-bpe", "qwen2"}) {
    std::string joined;
    for (const std::string_view word : models::split_words(*models::split_named(name), text)) {
      ASSERT_FALSE(word.empty());
      joined += word;
    }
    EXPECT_EQ(joined, text) << name;
  }
  EXPECT_FALSE(models::split_named("gpt-5"));
}

/// A million letters without a space, where all merge into one another: what is quadratic would
/// not come back.
TEST(Tokenizer, LongRunsTakeNoLongerThanWords) {
  TokenizerSpec spec;
  spec.source = "run";
  spec.kind = TokenizerKind::sentence_piece;
  std::string piece = "a";
  for (int i = 0; i < 12; ++i, piece += piece) add(spec, piece, TokenKind::normal, 1.0f);
  const std::string run(1 << 20, 'a');
  EXPECT_EQ(Tokenizer(spec).encode(run).size(), run.size() >> 11);
  spec.kind = TokenizerKind::byte_bpe;
  spec.split = "llama-bpe";
  for (std::size_t i = 0; i + 1 < spec.pieces.size(); ++i)
    spec.merges.push_back(spec.pieces[i] + " " + spec.pieces[i]);
  EXPECT_EQ(Tokenizer(spec).encode(run).size(), run.size() >> 11);
}

TEST(Tokenizer, CombiningMarksAreOrderedInTime) {
  TokenizerSpec spec;
  spec.source = "marks";
  spec.split = "qwen2";
  spec.compose = true;
  add(spec, "a");
  std::string text;
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\xcc\x81" : "\xcc\xa3";  // above, below
  EXPECT_TRUE(Tokenizer(spec).encode(text).empty());  // no bytes but a's in the vocabulary
}

/// "##" alone is a piece of some vocabularies and covers nothing.
TEST(Tokenizer, WordPieceAlwaysMovesOn) {
  TokenizerSpec spec;
  spec.source = "words";
  spec.kind = TokenizerKind::word_piece;
  for (const char* piece : {"?", "a", "##"}) add(spec, piece);
  spec.unknown = 0;
  EXPECT_EQ(Tokenizer(spec).encode("ab a"), (Ids{0, 1}));
}

struct Lie {
  const char* name;
  std::function<void(TokenizerSpec&)> tell;
  const char* complaint;
};

TEST(Tokenizer, RefusesWhatContradictsItself) {
  const std::vector<Lie> lies{
      {"no pieces", [](auto& s) { s.pieces.clear(), s.kinds.clear(), s.scores.clear(); },
       "no pieces"},
      {"kinds", [](auto& s) { s.kinds.pop_back(); }, "kinds for"},
      {"scores", [](auto& s) { s.scores.pop_back(); }, "scores for"},
      {"nan", [](auto& s) { s.scores[5] = std::numeric_limits<float>::quiet_NaN(); },
       "score of piece 5"},
      {"infinite", [](auto& s) { s.scores[5] = -std::numeric_limits<float>::infinity(); },
       "score of piece 5"},
      {"twice", [](auto& s) { add(s, "a"); }, "are both 'a'"},
      {"bos", [](auto& s) { s.bos = static_cast<std::int32_t>(s.pieces.size()); }, "bos is token"},
      {"eos", [](auto& s) { s.eos = -2; }, "eos is token"},
      {"end of turn", [](auto& s) { s.end_of_turn = {1 << 30}; }, "end_of_turn is token"},
      {"no bos", [](auto& s) { s.add_bos = true, s.bos = -1; }, "before each text"},
      {"no eos", [](auto& s) { s.add_eos = true, s.eos = -1; }, "after each text"},
      {"long", [](auto& s) { add(s, std::string(5000, 'x')); }, "5000 bytes"},
      {"byte", [](auto& s) { add(s, "<0x4>", TokenKind::byte); }, "expected <0xNN>"},
      {"unknown part",
       [](auto& s) {
         s.merges = {"a b", "a z"};
       },
       "merge 1, 'a z'"},
      {"no space", [](auto& s) { s.merges = {"ab"}; }, "merge 0"},
      {"split", [](auto& s) { s.kind = TokenizerKind::byte_bpe, s.split = "\x1b[2J"; },
       "split '\\x1b[2J'"},
      {"word piece", [](auto& s) { s.kind = TokenizerKind::word_piece, s.unknown = -1; },
       "needs an unknown"},
  };
  for (const Lie& lie : lies) {
    test::Random random(5);
    TokenizerSpec spec = letters(random);
    if (std::find(spec.pieces.begin(), spec.pieces.end(), "ab") == spec.pieces.end())
      add(spec, "ab");
    lie.tell(spec);
    try {
      const Tokenizer tokenizer(spec);
      ADD_FAILURE() << lie.name << " was believed";
    } catch (const FileError& error) {
      EXPECT_EQ(std::string(error.what()).find("letters: tokenizer: "), 0u) << error.what();
      EXPECT_NE(std::string(error.what()).find(lie.complaint), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace polyhead
