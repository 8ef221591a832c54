// How `polyhead look` shows what heads did: tables, and JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/console.hpp"
#include "cli/look_data.hpp"
#include "cli/look_run.hpp"

namespace polyhead::cli {

/// {model, weights, tokens, ids, heads: [{layer, head, kv_head, role, mean_entropy, first, spread,
/// mean_distance, mean_largest, targets: {NAME: {mean, chance, share, share_chance, rows}}, rows}],
/// top, nll} or embedding instead of the last two. What is not measurable is null.
nlohmann::ordered_json look_json(const LookData& look, const HeadRows& rows);

/// Heads by role, the most telling heads, next words. `each`: a line for every chosen head as well.
void print_look(const Console& console, const LookData& look, bool each);

/// Every chosen head's measures in order.
struct ChosenHead {
  std::int64_t layer = 0, head = 0, kv_head = 0;
  HeadMeasures measures;
};
std::vector<ChosenHead> chosen_heads(const LookData& look);

/// "17.4": layer and head, as every page and table names one.
std::string head_name(std::int64_t layer, std::int64_t head);

}  // namespace polyhead::cli
