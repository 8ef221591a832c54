// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// How `encode` treats special tokens.
struct EncodeOptions {
  bool add_special = true;     ///< bos/eos (or first and separator) where the model wants them
  bool parse_special = false;  ///< "<|im_start|>" in the text is that token, not its letters
};

/// One of byte-level BPE, SentencePiece-style BPE or WordPiece. Immutable; used by any number of
/// threads.
///
/// Any bytes may be encoded. What has no piece becomes byte tokens (sentence_piece), is left out
/// (byte_bpe, where the vocabulary lacks the byte and the file names no token for it), or becomes
/// the unknown token; word_piece drops what is not UTF-8, as it drops control characters. Takes
/// O(n log n) time in the text, also for one without spaces.
class Tokenizer {
 public:
  /// Throws FileError, naming spec.source, where the specification contradicts itself.
  explicit Tokenizer(TokenizerSpec spec);

  std::int64_t size() const;  ///< tokens; a model's vocab_size may be larger
  const TokenizerSpec& spec() const;

  /// Throws InvalidArgument for texts of 512 MiB or more.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The text of ids. Control tokens and the unknown token are left out, and so is the space that
  /// was put before the text. byte_bpe with all bytes in its vocabulary gives back exactly the
  /// bytes that were encoded (in form NFC where the spec composes). Throws InvalidArgument for ids
  /// out of range.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// The bytes one token stands for in running text ("\xC4\xA0the" of byte-level BPE is " the",
  /// "the" of WordPiece is " the" and "##ing" is "ing"; a byte token is its byte, perhaps a part of
  /// a character). A control token's are its spelling. Throws InvalidArgument for ids out of range.
  std::string_view bytes(std::int32_t id) const;

  /// What an answer shows of a token: nothing of control tokens and of ids that no token has, for
  /// which models often have rows.
  std::string_view written(std::int32_t id) const;

  bool is_control(std::int32_t id) const;   ///< control or unknown
  bool ends_answer(std::int32_t id) const;  ///< eos and end_of_turn

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace polyhead::inline v0::models
