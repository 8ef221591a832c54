// A tokenizer as the files of a Hugging Face folder describe it.
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/formats/lines.hpp"
#include "models/formats/mapped_file.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/end_of_turn.hpp"
#include "models/tokenizers/known_forms.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/vocabulary.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using formats::member;
using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // Gemma's tokenizer.json has 33 MB
constexpr int kMaxDepth = 64;

json read_json(const std::string& path) { return formats::read_json(path, kMaxBytes, kMaxDepth); }

[[noreturn]] void refuse(const TokenizerSpec& spec, const std::string& what) {
  throw FileError(spec.source, "tokenizer: " + what);
}

std::string whole_text(const std::string& path) {
  const formats::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

/// A token's spelling: "x" or {"content": "x"}.
std::string token_text(const json& token) {
  const json text = token.is_object() ? member(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : "";
}

void name_special(TokenizerSpec& spec, const json& config) {
  const std::array<std::pair<const char*, std::int32_t*>, 6> names{{{"bos_token", &spec.bos},
                                                                    {"eos_token", &spec.eos},
                                                                    {"unk_token", &spec.unknown},
                                                                    {"sep_token", &spec.separator},
                                                                    {"pad_token", &spec.pad},
                                                                    {"cls_token", &spec.first}}};
  for (const auto& [name, id] : names) {
    const std::string text = token_text(member(config, name));
    if (*id < 0 && !text.empty()) *id = find_piece(spec, text);
  }
}

/// eos_token_id of a generation_config.json or config.json: a number or a list.
void add_ends(TokenizerSpec& spec, const json& config) {
  json ids = member(config, "eos_token_id");
  if (!ids.is_array()) ids = json::array({ids});
  for (const json& id : ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= spec.pieces.size()) continue;
    if (spec.eos < 0) spec.eos = id.get<std::int32_t>();
    add_end(spec, id.get<std::int32_t>());
  }
}

/// "chat_template" is a text, or a list of named ones of which "default" counts.
std::string chat_template_of(const json& config) {
  const json given = member(config, "chat_template");
  if (given.is_string()) return given.get<std::string>();
  for (const json& named : given.is_array() ? given : json::array()) {
    const json text = member(named, "template");
    if (member(named, "name") == "default" && text.is_string()) return text.get<std::string>();
  }
  return "";
}

void read_merges(TokenizerSpec& spec, const json& merges) {
  if (!merges.is_array()) refuse(spec, "the merges are not a list");
  spec.merges.reserve(merges.size());
  for (const json& merge : merges) {
    const bool pair =
        merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!pair && !merge.is_string()) refuse(spec, "a merge is neither a text nor a pair of texts");
    spec.merges.push_back(pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>()
                               : merge.get<std::string>());
  }
}

void expect_absent(const TokenizerSpec& spec, const json& model, const char* name) {
  const json value = member(model, name);
  const bool nothing = value.is_null() || value == false || value == 0.0 ||
                       (value.is_string() && value.get_ref<const std::string&>().empty());
  if (!nothing)
    refuse(spec, "model." + std::string(name) + " is " + formats::quote(value.dump()) +
                     ", which is not supported");
}

/// Which bytes have pieces: the first that has none (256: they all have), and how many have.
struct BytePieces {
  int missing = 256, found = 0;
};

BytePieces byte_pieces(const json& vocabulary, std::string (*spelling)(int)) {
  BytePieces pieces;
  for (int byte = 255; byte >= 0; --byte) {
    if (vocabulary.contains(spelling(byte))) {
      ++pieces.found;
    } else {
      pieces.missing = byte;
    }
  }
  return pieces;
}

/// Whether SentencePiece's bytes all have pieces. With some of them, Hugging Face's tokenizers puts
/// an unknown token behind the bytes that follow it.
bool read_byte_fallback(TokenizerSpec& spec, const json& model, const json& vocabulary) {
  if (member(model, "byte_fallback") != true) return false;
  const BytePieces bytes = byte_pieces(vocabulary, byte_piece);
  if (bytes.found > 0 && bytes.found < 256) {
    refuse(spec, "model.byte_fallback is true, but there is no piece " +
                     formats::quote(byte_piece(bytes.missing)) +
                     " (expected all of them, or none)");
  }
  for (std::size_t i = 0; bytes.found > 0 && i < spec.pieces.size(); ++i) {
    if (byte_of_piece(spec.pieces[i]) >= 0) spec.kinds[i] = TokenKind::byte;
  }
  return bytes.found > 0;
}

