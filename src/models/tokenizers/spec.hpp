// What a tokenizer's file says, whichever format it came in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace polyhead::inline v0::models {

enum class TokenizerKind : std::uint8_t { byte_bpe, sentence_piece, word_piece };

/// `normal` pieces come about by the algorithm alone; `user_defined` ones are found in any text as
/// they stand; `control` and `unknown` ones only where the caller asks for it; `byte` ones stand
/// for one byte; `unused` ones never come out.
enum class TokenKind : std::uint8_t { normal, unknown, control, user_defined, unused, byte };

/// Where sentence_piece puts a space that the text does not have: nowhere; before every run of text
/// between special tokens; or before the text, unless it begins with a space or a special token.
enum class SpacePrefix : std::uint8_t { none, every, first };

/// What comes of a byte (byte_bpe) or a character (sentence_piece) that has no piece: nothing, one
/// unknown token for a run of them, or one for each. Nothing either where no token is `unknown`.
enum class Unknowns : std::uint8_t { dropped, fused, each };

/// Plain data; Tokenizer checks it and makes its tables. -1: no such token.
struct TokenizerSpec {
  std::string source;         ///< the file, for messages
  std::string merges_source;  ///< the file of the merges, where it is another one
  TokenizerKind kind = TokenizerKind::byte_bpe;
  std::string split;                ///< byte_bpe: gpt2, smollm, llama-bpe or qwen2
  std::vector<std::string> pieces;  ///< by id, as the file spells them ("##ing" of word_piece)
  std::vector<float> scores;        ///< sentence_piece; by id
  std::vector<TokenKind> kinds;     ///< by id; empty: all normal
  std::vector<bool> normalised;     ///< by id; empty: none. Looked for in normalised text
  std::vector<bool> beside;         ///< by id; empty: none. Not in the algorithm's vocabulary
  std::vector<std::string> merges;  ///< byte_bpe (and sentence_piece without scores): "left right"
  std::int32_t bos = -1, eos = -1, unknown = -1, separator = -1, pad = -1, first = -1;
  std::vector<std::int32_t> end_of_turn;  ///< further ids that end an answer
  bool add_bos = false;      ///< before the text: bos (`first`, BERT's [CLS], for word_piece)
  bool add_eos = false;      ///< after the text: eos (`separator`, BERT's [SEP], for word_piece)
  bool chat_bos = false;     ///< GGUF: a chat begins with bos even if its template writes none
  bool compose = false;      ///< byte_bpe: text is brought to Unicode's form NFC first
  bool whole_words = false;  ///< BPE: a word (sentence_piece: a run) that is a piece is unmerged
  Unknowns unknowns = Unknowns::fused;
  SpacePrefix space_prefix = SpacePrefix::none;  ///< sentence_piece
  bool metaspace = false;                        ///< sentence_piece: normalising leaves spaces
  bool lowercase = false;                        ///< word_piece
  bool strip_accents = false;                    ///< word_piece
  std::string chat_template;                     ///< only looked at, never run
};

}  // namespace polyhead::inline v0::models
