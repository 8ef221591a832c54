#include "models/tokenizers/tokenizer.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/algorithm.hpp"
#include "models/tokenizers/special_tokens.hpp"
#include "models/tokenizers/tables.hpp"
#include "polyhead/error.h"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;

constexpr std::size_t kMaxText = std::size_t{1} << 29;  // 32-bit places, also after escaping spaces
constexpr std::size_t kMaxPiece = 4096;                 // bytes; bounds the time a place costs

void refuse(const TokenizerSpec& spec, const std::string& what) {
  throw FileError(spec.source, "tokenizer: " + what);
}

void check_id(const TokenizerSpec& spec, const char* name, std::int32_t id) {
  if (id < -1 || id >= static_cast<std::int64_t>(spec.pieces.size())) {
    refuse(spec, std::string(name) + " is token " + std::to_string(id) + " of " +
                     std::to_string(spec.pieces.size()));
  }
}

void check(const TokenizerSpec& spec) {
  if (spec.pieces.empty()) refuse(spec, "there are no pieces");
  if (spec.pieces.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() / 4))
    refuse(spec, std::to_string(spec.pieces.size()) + " pieces are too many");
  if (!spec.kinds.empty() && spec.kinds.size() != spec.pieces.size()) {
    refuse(spec, std::to_string(spec.kinds.size()) + " kinds for " +
                     std::to_string(spec.pieces.size()) + " pieces");
  }
  if (!spec.normalised.empty() && spec.normalised.size() != spec.pieces.size()) {
    refuse(spec, std::to_string(spec.normalised.size()) + " marks of normalised tokens for " +
                     std::to_string(spec.pieces.size()) + " pieces");
  }
  if (!spec.beside.empty() && spec.beside.size() != spec.pieces.size()) {
    refuse(spec, std::to_string(spec.beside.size()) +
                     " marks of tokens beside the vocabulary for " +
                     std::to_string(spec.pieces.size()) + " pieces");
  }
  check_id(spec, "bos", spec.bos);
  check_id(spec, "eos", spec.eos);
  check_id(spec, "unknown", spec.unknown);
  check_id(spec, "separator", spec.separator);
  check_id(spec, "pad", spec.pad);
  check_id(spec, "first", spec.first);
  for (const std::int32_t id : spec.end_of_turn) check_id(spec, "end_of_turn", id);
}

PieceTable table_of(const TokenizerSpec& spec) {
  PieceTable table(spec.pieces);
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    const std::string& piece = spec.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    if (piece.size() > kMaxPiece) {
      refuse(spec, "piece " + std::to_string(i) + " has " + std::to_string(piece.size()) +
                       " bytes (at most " + std::to_string(kMaxPiece) + ")");
    }
    const bool beside = !spec.beside.empty() && spec.beside[i];
    if (piece.empty() || beside || kind_of(spec, id) == TokenKind::unused) continue;
    if (!table.insert(id)) {
      refuse(spec, "pieces " + std::to_string(table.find(piece)) + " and " + std::to_string(i) +
                       " are both " + formats::quote(piece));
    }
  }
  return table;
}

std::unique_ptr<Algorithm> algorithm_of(const TokenizerSpec& spec, const PieceTable& pieces) {
  switch (spec.kind) {
    case TokenizerKind::byte_bpe:
      return make_byte_bpe(spec, pieces);
    case TokenizerKind::sentence_piece:
      return make_sentence_piece(spec, pieces);
    case TokenizerKind::word_piece:
      break;
  }
  return make_word_piece(spec, pieces);
}

/// Tokens to look for in a text, and in what normalising makes of the rest.
struct Sought {
  SpecialTokens raw, normalised;

  void sort() {
    raw.sort();
    normalised.sort();
  }
};

