// What a tokenizer's file says, whichever format it came in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace polyhead::inline v0::models {

enum class TokenizerKind : std::uint8_t { byte_bpe, sentence_piece, word_piece };
enum class TokenKind : std::uint8_t { normal, unknown, control, user_defined, unused, byte };

/// Plain data; Tokenizer checks it and makes its tables. -1: no such token.
struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::byte_bpe;
  std::string split;                ///< byte_bpe: gpt2, smollm, llama-bpe or qwen2
  std::vector<std::string> pieces;  ///< by id, as the file spells them
  std::vector<float> scores;        ///< sentence_piece; by id
  std::vector<TokenKind> kinds;     ///< by id; empty: all normal
  std::vector<std::string> merges;  ///< byte_bpe (and sentence_piece without scores): "left right"
  std::int32_t bos = -1, eos = -1, unknown = -1, separator = -1, pad = -1, first = -1;
  std::vector<std::int32_t> end_of_turn;  ///< further ids that end an answer
  bool add_bos = false, add_eos = false;  ///< eos: after the text (separator for word_piece)
  bool add_space_prefix = false;          ///< sentence_piece
  bool lowercase = false;                 ///< word_piece: lower case, accents stripped
  std::string chat_template;              ///< only looked at, never run
};

}  // namespace polyhead::inline v0::models
