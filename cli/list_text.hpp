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

/// Throws UsageError, beginning with `what`, where it is no whole number from 0 on.
std::int64_t whole(const std::string& text, const std::string& what);

}  // namespace polyhead::cli
