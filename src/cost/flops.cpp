// FLOPs by step: a multiply and an add are two.
#include <utility>

#include "cost/calls.hpp"
#include "cost/terms.hpp"

namespace polyhead::inline v0::cost {
namespace {

constexpr Unit kUnit = Unit::flops;
constexpr int kSoftmaxOperations = 5;  // a score: scale, compare, subtract, exponential, add
constexpr int kTrainingPasses = 3;     // forward, and backward for the input and for the weights

/// What every step of one layer and phase is made of.
struct Steps {
  const Layer& layer;
  const Workload& workload;
  Phase phase;
  Calls calls;
  Factor batch, d, heads;

  Steps(const Layer& of, const Workload& work, Phase in)
      : layer(of),
        workload(work),
        phase(in),
        calls(calls_of(of, work, in)),
        batch{"batch", work.batch},
        d{"model_dim", of.model_dim},
        heads{"q_heads", of.q_heads} {}

  /// 2 · batch · rows · sizes..., three times that in training.
  Term projection(const char* id, const char* rows_name, Count rows, std::vector<Factor> sizes,
                  std::string note = "") const {
    std::vector<Factor> factors{constant(2), batch, {rows_name, rows}};
    if (trains(phase)) factors.insert(factors.begin(), {"passes", kTrainingPasses});
    for (Factor& size : sizes) factors.push_back(std::move(size));
    return product(id, kUnit, std::move(factors), std::move(note));
  }

  Term pairs(const char* id, int passes, Factor width, std::string note) const {
    std::vector<Factor> factors{constant(2), batch};
    if (trains(phase)) factors.insert(factors.begin(), {"passes", passes});
    for (Factor& factor : pair_factors(calls, workload)) factors.push_back(std::move(factor));
    factors.push_back(heads);
    factors.push_back(std::move(width));
    return product(id, kUnit, std::move(factors), std::move(note));
  }

