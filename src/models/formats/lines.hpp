// A text file's lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::formats {

/// What ends in \n, \r\n or the end of the text, without that; nothing after the last of them.
std::vector<std::string> lines_of(std::string_view text);

}  // namespace polyhead::inline v0::formats
