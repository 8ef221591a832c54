// Hash tables of tokenizers: open addressing over numbers, since a vocabulary has hundreds of
// thousands of pieces and is read each time a model is opened.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::models {

/// Pieces by their text. Refers to the strings it was made of.
class PieceTable {
 public:
  explicit PieceTable(const std::vector<std::string>& pieces)
      : pieces_(&pieces), slots_(std::bit_ceil(2 * pieces.size() + 2), -1) {}

  /// Enters piece `id`; false when another piece has the same text.
  bool insert(std::int32_t id) {
    std::int32_t& slot = slots_[find_slot((*pieces_)[static_cast<std::size_t>(id)])];
    if (slot >= 0) return false;
    slot = id;
    return true;
  }

  /// The piece that is `text`, or -1.
  std::int32_t find(std::string_view text) const { return slots_[find_slot(text)]; }

 private:
  std::size_t find_slot(std::string_view text) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = std::hash<std::string_view>{}(text)&mask;
    while (slots_[at] >= 0 && (*pieces_)[static_cast<std::size_t>(slots_[at])] != text)
      at = (at + 1) & mask;
    return at;
  }

  const std::vector<std::string>* pieces_;
  std::vector<std::int32_t> slots_;
};

/// What two neighbours become, and before which others: the lowest rank first.
struct MergeRule {
  std::int32_t left = -1, right = -1, rank = 0, joined = -1;
};

/// Merges by their two pieces.
class MergeTable {
 public:
  explicit MergeTable(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

  /// The first rule for a pair stands.
  void insert(const MergeRule& rule) {
    MergeRule& slot = slots_[find_slot(rule.left, rule.right)];
    if (slot.left < 0) slot = rule;
  }

  /// None: nullptr.
  const MergeRule* find(std::int32_t left, std::int32_t right) const {
    const MergeRule& slot = slots_[find_slot(left, right)];
    return slot.left < 0 ? nullptr : &slot;
  }

 private:
  std::size_t find_slot(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                               static_cast<std::uint32_t>(right);
    // Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
    const int shift = 64 - std::countr_zero(slots_.size());
    std::size_t at = static_cast<std::size_t>(pair * 0x9e3779b97f4a7c15u >> shift);
    while (slots_[at].left >= 0 && (slots_[at].left != left || slots_[at].right != right))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<MergeRule> slots_;
};

}  // namespace polyhead::inline v0::models
