#include "models/tokenizers/algorithm.hpp"

#include <optional>

#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::FileError;

constexpr int kMaxSpaces = 64;  // in one merge; pieces that hold spaces themselves are rare

/// "left right" whose parts and whole are all pieces; a piece may hold spaces.
std::optional<MergeRule> resolve(const std::string& merge, const PieceTable& pieces) {
  std::size_t space = merge.find(' ');
  for (int tries = 0; space != std::string::npos && tries < kMaxSpaces; ++tries) {
    const std::string_view left(merge.data(), space);
    const std::string_view right = std::string_view(merge).substr(space + 1);
    MergeRule rule;
    rule.left = pieces.find(left);
    rule.right = pieces.find(right);
    if (rule.left >= 0 && rule.right >= 0) {
      rule.joined = pieces.find(std::string(left) + std::string(right));
      if (rule.joined >= 0) return rule;
    }
    space = merge.find(' ', space + 1);
  }
  return std::nullopt;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

MergeTable resolve_merges(const TokenizerSpec& spec, const PieceTable& pieces) {
  const std::string& source = spec.merges_source.empty() ? spec.source : spec.merges_source;
  MergeTable table(spec.merges.size());
  for (std::size_t i = 0; i < spec.merges.size(); ++i) {
    std::optional<MergeRule> rule = resolve(spec.merges[i], pieces);
    if (!rule) {
      throw FileError(source, "tokenizer: merge " + std::to_string(i) + ", " +
                                  formats::quote(spec.merges[i]) +
                                  ", is not two pieces whose joining is a piece");
    }
    rule->rank = static_cast<std::int32_t>(i);
    table.insert(*rule);
  }
  return table;
}

std::int32_t unknown_token(const TokenizerSpec& spec, bool again) {
  const bool fused = again && spec.unknowns == Unknowns::fused;
  return fused || spec.unknowns == Unknowns::dropped ? -1 : spec.unknown;
}

std::string byte_piece(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<',
          '0',
          'x',
          kDigits[static_cast<std::size_t>(byte / 16)],
          kDigits[static_cast<std::size_t>(byte % 16)],
          '>'};
}

int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

TokenKind kind_of(const TokenizerSpec& spec, std::int32_t id) {
  return spec.kinds.empty() ? TokenKind::normal : spec.kinds[static_cast<std::size_t>(id)];
}

}  // namespace polyhead::inline v0::models
