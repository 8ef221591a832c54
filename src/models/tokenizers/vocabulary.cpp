#include "models/tokenizers/vocabulary.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/settings.hpp"
#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;
using nlohmann::json;

[[noreturn]] void refuse(const TokenizerSpec& spec, const std::string& what) {
  throw FileError(spec.source, "tokenizer: " + what);
}

void place(TokenizerSpec& spec, std::vector<bool>& taken, const std::string& piece,
           const json& id) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= taken.size()) {
    refuse(spec, "the id of " + formats::quote(piece) + " is " + id.dump() + " (expected 0 to " +
                     std::to_string(taken.size() - 1) + ", each once)");
  }
  const auto at = id.get<std::size_t>();
  if (taken[at]) {
    refuse(spec, formats::quote(piece) + " and " + formats::quote(spec.pieces[at]) +
                     " both have id " + std::to_string(at));
  }
  taken[at] = true;
  spec.pieces[at] = piece;
}

std::string named(const json& token) {
  return "the added token " + formats::quote(token["content"].get<std::string>()) + ": ";
}

bool is_special(const TokenizerSpec& spec, const json& token) {
  return flag(spec.source, token, "special", named(token)).value_or(false);
}

/// Python's default: only what is not special stands in for running text.
bool is_normalised(const TokenizerSpec& spec, const json& token) {
  return flag(spec.source, token, "normalized", named(token)).value_or(!is_special(spec, token));
}

/// Added tokens that the vocabulary does not hold itself; checks the form of all.
std::vector<const json*> further(const TokenizerSpec& spec, const json& vocabulary,
                                 const json& added) {
  std::vector<const json*> found;
  for (const json& token : added) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content") ||
        !token["content"].is_string())
      refuse(spec, "an added token has no id or no content");
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (token.value(flag, json(false)) != json(false)) {
        refuse(spec, "the added token " + formats::quote(token["content"].get<std::string>()) +
                         " has " + flag + ", which is not supported");
      }
    }
    const auto held = vocabulary.find(token["content"].get<std::string>());
    if (held == vocabulary.end()) {
      found.push_back(&token);
    } else if (*held != token["id"]) {
      refuse(spec, "the added token " + formats::quote(held.key()) + " has two ids");
    }
  }
  return found;
}

}  // namespace

void fill_pieces(TokenizerSpec& spec, const json& vocabulary, const json& added) {
  if (!vocabulary.is_object()) refuse(spec, "the vocabulary is not a table of pieces and ids");
  const std::vector<const json*> more = further(spec, vocabulary, added);
  const std::size_t count = vocabulary.size() + more.size();
  spec.pieces.assign(count, {});
  spec.kinds.assign(count, TokenKind::normal);
  spec.normalised.assign(count, false);
  std::vector<bool> taken(count);
  for (const auto& [piece, id] : vocabulary.items()) place(spec, taken, piece, id);
  spec.beside.assign(count, false);
  for (const json* token : more) {
    place(spec, taken, (*token)["content"].get<std::string>(), (*token)["id"]);
    spec.beside[(*token)["id"].get<std::size_t>()] = true;
  }
  for (const json& token : added) {
    const auto id = token["id"].get<std::size_t>();
    spec.kinds[id] = is_special(spec, token) ? TokenKind::control : TokenKind::user_defined;
    spec.normalised[id] = is_normalised(spec, token);
  }
}

std::int32_t find_piece(const TokenizerSpec& spec, const std::string& piece) {
  const auto found = std::find(spec.pieces.begin(), spec.pieces.end(), piece);
  return found == spec.pieces.end() ? -1 : static_cast<std::int32_t>(found - spec.pieces.begin());
}

}  // namespace polyhead::inline v0::models
