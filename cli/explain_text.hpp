// Numbers and columns that explain's options name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/explain_case.hpp"

namespace polyhead::cli {

/// Throws UsageError, beginning with `what`, where it is no whole number from 0 on.
std::int64_t whole(const std::string& text, const std::string& what);

/// The columns of each head, all as many: what --columns or --value-columns says. Throws UsageError
/// beginning with the option.
std::vector<Columns> columns_of(const std::string& option, const std::string& list);

}  // namespace polyhead::cli
