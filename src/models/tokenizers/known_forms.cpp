#include "models/tokenizers/known_forms.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/vocabulary.hpp"

namespace polyhead::inline v0::models {
namespace {

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
  if (part.is_object() && part.value("type", json()) == "Sequence" && part.contains(list)) {
    steps = part[list];
  } else {
    steps.push_back(part);
  }
  for (json& one : steps) {
    if (!one.is_object()) continue;
    one.erase("trim_offsets");
    const json type = one.value("type", json());
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

/// One special token of a template on one side of the text.
std::int32_t template_token(const TokenizerSpec& spec, const json& side) {
  if (side.empty()) return -1;
  const json token = side.size() == 1 ? side[0].value("SpecialToken", json()) : json();
  const json name = token.is_object() ? token.value("id", json()) : json();
  const std::int32_t id = name.is_string() ? find_piece(spec, name.get<std::string>()) : -1;
  if (id < 0) {
    throw formats::FileError(spec.source, "tokenizer: post_processor puts " + shortened(side) +
                                              " beside a text (expected one token or none)");
  }
  return id;
}

void set_template(TokenizerSpec& spec, const json& single) {
  json before = json::array(), after = json::array();
  bool past = false;
  for (const json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      past = true;
    } else {
      (past ? after : before).push_back(item);
    }
  }
  const bool words = spec.kind == TokenizerKind::word_piece;
  std::int32_t& front = words ? spec.first : spec.bos;
  std::int32_t& back = words ? spec.separator : spec.eos;
  spec.add_bos = !before.empty();
  spec.add_eos = !after.empty();
  if (spec.add_bos) front = template_token(spec, before);
  if (spec.add_eos) back = template_token(spec, after);
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
                    prepared[0].value("type", json()) == "BertNormalizer" &&
                    prepared[0].value("clean_text", json()) == true &&
                    prepared[0].value("handle_chinese_chars", json()) == true &&
                    prepared[0].value("lowercase", json()).is_boolean();
  if (!bert) refuse(spec, normalizer, pre_tokenizer);
  spec.kind = TokenizerKind::word_piece;
  spec.lowercase = prepared[0]["lowercase"].get<bool>();
  const json strip = prepared[0].value("strip_accents", json());
  spec.strip_accents = strip.is_boolean() ? strip.get<bool>() : spec.lowercase;
}

void recognise_template(TokenizerSpec& spec, const json& post_processor) {
  for (const json& one : steps_of(post_processor, "processors")) {
    const json type = one.is_object() ? one.value("type", json()) : json();
    if (type == "ByteLevel") continue;
    if (type == "TemplateProcessing" && one.contains("single") && one["single"].is_array()) {
      set_template(spec, one["single"]);
      continue;
    }
    throw formats::FileError(spec.source, "tokenizer: the post_processor " + shortened(one) +
                                              " is not known (expected TemplateProcessing or "
                                              "ByteLevel)");
  }
}

}  // namespace polyhead::inline v0::models
