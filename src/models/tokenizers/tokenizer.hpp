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

/// One of byte-level BPE, SentencePiece-style BPE or WordPiece. Any bytes may be encoded: what is
/// not UTF-8 becomes byte tokens or the unknown token; time is linear in the text but for a
/// logarithm. Immutable; used by any number of threads.
class Tokenizer {
 public:
  /// Throws FileError where the specification contradicts itself.
  explicit Tokenizer(const TokenizerSpec& spec);

  std::int64_t size() const;
  const TokenizerSpec& spec() const;
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The text of ids; control tokens are left out. Throws InvalidArgument for ids out of range.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// The bytes one token stands for in running text ("\xC4\xA0the" of byte-level BPE is " the"; a
  /// byte token is its byte, perhaps a part of a character).
  std::string_view bytes(std::int32_t id) const;

  bool is_control(std::int32_t id) const;
  bool ends_answer(std::int32_t id) const;  ///< eos and end_of_turn

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace polyhead::inline v0::models
