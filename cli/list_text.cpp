#include "cli/list_text.hpp"

#include <stdexcept>

#include "cli/command.hpp"

namespace polyhead::cli {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
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

std::int64_t whole(const std::string& text, const std::string& what) {
  std::size_t used = 0;
  long long value = -1;
  try {
    value = std::stoll(text, &used);
  } catch (const std::logic_error&) {
  }
  if (text.empty() || used != text.size() || value < 0)
    throw UsageError(what + ": '" + text + "' is not a whole number from 0 to 2^63 - 1");
  return value;
}

}  // namespace polyhead::cli
