// A tokenizer as the files of a Hugging Face folder describe it.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/formats/mapped_file.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/end_of_turn.hpp"
#include "models/tokenizers/known_forms.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/settings.hpp"
#include "models/tokenizers/vocabulary.hpp"
#include "models/tokenizers/vocabulary_files.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using formats::member;
using nlohmann::json;

[[noreturn]] void refuse(const TokenizerSpec& spec, const std::string& what) {
  refuse_tokenizer(spec.source, what);
}

std::string whole_text(const std::string& path) {
  const formats::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
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
  const json& given = member(config, "chat_template");
  if (given.is_string()) return given.get<std::string>();
  for (const json& named : given.is_array() ? given : json::array()) {
    const json& text = member(named, "template");
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
  const json& value = member(model, name);
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
  if (!flag(spec.source, model, "byte_fallback", "model.").value_or(false)) return false;
  const BytePieces bytes = byte_pieces(vocabulary, byte_piece);
  if (bytes.found > 0 && bytes.found < 256) {
    refuse(spec, "model.byte_fallback is true, but there is no piece " +
                     formats::quote(byte_piece(bytes.missing)) +
                     " (expected all of them, or none)");
  }
  for (std::size_t i = 0; bytes.found > 0 && i < spec.pieces.size(); ++i) {
    if (byte_of_piece(spec.pieces[i]) < 0) continue;
    if (spec.kinds[i] != TokenKind::normal) {
      refuse(spec, "the added token " + formats::quote(spec.pieces[i]) +
                       " is the piece of a byte, which is not supported");
    }
    spec.kinds[i] = TokenKind::byte;
  }
  return bytes.found > 0;
}

/// What comes of bytes and characters without a piece. `none`: there are none.
void read_unknowns(TokenizerSpec& spec, const json& model, const json& vocabulary, bool none) {
  const std::string unknown = text_setting(spec.source, model, "unk_token", "model.");
  const bool fused = flag(spec.source, model, "fuse_unk", "model.").value_or(false);
  spec.unknowns = fused ? Unknowns::fused : Unknowns::each;
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
  spec.whole_words = flag(spec.source, model, "ignore_merges", "model.").value_or(false);
  if (spec.kind == TokenizerKind::sentence_piece) {
    read_unknowns(spec, model, vocabulary, read_byte_fallback(spec, model, vocabulary));
    return;
  }
  if (flag(spec.source, model, "byte_fallback", "model.").value_or(false))
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
  const json &model = member(file, "model"), &vocabulary = member(model, "vocab");
  const json added = list_setting(spec.source, file, "added_tokens");
  const json& type = member(model, "type");
  const bool words = type == "WordPiece";
  const bool merged = type == "BPE" || (type.is_null() && model.contains("merges"));
  if (!words && !merged) {
    const std::string found = type.is_string() ? type.get<std::string>() : type.dump();
    refuse(spec, "model.type is " + formats::quote(found) + " (expected BPE or WordPiece)");
  }
  fill_pieces(spec, vocabulary, added);
  if (words) {
    read_word_piece(spec, file, model);
  } else {
    read_bpe(spec, file, model, vocabulary);
  }
  const std::string unknown = text_setting(spec.source, model, "unk_token", "model.");
  if (!unknown.empty()) spec.unknown = find_piece(spec, unknown);
  recognise_template(spec, member(file, "post_processor"));
}

/// transformers goes by tokenizer_config.json where that says otherwise than tokenizer.json, the
/// tokenizers' own programs by tokenizer.json: no file is right then.
void expect_agreement(const TokenizerSpec& spec, const json& config) {
  const auto agree = [&](const char* name, bool own, const char* owns) {
    const bool said = flag(spec.source, config, name, "tokenizer_config.json's ").value_or(own);
    if (said != own) {
      refuse(spec, std::string(owns) + " is " + (own ? "true" : "false") +
                       ", but tokenizer_config.json's " + name + " is " +
                       (said ? "true" : "false") + " (expected the same)");
    }
  };
  if (spec.kind == TokenizerKind::word_piece &&
      member(config, "tokenizer_class") != "PreTrainedTokenizerFast") {
    agree("do_lower_case", spec.lowercase, "normalizer.lowercase");
    agree("strip_accents", spec.strip_accents, "normalizer.strip_accents");
    agree("tokenize_chinese_chars", true, "normalizer.handle_chinese_chars");
  }
  if (spec.kind == TokenizerKind::byte_bpe && spec.split == "gpt2")
    agree("add_prefix_space", false, "pre_tokenizer.add_prefix_space");
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
    return there(name) ? read_tokenizer_file(file(name)) : json();
  };
  const json config = json_or_null("tokenizer_config.json"), model = json_or_null("config.json");
  if (there("tokenizer.json")) {
    spec.source = file("tokenizer.json");
    read_tokenizer_json(spec, read_tokenizer_file(spec.source));
    expect_agreement(spec, config);
  } else {
    const json names = json_or_null("special_tokens_map.json"),
               added = json_or_null("added_tokens.json");
    const VocabularyFiles files{config, model, names, added};
    if (there("vocab.json") && there("merges.txt")) {
      spec.source = file("vocab.json");
      read_vocab_and_merges(spec, file("merges.txt"), files);
    } else if (there("vocab.txt")) {
      spec.source = file("vocab.txt");
      read_vocab_txt(spec, files);
    } else {
      throw FileError(folder, "holds no tokenizer.json, vocab.json with merges.txt, or vocab.txt");
    }
  }
  name_special(spec, config);
  add_ends(spec, json_or_null("generation_config.json"));
  add_ends(spec, model);
  add_known_ends(spec);
  spec.chat_template = there("chat_template.jinja") ? whole_text(file("chat_template.jinja"))
                                                    : chat_template_of(config);
}

/// Names of files that lie beside a tokenizer's; what they hold is read from their folder.
bool belongs_to_a_model(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 6> kNames{
      "config.json", "tokenizer.json", "tokenizer_config.json",
      "vocab.json",  "vocab.txt",      "merges.txt"};
  const std::string name = path.filename().string();
  return path.extension() == ".safetensors" || name.ends_with(".safetensors.index.json") ||
         std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace

TokenizerSpec tokenizer_from_json(const std::string& path, std::string_view text) {
  return filled(path, [&](TokenizerSpec& spec) {
    read_tokenizer_json(spec, formats::parse_json(path, "tokenizer", text, kTokenizerDepth));
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
    if (!belongs_to_a_model(given)) {
      throw FileError(path,
                      "tokenizer: is not a file of a model by its name (expected a folder, a .gguf "
                      "file, config.json, tokenizer.json, tokenizer_config.json, vocab.json, "
                      "vocab.txt, merges.txt, *.safetensors or *.safetensors.index.json)");
    }
    if (!std::filesystem::is_regular_file(given))
      throw FileError(path, "tokenizer: there is no such file");
    const std::filesystem::path folder = given.parent_path();
    return tokenizer_from_folder(folder.empty() ? "." : folder.string());
  }
  return tokenizer_from_gguf(formats::Gguf(path));
}

}  // namespace polyhead::inline v0::models
