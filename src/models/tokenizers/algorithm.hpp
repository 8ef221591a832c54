// What the three ways to cut text into pieces have in common; one file each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/spec.hpp"
#include "models/tokenizers/tables.hpp"

namespace polyhead::inline v0::models {

/// Normalises runs of text and cuts what holds no special token. Immutable.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  /// What becomes of a run of text before `normalised` tokens are looked for in it.
  virtual std::string normalise(std::string_view text) const = 0;

  /// Appends the ids of `text`, which is normalised. `first`: it begins the whole text.
  virtual void encode(std::string_view text, bool first, std::vector<std::int32_t>& ids) const = 0;

  /// What a normal piece stands for in running text.
  virtual std::string bytes_of(const std::string& piece) const = 0;
};

/// `spec` and `pieces` outlive what is made of them; ids in the spec have been checked. Throw
/// FileError where the specification contradicts itself.
std::unique_ptr<Algorithm> make_byte_bpe(const TokenizerSpec& spec, const PieceTable& pieces);
std::unique_ptr<Algorithm> make_sentence_piece(const TokenizerSpec& spec, const PieceTable& pieces);
std::unique_ptr<Algorithm> make_word_piece(const TokenizerSpec& spec, const PieceTable& pieces);

/// The spec's merges by their pieces' ids; the rank is the place in the list.
MergeTable resolve_merges(const TokenizerSpec& spec, const PieceTable& pieces);

/// The token for a byte or character without a piece, or -1. `again`: so was the one before.
std::int32_t unknown_token(const TokenizerSpec& spec, bool again);

/// The spelling of a byte as a piece of byte-level BPE.
std::string spelled_byte(int byte);

/// The piece of a byte in SentencePiece: "<0x0A>".
std::string byte_piece(int byte);

/// The byte that a piece such as "<0x0A>" stands for, or -1.
int byte_of_piece(std::string_view piece);

TokenKind kind_of(const TokenizerSpec& spec, std::int32_t id);

}  // namespace polyhead::inline v0::models
