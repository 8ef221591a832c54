// Lists as the command line has them, "5,7,7", and as messages do, "5, 7, 7".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::cli {

/// What stands between commas, without spaces at the ends; a space within a piece stays.
std::vector<std::string> pieces_of(const std::string& text);

/// The same, where no piece may be empty. Throws UsageError naming `option`.
std::vector<std::string> full_pieces_of(const std::string& option, const std::string& text);

/// Entries one after the other, `between` each two.
template <class Entries>
std::string joined(const Entries& entries, std::string_view between = ", ") {
  std::string text;
  for (const auto& entry : entries) text.append(text.empty() ? "" : between).append(entry);
  return text;
}

/// Throws UsageError, beginning with `what`, where it is no whole number from 0 on.
std::int64_t whole(const std::string& text, const std::string& what);

}  // namespace polyhead::cli
