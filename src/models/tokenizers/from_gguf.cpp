// A tokenizer as GGUF metadata describes it. Source: ggml's gguf.md, and the conversion scripts
// that write these keys.
#include <algorithm>
#include <array>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/end_of_turn.hpp"
#include "models/tokenizers/read_tokenizer.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using formats::Gguf;

constexpr std::string_view kWordBegins = "\xe2\x96\x81";  // U+2581

[[noreturn]] void refuse(const Gguf& file, const std::string& what) {
  throw FileError(file.path(), "tokenizer: " + what);
}

/// The names in use for the splits known here (tokenizer.ggml.pre).
std::string split_of(const Gguf& file) {
  using Name = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Name, 9> kSplits{{{"gpt-2", "gpt2"},
                                         {"gpt2", "gpt2"},
                                         {"smollm", "smollm"},
                                         {"starcoder", "smollm"},
                                         {"llama-bpe", "llama-bpe"},
                                         {"llama3", "llama-bpe"},
                                         {"llama-v3", "llama-bpe"},
                                         {"qwen2", "qwen2"},
                                         {"deepseek-r1-qwen", "qwen2"}}};
  const auto named = file.text("tokenizer.ggml.pre");
  if (!named) {  // files from before the key came up
    if (file.text("general.architecture") == "gpt2") return "gpt2";
    refuse(file, "tokenizer.ggml.pre is missing, so the split is not known");
  }
  for (const auto& [name, split] : kSplits) {
    if (name == *named) return std::string(split);
  }
  refuse(file, "tokenizer.ggml.pre is " + formats::quote(*named) +
                   " (expected gpt-2, smollm, starcoder, llama-bpe or qwen2)");
}

std::int32_t id_at(const Gguf& file, const TokenizerSpec& spec, const char* key) {
  const auto id = file.integer(std::string("tokenizer.ggml.") + key);
  if (!id) return -1;
  if (*id < -1 || *id >= static_cast<std::int64_t>(spec.pieces.size())) {
    refuse(file, "tokenizer.ggml." + std::string(key) + " is " + std::to_string(*id) + " of " +
                     std::to_string(spec.pieces.size()) + " tokens");
  }
  return static_cast<std::int32_t>(*id);
}

std::vector<std::string> strings_at(const Gguf& file, const char* key) {
  const auto texts = file.texts(key);
  if (!texts) return {};
  return {texts->begin(), texts->end()};
}

std::vector<TokenKind> kinds_of(const Gguf& file) {
  // 0 undefined, 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  constexpr std::array<TokenKind, 7> kKinds{
      TokenKind::normal,       TokenKind::normal, TokenKind::unknown, TokenKind::control,
      TokenKind::user_defined, TokenKind::unused, TokenKind::byte};
  std::vector<TokenKind> kinds;
  const auto types = file.integers("tokenizer.ggml.token_type");
  if (!types) return kinds;
  kinds.reserve(types->size());
  for (const std::int64_t type : *types) {
    if (type < 0 || type >= static_cast<std::int64_t>(kKinds.size()))
      refuse(file,
             "tokenizer.ggml.token_type holds " + std::to_string(type) + " (expected 0 to 6)");
    kinds.push_back(kKinds[static_cast<std::size_t>(type)]);
  }
  return kinds;
}

/// GGUF marks the pieces that begin a word by U+2581 and leaves the "##" of the others out.
void spell_as_word_piece(TokenizerSpec& spec) {
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    std::string& piece = spec.pieces[i];
    const TokenKind kind = kind_of(spec, static_cast<std::int32_t>(i));
    if (kind == TokenKind::control || kind == TokenKind::unknown) continue;
    if (piece.compare(0, kWordBegins.size(), kWordBegins) == 0) {
      piece.erase(0, kWordBegins.size());
    } else if (piece.empty() || piece.front() != '[' || piece.back() != ']') {
      piece.insert(0, "##");
    }
  }
}