  /// Backward: dQ and dK stand beside the scores, dP and dV beside the weighted sum; recomputing
  /// makes the scores once more. Dao 2023, section 3.1: five products against two.
  std::vector<Term> products(Factor score_width, Factor value_width) const {
    const bool again = phase == Phase::training_recompute;
    const char* counted = workload.counting == Counting::full
                              ? "every query against the most keys of its call"
                              : "visible pairs only";
    return {pairs("scores", again ? 4 : 3, std::move(score_width), counted),
            pairs("weighted_sum", 3, std::move(value_width), counted)};
  }
};

std::vector<Term> plain_steps(const Steps& s) {
  const Layer& layer = s.layer;
  const Factor kv{"kv_heads", layer.kv_heads}, dim{"head_dim", layer.head_dim};
  const Factor value{"value_dim", layer.value_dim};
  std::vector<Term> steps{
      s.projection("q_projection", "queries", s.calls.queries, {s.d, s.heads, dim}),
      s.projection("k_projection", "keys", s.calls.new_keys, {s.d, kv, dim}),
      s.projection("v_projection", "keys", s.calls.new_keys, {s.d, kv, value})};
  for (Term& term : s.products(dim, value)) steps.push_back(std::move(term));
  steps.push_back(
      s.projection("output_projection", "queries", s.calls.queries, {s.heads, value, s.d}));
  return steps;
}

std::vector<Term> latent_steps(const Steps& s) {
  const Latent& l = s.layer.latent;
  const bool absorbed =
      (decodes(s.phase) ? s.workload.decode_form : s.workload.prefill_form) == LatentForm::absorbed;
  const Factor rank{"kv_rank", l.kv_rank}, nope{"nope_dim", l.nope_dim};
  const Factor value{"value_dim", s.layer.value_dim};
  const Factor cached{"(kv_rank + rope_dim)", l.kv_rank + l.rope_dim};
  const Factor q_dim{"(nope_dim + rope_dim)", l.nope_dim + l.rope_dim};
  const Count queries = s.calls.queries;

  std::vector<Term> q;
  if (l.q_rank > 0) {
    q.push_back(s.projection("q_down", "queries", queries, {s.d, {"q_rank", l.q_rank}}));
    q.push_back(s.projection("q_up", "queries", queries, {{"q_rank", l.q_rank}, s.heads, q_dim}));
  } else {
    q.push_back(s.projection("q_straight", "queries", queries, {s.d, s.heads, q_dim}));
  }
  std::vector<Term> k{s.projection("kv_down", "keys", s.calls.new_keys, {s.d, cached})};
  const char* each_call = "keys of every head are made anew from all latents in each call";
  k.push_back(absorbed ? s.projection("q_absorbed", "queries", queries, {s.heads, nope, rank},
                                      "the key projection, moved to the query")
                       : s.projection("k_up", "latents", s.calls.keys_read, {rank, s.heads, nope},
                                      each_call));
  const Term v = absorbed ? s.projection("v_projection", "queries", queries, {s.heads, rank, value},
                                         "behind the weighted sum")
                          : s.projection("v_projection", "latents", s.calls.keys_read,
                                         {rank, s.heads, value}, each_call);
  std::vector<Term> steps{sum("q_projection", kUnit, std::move(q)),
                          sum("k_projection", kUnit, std::move(k)), v};
  for (Term& term : s.products(absorbed ? cached : q_dim, absorbed ? rank : value))
    steps.push_back(std::move(term));
  steps.push_back(s.projection("output_projection", "queries", queries, {s.heads, value, s.d}));
  return steps;
}

Term ffn_flops(const Steps& s) {
  const FeedForward& f = s.layer.ffn;
  const Factor matrices{"matrices", f.gated ? 3 : 2};
  const Count rows = s.calls.queries;
  std::vector<Term> parts;
  if (f.experts > 0) {
    parts.push_back(s.projection("router", "rows", rows, {s.d, {"experts", f.experts}}));
    parts.push_back(
        s.projection("experts", "rows", rows,
                     {{"experts_used", f.experts_used}, matrices, s.d, {"ffn_dim", f.ffn_dim}}));
    if (f.shared_dim > 0) {
      parts.push_back(s.projection("shared_experts", "rows", rows,
                                   {matrices, s.d, {"shared_dim", f.shared_dim}}));
    }
  } else {
    parts.push_back(
        s.projection("ffn_matrices", "rows", rows, {matrices, s.d, {"ffn_dim", f.ffn_dim}}));
  }
  return of_group(s.layer, sum("feed_forward_of_layers", kUnit, std::move(parts), "",
                               {{"layers", s.layer.count}}));
}

Term logit_flops(const ModelDescription& model, const Workload& workload, Phase phase) {
  std::vector<Factor> factors{constant(2), {"batch", workload.batch}};
  if (trains(phase)) {
    factors.insert(factors.begin(), {"passes", kTrainingPasses});
    factors.push_back({"rows", workload.prompt});
  } else if (phase == Phase::generation) {
    factors.push_back({"rows", workload.generated > 1 ? workload.generated - 1 : 0});
  } else if (phase == Phase::prefill && workload.prompt == 0) {
    factors.push_back(constant(0));
  }
  factors.push_back({"vocab_size", model.vocab_size});
  factors.push_back({"model_dim", model.layers.front().model_dim});
  return product("logits", kUnit, std::move(factors),
                 phase == Phase::prefill ? "of each sequence's last token" : "");
}

}  // namespace

Term attention_flops(const Layer& layer, const Workload& workload, Phase phase) {
  const Steps steps(layer, workload, phase);
  return sum("layer", kUnit, layer.latent.given() ? latent_steps(steps) : plain_steps(steps));
}

Term softmax_flops(const Layer& layer, const Workload& workload, Phase phase) {
  const Steps s(layer, workload, phase);
  std::vector<Factor> factors{{"operations", kSoftmaxOperations}, s.batch};
  for (Factor& factor : pair_factors(s.calls, workload)) factors.push_back(std::move(factor));
  factors.push_back(s.heads);
  return product("softmax", kUnit, std::move(factors),
                 "scale, compare, subtract, exponential, add; no matrix units, so counted apart");
}

Term model_flops(const ModelDescription& model, const Workload& workload, Phase phase) {
  check(model);
  check(workload);
  std::vector<Term> projections, attention, ffn;
  for (const Layer& layer : model.layers) {
    const std::vector<Factor> count{{"layers", layer.count}};
    std::vector<Term> linear, products;
    for (Term& step : attention_flops(layer, workload, phase).parts) {
      const bool is_product = step.id == "scores" || step.id == "weighted_sum";
      (is_product ? products : linear).push_back(std::move(step));
    }
    projections.push_back(
        of_group(layer, sum("projections_of_layers", kUnit, std::move(linear), "", count)));
    attention.push_back(
        of_group(layer, sum("attention_of_layers", kUnit, std::move(products), "", count)));
    if (layer.ffn.ffn_dim > 0) ffn.push_back(ffn_flops(Steps(layer, workload, phase)));
  }
  std::vector<Term> parts{sum("projections", kUnit, std::move(projections)),
                          sum("attention", kUnit, std::move(attention)),
                          sum("feed_forward", kUnit, std::move(ffn))};
  if (model.output_matrix && model.vocab_size > 0)
    parts.push_back(logit_flops(model, workload, phase));
  return sum("model", kUnit, std::move(parts));
}

Count attention_only(const Term& flops) { return flops.parts[0].value + flops.parts[1].value; }

Term score_bytes(const Layer& layer, const Workload& workload) {
  const Count keys =
      layer.window > 0 && layer.window < workload.prompt ? layer.window : workload.prompt;
  return product("score_bytes", Unit::bytes,
                 {{"batch", workload.batch},
                  {"q_heads", layer.q_heads},
                  {"queries", workload.prompt},
                  {"keys", keys},
                  {"bytes", workload.activation_type.block_bytes}},
                 "of one layer, were they written to memory; fused kernels never do");
}

}  // namespace polyhead::inline v0::cost
