// Byte-level BPE (GPT-2 and after): text is cut into words, a word into bytes, and neighbours merge
// in the order of a list. Source: Sennrich et al. 2016, section 3.2; Radford et al. 2019, section
// 2.2.
#include <array>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/merging.hpp"
#include "models/tokenizers/split.hpp"
#include "models/tokenizers/unicode.hpp"

namespace polyhead::inline v0::models {
namespace {

/// GPT-2's spelling of bytes by printable characters: those of Latin-1 that print stand for
/// themselves, the others for U+0100 and on, in order.
struct ByteAlphabet {
  std::array<std::int32_t, 256> code_of{};
  std::array<int, 512> byte_of{};

  ByteAlphabet() {
    byte_of.fill(-1);
    std::int32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const std::int32_t code = prints ? byte : next++;
      code_of[static_cast<std::size_t>(byte)] = code;
      byte_of[static_cast<std::size_t>(code)] = byte;
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet table;
  return table;
}

std::string spell(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, alphabet().code_of[static_cast<unsigned char>(c)]);
  return text;
}

class ByteBpe : public Algorithm {
 public:
  ByteBpe(const TokenizerSpec& spec, const PieceTable& pieces)
      : spec_(spec), pieces_(pieces), merges_(resolve_merges(spec, pieces)) {
    const std::optional<Split> split = split_named(spec.split);
    if (!split) {
      throw formats::FileError(spec.source, "tokenizer: the split " + formats::quote(spec.split) +
                                                " is not known (expected gpt2, smollm, llama-bpe "
                                                "or qwen2)");
    }
    split_ = *split;
    for (int byte = 0; byte < 256; ++byte) {
      id_of_byte_[static_cast<std::size_t>(byte)] = pieces.find(spelled_byte(byte));
    }
  }

  std::string normalise(std::string_view text) const override {
    return spec_.compose ? compose(text) : std::string(text);
  }

  void encode(std::string_view text, bool /*first*/,
              std::vector<std::int32_t>& ids) const override {
    Merging merging;
    for (const std::string_view word : split_words(split_, text)) encode_word(word, merging, ids);
  }

  std::string bytes_of(const std::string& piece) const override {
    std::string bytes;
    for (std::size_t at = 0; at < piece.size();) {
      const Character c = first_character(std::string_view(piece).substr(at));
      const int byte =
          c.code >= 0 && c.code < 512 ? alphabet().byte_of[static_cast<std::size_t>(c.code)] : -1;
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {  // no spelling of bytes: as it stands
        bytes.append(piece, at, c.length);
      }
      at += c.length;
    }
    return bytes;
  }

 private:
  void encode_word(std::string_view word, Merging& merging, std::vector<std::int32_t>& ids) const {
    if (spec_.whole_words) {
      const std::int32_t whole = pieces_.find(spell(word));
      if (whole >= 0 && kind_of(spec_, whole) == TokenKind::normal) {
        ids.push_back(whole);
        return;
      }
    }
    merging.clear();
    bool unknown = false;
    for (const char c : word) {
      const std::int32_t known = id_of_byte_[static_cast<unsigned char>(c)];
      const std::int32_t id = known >= 0 ? known : unknown_token(spec_, unknown);
      if (id >= 0) merging.add(0, 1, id);
      unknown = known < 0;
    }
    merging.run([&](const Symbol& left, const Symbol& right) -> std::optional<Joined> {
      const MergeRule* rule = merges_.find(left.id, right.id);
      if (rule == nullptr) return std::nullopt;
      return Joined{static_cast<double>(rule->rank), rule->joined};
    });
    for (std::int32_t i = merging.symbols.empty() ? -1 : 0; i >= 0;
         i = merging.symbols[static_cast<std::size_t>(i)].next)
      ids.push_back(merging.symbols[static_cast<std::size_t>(i)].id);
  }

  const TokenizerSpec& spec_;
  const PieceTable& pieces_;
  MergeTable merges_;
  Split split_ = Split::gpt2;
  std::array<std::int32_t, 256> id_of_byte_{};
};

}  // namespace

std::string spelled_byte(int byte) {
  const char c = static_cast<char>(byte);
  return spell({&c, 1});
}

std::unique_ptr<Algorithm> make_byte_bpe(const TokenizerSpec& spec, const PieceTable& pieces) {
  return std::make_unique<ByteBpe>(spec, pieces);
}

}  // namespace polyhead::inline v0::models
