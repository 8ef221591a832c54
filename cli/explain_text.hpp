// Columns of heads written out on the command line: "0-1,2-3".
#pragma once

#include <string>
#include <vector>

#include "cli/explain_case.hpp"

namespace polyhead::cli {

/// The columns of each head, all as many: what --columns or --value-columns says. Throws UsageError
/// beginning with the option.
std::vector<Columns> columns_of(const std::string& option, const std::string& list);

}  // namespace polyhead::cli
