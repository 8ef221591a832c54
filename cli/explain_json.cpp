#include "cli/explain_print.hpp"

namespace polyhead::cli {

using nlohmann::ordered_json;

ordered_json case_json(const Case& shown, const ExplainInput& input,
                       const std::vector<Pruned>& pruned) {
  ordered_json json;
  json["num_heads"] = shown.q_heads;
  json["head_dim"] = shown.head_dim;
  json["causal"] = shown.causal;
  json["scale"] = shown.scale;
  json["queries"] = shown.queries;
  for (const Columns& columns : input.columns)
    json["columns"].push_back({columns.first, columns.last});
  if (input.value_columns != input.columns) {
    for (const Columns& columns : input.value_columns)
      json["value_columns"].push_back({columns.first, columns.last});
  }
  json["heads"] = ordered_json::array();
  for (const HeadNumbers& head : shown.heads) {
    ordered_json one;
    one["head"] = head.head;
    one["kv_head"] = head.kv_head;
    one["q"] = head.q;
    one["k"] = head.k;
    one["v"] = head.v;
    one["scores"] = head.products;
    one["scaled"] = head.scaled;
    if (shown.modified) one["modified"] = head.modified;
    if (shown.masked) one["masked"] = head.masked;  // -inf, which JSON does not have, becomes null
    one["weights"] = head.weights;
    if (shown.sinks) {
      one["sink"] = head.sink;
      one["sink_weights"] = head.sink_weights;
    }
    if (shown.dropout > 0.0) one["dropped"] = head.dropped;
    one["lse"] = head.lse;
    one["output"] = head.output;
    json["heads"].push_back(std::move(one));
  }
  json["mean_weights"] = shown.mean_weights;
  json["output"] = shown.concatenated;
  if (!shown.w_o.empty())
    json["output_projection"] = {{"w_o", shown.w_o}, {"output", shown.projected}};
  for (const Pruned& one : pruned) json["pruning"]["head" + std::to_string(one.head)] = one.norm;
  json["attention"] = {{"isa", shown.isa}, {"max_difference", shown.difference}};
  return json;
}

}  // namespace polyhead::cli