void fill_byte_bpe(const Gguf& file, TokenizerSpec& spec) {
  spec.kind = TokenizerKind::byte_bpe;
  spec.split = split_of(file);
  spec.merges = strings_at(file, "tokenizer.ggml.merges");
  spec.compose = spec.split == "qwen2";
  spec.whole_words = spec.split == "llama-bpe";
  spec.unknowns = Unknowns::dropped;
  spec.add_bos = file.boolean("tokenizer.ggml.add_bos_token")
                     .value_or(spec.split == "llama-bpe" && spec.bos >= 0);
  spec.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
}

void fill_sentence_piece(const Gguf& file, TokenizerSpec& spec) {
  spec.kind = TokenizerKind::sentence_piece;
  auto scores = file.reals("tokenizer.ggml.scores");
  if (!scores) refuse(file, "tokenizer.ggml.scores is missing");
  spec.scores = std::move(*scores);
  if (file.boolean("tokenizer.ggml.add_space_prefix").value_or(true))
    spec.space_prefix = SpacePrefix::every;
  spec.add_bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(spec.bos >= 0);
  spec.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
}

void fill_word_piece(const Gguf& file, TokenizerSpec& spec) {
  spec.kind = TokenizerKind::word_piece;
  spell_as_word_piece(spec);
  // Files from before the key came up do not say whether a model tells upper case from lower: a
  // vocabulary that has no upper case does not.
  const bool no_capitals =
      std::none_of(spec.pieces.begin(), spec.pieces.end(), [](const std::string& piece) {
        return piece.size() == 1 && piece[0] >= 'A' && piece[0] <= 'Z';
      });
  spec.lowercase = file.boolean("tokenizer.ggml.normalizer.lowercase").value_or(no_capitals);
  spec.strip_accents =
      file.boolean("tokenizer.ggml.normalizer.strip_accents").value_or(spec.lowercase);
  spec.first = id_at(file, spec, "cls_token_id");
  if (spec.first < 0) spec.first = spec.bos;
  spec.separator = id_at(file, spec, "seperator_token_id");  // spelled so in the format
  if (spec.separator < 0) spec.separator = spec.eos;
  spec.add_bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(spec.first >= 0);
  spec.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(spec.separator >= 0);
}

}  // namespace

TokenizerSpec tokenizer_from_gguf(const Gguf& file) {
  TokenizerSpec spec;
  spec.source = file.path();
  spec.pieces = strings_at(file, "tokenizer.ggml.tokens");
  if (spec.pieces.empty()) refuse(file, "tokenizer.ggml.tokens is missing or empty");
  spec.kinds = kinds_of(file);
  if (!spec.kinds.empty() && spec.kinds.size() != spec.pieces.size())
    refuse(file, std::to_string(spec.kinds.size()) + " token types for " +
                     std::to_string(spec.pieces.size()) + " tokens");
  spec.bos = id_at(file, spec, "bos_token_id");
  spec.eos = id_at(file, spec, "eos_token_id");
  spec.unknown = id_at(file, spec, "unknown_token_id");
  spec.pad = id_at(file, spec, "padding_token_id");
  const std::string_view model = file.text("tokenizer.ggml.model").value_or("");
  if (model == "gpt2") {
    fill_byte_bpe(file, spec);
  } else if (model == "llama") {
    fill_sentence_piece(file, spec);
  } else if (model == "bert") {
    fill_word_piece(file, spec);
  } else {
    refuse(file,
           "tokenizer.ggml.model is " + formats::quote(model) + " (expected gpt2, llama or bert)");
  }
  spec.chat_bos = spec.add_bos;  // as llama.cpp's chats do
  add_end(spec, id_at(file, spec, "eot_token_id"));
  add_known_ends(spec);
  spec.chat_template = file.text("tokenizer.chat_template").value_or("");
  return spec;
}

}  // namespace polyhead::inline v0::models
