#include "cli/list_text.hpp"

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

}  // namespace polyhead::cli
