#include "cli/explain_print.hpp"
#include "cli/json_text.hpp"

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
    one["q"] = any_numbers(head.q);
    one["k"] = any_numbers(head.k);
    one["v"] = any_numbers(head.v);
    one["scores"] = any_numbers(head.products);
    one["scaled"] = any_numbers(head.scaled);
    if (shown.modified) one["modified"] = any_numbers(head.modified);
    if (shown.masked) one["masked"] = any_numbers(head.masked);
    one["weights"] = any_numbers(head.weights);
    if (shown.sinks) {
      one["sink"] = any_number(head.sink);
      one["sink_weights"] = any_numbers(head.sink_weights);
    }
    if (shown.dropout > 0.0) one["dropped"] = any_numbers(head.dropped);
    one["lse"] = any_numbers(head.lse);
    one["output"] = any_numbers(head.output);
    json["heads"].push_back(std::move(one));
  }
  json["mean_weights"] = any_numbers(shown.mean_weights);
  json["output"] = any_numbers(shown.concatenated);
  if (!shown.w_o.empty())
    json["output_projection"] = {{"w_o", any_numbers(shown.w_o)},
                                 {"output", any_numbers(shown.projected)}};
  for (const Pruned& one : pruned)
    json["pruning"]["head" + std::to_string(one.head)] = any_number(one.norm);
  json["attention"] = {{"isa", shown.isa}, {"max_difference", any_number(shown.difference)}};
  return json;
}

}  // namespace polyhead::cli
