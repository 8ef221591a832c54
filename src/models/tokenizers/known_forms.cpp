#include "models/tokenizers/known_forms.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/tokenizers/settings.hpp"
#include "models/tokenizers/vocabulary.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::member;
using nlohmann::json;

// Steps as tokenizer.json spells them.
constexpr const char* kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
constexpr const char* kBytesAlone =
    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
constexpr const char* kDigits = R"({"type": "Digits", "individual_digits": true})";
constexpr const char* kLlamaPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPrependSpace = R"({"type": "Prepend", "prepend": "▁"})";
constexpr const char* kReplaceSpaces =
    R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})";
constexpr const char* kSplitAfterSpaces =
    R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false})";

json step(const char* text) { return json::parse(text); }

json split_by(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

json metaspace(const char* prepend) {
  return {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", prepend}, {"split", false}};
}

/// The steps one after another, without settings that have no bearing on ids and with the defaults
/// that older files leave out.
json steps_of(const json& part, const char* list) {
  if (part.is_null()) return json::array();
  json steps = json::array();
  const json inside = member(part, "type") == "Sequence" ? member(part, list) : json();
  if (inside.is_array()) {
    steps = inside;
  } else {
    steps.push_back(part);
  }
  for (json& one : steps) {
    if (!one.is_object()) continue;
    one.erase("trim_offsets");
    const json& type = member(one, "type");
    if (type == "ByteLevel" && !one.contains("use_regex")) one["use_regex"] = true;
    if (type == "Metaspace" && one.contains("prepend_scheme")) {
      one.erase("add_prefix_space");
      one.erase("str_rep");
    }
  }
  return steps;
}

std::string shortened(const json& part) {
  const std::string text = part.dump(-1, ' ', false, json::error_handler_t::replace);
  return formats::quote(text);
}

[[noreturn]] void refuse(const TokenizerSpec& spec, const json& normalizer,
                         const json& pre_tokenizer) {
  throw formats::FileError(spec.source, "tokenizer: the normalizer " + shortened(normalizer) +
                                            " with the pre_tokenizer " + shortened(pre_tokenizer) +
                                            " is none of the known ones (byte-level: gpt2, smollm, "
                                            "llama-bpe, qwen2; SentencePiece; BERT)");
}

/// The split's name, or "".
std::string byte_level_split(const json& cut) {
  if (cut == json::array({step(kByteLevel)})) return "gpt2";
  if (cut == json::array({step(kDigits), step(kByteLevel)})) return "smollm";
  if (cut == json::array({split_by(kLlamaPattern), step(kBytesAlone)})) return "llama-bpe";
  return cut == json::array({split_by(kQwenPattern), step(kBytesAlone)}) ? "qwen2" : "";
}

[[noreturn]] void refuse_template(const TokenizerSpec& spec, const std::string& what) {
  throw formats::FileError(spec.source, "tokenizer: post_processor " + what);
}

/// One special token of a template on one side of the text.
std::int32_t template_token(const TokenizerSpec& spec, const json& side, const json& table) {
  const json token = side.size() == 1 ? member(side[0], "SpecialToken") : json();
  const json& name = member(token, "id");
  const std::int32_t id = name.is_string() ? find_piece(spec, name.get<std::string>()) : -1;
  if (id < 0)
    refuse_template(spec,
                    "puts " + shortened(side) + " beside a text (expected one token or none)");
  const auto text = name.get<std::string>();
  const json& ids = member(member(table, text.c_str()), "ids");
  if (ids != json::array({id})) {
    refuse_template(spec, "gives " + formats::quote(text) + " the ids " + shortened(ids) +
                              " (expected [" + std::to_string(id) + "], as in the vocabulary)");
  }
  return id;
}

void set_template(TokenizerSpec& spec, const json& single, const json& table) {
  json before = json::array(), after = json::array();
  int texts = 0;
  for (const json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      ++texts;
    } else {
      (texts > 0 ? after : before).push_back(item);
    }
  }
  if (texts != 1) {
    refuse_template(spec, "has the text " + std::to_string(texts) + " times in " +
                              shortened(single) + " (expected once)");
  }
  const bool words = spec.kind == TokenizerKind::word_piece;
  std::int32_t& front = words ? spec.first : spec.bos;
  std::int32_t& back = words ? spec.separator : spec.eos;
  spec.add_bos = !before.empty();
  spec.add_eos = !after.empty();
  if (spec.add_bos) front = template_token(spec, before, table);
  if (spec.add_eos) back = template_token(spec, after, table);
}

}  // namespace

void recognise_bpe(TokenizerSpec& spec, const json& normalizer, const json& pre_tokenizer) {
  const json prepared = steps_of(normalizer, "normalizers");
  const json cut = steps_of(pre_tokenizer, "pretokenizers");
  const json none = json::array();
  const std::string split = byte_level_split(cut);
  const bool composed = prepared == json::array({{{"type", "NFC"}}});
  if (!split.empty() && (prepared == none || composed)) {
    spec.kind = TokenizerKind::byte_bpe;
    spec.split = split;
    spec.compose = composed;
    return;
  }
  spec.kind = TokenizerKind::sentence_piece;
  spec.metaspace = prepared == none;
  const bool replaced = prepared == json::array({step(kReplaceSpaces)});
  if (prepared == json::array({step(kPrependSpace), step(kReplaceSpaces)}) && cut == none) {
    spec.space_prefix = SpacePrefix::every;
  } else if (prepared == none && cut == json::array({metaspace("first")})) {
    spec.space_prefix = SpacePrefix::first;
  } else if ((replaced && (cut == none || cut == json::array({step(kSplitAfterSpaces)}))) ||
             (prepared == none && cut == json::array({metaspace("never")}))) {
    spec.space_prefix = SpacePrefix::none;
  } else {
    refuse(spec, normalizer, pre_tokenizer);
  }
}

void recognise_word_piece(TokenizerSpec& spec, const json& normalizer, const json& pre_tokenizer) {
  const json cut = steps_of(pre_tokenizer, "pretokenizers");
  const json prepared = steps_of(normalizer, "normalizers");
  const bool bert = cut == json::array({{{"type", "BertPreTokenizer"}}}) && prepared.size() == 1 &&
                    member(prepared[0], "type") == "BertNormalizer" &&
                    member(prepared[0], "clean_text") == true &&
                    member(prepared[0], "handle_chinese_chars") == true &&
                    member(prepared[0], "lowercase").is_boolean();
  if (!bert) refuse(spec, normalizer, pre_tokenizer);
  spec.kind = TokenizerKind::word_piece;
  spec.lowercase = prepared[0]["lowercase"].get<bool>();
  spec.strip_accents =
      flag(spec.source, prepared[0], "strip_accents", "normalizer.").value_or(spec.lowercase);
}

void recognise_template(TokenizerSpec& spec, const json& post_processor) {
  bool found = false;
  for (const json& one : steps_of(post_processor, "processors")) {
    const json &type = member(one, "type"), &single = member(one, "single");
    if (type == "ByteLevel") continue;
    if (type == "TemplateProcessing" && single.is_array()) {
      if (std::exchange(found, true))
        refuse_template(spec, "has two steps TemplateProcessing (expected one)");
      set_template(spec, single, member(one, "special_tokens"));
      continue;
    }
    throw formats::FileError(spec.source, "tokenizer: the post_processor " + shortened(one) +
                                              " is not known (expected TemplateProcessing or "
                                              "ByteLevel)");
  }
}

}  // namespace polyhead::inline v0::models
