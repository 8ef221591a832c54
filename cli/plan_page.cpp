// The plan as one page: what was asked as data, the arithmetic and the views as script.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/escape.hpp"
#include "cli/plan.hpp"
#include "cli/plan_page.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

using cost::Count;
using cost::Phase;
using nlohmann::ordered_json;

ordered_json type_json(const cost::StorageType& type) {
  return {{"name", type.name},
          {"block_elements", type.block_elements},
          {"block_bytes", type.block_bytes},
          {"channel_bytes", type.channel_bytes}};
}

/// Of a cache: the values' type, and the keys' where that is another one.
ordered_json kept_json(const cost::StorageType& type) {
  cost::Workload work;
  keep_as(work, type);
  ordered_json made = type_json(work.kv_type);
  if (work.key_type) made["keys"] = type_json(*work.key_type);
  return made;
}

ordered_json layer_json(const cost::Layer& l) {
  constexpr const char* kAttends[] = {"causal", "all", "source"};
  return {{"count", l.count},
          {"model_dim", l.model_dim},
          {"q_heads", l.q_heads},
          {"kv_heads", l.kv_heads},
          {"head_dim", l.head_dim},
          {"value_dim", l.value_dim},
          {"window", l.window},
          {"attends", kAttends[static_cast<int>(l.attends)]},
          {"q_rank", l.latent.q_rank},
          {"kv_rank", l.latent.kv_rank},
          {"nope_dim", l.latent.nope_dim},
          {"rope_dim", l.latent.rope_dim},
          {"bias_q", l.biases.q},
          {"bias_k", l.biases.k},
          {"bias_v", l.biases.v},
          {"bias_output", l.biases.output},
          {"qk_norm", l.qk_norm},
          {"sinks", l.sinks},
          {"norm_parameters", l.norm_parameters},
          {"ffn_dim", l.ffn.ffn_dim},
          {"gated", l.ffn.gated},
          {"ffn_biases", l.ffn.biases},
          {"experts", l.ffn.experts},
          {"experts_used", l.ffn.experts_used},
          {"shared_dim", l.ffn.shared_dim},
          {"router_bias", l.ffn.router_bias}};
}

/// `weights`: "bf16", "bf16, experts in mxfp4".
std::string shape_text(const cost::ModelDescription& model, const std::string& weights) {
  const cost::Layer& layer = model.layers.front();
  std::int64_t layers = 0;
  for (const cost::Layer& group : model.layers) layers += group.count;
  return counted(layers, "layer") + ", " + counted(layer.q_heads, "query head") + " of " +
         grouped(layer.head_dim) + ", model_dim " + grouped(layer.model_dim) + ", weights in " +
         weights;
}

ordered_json model_json(const cost::ModelDescription& model, const cost::Workload& work) {
  const cost::StorageType weight =
      work.weight_type ? *work.weight_type : cost::storage_type(model.weight_type);
  const bool apart = !work.weight_type && !model.expert_type.empty();
  ordered_json made = {
      {"id", model.id},
      {"name", model.name},
      {"shape",
       shape_text(model, weight.name + (apart ? ", experts in " + model.expert_type : ""))},
      {"vocab_size", model.vocab_size},
      {"tied_output", model.tied_output},
      {"output_matrix", model.output_matrix},
      {"position_rows", model.position_rows},
      {"other_parameters", model.other_parameters},
      {"weight_type", type_json(weight)},
      {"expert_type", type_json(apart ? cost::storage_type(model.expert_type) : weight)}};
  made["stored"] = ordered_json::array();
  for (const cost::StoredWeights& entry : model.stored) {
    if (work.weight_type) break;
    made["stored"].push_back(
        {{"part", entry.part}, {"type", type_json(entry.type)}, {"weights", entry.weights}});
  }
  made["layers"] = ordered_json::array();
  for (const cost::Layer& layer : model.layers) made["layers"].push_back(layer_json(layer));
  return made;
}

/// What was asked for, else one that has every peak.
cost::Machine shown_machine(const PlanRequest& r) {
  return r.machine ? *r.machine : cost::machine_preset("h100");
}

/// What a device does in one phase, in time on the machine that the page begins with.
cost::PhaseTime phase_of(const PlanRequest& r, const cost::ModelDescription& model,
                         const cost::Workload& work, Phase phase) {
  return cost::phase_time(model, work, phase, shown_machine(r), r.compute, {}, r.devices);
}

