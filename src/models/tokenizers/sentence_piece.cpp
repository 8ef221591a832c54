// BPE as SentencePiece has it (Llama 1 and 2, Mistral, Gemma): spaces are spelled U+2581, the text
// starts as its characters, and the pair whose joining scores highest merges first. What is no
// piece in the end is spelled by byte pieces. Source: Kudo and Richardson 2018, section 3.1; its
// bpe_model.cc.
#include <algorithm>
#include <array>
#include <cmath>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/merging.hpp"
#include "models/tokenizers/unicode.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, lower one eighth block

std::string escape_spaces(std::string_view text, bool prefix) {
  std::string escaped(prefix ? kSpace : "");
  for (const char c : text) {
    if (c == ' ') {
      escaped += kSpace;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

class SentencePiece : public Algorithm {
 public:
  SentencePiece(const TokenizerSpec& spec, const PieceTable& pieces)
      : spec_(spec), pieces_(pieces), merges_(resolve_merges(spec, pieces)) {
    check_scores();
    id_of_byte_.fill(-1);
    for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const int byte = byte_of_piece(spec.pieces[i]);
      if (kind_of(spec, id) == TokenKind::byte) {
        if (byte < 0) {
          throw FileError(spec.source, "tokenizer: the byte piece " + std::to_string(i) + " is " +
                                           formats::quote(spec.pieces[i]) + " (expected <0xNN>)");
        }
        id_of_byte_[static_cast<std::size_t>(byte)] = id;
      } else if (joins(id)) {
        longest_ = std::max(longest_, spec.pieces[i].size());
      }
    }
  }

  std::string normalise(std::string_view text) const override {
    if (spec_.metaspace) return std::string(text);
    return escape_spaces(text, spec_.space_prefix == SpacePrefix::every);
  }

  void encode(std::string_view text, bool first, std::vector<std::int32_t>& ids) const override {
    if (text.empty()) return;
    const bool begun = text.front() == ' ' || text.substr(0, kSpace.size()) == kSpace;
    const std::string escaped =
        escape_spaces(text, spec_.space_prefix == SpacePrefix::first && first && !begun);
    if (const std::int32_t whole = whole_run(escaped); whole >= 0) {
      ids.push_back(whole);
      return;
    }
    Merging merging;
    if (spec_.scores.empty()) {
      merge_by_rules(escaped, merging);
    } else {
      merge_by_scores(escaped, merging);
    }
    bool unknown = false;
    for (std::int32_t i = merging.symbols.empty() ? -1 : 0; i >= 0;
         i = merging.symbols[static_cast<std::size_t>(i)].next) {
      const bool spelled = emit(escaped, merging.symbols[static_cast<std::size_t>(i)], ids);
      if (const std::int32_t id = unknown_token(spec_, unknown); !spelled && id >= 0)
        ids.push_back(id);
      unknown = !spelled;
    }
  }

  std::string bytes_of(const std::string& piece) const override {
    std::string bytes;
    for (std::size_t at = 0; at < piece.size();) {
      if (piece.compare(at, kSpace.size(), kSpace) == 0) {
        bytes += ' ';
        at += kSpace.size();
      } else {
        bytes += piece[at++];
      }
    }
    return bytes;
  }

 private:
  void check_scores() const {
    if (!spec_.scores.empty() && spec_.scores.size() != spec_.pieces.size()) {
      throw FileError(spec_.source, "tokenizer: " + std::to_string(spec_.scores.size()) +
                                        " scores for " + std::to_string(spec_.pieces.size()) +
                                        " pieces");
    }
    for (std::size_t i = 0; i < spec_.scores.size(); ++i) {
      if (!std::isfinite(spec_.scores[i])) {
        throw FileError(spec_.source,
                        "tokenizer: the score of piece " + std::to_string(i) + " is not a number");
      }
    }
  }

  /// Whether a piece comes about by merging: "<s>" in a text is its letters.
  bool joins(std::int32_t id) const {
    const TokenKind kind = kind_of(spec_, id);
    return kind == TokenKind::normal || kind == TokenKind::user_defined;
  }

  /// The piece that a run is as a whole, where the file wants that, or -1. A byte's name is one
  /// too.
  std::int32_t whole_run(std::string_view text) const {
    const std::int32_t id = spec_.whole_words ? pieces_.find(text) : -1;
    return id >= 0 && (joins(id) || kind_of(spec_, id) == TokenKind::byte) ? id : -1;
  }

  std::int32_t find(std::string_view text) const {
    if (text.size() > longest_) return -1;
    const std::int32_t id = pieces_.find(text);
    return id >= 0 && joins(id) ? id : -1;
  }

  /// What is dropped is not there to merging: the characters beside it are neighbours.
  void add_characters(std::string_view text, Merging& merging) const {
    const bool dropping = spec_.unknowns == Unknowns::dropped;
    for (std::size_t at = 0; at < text.size();) {
      const std::uint32_t length = first_character(text.substr(at)).length;
      const std::string_view character = text.substr(at, length);
      const std::int32_t id = find(character);
      if (id >= 0 || !dropping || has_bytes(character))
        merging.add(static_cast<std::uint32_t>(at), length, id);
      at += length;
    }
  }

  void merge_by_scores(std::string_view text, Merging& merging) const {
    add_characters(text, merging);
    merging.run([&](const Symbol& left, const Symbol& right) -> std::optional<Joined> {
      if (left.begin + left.size != right.begin) return std::nullopt;  // something was dropped
      const std::int32_t id = find(text.substr(left.begin, left.size + right.size));
      if (id < 0) return std::nullopt;
      return Joined{-static_cast<double>(spec_.scores[static_cast<std::size_t>(id)]), id};
    });
  }

  void merge_by_rules(std::string_view text, Merging& merging) const {
    add_characters(text, merging);
    merging.run([&](const Symbol& left, const Symbol& right) -> std::optional<Joined> {
      if (left.id < 0 || right.id < 0) return std::nullopt;
      const MergeRule* rule = merges_.find(left.id, right.id);
      if (rule == nullptr) return std::nullopt;
      return Joined{static_cast<double>(rule->rank), rule->joined};
    });
  }

  bool has_bytes(std::string_view text) const {
    return std::all_of(text.begin(), text.end(),
                       [&](char c) { return id_of_byte_[static_cast<unsigned char>(c)] >= 0; });
  }

  /// Appends the symbol's piece, or those of its bytes; false where it has neither.
  bool emit(std::string_view text, const Symbol& symbol, std::vector<std::int32_t>& ids) const {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
      return true;
    }
    const std::string_view unmatched = text.substr(symbol.begin, symbol.size);
    if (!has_bytes(unmatched)) return false;
    for (const char c : unmatched) ids.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
    return true;
  }

  const TokenizerSpec& spec_;
  const PieceTable& pieces_;
  MergeTable merges_;
  std::array<std::int32_t, 256> id_of_byte_{};
  std::size_t longest_ = 0;  ///< bytes of the longest piece that may come about
};

}  // namespace

std::unique_ptr<Algorithm> make_sentence_piece(const TokenizerSpec& spec,
                                               const PieceTable& pieces) {
  return std::make_unique<SentencePiece>(spec, pieces);
}

}  // namespace polyhead::inline v0::models
