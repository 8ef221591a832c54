// How many weights each matrix has.
#include <utility>

#include "base/refuse.hpp"
#include "cost/terms.hpp"
#include "cost/weights.hpp"

namespace polyhead::inline v0::cost {
namespace {

constexpr Unit kUnit = Unit::parameters;

Term matrix(const char* id, Factor in, std::vector<Factor> out) {
  std::vector<Factor> factors{std::move(in)};
  for (Factor& factor : out) factors.push_back(std::move(factor));
  return product(id, kUnit, std::move(factors));
}

void add_bias(std::vector<Term>& parts, bool given, const char* id, std::vector<Factor> sizes) {
  if (given) parts.push_back(product(id, kUnit, std::move(sizes)));
}

Term latent_parameters(const Layer& layer) {
  const Latent& l = layer.latent;
  const Factor d{"model_dim", layer.model_dim}, heads{"q_heads", layer.q_heads};
  const Factor q_dim{"(nope_dim + rope_dim)", l.nope_dim + l.rope_dim};
  std::vector<Term> parts;
  if (l.q_rank > 0) {
    parts.push_back(matrix("w_q_down", d, {{"q_rank", l.q_rank}}));
    parts.push_back(matrix("w_q_up", {"q_rank", l.q_rank}, {heads, q_dim}));
    parts.push_back(product("q_latent_norm", kUnit, {{"q_rank", l.q_rank}}));
  } else {
    parts.push_back(matrix("w_q", d, {heads, q_dim}));
  }
  parts.push_back(matrix("w_kv_down", d, {{"(kv_rank + rope_dim)", l.kv_rank + l.rope_dim}}));
  parts.push_back(product("kv_latent_norm", kUnit, {{"kv_rank", l.kv_rank}}));
  parts.push_back(matrix("w_kv_up", {"kv_rank", l.kv_rank},
                         {heads, {"(nope_dim + value_dim)", l.nope_dim + layer.value_dim}}));
  parts.push_back(matrix("w_o", heads, {{"value_dim", layer.value_dim}, d}));
  return sum("attention", kUnit, std::move(parts));
}

}  // namespace

Term attention_parameters(const Layer& layer) {
  if (layer.latent.given()) return latent_parameters(layer);
  const Factor d{"model_dim", layer.model_dim}, heads{"q_heads", layer.q_heads};
  const Factor kv{"kv_heads", layer.kv_heads}, dim{"head_dim", layer.head_dim};
  const Factor value{"value_dim", layer.value_dim};
  std::vector<Term> parts{matrix("w_q", d, {heads, dim}), matrix("w_k", d, {kv, dim}),
                          matrix("w_v", d, {kv, value}), matrix("w_o", heads, {value, d})};
  add_bias(parts, layer.biases.q, "b_q", {heads, dim});
  add_bias(parts, layer.biases.k, "b_k", {kv, dim});
  add_bias(parts, layer.biases.v, "b_v", {kv, value});
  add_bias(parts, layer.biases.output, "b_o", {d});
  add_bias(parts, layer.qk_norm, "qk_norm", {constant(2), dim});
  add_bias(parts, layer.sinks, "sinks", {heads});
  return sum("attention", kUnit, std::move(parts));
}

Term expert_parameters(const Layer& layer) {
  const FeedForward& f = layer.ffn;
  return product("experts", kUnit,
                 {{"experts", f.experts},
                  {"matrices", f.gated ? 3 : 2},
                  {"model_dim", layer.model_dim},
                  {"ffn_dim", f.ffn_dim}});
}

Term dense_ffn_parameters(const Layer& layer) {
  const FeedForward& f = layer.ffn;
  const Factor matrices{"matrices", f.gated ? 3 : 2}, d{"model_dim", layer.model_dim};
  std::vector<Term> parts;
  if (f.experts > 0) {
    parts.push_back(product("router", kUnit, {d, {"experts", f.experts}}));
    add_bias(parts, f.router_bias || f.biases, "router_bias", {{"experts", f.experts}});
    add_bias(parts, f.shared_dim > 0, "shared_experts",
             {matrices, d, {"shared_dim", f.shared_dim}});
  } else {
    parts.push_back(product("ffn_matrices", kUnit, {matrices, d, {"ffn_dim", f.ffn_dim}}));
  }
  if (f.biases) {
    const std::int64_t up = (f.gated ? 2 : 1) * f.ffn_dim;
    parts.push_back(product(
        "ffn_biases", kUnit,
        {{"experts", f.experts > 0 ? f.experts : 1}, {"(up + model_dim)", up + layer.model_dim}}));
  }
  return sum("feed_forward", kUnit, std::move(parts));
}

Term embedding_parameters(const ModelDescription& model) {
  const Factor d{"model_dim", model.layers.front().model_dim};
  std::vector<Term> parts{product("token_embedding", kUnit, {{"vocab_size", model.vocab_size}, d})};
  add_bias(parts, model.position_rows > 0, "position_embedding",
           {{"position_rows", model.position_rows}, d});
  return sum("embedding", kUnit, std::move(parts));
}

Term output_parameters(const ModelDescription& model) {
  return product("output", kUnit,
                 {{"vocab_size", model.vocab_size}, {"model_dim", model.layers.front().model_dim}});
}

Term parameters(const ModelDescription& model) {
  check(model);
  std::vector<Term> attention, ffn, experts, norms;
  for (const Layer& layer : model.layers) {
    const std::vector<Factor> count{{"layers", layer.count}};
    const auto of_all = [&](const char* id, Term one) {
      return of_group(layer, sum(id, kUnit, std::move(one.parts), "", count));
    };
    attention.push_back(of_all("attention_of_layers", attention_parameters(layer)));
    if (layer.ffn.ffn_dim > 0) {
      ffn.push_back(of_all("feed_forward_of_layers", dense_ffn_parameters(layer)));
      if (layer.ffn.experts > 0)
        experts.push_back(of_group(
            layer, sum("experts_of_layers", kUnit, {expert_parameters(layer)}, "", count)));
    }
    if (layer.norm_parameters > 0) {
      norms.push_back(
          of_group(layer, product("norms_of_layers", kUnit,
                                  {count[0], {"norm_parameters", layer.norm_parameters}})));
    }
  }
  std::vector<Term> parts{sum("attention", kUnit, std::move(attention)),
                          sum("feed_forward", kUnit, std::move(ffn))};
  if (!experts.empty()) parts.push_back(sum("experts", kUnit, std::move(experts)));
  parts.push_back(sum("norms", kUnit, std::move(norms)));
  if (model.vocab_size > 0) {
    parts.push_back(embedding_parameters(model));
    if (model.output_matrix && !model.tied_output) parts.push_back(output_parameters(model));
  }
  if (model.other_parameters > 0) {
    parts.push_back(product("other", kUnit, {{"other_parameters", model.other_parameters}}));
  }
  return sum("parameters", kUnit, std::move(parts));
}

ModelDescription with_kv_heads(ModelDescription model, std::int64_t kv_heads) {
  for (Layer& layer : model.layers) {
    if (layer.latent.given()) continue;
    if (kv_heads < 1 || layer.q_heads % kv_heads != 0) {
      base::refuse("cost", "kv_heads (", kv_heads, ") does not divide q_heads (", layer.q_heads,
                   ") of ", model.id.empty() ? "the model" : model.id);
    }
    layer.kv_heads = kv_heads;
  }
  return model;
}

ModelDescription with_vocabulary_as(ModelDescription model, std::string_view type) {
  const StorageType& stored = storage_type(type);
  for (const Term& part : parameters(model).parts) {
    if (part.id != "embedding" && part.id != "output") continue;
    model.stored.push_back({part.id, stored, static_cast<std::int64_t>(part.value.wide())});
  }
  return model;
}

}  // namespace polyhead::inline v0::cost
