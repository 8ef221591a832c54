// The plan for other programs: JSON with every term, CSV with a row a term.
#include <nlohmann/json.hpp>

#include "cli/json_text.hpp"
#include "cli/plan.hpp"

namespace polyhead::cli {
namespace {

using cost::Count;
using cost::Phase;
using cost::Term;
using nlohmann::ordered_json;

ordered_json number(const Count& count) { return whole_number(count.str()); }

const char* unit_name(cost::Unit unit) {
  constexpr const char* names[] = {"parameters", "flops", "bytes", "elements"};
  return names[static_cast<int>(unit)];
}

ordered_json term_json(const Term& term) {
  ordered_json made = {{"id", term.id}};
  if (!term.layers.empty()) made["layers"] = term.layers;
  made["value"] = number(term.value);
  made["unit"] = unit_name(term.unit);
  made["formula"] = term.formula();
  made["numbers"] = term.numbers();
  if (!term.note.empty()) made["note"] = term.note;
  if (!term.parts.empty()) made["parts"] = ordered_json::array();
  for (const Term& part : term.parts) made["parts"].push_back(term_json(part));
  return made;
}

ordered_json layer_json(const cost::Layer& layer) {
  ordered_json made = {{"layers", layer.count},        {"q_heads", layer.q_heads},
                       {"kv_heads", layer.kv_heads},   {"head_dim", layer.head_dim},
                       {"value_dim", layer.value_dim}, {"model_dim", layer.model_dim},
                       {"window", layer.window}};
  if (!layer.name.empty()) made["name"] = layer.name;
  constexpr const char* kAttends[] = {"causal", "all", "source"};
  made["attends"] = kAttends[static_cast<int>(layer.attends)];
  if (layer.latent.given()) {
    made["latent"] = {{"q_rank", layer.latent.q_rank},
                      {"kv_rank", layer.latent.kv_rank},
                      {"nope_dim", layer.latent.nope_dim},
                      {"rope_dim", layer.latent.rope_dim}};
  }
  const cost::FeedForward& ffn = layer.ffn;
  made["ffn_dim"] = ffn.ffn_dim;
  if (ffn.experts > 0) {
    made["experts"] = ffn.experts;
    made["experts_used"] = ffn.experts_used;
    made["shared_dim"] = ffn.shared_dim;
  }
  made["attention_parameters"] = number(cost::attention_parameters(layer).value);
  return made;
}

ordered_json turn_json(const std::optional<std::int64_t>& tokens) {
  return tokens ? ordered_json(*tokens) : ordered_json(nullptr);
}

ordered_json crossover_json(const cost::ModelDescription& model, cost::LatentForm form) {
  const auto of = [&](cost::Counting counting) -> ordered_json {
    const cost::Crossover turn = cost::crossover(model, counting, form);
    return {{"projections", turn_json(turn.projections)},
            {"with_feed_forward", turn_json(turn.everything)}};
  };
  return {{"full", of(cost::Counting::full)}, {"triangle", of(cost::Counting::triangle)}};
}

ordered_json model_json(const cost::ModelDescription& model, const std::string& heads,
                        cost::LatentForm form) {
  ordered_json made = {
      {"id", model.id},
      {"name", model.name},
      {"source", model.source},
      {"kv_heads", heads == "MLA" ? ordered_json(heads) : ordered_json(model.layers[0].kv_heads)},
      {"context_length", model.context_length},
      {"weight_type", model.weight_type}};
  made["layers"] = ordered_json::array();
  for (const cost::Layer& layer : model.layers) made["layers"].push_back(layer_json(layer));
  made["crossover_tokens"] = crossover_json(model, form);
  made["parameters"] = number(cost::parameters(model).value);
  made["parameter_terms"] = term_json(cost::parameters(model));
  return made;
}

/// A layer's steps as one object: qkv_projection is the sum of three of them.
ordered_json layer_flops_json(const cost::Layer& layer, const cost::Workload& work, Phase phase) {
  const Term steps = cost::attention_flops(layer, work, phase);
  ordered_json made;
  if (!layer.name.empty()) made["name"] = layer.name;
  made["qkv_projection"] =
      number(steps.at("q_projection") + steps.at("k_projection") + steps.at("v_projection"));
  for (const Term& step : steps.parts) made[step.id] = number(step.value);
  made["softmax"] = number(cost::softmax_flops(layer, work, phase).value);
  return made;
}

/// Null: no limit.
ordered_json limit_json(std::int64_t most) {
  return most >= cost::kUnlimited ? ordered_json(nullptr) : ordered_json(most);
}

ordered_json time_json(const Likely& time) {
  constexpr const char* kBounds[] = {"compute", "bandwidth"};
  ordered_json made = {{"attention_seconds_at_peak", time.peak.attention_seconds},
                       {"flops_seconds_at_peak", time.peak.peak_seconds},
                       {"roofline_seconds", time.peak.seconds},
                       {"likely_seconds", {time.fast.seconds, time.slow.seconds}},
                       {"intensity", time.peak.intensity},
                       {"bound", kBounds[static_cast<int>(time.slow.bound)]}};
  if (time.predicted) {
    made["predicted_seconds"] = known(time.predicted).seconds;
    for (const cost::KernelTime& kernel : known(time.predicted).kernels)
      made["predicted_kernel_seconds"][kernel.id] = kernel.seconds();
  }
  made["kernels"] = ordered_json::array();
  for (const cost::KernelTime& kernel : time.peak.kernels) {
    made["kernels"].push_back({{"id", kernel.id},
                               {"flops", number(kernel.flops)},
                               {"bytes", number(kernel.bytes)},
                               {"compute_seconds", kernel.compute_seconds},
                               {"memory_seconds", kernel.memory_seconds}});
  }
  return made;
}

ordered_json phase_json(const PlanCase& c, const Term& flops, Phase phase) {
  const cost::Workload work = work_of(c, phase);
  ordered_json made = {{"attention_flops", number(cost::attention_only(flops))},
                       {"model_flops", number(flops.value)}};
  made["layer_flops"] = ordered_json::array();
  for (const cost::Layer& layer : c.model->layers)
    made["layer_flops"].push_back(layer_flops_json(layer, work, phase));
  made["flops_terms"] = term_json(flops);
  made["traffic_terms"] = term_json(cost::traffic_bytes(c.share, work, phase));
  return made;
}

ordered_json case_json(const PlanCase& c, const PlanRequest& r) {
  ordered_json made = {{"model", c.model->id},
                       {"context", c.work.context()},
                       {"prompt", c.work.prompt},
                       {"generated", c.work.generated},
                       {"batch", c.work.batch},
                       {"kv_heads", c.heads == "MLA" ? ordered_json(c.heads)
                                                     : ordered_json(c.model->layers[0].kv_heads)},
                       {"kv_type", c.work.kv_type.name},
                       {"verdict", verdict_of(c, r)}};
  made["kv_cache_bytes"] = number(c.kv_cache.value);
  made["kv_page_waste_bytes"] = number(c.kv_waste);
  made["weight_bytes"] = number(c.weights.value);
  made["scratch_bytes"] = number(c.scratch.value);
  made["memory_bytes"] = number(c.memory.value);
  made["score_bytes_one_layer"] = number(c.scores.value);
  if (r.machine) {
    made["fits"] = c.fits;
    made["kv_cache_alone_fits"] = c.kv_alone_fits;
    made["largest_context"] = limit_json(c.largest_context);
    made["largest_batch"] = limit_json(c.largest_batch);
    made["seconds_at_peak"] = known(c.prefill_time).peak.attention_seconds;
  }
  made["memory_terms"] = term_json(c.memory);
  const bool triangle = r.workload.counting == cost::Counting::triangle;
  made["prefill"] = phase_json(c, triangle ? c.prefill_triangle : c.prefill, Phase::prefill);
  made["prefill"]["attention_flops_full"] = number(cost::attention_only(c.prefill));
  made["prefill"]["attention_flops_triangle"] = number(cost::attention_only(c.prefill_triangle));
  made["decode_step"] = phase_json(c, c.decode, Phase::decode_step);
  if (c.work.generated > 1) made["generation"] = phase_json(c, c.generation, Phase::generation);
  if (c.training) made["training"] = phase_json(c, known(c.training), Phase::training_recompute);
  if (r.machine) {
    made["prefill"]["time"] = time_json(known(c.prefill_time));
    made["decode_step"]["time"] = time_json(known(c.decode_time));
    if (c.generation_time) made["generation"]["time"] = time_json(known(c.generation_time));
    if (c.training_time) made["training"]["time"] = time_json(known(c.training_time));
  }
  if (c.sent_prefill) {
    made["sent_bytes"] = {{"prefill", number(known(c.sent_prefill).value)},
                          {"decode_step", number(known(c.sent_decode).value)}};
  }
  return made;
}

ordered_json machine_json(const cost::Machine& machine) {
  return {{"id", machine.id},
          {"name", machine.name},
          {"source", machine.source},
          {"f32_flops", machine.f32_flops},
          {"f16_flops", machine.f16_flops},
          {"fp8_flops", machine.fp8_flops},
          {"memory_bytes", machine.memory_bytes},
          {"memory_bandwidth", machine.memory_bandwidth},
          {"link_bandwidth", machine.link_bandwidth}};
}

ordered_json assumptions_json(const PlanRequest& r) {
  constexpr const char* kCompute[] = {"f32", "f16", "fp8"};
  constexpr const char* kSplits[] = {"none", "tensor", "ring"};
  const auto shares = [](const cost::Utilisation& u) -> ordered_json {
    return {{"gemm", u.gemm}, {"attention", u.attention}, {"bandwidth", u.bandwidth}};
  };
  ordered_json made = {
      {"flops_of_a_multiply_add", 2},
      {"counting", r.workload.counting == cost::Counting::full ? "full" : "triangle"},
      {"activation_type", r.workload.activation_type.name},
      {"compute", kCompute[static_cast<int>(r.compute)]},
      {"chunk", r.workload.chunk},
      {"page_tokens", r.workload.page_tokens},
      {"devices", r.devices.count},
      {"split", kSplits[static_cast<int>(r.devices.split)]},
  };
  if (!r.here) {
    made["likely_utilisation"] = {{"from", shares(r.low)}, {"to", shares(r.high)}};
    return made;
  }
  const KernelRates& k = *r.here;
  made["measured_rates"] = {{"products_of_many_rows_flops", k.many_rows},
                            {"products_of_one_row_bytes", k.one_row},
                            {"attention_on_the_diagonal_flops", k.diagonal},
                            {"attention_beside_it_flops", k.beside},
                            {"attention_of_one_query_seconds", k.query_seconds},
                            {"attention_of_one_query_bytes", k.cache},
                            {"row_wise_of_many_rows_elements", k.rows_many},
                            {"row_wise_of_one_row_elements", k.rows_one}};
  return made;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string made = "\"";
  for (const char ch : text) made += ch == '"' ? "\"\"" : std::string(1, ch);
  return made + "\"";
}

void csv_rows(std::string& text, const std::string& front, const std::string& where,
              const Term& term) {
  const std::string path = where.empty() ? term.label() : where + "." + term.label();
  text += front + "," + path + "," + unit_name(term.unit) + "," + term.value.str() + "\n";
  for (const Term& part : term.parts) csv_rows(text, front, path, part);
}

void csv_times(std::string& text, const std::string& front, const char* phase,
               const std::optional<Likely>& time) {
  if (!time) return;
  const auto row = [&](const char* term, double seconds) {
    text += front + "," + phase + "." + term + ",seconds," + ordered_json(seconds).dump() + "\n";
  };
  row("flops_at_peak", time->peak.peak_seconds);
  row("roofline", time->peak.seconds);
  row("likely_from", time->fast.seconds);
  row("likely_to", time->slow.seconds);
}

void csv_of_machine(std::string& text, const std::string& front, const PlanCase& c) {
  csv_times(text, front, "prefill", c.prefill_time);
  csv_times(text, front, "decode_step", c.decode_time);
  csv_times(text, front, "generation", c.generation_time);
  csv_times(text, front, "training", c.training_time);
  text += front + ",largest_context,tokens," + limit_json(c.largest_context).dump() + "\n";
  text += front + ",largest_batch,sequences," + limit_json(c.largest_batch).dump() + "\n";
}

}  // namespace

std::string plan_json(const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  ordered_json made;
  made["models"] = ordered_json::array();
  for (std::size_t i = 0; i < r.models.size(); ++i)
    made["models"].push_back(model_json(r.models[i], r.heads[i], r.workload.prefill_form));
  made["machine"] = r.machine ? machine_json(*r.machine) : ordered_json(nullptr);
  made["assumptions"] = assumptions_json(r);
  if (r.measured) {
    made["measured"] = {{"tokens", r.measured->tokens},
                        {"prefill_seconds", r.measured->prefill_seconds},
                        {"decode_seconds", r.measured->decode_seconds},
                        {"weight_bytes", r.measured->weight_bytes},
                        {"cache_bytes", r.measured->cache_bytes},
                        {"resident_bytes", r.measured->resident_bytes}};
  }
  made["cases"] = ordered_json::array();
  for (const PlanCase& c : plan.cases) made["cases"].push_back(case_json(c, r));
  return json_text(made);
}

std::string plan_csv(const PlanResult& plan) {
  std::string text = "context,batch,model,kv_heads,kv_type,term,unit,value\n";
  const bool triangle = plan.request.workload.counting == cost::Counting::triangle;
  for (const PlanCase& c : plan.cases) {
    const std::string front = std::to_string(c.work.context()) + "," +
                              std::to_string(c.work.batch) + "," + quoted(c.model->id) + "," +
                              c.heads + "," + c.work.kv_type.name;
    csv_rows(text, front, "", cost::parameters(*c.model));
    csv_rows(text, front, "", c.memory);
    csv_rows(text, front, "prefill_flops", triangle ? c.prefill_triangle : c.prefill);
    csv_rows(text, front, "decode_step_flops", c.decode);
    csv_rows(text, front, "prefill", cost::traffic_bytes(c.share, c.work, Phase::prefill));
    csv_rows(text, front, "decode_step", cost::traffic_bytes(c.share, c.work, Phase::decode_step));
    csv_rows(text, front, "", c.scores);
    if (c.work.generated > 1) csv_rows(text, front, "generation_flops", c.generation);
    if (c.training) csv_rows(text, front, "training_flops", known(c.training));
    if (c.sent_prefill) {
      csv_rows(text, front, "prefill", known(c.sent_prefill));
      csv_rows(text, front, "decode_step", known(c.sent_decode));
    }
    if (plan.request.machine) csv_of_machine(text, front, c);
  }
  return text;
}

}  // namespace polyhead::cli
