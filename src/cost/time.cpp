// Bytes that cross the memory bus, and time against the roofline.
#include <algorithm>
#include <utility>

#include "base/refuse.hpp"
#include "cost/calls.hpp"
#include "cost/terms.hpp"
#include "cost/weights.hpp"

namespace polyhead::inline v0::cost {
namespace {

constexpr Unit kUnit = Unit::bytes;
constexpr int kTrainingTraffic = 3;  // forward, and once each for both halves of backward

/// Weights are read once in every call, other operands once in all.
struct Traffic {
  const ModelDescription& model;
  const Workload& workload;
  Phase phase;

  Factor activation_bytes() const { return {"bytes", workload.activation_type.block_bytes}; }

  Count rows(const Calls& calls) const { return Count(workload.batch) * calls.queries; }

  Term weights(const char* id, const Layer& layer, const Calls& calls, const char* part,
               Count parameters, const StorageType& type) const {
    return product(
        id, kUnit,
        {{"layers", layer.count},
         {"calls", calls.calls},
         {"bytes of a layer", stored_part(model, workload, part, parameters, type).value}});
  }

  Term activations(const Layer& layer, const Calls& calls, Count columns) const {
    return product(
        "activations", kUnit,
        {{"layers", layer.count}, {"rows", rows(calls)}, {"columns", columns}, activation_bytes()});
  }

  std::vector<Term> projections(const Layer& layer, const Calls& calls) const {
    const Count heads = layer.q_heads, d = layer.model_dim;
    const Latent& l = layer.latent;
    const Count width = l.given()
                            ? Count(l.kv_rank + l.rope_dim) + heads * Count(l.nope_dim + l.rope_dim)
                            : heads * Count(layer.head_dim) +
                                  Count(layer.kv_heads) * Count(layer.head_dim + layer.value_dim);
    return {weights("weights", layer, calls, "attention", attention_parameters(layer).value,
                    weight_type_of(model, workload)),
            activations(layer, calls, d + width + heads * Count(layer.value_dim) + d)};
  }

  std::vector<Term> attention(const Layer& layer, const Calls& calls) const {
    const Latent& l = layer.latent;
    const Count heads = layer.q_heads;
    const Count columns = heads * Count(l.given() ? l.nope_dim + l.rope_dim : layer.head_dim) +
                          heads * Count(layer.value_dim);
    const Count key = key_bytes(layer, workload);
    return {product("kv_read", kUnit,
                    {{"layers", layer.count},
                     {"batch", workload.batch},
                     {"keys of all calls", calls.keys_read},
                     {"bytes a token", key}}),
            product("kv_write", kUnit,
                    {{"layers", layer.count},
                     {"batch", workload.batch},
                     {"new keys", calls.new_keys},
                     {"bytes a token", key}}),
            activations(layer, calls, columns)};
  }

  std::vector<Term> feed_forward(const Layer& layer, const Calls& calls) const {
    const FeedForward& f = layer.ffn;
    const char* const id = f.experts > 0 ? "feed_forward" : "weights";
    Term read = weights(id, layer, calls, "feed_forward", dense_ffn_parameters(layer).value,
                        weight_type_of(model, workload));
    Count active = f.ffn_dim;
    if (f.experts > 0) {
      active = Count(f.experts_used) * Count(f.ffn_dim) + Count(f.shared_dim);
      const Count per_call = ceil_div(rows(calls), std::max(calls.calls, Count(1)));
      const Count touched = std::min(Count(f.experts), Count(f.experts_used) * per_call);
      const Count one = expert_parameters(layer).value / Count(f.experts);
      Term experts = weights("experts", layer, calls, "experts", one * touched,
                             expert_type_of(model, workload));
      read = sum("weights", kUnit, {std::move(read), std::move(experts)});
    }
    return {
        std::move(read),
        activations(layer, calls, Count(2 * layer.model_dim) + active * Count(f.gated ? 4 : 2))};
  }

