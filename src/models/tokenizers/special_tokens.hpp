// Tokens that are found in a text as they stand, before any algorithm cuts it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace polyhead::inline v0::models {

/// A set of spellings, asked which of them is the longest that stands at a place. The views live as
/// long as the vocabulary they come from.
class SpecialTokens {
 public:
  struct Found {
    std::int32_t id = -1;  ///< -1: none
    std::size_t size = 0;  ///< bytes
  };

  void add(std::string_view spelling, std::int32_t id) { sorted_.emplace_back(spelling, id); }

  /// After the last `add`.
  void sort();

  /// The longest at the front of `text`. A text goes through in time of its length times the
  /// longest spelling at worst; most places cost one look at one byte.
  Found longest_at(std::string_view text) const;

 private:
  std::vector<std::pair<std::string_view, std::int32_t>> sorted_;
  std::array<std::pair<std::uint32_t, std::uint32_t>, 256> range_of_first_{};
};

}  // namespace polyhead::inline v0::models