/// What comes of bytes and characters without a piece. `none`: there are none.
void read_unknowns(TokenizerSpec& spec, const json& model, const json& vocabulary, bool none) {
  const std::string unknown = token_text(member(model, "unk_token"));
  spec.unknowns = member(model, "fuse_unk") == true ? Unknowns::fused : Unknowns::each;
  if (none || unknown.empty()) {
    spec.unknowns = Unknowns::dropped;
  } else if (!vocabulary.contains(unknown)) {
    refuse(spec, "model.unk_token is " + formats::quote(unknown) + " (expected a piece)");
  }
}

void read_bpe(TokenizerSpec& spec, const json& file, const json& model, const json& vocabulary) {
  recognise_bpe(spec, member(file, "normalizer"), member(file, "pre_tokenizer"));
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    expect_absent(spec, model, name);
  read_merges(spec, member(model, "merges"));
  spec.whole_words = member(model, "ignore_merges") == true;
  if (spec.kind == TokenizerKind::sentence_piece) {
    read_unknowns(spec, model, vocabulary, read_byte_fallback(spec, model, vocabulary));
    return;
  }
  if (member(model, "byte_fallback") == true)
    refuse(spec, "model.byte_fallback does not go with a byte-level pre_tokenizer");
  read_unknowns(spec, model, vocabulary, byte_pieces(vocabulary, spelled_byte).found == 256);
}

void read_word_piece(TokenizerSpec& spec, const json& file, const json& model) {
  recognise_word_piece(spec, member(file, "normalizer"), member(file, "pre_tokenizer"));
  if (member(model, "continuing_subword_prefix") != "##" ||
      member(model, "max_input_chars_per_word") != 100)
    refuse(spec, "WordPiece with another prefix than ## or another longest word than 100");
}

void read_tokenizer_json(TokenizerSpec& spec, const json& file) {
  const json model = member(file, "model"), vocabulary = member(model, "vocab");
  const json added = member(file, "added_tokens");
  const json type = member(model, "type");
  const bool words = type == "WordPiece";
  const bool merged = type == "BPE" || (type.is_null() && model.contains("merges"));
  if (!words && !merged) {
    const std::string found = type.is_string() ? type.get<std::string>() : type.dump();
    refuse(spec, "model.type is " + formats::quote(found) + " (expected BPE or WordPiece)");
  }
  fill_pieces(spec, vocabulary, added.is_array() ? added : json::array());
  if (words) {
    read_word_piece(spec, file, model);
  } else {
    read_bpe(spec, file, model, vocabulary);
  }
  const std::string unknown = token_text(member(model, "unk_token"));
  if (!unknown.empty()) spec.unknown = find_piece(spec, unknown);
  recognise_template(spec, member(file, "post_processor"));
}

/// What GPT2Tokenizer puts before a text; Qwen2Tokenizer puts nothing.
void read_what_is_added(TokenizerSpec& spec, const json& config, bool qwen) {
  for (const char* name : {"add_prefix_space", "add_bos_token", "add_eos_token"}) {
    const bool known = name == std::string_view("add_bos_token") && !qwen;
    if (!known && member(config, name) == true) {
      refuse(spec, std::string(name) +
                       " is true, which is not supported where there is no tokenizer.json");
    }
  }
  spec.add_bos = member(config, "add_bos_token") == true;
}

/// Qwen2's or gpt2's vocab.json and merges.txt.
void read_vocab_and_merges(TokenizerSpec& spec, const std::string& merges, const json& config) {
  const json added_by_id = member(config, "added_tokens_decoder");
  json added = json::array();
  for (const auto& [id, token] : added_by_id.items()) {
    json one = token;
    if (!one.is_object() || id.empty() || id.size() > 9 ||
        id.find_first_not_of("0123456789") != std::string::npos)
      refuse(spec, "added_tokens_decoder is not a table of ids and tokens");
    one["id"] = std::stoul(id);
    added.push_back(std::move(one));
  }
  fill_pieces(spec, read_json(spec.source), added);
  const json type = member(config, "tokenizer_class");
  const bool qwen = type == "Qwen2Tokenizer" || type == "Qwen2TokenizerFast";
  if (!qwen && !type.is_null() && type != "GPT2Tokenizer" && type != "GPT2TokenizerFast") {
    refuse(spec,
           "tokenizer_class is " + formats::quote(type.dump()) +
               " (expected GPT2Tokenizer or Qwen2Tokenizer where there is no tokenizer.json)");
  }
  spec.kind = TokenizerKind::byte_bpe;
  spec.split = qwen ? "qwen2" : "gpt2";
  spec.compose = qwen;
  spec.unknowns = Unknowns::dropped;
  spec.merges_source = merges;
  for (std::string& line : formats::lines_of(whole_text(merges))) {
    if (!line.empty() && line.compare(0, 8, "#version") != 0)
      spec.merges.push_back(std::move(line));
  }
  const std::int32_t end = find_piece(spec, "<|endoftext|>");
  if (end >= 0) spec.kinds[static_cast<std::size_t>(end)] = TokenKind::control;
  read_what_is_added(spec, config, qwen);
  name_special(spec, config);
  if (!qwen && spec.bos < 0) spec.bos = end;
  if (!qwen && spec.eos < 0) spec.eos = end;
}

