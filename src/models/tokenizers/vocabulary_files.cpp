#include "models/tokenizers/vocabulary_files.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/formats/lines.hpp"
#include "models/formats/mapped_file.hpp"
#include "models/tokenizers/settings.hpp"
#include "models/tokenizers/vocabulary.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::member;
using nlohmann::json;

[[noreturn]] void refuse(const TokenizerSpec& spec, const std::string& what) {
  refuse_tokenizer(spec.source, what);
}

constexpr const char* kConfig = "tokenizer_config.json's ";

std::vector<std::string> lines_of_file(const std::string& path) {
  const formats::MappedFile file(path);
  return formats::lines_of({reinterpret_cast<const char*>(file.data()), file.size()});
}

json tokens_by_id(const TokenizerSpec& spec, const json& added_by_id) {
  json added = json::array();
  for (const auto& [id, token] : added_by_id.items()) {
    json one = token;
    if (!one.is_object() || id.empty() || id.size() > 9 ||
        id.find_first_not_of("0123456789") != std::string::npos)
      refuse(spec, "added_tokens_decoder is not a table of ids and tokens");
    one["id"] = std::stoul(id);
    added.push_back(std::move(one));
  }
  return added;
}

/// The tokens that the configuration names, which are special wherever they come from.
std::set<std::string> named_tokens(const VocabularyFiles& files) {
  std::set<std::string> names;
  for (const json* table : {&files.tokenizer_config, &files.special_tokens_map}) {
    for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                             "cls_token", "mask_token"})
      names.insert(token_text(member(*table, name)));
    const json& more = member(*table, "additional_special_tokens");
    for (const json& token : more.is_array() ? more : json::array())
      names.insert(token_text(token));
  }
  return names;
}

/// Tokens beside the vocabulary: tokenizer_config.json's, or added_tokens.json's from before.
json added_tokens(const TokenizerSpec& spec, const VocabularyFiles& files) {
  const json& by_id = member(files.tokenizer_config, "added_tokens_decoder");
  if (!by_id.is_null()) return tokens_by_id(spec, by_id);
  json added = json::array();
  if (files.added_tokens.is_null()) return added;
  if (!files.added_tokens.is_object())
    refuse(spec, "added_tokens.json is not a table of tokens and ids");
  const std::set<std::string> special = named_tokens(files);
  for (const auto& [token, id] : files.added_tokens.items())
    added.push_back({{"content", token}, {"id", id}, {"special", special.contains(token)}});
  return added;
}

/// The class of a folder's tokenizer, as either configuration names it; "" where none does.
std::string tokenizer_class(const TokenizerSpec& spec, const VocabularyFiles& files) {
  const std::string named =
      text_setting(spec.source, files.tokenizer_config, "tokenizer_class", kConfig);
  return named.empty()
             ? text_setting(spec.source, files.config, "tokenizer_class", "config.json's ")
             : named;
}

/// Whether vocab.json and merges.txt are Qwen2's; else they are GPT-2's.
bool is_qwen(const TokenizerSpec& spec, const VocabularyFiles& files) {
  const std::string type = tokenizer_class(spec, files);
  if (type.empty()) {
    const std::string model =
        text_setting(spec.source, files.config, "model_type", "config.json's ");
    if (model == "gpt2") return false;
    if (model == "qwen2" || model == "qwen3") return true;
    refuse(spec,
           "whose it is no file says: tokenizer_class is missing and config.json's model_type is " +
               formats::quote(model) +
               " (expected gpt2, qwen2 or qwen3 where there is no tokenizer.json)");
  }
  if (type == "Qwen2Tokenizer" || type == "Qwen2TokenizerFast") return true;
  if (type == "GPT2Tokenizer" || type == "GPT2TokenizerFast") return false;
  refuse(spec, "tokenizer_class is " + formats::quote(type) +
                   " (expected GPT2Tokenizer or Qwen2Tokenizer where there is no tokenizer.json)");
}

/// What GPT2Tokenizer puts before a text; Qwen2Tokenizer puts nothing.
void read_what_is_added(TokenizerSpec& spec, const json& config, bool qwen) {
  for (const char* name : {"add_prefix_space", "add_bos_token", "add_eos_token"}) {
    const bool known = name == std::string_view("add_bos_token") && !qwen;
    if (flag(spec.source, config, name, kConfig).value_or(false) && !known) {
      refuse(spec, std::string(name) +
                       " is true, which is not supported where there is no tokenizer.json");
    }
  }
  spec.add_bos = flag(spec.source, config, "add_bos_token", kConfig).value_or(false);
}

