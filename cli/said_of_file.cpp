#include "cli/said_of_file.hpp"

#include <algorithm>

namespace polyhead::cli {

std::string said_of(const std::string& file, std::string_view what) {
  constexpr std::string_view kAfterCall = ": ";
  const std::size_t call = what.find(kAfterCall);
  if (call != what.npos) what.remove_prefix(call + kAfterCall.size());
  if (!what.starts_with(file)) return std::string(what);
  what.remove_prefix(file.size());
  what.remove_prefix(std::min(what.find_first_not_of(" ,:"), what.size()));
  return std::string(what);
}

}  // namespace polyhead::cli