/// The token that the configuration names `name`; where it names none, `usual` if that is a piece.
std::int32_t word_piece_token(TokenizerSpec& spec, const json& config, const char* name,
                              const char* usual) {
  const std::string named = token_text(member(config, name));
  const std::int32_t id = find_piece(spec, named.empty() ? usual : named);
  if (id < 0 && !named.empty())
    refuse(spec, std::string(name) + " is " + formats::quote(named) + " (expected a piece)");
  if (id >= 0) spec.kinds[static_cast<std::size_t>(id)] = TokenKind::control;
  return id;
}

void read_vocab_txt(TokenizerSpec& spec, const json& config) {
  spec.kind = TokenizerKind::word_piece;
  spec.pieces = formats::lines_of(whole_text(spec.source));
  spec.kinds.assign(spec.pieces.size(), TokenKind::normal);
  const json lower = member(config, "do_lower_case"), strip = member(config, "strip_accents");
  if (member(config, "tokenize_chinese_chars") == false)
    refuse(spec, "tokenize_chinese_chars is false, which is not supported");
  spec.lowercase = lower != false;
  spec.strip_accents = strip.is_boolean() ? strip.get<bool>() : spec.lowercase;
  spec.unknown = word_piece_token(spec, config, "unk_token", "[UNK]");
  spec.first = word_piece_token(spec, config, "cls_token", "[CLS]");
  spec.separator = word_piece_token(spec, config, "sep_token", "[SEP]");
  spec.pad = word_piece_token(spec, config, "pad_token", "[PAD]");
  word_piece_token(spec, config, "mask_token", "[MASK]");
  spec.add_bos = spec.first >= 0;
  spec.add_eos = spec.separator >= 0;
}

/// Fills a spec; what the JSON library says of a form that was not looked for names the file.
template <class Fill>
TokenizerSpec filled(const std::string& path, const Fill& fill) {
  TokenizerSpec spec;
  spec.source = path;
  try {
    fill(spec);
  } catch (const json::exception& error) {
    refuse(spec, std::string("not the expected JSON: ") + error.what());
  }
  return spec;
}

void fill_from_folder(TokenizerSpec& spec, const std::string& folder) {
  const std::filesystem::path path(folder);
  const auto file = [&](const char* name) { return (path / name).string(); };
  const auto there = [&](const char* name) {
    return std::filesystem::is_regular_file(path / name);
  };
  const auto json_or_null = [&](const char* name) {
    return there(name) ? read_json(file(name)) : json();
  };
  const json config = json_or_null("tokenizer_config.json");
  if (there("tokenizer.json")) {
    spec.source = file("tokenizer.json");
    read_tokenizer_json(spec, read_json(spec.source));
  } else if (there("vocab.json") && there("merges.txt")) {
    spec.source = file("vocab.json");
    read_vocab_and_merges(spec, file("merges.txt"), config);
  } else if (there("vocab.txt")) {
    spec.source = file("vocab.txt");
    read_vocab_txt(spec, config);
  } else {
    throw FileError(folder, "holds no tokenizer.json, vocab.json with merges.txt, or vocab.txt");
  }
  name_special(spec, config);
  add_ends(spec, json_or_null("generation_config.json"));
  add_ends(spec, json_or_null("config.json"));
  add_known_ends(spec);
  spec.chat_template = there("chat_template.jinja") ? whole_text(file("chat_template.jinja"))
                                                    : chat_template_of(config);
}

}  // namespace

TokenizerSpec tokenizer_from_json(const std::string& path, std::string_view text) {
  return filled(path, [&](TokenizerSpec& spec) {
    read_tokenizer_json(spec, formats::parse_json(path, "tokenizer", text, kMaxDepth));
    add_known_ends(spec);
  });
}

TokenizerSpec tokenizer_from_folder(const std::string& folder) {
  return filled(folder, [&](TokenizerSpec& spec) { fill_from_folder(spec, folder); });
}

TokenizerSpec read_tokenizer(const std::string& path) {
  const std::filesystem::path given(path);
  if (std::filesystem::is_directory(given)) return tokenizer_from_folder(path);
  for (const char* beside : {".safetensors", ".json", ".txt"}) {
    if (given.extension() != beside) continue;
    const std::filesystem::path folder = given.parent_path();
    return tokenizer_from_folder(folder.empty() ? "." : folder.string());
  }
  return tokenizer_from_gguf(formats::Gguf(path));
}

}  // namespace polyhead::inline v0::models