void name_ends(TokenizerSpec& spec, const json& config) {
  const std::int32_t end = find_piece(spec, "<|endoftext|>");
  if (end >= 0) spec.kinds[static_cast<std::size_t>(end)] = TokenKind::control;
  const std::array<std::pair<const char*, std::int32_t*>, 2> ends{
      {{"bos_token", &spec.bos}, {"eos_token", &spec.eos}}};
  for (const auto& [name, id] : ends) {
    const std::string named = token_text(member(config, name));
    if (!named.empty()) *id = find_piece(spec, named);
    if (*id < 0 && spec.split == "gpt2") *id = end;
  }
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

void expect_text(const TokenizerSpec& spec, const json& config, const char* name,
                 const char* expected) {
  const std::string found = text_setting(spec.source, config, name, kConfig);
  if (!found.empty() && found != expected)
    refuse(spec, std::string(name) + " is " + formats::quote(found) + " (expected " + expected +
                     " where there is no tokenizer.json)");
}

/// Other tokenizers keep a vocab.txt too: with words cut by MeCab, with SentencePiece's pieces.
void expect_bert(const TokenizerSpec& spec, const VocabularyFiles& files) {
  const std::string type = tokenizer_class(spec, files);
  if (!type.empty() && type != "BertTokenizer" && type != "BertTokenizerFast") {
    refuse(spec, "tokenizer_class is " + formats::quote(type) +
                     " (expected BertTokenizer where there is no tokenizer.json)");
  }
  expect_text(spec, files.tokenizer_config, "word_tokenizer_type", "basic");
  expect_text(spec, files.tokenizer_config, "subword_tokenizer_type", "wordpiece");
  for (const char* name : {"tokenize_chinese_chars", "do_basic_tokenize"}) {
    if (!flag(spec.source, files.tokenizer_config, name, kConfig).value_or(true))
      refuse(spec, std::string(name) + " is false, which is not supported");
  }
}

/// The lines are the vocabulary; the number of each is its id.
void read_lines(TokenizerSpec& spec, const json& added) {
  spec.pieces = lines_of_file(spec.source);
  spec.kinds.assign(spec.pieces.size(), TokenKind::normal);
  if (added.empty()) return;
  json vocabulary = json::object();
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto [at, fresh] = vocabulary.emplace(spec.pieces[i], i);
    if (!fresh) {
      refuse(spec, "pieces " + at->dump() + " and " + std::to_string(i) + " are both " +
                       formats::quote(at.key()));
    }
  }
  fill_pieces(spec, vocabulary, added);
}

}  // namespace

void read_vocab_and_merges(TokenizerSpec& spec, const std::string& merges,
                           const VocabularyFiles& files) {
  const bool qwen = is_qwen(spec, files);
  fill_pieces(spec, read_tokenizer_file(spec.source), added_tokens(spec, files));
  spec.kind = TokenizerKind::byte_bpe;
  spec.split = qwen ? "qwen2" : "gpt2";
  spec.compose = qwen;
  spec.unknowns = Unknowns::dropped;
  spec.merges_source = merges;
  for (std::string& line : lines_of_file(merges)) {
    if (!line.empty() && line.compare(0, 8, "#version") != 0)
      spec.merges.push_back(std::move(line));
  }
  read_what_is_added(spec, files.tokenizer_config, qwen);
  name_ends(spec, files.tokenizer_config);
}

void read_vocab_txt(TokenizerSpec& spec, const VocabularyFiles& files) {
  const json& config = files.tokenizer_config;
  expect_bert(spec, files);
  spec.kind = TokenizerKind::word_piece;
  read_lines(spec, added_tokens(spec, files));
  spec.lowercase = flag(spec.source, config, "do_lower_case", kConfig).value_or(true);
  spec.strip_accents = flag(spec.source, config, "strip_accents", kConfig).value_or(spec.lowercase);
  spec.unknown = word_piece_token(spec, config, "unk_token", "[UNK]");
  spec.first = word_piece_token(spec, config, "cls_token", "[CLS]");
  spec.separator = word_piece_token(spec, config, "sep_token", "[SEP]");
  spec.pad = word_piece_token(spec, config, "pad_token", "[PAD]");
  word_piece_token(spec, config, "mask_token", "[MASK]");
  spec.add_bos = spec.first >= 0;
  spec.add_eos = spec.separator >= 0;
}

}  // namespace polyhead::inline v0::models
