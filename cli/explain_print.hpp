// How `polyhead explain` shows its numbers: as a textbook does, and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/console.hpp"
#include "cli/explain_case.hpp"

namespace polyhead::cli {

/// {num_heads, head_dim, causal, heads: [{scores, scaled, weights, lse, output}], mean_weights,
/// output}, and what else the case has: modified, masked, columns, output_projection, pruning.
nlohmann::ordered_json case_json(const Case& shown, const ExplainInput& input,
                                 const std::vector<Pruned>& pruned);

/// Tables of every step, all chosen rows at once.
void print_matrices(const Console& console, const Case& shown, const ExplainInput& input,
                    const std::vector<Pruned>& pruned);

/// One query row, a line for each key, with the products written out.
void print_row(const Console& console, const Case& shown, const ExplainInput& input,
               const std::vector<Pruned>& pruned);

}  // namespace polyhead::cli
