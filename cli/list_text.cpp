#include "cli/list_text.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "cli/command.hpp"

namespace polyhead::cli {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// False where it is no whole number from 0 on, or beyond 63 bits.
bool read_index(std::string_view text, std::int64_t& to) {
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, to);
  return error == std::errc() && read == end && to >= 0 && !text.starts_with('-');
}

}  // namespace

std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0;;) {
    const std::size_t comma = text.find(',', begin);
    pieces.push_back(trimmed(text.substr(begin, comma - begin)));
    if (comma == std::string::npos) return pieces;
    begin = comma + 1;
  }
}

std::vector<std::string> full_pieces_of(const std::string& option, const std::string& text) {
  std::vector<std::string> pieces = pieces_of(text);
  for (const std::string& piece : pieces) {
    if (!piece.empty()) continue;
    throw UsageError(std::string(option).append(": '").append(text).append(
        "' has an empty entry (a comma stands between two)"));
  }
  return pieces;
}

IndexRange range_of(const std::string& option, const std::string& piece) {
  const std::string_view text = piece;
  const std::size_t dash = std::min(text.find('-', 1), text.size());
  IndexRange range;
  const bool first = read_index(text.substr(0, dash), range.first);
  range.last = range.first;
  const bool last = dash == text.size() || read_index(text.substr(dash + 1), range.last);
  if (!first || !last) {
    throw UsageError(option + ": '" + piece +
                     "' is not a whole number from 0, nor a range such as 3-7");
  }
  if (range.last < range.first) throw UsageError(option + ": " + piece + " runs backwards");
  return range;
}

std::vector<IndexRange> ranges_of(const std::string& option, const std::string& text) {
  std::vector<IndexRange> ranges;
  if (text.empty()) return ranges;
  for (const std::string& piece : full_pieces_of(option, text)) {
    const IndexRange range = range_of(option, piece);
    for (const IndexRange& other : ranges) {
      const std::int64_t common = std::max(range.first, other.first);
      if (common <= std::min(range.last, other.last)) refuse_twice(option, std::to_string(common));
    }
    ranges.push_back(range);
  }
  return ranges;
}

void refuse_twice(const std::string& option, const std::string& entry) {
  throw UsageError(option + ": " + entry + " stands in the list twice, expected once");
}

std::int64_t whole(const std::string& text, const std::string& what) {
  std::int64_t value = 0;
  if (!read_index(text, value))
    throw UsageError(what + ": '" + text + "' is not a whole number from 0 to 2^63 - 1");
  return value;
}

}  // namespace polyhead::cli
