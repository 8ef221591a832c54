#include "cli/explain_text.hpp"

#include "cli/command.hpp"
#include "cli/list_text.hpp"

namespace polyhead::cli {

std::vector<Columns> columns_of(const std::string& option, const std::string& list) {
  std::vector<Columns> columns;
  if (list.empty()) return columns;
  for (const std::string& piece : full_pieces_of(option, list)) {
    const auto [first, last] = range_of(option, piece);
    columns.push_back({first, last});
    const Columns& like = columns.front();
    if (last - first != like.last - like.first) {
      throw UsageError(std::string(option).append(": ").append(piece) + " are not as many as " +
                       std::to_string(like.first) + "-" + std::to_string(like.last) +
                       ", the first head's");
    }
  }
  return columns;
}

}  // namespace polyhead::cli
