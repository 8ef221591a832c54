#include "models/tokenizers/special_tokens.hpp"

#include <algorithm>

namespace polyhead::inline v0::models {

void SpecialTokens::sort() {
  std::sort(sorted_.begin(), sorted_.end());
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    auto& range = range_of_first_[static_cast<unsigned char>(sorted_[i].first.front())];
    if (range.second == 0) range.first = static_cast<std::uint32_t>(i);
    range.second = static_cast<std::uint32_t>(i + 1);
  }
}

SpecialTokens::Found SpecialTokens::longest_at(std::string_view text) const {
  Found found;
  const auto range = range_of_first_[static_cast<unsigned char>(text.front())];
  auto begin = sorted_.begin() + range.first, end = sorted_.begin() + range.second;
  // [begin, end): the spellings that begin with the first `size` bytes of text, shortest first.
  for (std::size_t size = 1; begin != end; ++size) {
    if (begin->first.size() == size) {
      found = {begin->second, size};
      ++begin;
    }
    if (size == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[size]);
    const auto byte_of = [size](const auto& entry) {
      return static_cast<unsigned char>(entry.first[size]);
    };
    begin = std::partition_point(begin, end, [&](const auto& e) { return byte_of(e) < byte; });
    end = std::partition_point(begin, end, [&](const auto& e) { return byte_of(e) == byte; });
  }
  return found;
}

}  // namespace polyhead::inline v0::models