/// What the page must come to for one workload, on one device: counts as digits, of which no number
/// of JavaScript loses any, and seconds, whose arithmetic is the same in both.
ordered_json check_json(const PlanRequest& r, const cost::ModelDescription& model,
                        cost::Workload work, const ordered_json& where) {
  ordered_json made = where;
  const auto put = [&](const std::string& name, Count value) { made[name] = value.str(); };
  const cost::Term memory = cost::memory_bytes(model, work, r.devices);
  put("weights", memory.parts[0].value);
  put("kv", memory.parts[1].value);
  put("scratch", memory.parts[2].value);
  work.counting = cost::Counting::full;
  for (const auto& [name, phase] :
       {std::pair<std::string, Phase>{"prefill", Phase::prefill}, {"decode", Phase::decode_step}}) {
    const cost::PhaseTime time = phase_of(r, model, work, phase);
    Count flops = 0, bytes = 0;
    for (const cost::KernelTime& kernel : time.kernels) {
      flops = flops + kernel.flops;
      bytes = bytes + kernel.bytes;
    }
    if (phase == Phase::prefill) {
      put("prefill_projections", time.kernels[0].flops);
      put("prefill_attention", time.kernels[1].flops);
    }
    put(name + "_all", flops);
    put(name + "_bytes", bytes);
    made[name + "_seconds"] = time.seconds;
  }
  work.counting = cost::Counting::triangle;
  put("triangle_attention", phase_of(r, model, work, Phase::prefill).kernels[1].flops);
  return made;
}

/// The models of a request once each, whatever their number of KV heads.
struct Shown {
  std::vector<cost::ModelDescription> models;
  std::size_t place_of(const cost::ModelDescription& model) const {
    std::size_t at = 0;
    while (models[at].id != model.id) ++at;
    return at;
  }
};

Shown shown_models(const PlanRequest& r) {
  Shown shown;
  for (const cost::ModelDescription& model : r.models) {
    bool known = false;
    for (const cost::ModelDescription& other : shown.models) known = known || other.id == model.id;
    if (!known) shown.models.push_back(model);
  }
  return shown;
}

std::vector<cost::StorageType> shown_types(const PlanRequest& r) {
  std::vector<cost::StorageType> types = r.kv_types;
  for (const char* name : {"f32", "f16", "fp8", "int8", "int4"}) {
    bool known = false;
    for (const cost::StorageType& type : types) known = known || type.name == name;
    if (!known) types.push_back(cost::storage_type(name));
  }
  return types;
}

std::size_t type_place(const std::vector<cost::StorageType>& types, const std::string& name) {
  std::size_t at = 0;
  while (types[at].name != name) ++at;
  return at;
}

/// Those that have a peak of the arithmetic: --machine takes no other.
ordered_json machines_json(const PlanRequest& r, std::size_t& chosen) {
  std::vector<cost::Machine> machines = cost::machine_presets();
  const cost::Machine shown = shown_machine(r);
  const auto same = std::ranges::find(machines, shown.id, &cost::Machine::id);
  if (same == machines.end()) {
    machines.push_back(shown);
  } else {
    *same = shown;
  }
  ordered_json list = ordered_json::array();
  chosen = 0;
  for (const cost::Machine& machine : machines) {
    const bool has = r.compute == cost::Compute::f32   ? machine.f32_flops > 0
                     : r.compute == cost::Compute::f16 ? machine.f16_flops > 0
                                                       : machine.fp8_flops > 0;
    if (!has) continue;
    if (machine.id == shown.id) chosen = list.size();
    list.push_back({{"name", machine.name},
                    {"memory", machine.memory_bytes},
                    {"bandwidth", machine.memory_bandwidth},
                    {"flops", cost::peak_flops(machine, r.compute)}});
  }
  return list;
}

ordered_json rows_json(const PlanResult& plan, const Shown& shown,
                       const std::vector<cost::StorageType>& types) {
  const bool triangle = plan.request.workload.counting == cost::Counting::triangle;
  ordered_json rows = ordered_json::array();
  for (const PlanCase& c : plan.cases) {
    rows.push_back(
        {{"model", shown.place_of(*c.model)},
         {"heads", c.heads},
         {"kv_heads", c.model->layers[0].kv_heads},
         {"type", type_place(types, c.work.kv_type.name)},
         {"context", c.work.context()},
         {"batch", c.work.batch},
         {"kv", c.kv_cache.value.str()},
         {"memory", c.memory.value.str()},
         {"attention", cost::attention_only(triangle ? c.prefill_triangle : c.prefill).str()},
         {"verdict", verdict_of(c, plan.request)}});
  }
  return rows;
}

