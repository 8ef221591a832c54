// Any bytes as a tokenizer and a text: up to the first NUL a tokenizer.json where they begin with
// {, else pieces, kinds, scores and merges made of them; the rest is the text. A FileError, or ids
// that are in range, the same when asked again, and that give the text back where the vocabulary
// spells every byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat.hpp"
#include "models/formats/file_error.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "models/tokenizers/unicode.hpp"
#include "tests/fuzz/bytes.hpp"

namespace {

namespace models = polyhead::models;
using models::TokenizerKind;
using models::TokenizerSpec;
using models::TokenKind;
using polyhead::fuzz::Bytes;

void expect(bool holds) {
  if (!holds) std::abort();
}

/// GPT-2's spelling of one byte.
std::string spelled(int wanted) {
  int next = 0x100;
  for (int byte = 0;; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const int code = prints ? byte : next++;
    if (byte != wanted) continue;
    std::string text;
    models::append_utf8(text, code);
    return text;
  }
}

void add_bytes(TokenizerSpec& spec) {
  constexpr const char* kHex = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    if (spec.kind == TokenizerKind::sentence_piece) {
      spec.pieces.push_back({'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'});
      spec.kinds.push_back(TokenKind::byte);
    } else {
      spec.pieces.push_back(spelled(byte));
      spec.kinds.push_back(TokenKind::normal);
    }
  }
}

/// Merges of pieces that are there already, so that some of them work.
void add_merges(TokenizerSpec& spec, Bytes& bytes) {
  for (unsigned left = bytes.next() % 32; left > 0; --left) {
    const std::string a = spec.pieces[(bytes.next() * 256 + bytes.next()) % spec.pieces.size()];
    const std::string b = spec.pieces[bytes.next() % spec.pieces.size()];
    if (bytes.next() % 16 != 0 && a.size() + b.size() < 5000) {  // beyond that it is refused
      spec.pieces.push_back(a + b);
      spec.kinds.push_back(TokenKind::normal);
    }
    spec.merges.push_back(a + " " + b);
  }
}

TokenizerSpec made_of(Bytes bytes) {
  TokenizerSpec spec;
  spec.source = "fuzz";
  const unsigned choice = bytes.next();
  spec.kind = static_cast<TokenizerKind>(choice % 3);
  constexpr const char* kSplits[] = {"gpt2", "smollm", "llama-bpe", "qwen2"};
  spec.split = kSplits[choice / 4 % 4];
  if (choice & 16) add_bytes(spec);
  spec.space_prefix = static_cast<models::SpacePrefix>(bytes.next() % 3);
  spec.compose = choice & 32;
  spec.whole_words = choice & 64;
  spec.lowercase = spec.strip_accents = choice & 128;
  for (unsigned left = bytes.next() % 64; left > 0; --left) {
    spec.pieces.push_back(bytes.take(bytes.next() % 8));
    spec.kinds.push_back(static_cast<TokenKind>(bytes.next() % 6));
  }
  if (spec.pieces.empty()) return spec;
  if (spec.kind == TokenizerKind::byte_bpe || bytes.next() % 2 == 0) {
    add_merges(spec, bytes);
  } else {
    for (std::size_t i = 0; i < spec.pieces.size(); ++i)
      spec.scores.push_back(-static_cast<float>(bytes.next()));
  }
  spec.unknown = static_cast<std::int32_t>(bytes.next()) - 1;
  spec.unknowns = static_cast<models::Unknowns>(bytes.next() % 3);
  for (std::size_t i = 0; i < spec.pieces.size(); ++i)
    spec.normalised.push_back(bytes.next() % 4 == 1);
  return spec;
}

/// Whether every byte has a token, none of which is left out in decoding.
bool gives_back(const models::Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  const bool named_bytes =  // "<0x41>" as a whole is the byte
      spec.kind == TokenizerKind::sentence_piece && spec.whole_words;
  if (spec.kind == TokenizerKind::word_piece || spec.compose || named_bytes ||
      spec.space_prefix != models::SpacePrefix::none)
    return false;
  for (const TokenKind kind : spec.kinds) {
    if (kind == TokenKind::control || kind == TokenKind::unknown) return false;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    if (tokenizer.decode(tokenizer.encode(one, {false, false})) != one) return false;
  }
  return true;
}

void use(const models::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse : {false, true}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, {parse, parse});
    for (const std::int32_t id : ids) expect(id >= 0 && id < tokenizer.size());
    expect(ids == tokenizer.encode(text, {parse, parse}));
    const std::string decoded = tokenizer.decode(ids);
    const bool marked = text.find("\xe2\x96\x81") != std::string_view::npos;  // a space as well
    if (!parse && !marked && gives_back(tokenizer)) expect(decoded == text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view first = input.substr(0, input.find('\0'));
  const std::string_view text = input.substr(std::min(first.size() + 1, input.size()));
  try {
    models::recognise_chat(input);
    const bool json = first.starts_with('{');
    use(models::Tokenizer(json ? models::tokenizer_from_json("fuzz", first)
                               : made_of(Bytes(input))),
        json ? text : input);
  } catch (const polyhead::formats::FileError&) {
  }
  return 0;
}
