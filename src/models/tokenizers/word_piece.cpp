// BERT's tokenizer: text is cleaned, brought to lower case without accents, cut at white space,
// punctuation and Chinese characters; a word is then covered by the longest pieces from its left,
// or is unknown as a whole. Source: Devlin et al. 2019 and its tokenization.py.
#include <algorithm>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/unicode.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;

constexpr std::size_t kMaxWord = 100;  // characters; a longer word is unknown (BERT's own limit)
constexpr std::string_view kInside = "##";

/// The ranges of Hugging Face's tokenizers: extension E begins at U+2B920 there, 256 characters
/// late.
bool is_chinese(std::int32_t code) {
  return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
         (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
         (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
         (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
}

/// Punctuation, and the symbols of ASCII, each a word of its own.
bool stands_alone(std::int32_t code) {
  const bool ascii = (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
                     (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  return ascii || is_punctuation(code);
}

/// White space becomes a space; what is not UTF-8, U+FFFD, control and format characters go.
std::vector<std::int32_t> clean(std::string_view text) {
  std::vector<std::int32_t> codes;
  codes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    at += c.length;
    const bool white = c.code == '\t' || c.code == '\n' || c.code == '\r';
    if (!white && (c.code <= 0 || c.code == 0xfffd || is_control(c.code))) continue;
    if (white || is_space(c.code)) {
      codes.push_back(' ');
    } else if (is_chinese(c.code)) {
      codes.insert(codes.end(), {' ', c.code, ' '});
    } else {
      codes.push_back(c.code);
    }
  }
  return codes;
}

class WordPiece : public Algorithm {
 public:
  WordPiece(const TokenizerSpec& spec, const PieceTable& pieces) : spec_(spec), pieces_(pieces) {
    if (spec.unknown < 0)
      throw FileError(spec.source, "tokenizer: WordPiece needs an unknown token");
    for (const std::string& piece : spec.pieces) longest_ = std::max(longest_, piece.size());
  }

  std::string normalise(std::string_view text) const override {
    std::string normal;
    normal.reserve(text.size());
    for (const std::int32_t code : normal_codes(text)) append_utf8(normal, code);
    return normal;
  }

  void encode(std::string_view text, bool /*first*/,
              std::vector<std::int32_t>& ids) const override {
    std::vector<std::int32_t> word;
    for (std::size_t at = 0; at < text.size();) {
      const auto [code, length] = first_character(text.substr(at));
      at += length;
      const bool alone = stands_alone(code);
      if (alone || is_space(code)) {
        encode_word(word, ids);
        word.clear();
        if (alone) encode_word({code}, ids);
      } else {
        word.push_back(code);
      }
    }
    encode_word(word, ids);
  }

  /// A piece that begins a word has a space before it; sentence marks are glued to their words.
  std::string bytes_of(const std::string& piece) const override {
    if (piece.compare(0, kInside.size(), kInside) == 0) return piece.substr(kInside.size());
    const bool glued = piece == "." || piece == "?" || piece == "!" || piece == ",";
    return glued ? piece : " " + piece;
  }

 private:
  std::vector<std::int32_t> normal_codes(std::string_view text) const {
    std::vector<std::int32_t> codes = clean(text);
    if (spec_.strip_accents) {
      codes = decompose(codes);
      codes.erase(std::remove_if(codes.begin(), codes.end(), is_nonspacing_mark), codes.end());
    }
    if (!spec_.lowercase) return codes;
    std::vector<std::int32_t> lower;
    lower.reserve(codes.size());
    for (const std::int32_t code : codes) append_lower(lower, code);
    return lower;
  }

  void encode_word(const std::vector<std::int32_t>& word, std::vector<std::int32_t>& ids) const {
    if (word.empty()) return;
    const std::size_t before = ids.size();
    if (word.size() > kMaxWord || !cover(word, ids)) {
      ids.resize(before);
      ids.push_back(spec_.unknown);
    }
  }

  bool cover(const std::vector<std::int32_t>& word, std::vector<std::int32_t>& ids) const {
    std::string rest;
    for (std::size_t begin = 0; begin < word.size();) {
      rest = begin > 0 ? kInside : "";
      std::size_t end = begin;
      while (end < word.size() && (end == begin || rest.size() < longest_))
        append_utf8(rest, word[end++]);
      while (pieces_.find(rest) < 0) {
        if (--end == begin) return false;
        std::string last;
        append_utf8(last, word[end]);
        rest.resize(rest.size() - last.size());
      }
      ids.push_back(pieces_.find(rest));
      begin = end;
    }
    return true;
  }

  const TokenizerSpec& spec_;
  const PieceTable& pieces_;
  std::size_t longest_ = 0;  ///< bytes of the longest piece
};

}  // namespace

std::unique_ptr<Algorithm> make_word_piece(const TokenizerSpec& spec, const PieceTable& pieces) {
  return std::make_unique<WordPiece>(spec, pieces);
}

}  // namespace polyhead::inline v0::models