ordered_json checks_json(const PlanResult& plan, const Shown& shown,
                         const std::vector<cost::StorageType>& types) {
  const PlanRequest& r = plan.request;
  ordered_json checks = ordered_json::array();
  const auto add = [&](const cost::ModelDescription& model, const cost::Workload& work) {
    checks.push_back(check_json(r, model, work,
                                {{"model", shown.place_of(model)},
                                 {"kv_heads", model.layers[0].kv_heads},
                                 {"context", work.context()},
                                 {"batch", work.batch},
                                 {"type", type_place(types, work.kv_type.name)}}));
  };
  for (const PlanCase& c : plan.cases) add(*c.model, c.work);
  for (const cost::ModelDescription& model : shown.models) {
    for (const cost::StorageType& type : types) {
      for (const std::int64_t context :
           {std::int64_t{2}, std::int64_t{777}, std::int64_t{9'999'999}}) {
        cost::Workload work = r.workload;
        work.generated = std::min(work.generated, context - 1);
        work.prompt = context - work.generated;
        work.batch = 3;
        keep_as(work, type);
        add(model, work);
      }
    }
  }
  return checks;
}

ordered_json page_json(const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  const Shown shown = shown_models(r);
  const std::vector<cost::StorageType> types = shown_types(r);
  const auto form = [](cost::LatentForm f) {
    return f == cost::LatentForm::expanded ? "expanded" : "absorbed";
  };
  constexpr const char* kSplits[] = {"none", "tensor", "ring"};
  std::size_t machine = 0;
  ordered_json made;
  made["models"] = ordered_json::array();
  for (const cost::ModelDescription& model : shown.models)
    made["models"].push_back(model_json(model, r.workload));
  made["machines"] = machines_json(r, machine);
  made["machine"] = machine;
  made["types"] = ordered_json::array();
  for (const cost::StorageType& type : types) made["types"].push_back(kept_json(type));
  made["heads_asked"] = ordered_json::array();
  for (const cost::ModelDescription& model : r.models)
    made["heads_asked"].push_back(model.layers[0].kv_heads);
  made["devices"] = {{"count", r.devices.count},
                     {"split", kSplits[static_cast<int>(r.devices.split)]}};
  made["generated"] = r.workload.generated;
  made["chunk"] = r.workload.chunk;
  made["page_tokens"] = r.workload.page_tokens;
  made["scratch_tokens"] = r.workload.scratch_tokens;
  made["scratch_apart"] = r.workload.scratch == cost::Scratch::apart;
  made["bounded_windows"] = r.workload.bounded_windows;
  made["activation_bytes"] = r.workload.activation_type.block_bytes;
  made["prefill_form"] = form(r.workload.prefill_form);
  made["decode_form"] = form(r.workload.decode_form);
  made["counting"] = r.workload.counting == cost::Counting::full ? "full" : "triangle";
  made["rows"] = rows_json(plan, shown, types);
  // The longest context, as the first variant has it.
  made["first"] = plan.cases.size() / r.contexts.size() * (r.contexts.size() - 1);
  made["checks"] = checks_json(plan, shown, types);
  made["assumptions"] =
      "A multiply and an add are two FLOPs. In full: every query against the most keys of its "
      "call; "
      "triangle: visible pairs. 1 GB is 10^9 bytes, 1 GiB 2^30. The roofline is the least time at "
      "the "
      "datasheet's dense peak and bandwidth, kernel after kernel; runs take longer. Scratch is an "
      "estimate. Made by polyhead plan.";
  return made;
}

void replace(std::string& page, const std::string& mark, const std::string& text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

std::string plan_page(const PlanResult& plan) {
  std::string page = kPlanPage;
  replace(page, "POLYHEAD_SCRIPT", std::string(kPlanCost) + kPlanViews);
  replace(page, "POLYHEAD_DATA", json_for_script(page_json(plan)));
  return page;
}

}  // namespace polyhead::cli