  std::vector<Term> logits() const {
    const Count calls = phase == Phase::generation
                            ? Count(workload.generated > 1 ? workload.generated - 1 : 0)
                            : Count(1);
    return {product("weights", kUnit,
                    {{"calls", calls},
                     {"bytes of the output matrix",
                      stored_part(model, workload, model.tied_output ? "embedding" : "output",
                                  output_parameters(model).value, weight_type_of(model, workload))
                          .value}}),
            product("activations", kUnit,
                    {{"calls", calls},
                     {"batch", workload.batch},
                     {"vocab_size", model.vocab_size},
                     activation_bytes()})};
  }
};

double seconds_for(Count work, double rate) { return work.to_double() / rate; }

/// FLOPs and bytes of every kind of kernel, on one device.
std::vector<KernelTime> kernels_of(const ModelDescription& model, const Workload& workload,
                                   Phase phase, const Devices& devices) {
  const ModelDescription part = of_one_device(model, devices);
  const Term flops = model_flops(part, workload, phase);
  const Term bytes = traffic_bytes(part, workload, phase);
  const Count ring = devices.split == Split::ring ? devices.count : 1;
  std::vector<KernelTime> kernels;
  for (std::size_t i = 0; i < flops.parts.size(); ++i) {
    KernelTime kernel;
    kernel.id = flops.parts[i].id;
    kernel.flops = ceil_div(flops.parts[i].value, ring);
    const Count weights = bytes.parts[i].at("weights");
    kernel.bytes = weights + ceil_div(bytes.parts[i].value - weights, ring);
    kernels.push_back(kernel);
  }
  return kernels;
}

}  // namespace

Term traffic_bytes(const ModelDescription& model, const Workload& workload, Phase phase) {
  check(model);
  check(workload);
  const Traffic traffic{model, workload, phase};
  std::vector<Term> projections, attention, ffn;
  for (const Layer& layer : model.layers) {
    const auto move_to = [&](std::vector<Term>& to, std::vector<Term> from) {
      for (Term& term : from) to.push_back(of_group(layer, std::move(term)));
    };
    const Calls calls = calls_of(layer, workload, phase);
    move_to(projections, traffic.projections(layer, calls));
    move_to(attention, traffic.attention(layer, calls));
    if (layer.ffn.ffn_dim > 0) move_to(ffn, traffic.feed_forward(layer, calls));
  }
  std::vector<Factor> passes;
  if (trains(phase)) passes.push_back({"passes", kTrainingTraffic});
  std::vector<Term> parts{sum("projections", kUnit, std::move(projections), "", passes),
                          sum("attention", kUnit, std::move(attention), "", passes),
                          sum("feed_forward", kUnit, std::move(ffn), "", passes)};
  if (model.output_matrix && model.vocab_size > 0)
    parts.push_back(sum("logits", kUnit, traffic.logits(), "", passes));
  return sum("traffic", kUnit, std::move(parts),
             "each operand of a call once; of experts all that can be touched");
}

Term row_wise_elements(const ModelDescription& model, const Workload& workload, Phase phase) {
  check(model);
  check(workload);
  std::vector<Term> parts;
  for (const Layer& layer : model.layers) {
    const FeedForward& f = layer.ffn;
    const Count columns = Count(f.experts > 0 ? f.experts_used : 1) * Count(f.ffn_dim);
    const Count heads = Count(layer.q_heads) * Count(layer.head_dim) +
                        Count(layer.kv_heads) * Count(layer.head_dim + layer.value_dim);
    parts.push_back(of_group(
        layer, product("row_wise_of_layers", Unit::elements,
                       {{"layers", layer.count},
                        {"rows", Count(workload.batch) * calls_of(layer, workload, phase).queries},
                        {"(norms + 2 · model_dim + heads + ffn columns)",
                         Count(layer.norm_parameters) + Count(2) * Count(layer.model_dim) + heads +
                             columns + Count(f.shared_dim)}})));
  }
  return sum("row_wise", Unit::elements, std::move(parts));
}

double peak_flops(const Machine& machine, Compute compute) {
  const double peak = compute == Compute::f32   ? machine.f32_flops
                      : compute == Compute::f16 ? machine.f16_flops
                                                : machine.fp8_flops;
  if (peak <= 0) {
    const char* names[] = {"f32", "f16", "fp8"};
    base::refuse("cost", machine.name, " has no ", names[static_cast<int>(compute)],
                 " peak; expected one of", machine.f32_flops > 0 ? " f32" : "",
                 machine.f16_flops > 0 ? " f16" : "", machine.fp8_flops > 0 ? " fp8" : "");
  }
  return peak;
}

PhaseTime phase_time(const ModelDescription& model, const Workload& workload, Phase phase,
                     const Machine& machine, Compute compute, const Utilisation& utilisation,
                     const Devices& devices) {
  check(machine);
  check(utilisation);
  check(devices, model);
  const double peak = peak_flops(machine, compute);
  PhaseTime time;
  time.kernels = kernels_of(model, workload, phase, devices);
  Count flops = 0, bytes = 0, attention = 0;
  double compute_bound = 0;
  for (KernelTime& kernel : time.kernels) {
    const bool products = kernel.id == "attention";
    kernel.compute_seconds =
        seconds_for(kernel.flops, peak * (products ? utilisation.attention : utilisation.gemm));
    const double share = products && utilisation.cache_bandwidth > 0 ? utilisation.cache_bandwidth
                                                                     : utilisation.bandwidth;
    kernel.memory_seconds = seconds_for(kernel.bytes, machine.memory_bandwidth * share);
    time.seconds += kernel.seconds();
    if (kernel.bound() == Bound::compute) compute_bound += kernel.seconds();
    flops = flops + kernel.flops;
    bytes = bytes + kernel.bytes;
    if (products || kernel.id == "projections") attention = attention + kernel.flops;
  }
  if (utilisation.row_wise > 0) {
    KernelTime rows;
    rows.id = "row_wise";
    rows.compute_seconds = seconds_for(row_wise_elements(model, workload, phase).value,
                                       utilisation.row_wise * static_cast<double>(devices.count));
    time.seconds += rows.seconds();
    compute_bound += rows.seconds();
    time.kernels.push_back(rows);
  }
  time.attention_seconds = seconds_for(attention, peak);
  time.peak_seconds = seconds_for(flops, peak);
  time.intensity = bytes > Count(0) ? flops.to_double() / bytes.to_double() : 0;
  time.bound = compute_bound * 2 >= time.seconds ? Bound::compute : Bound::bandwidth;
  return time;
}

}  // namespace polyhead::inline v0::cost
