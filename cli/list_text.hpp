// Lists written out on the command line, "5,7,7", and what stands in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace polyhead::cli {

/// What stands between commas, without spaces at the ends; a space within a piece stays.
std::vector<std::string> pieces_of(const std::string& text);

/// The same, where no piece may be empty. Throws UsageError naming `option`.
std::vector<std::string> full_pieces_of(const std::string& option, const std::string& text);

/// A number, or those from a first to a last one.
struct IndexRange {
  std::int64_t first = 0, last = 0;
};

/// "3" or "3-7". Throws UsageError naming `option`.
IndexRange range_of(const std::string& option, const std::string& piece);

/// What a list such as 0,10-19 names, none of it twice; nothing of an empty text. Throws UsageError
/// naming `option`.
std::vector<IndexRange> ranges_of(const std::string& option, const std::string& text);

/// Throws UsageError: an entry that a list has already says nothing.
[[noreturn]] void refuse_twice(const std::string& option, const std::string& entry);

/// Throws UsageError, beginning with `what`, where it is no whole number from 0 on.
std::int64_t whole(const std::string& text, const std::string& what);

}  // namespace polyhead::cli