/// Appends the ids of `tokens` in `text`; `rest(run, first)` appends those of what is between them,
/// `first` where the run begins the text.
template <class Rest>
void cut_at(const SpecialTokens& tokens, std::string_view text, std::vector<std::int32_t>& ids,
            const Rest& rest) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const SpecialTokens::Found found = tokens.longest_at(text.substr(at));
    if (found.id < 0) {
      ++at;
      continue;
    }
    if (at > begin) rest(text.substr(begin, at - begin), begin == 0);
    ids.push_back(found.id);
    begin = at += found.size;
  }
  if (begin < text.size()) rest(text.substr(begin), begin == 0);
}

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerSpec from) : spec((check(from), std::move(from))), table(table_of(spec)) {
    algorithm = algorithm_of(spec, table);
    before = spec.kind == TokenizerKind::word_piece ? spec.first : spec.bos;
    after = spec.kind == TokenizerKind::word_piece ? spec.separator : spec.eos;
    if (spec.add_bos && before < 0) refuse(spec, "a token before each text, but none is named");
    if (spec.add_eos && after < 0) refuse(spec, "a token after each text, but none is named");
    collect_special();
    bytes.reserve(spec.pieces.size());
    for (std::size_t i = 0; i < spec.pieces.size(); ++i)
      bytes.push_back(bytes_of(static_cast<std::int32_t>(i)));
  }

  void collect_special() {
    for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const TokenKind kind = kind_of(spec, id);
      if (spec.pieces[i].empty()) continue;
      if (kind == TokenKind::user_defined) add_special(always, id);
      if (kind == TokenKind::user_defined || kind == TokenKind::control ||
          kind == TokenKind::unknown)
        add_special(on_request, id);
    }
    always.sort();
    on_request.sort();
  }

  void add_special(Sought& sought, std::int32_t id) {
    const auto i = static_cast<std::size_t>(id);
    if (spec.normalised.empty() || !spec.normalised[i]) {
      sought.raw.add(spec.pieces[i], id);
    } else {
      sought.normalised.add(normalised_spelling(id), id);
    }
  }

  /// Of a token that is looked for in normalised text.
  std::string_view normalised_spelling(std::int32_t id) {
    const std::string& piece = spec.pieces[static_cast<std::size_t>(id)];
    const auto [at, fresh] = spellings.emplace(algorithm->normalise(piece), id);
    if (at->first.empty()) refuse(spec, formats::quote(piece) + " is normalised to nothing");
    if (!fresh && at->second != id) {
      refuse(spec, formats::quote(piece) + " and " +
                       formats::quote(spec.pieces[static_cast<std::size_t>(at->second)]) +
                       " are normalised to the same");
    }
    return at->first;
  }

  std::string bytes_of(std::int32_t id) const {
    const std::string& piece = spec.pieces[static_cast<std::size_t>(id)];
    switch (kind_of(spec, id)) {
      case TokenKind::byte:
        return byte_of_piece(piece) < 0 ? piece
                                        : std::string(1, static_cast<char>(byte_of_piece(piece)));
      case TokenKind::user_defined:
        return spec.kind == TokenizerKind::sentence_piece ? algorithm->bytes_of(piece) : piece;
      case TokenKind::control:
      case TokenKind::unknown:
      case TokenKind::unused:
        return piece;
      case TokenKind::normal:
        break;
    }
    return algorithm->bytes_of(piece);
  }

  std::size_t index(const char* call, std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= spec.pieces.size()) {
      throw InvalidArgument(std::string(call) + ": id " + std::to_string(id) + " is not below " +
                            std::to_string(spec.pieces.size()));
    }
    return static_cast<std::size_t>(id);
  }

  TokenizerSpec spec;
  PieceTable table;
  std::unique_ptr<Algorithm> algorithm;
  Sought always, on_request;
  std::map<std::string, std::int32_t> spellings;  ///< ids of `normalised` tokens
  std::vector<std::string> bytes;
  std::int32_t before = -1, after = -1;
};

Tokenizer::Tokenizer(TokenizerSpec spec) : state_(std::make_shared<const State>(std::move(spec))) {}

std::int64_t Tokenizer::size() const { return static_cast<std::int64_t>(state_->bytes.size()); }

const TokenizerSpec& Tokenizer::spec() const { return state_->spec; }

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  if (text.size() >= kMaxText) {
    throw InvalidArgument("encode: text has " + std::to_string(text.size()) +
                          " bytes, which is not below " + std::to_string(kMaxText));
  }
  const State& state = *state_;
  const Sought& sought = options.parse_special ? state.on_request : state.always;
  std::vector<std::int32_t> ids;
  if (options.add_special && state.spec.add_bos) ids.push_back(state.before);
  cut_at(sought.raw, text, ids, [&](std::string_view run, bool begins) {
    const std::string normal = state.algorithm->normalise(run);
    cut_at(sought.normalised, normal, ids, [&](std::string_view rest, bool first) {
      state.algorithm->encode(rest, begins && first, ids);
    });
  });
  if (options.add_special && state.spec.add_eos) ids.push_back(state.after);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string& bytes = state_->bytes[state_->index("decode", id)];
    if (!is_control(id)) text += bytes;
  }
  const bool prefixed = state_->spec.kind == TokenizerKind::word_piece ||
                        state_->spec.space_prefix != SpacePrefix::none;
  if (prefixed && !text.empty() && text.front() == ' ') text.erase(0, 1);
  return text;
}

std::string_view Tokenizer::bytes(std::int32_t id) const {
  return state_->bytes[state_->index("bytes", id)];
}

std::string_view Tokenizer::written(std::int32_t id) const {
  return id < 0 || id >= size() || is_control(id) ? std::string_view() : bytes(id);
}

bool Tokenizer::is_control(std::int32_t id) const {
  const TokenKind kind =
      kind_of(state_->spec, static_cast<std::int32_t>(state_->index("is_control", id)));
  return kind == TokenKind::control || kind == TokenKind::unknown;
}

bool Tokenizer::ends_answer(std::int32_t id) const {
  const std::vector<std::int32_t>& ends = state_->spec.end_of_turn;
  return id >= 0 &&
         (id == state_->spec.eos || std::find(ends.begin(), ends.end(), id) != ends.end());
}

}  // namespace polyhead::inline v0::models
