// One query row as `polyhead explain --query` prints it.
#pragma once

#include "cli/console.hpp"
#include "cli/explain_case.hpp"

namespace polyhead::cli {

/// The only row of a head: its query, a line for each key with the products written out, one for
/// the sink, the sums, its output.
void print_head_row(const Console& console, const HeadNumbers& head, const Case& shown,
                    const ExplainInput& input);

}  // namespace polyhead::cli
