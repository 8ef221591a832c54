// Bytes that must be held: weights, the KV cache, scratch.
#include <algorithm>
#include <utility>

#include "cost/split.hpp"
#include "cost/terms.hpp"
#include "cost/weights.hpp"

namespace polyhead::inline v0::cost {
namespace {

constexpr Unit kUnit = Unit::bytes;

constexpr std::int64_t kRingPage = 64;  // tokens of a SlidingCache's page

Count row_bytes(Count elements, const StorageType& type) {
  return ceil_div(elements, type.block_elements) * Count(type.block_bytes);
}

/// Tokens of each sequence that a layer keeps.
Count tokens_kept(const Layer& layer, const Workload& workload, const Devices& devices) {
  std::int64_t tokens = workload.context();
  if (layer.attends == Attends::all) tokens = 0;
  if (layer.attends == Attends::source) tokens = workload.prompt;
  if (layer.window > 0 && workload.ring) {
    const RingCache& ring = *workload.ring;
    return Count(kRingPage) * (ceil_div(ring.first_tokens, kRingPage) +
                               ceil_div(layer.window + ring.chunk - 1, kRingPage) + Count(1));
  }
  if (layer.window > 0 && workload.bounded_windows) tokens = std::min(tokens, layer.window);
  tokens = on_one_device(tokens, devices);
  if (workload.page_tokens == 0) return tokens;
  return ceil_div(tokens, workload.page_tokens) * Count(workload.page_tokens);
}

/// Columns that one row of x grows to inside a layer's attention and its feed-forward.
Count attention_width(const Layer& layer) {
  const Latent& l = layer.latent;
  if (l.given()) {
    return Count(l.q_rank + l.kv_rank + l.rope_dim) +
           Count(layer.q_heads) * Count(l.nope_dim + l.rope_dim + layer.value_dim);
  }
  return Count(layer.q_heads) * Count(layer.head_dim + layer.value_dim) +
         Count(layer.kv_heads) * Count(layer.head_dim + layer.value_dim);
}

Count ffn_width(const Layer& layer) {
  const FeedForward& f = layer.ffn;
  const Count dim = Count(f.experts > 0 ? f.experts_used : 1) * Count(f.ffn_dim);
  return (dim + Count(f.shared_dim)) * Count(f.gated ? 2 : 1);
}

Count rows_under_way(const Workload& workload, const Devices& devices) {
  const Count prompt = Count(workload.batch) * Count(on_one_device(workload.prompt, devices));
  const Count at_most = workload.chunk > 0 ? Count(workload.batch) * Count(workload.chunk)
                                           : Count(workload.scratch_tokens);
  return std::max(std::min(prompt, at_most), Count(workload.batch));
}

/// Every step in memory of its own: what products give in float32, what they read in the
/// activation type, and q, k and v in both where the two differ.
std::vector<Term> scratch_apart(const ModelDescription& model, const Workload& workload,
                                const Factor& rows, const Factor& bytes) {
  const Factor wide{"bytes of float32", 4};
  const Count d = model.layers.front().model_dim;
  Count heads = 0, hidden = 0, activated = 0, projected = 0;
  for (const Layer& layer : model.layers) {
    heads = std::max(heads, attention_width(layer));
    projected =
        std::max(projected, attention_width(layer) - Count(layer.q_heads) * Count(layer.value_dim));
    hidden = std::max(hidden, ffn_width(layer));
    activated = std::max(activated, ffn_width(layer) / Count(layer.ffn.gated ? 2 : 1));
  }
  if (bytes.value >= wide.value) projected = 0;
  std::vector<Term> parts{
      product("residual", kUnit, {constant(2), rows, {"model_dim", d}, wide},
              "x and what is being added to it"),
      product("projected", kUnit, {rows, {"columns", hidden + projected}, wide},
              "the feed-forward's hidden rows; q, k and v before they are rounded"),
      product("read", kUnit, {rows, {"columns", d + heads + activated}, bytes},
              "what products and attention read: norms, q, k, v, heads, activations")};
  if (weight_type_of(model, workload).name == "bf16" && bytes.value >= wide.value) {
    parts.push_back(product("rounded", kUnit, {rows, {"columns", std::max(d, activated)}, bytes},
                            "what one product with bfloat16 weights reads, rounded to them"));
  }
  return parts;
}

}  // namespace

Term stored(std::string id, Count weights, const StorageType& type) {
  if (type.block_elements == 1) {
    return product(std::move(id), kUnit, {{"parameters", weights}, {"bytes", type.block_bytes}},
                   type.name);
  }
  return product(
      std::move(id), kUnit,
      {{"blocks of " + std::to_string(type.block_elements), ceil_div(weights, type.block_elements)},
       {"bytes", type.block_bytes}},
      type.name);
}

Term stored_part(const ModelDescription& model, const Workload& workload, const std::string& part,
                 Count weights, const StorageType& otherwise) {
  std::vector<const StoredWeights*> entries;
  Count all = 0;
  for (const StoredWeights& entry : model.stored) {
    if (entry.part != part || workload.weight_type) continue;
    entries.push_back(&entry);
    all = all + Count(entry.weights);
  }
  if (all == Count(0)) return stored(part, weights, otherwise);
  // The whole part as it is; of fewer weights (a layer's, a device's) each type its share.
  std::vector<Term> parts;
  for (const StoredWeights* entry : entries) {
    const Count share =
        weights == all ? Count(entry->weights) : ceil_div(weights * Count(entry->weights), all);
    parts.push_back(stored("in_" + entry->type.name, share, entry->type));
  }
  return sum(part, kUnit, std::move(parts));
}

StorageType weight_type_of(const ModelDescription& model, const Workload& workload) {
  return workload.weight_type ? *workload.weight_type : storage_type(model.weight_type);
}

StorageType expert_type_of(const ModelDescription& model, const Workload& workload) {
  if (workload.weight_type || model.expert_type.empty()) return weight_type_of(model, workload);
  return storage_type(model.expert_type);
}

StorageType plain_type_of(const StorageType& type) {
  return type.block_elements == 1 ? type : StorageType{"f32", 1, 4};
}

Term kv_bytes_per_token(const Layer& layer, const StorageType& type,
                        const std::optional<StorageType>& keys_as) {
  if (layer.attends == Attends::all)
    return product("kv_bytes_per_token", kUnit, {constant(0)}, "an encoder keeps no cache");
  const StorageType& key_type = keys_as ? *keys_as : type;
  if (layer.latent.given()) {
    const Count elements = layer.latent.kv_rank + layer.latent.rope_dim;
    // Latents are values too, which have no scales by channel: by token, then.
    const StorageType& held = key_type.channel_bytes > 0 ? type : key_type;
    return product("kv_bytes_per_token", kUnit,
                   {{"bytes of (kv_rank + rope_dim)", row_bytes(elements, held)}}, held.name);
  }
  const std::string note = keys_as ? "keys " + key_type.name + ", values " + type.name : type.name;
  const Count keys = row_bytes(layer.head_dim, key_type), values = row_bytes(layer.value_dim, type);
  if (keys == values) {
    return product("kv_bytes_per_token", kUnit,
                   {constant(2), {"kv_heads", layer.kv_heads}, {"bytes of head_dim", keys}}, note);
  }
  return product("kv_bytes_per_token", kUnit,
                 {{"kv_heads", layer.kv_heads}, {"bytes of head_dim and value_dim", keys + values}},
                 note);
}

Term kv_cache_bytes(const ModelDescription& model, const Workload& workload,
                    const Devices& devices) {
  check(model);
  check(workload);
  check(devices, model);
  std::vector<Term> parts;
  const StorageType& key_type = workload.key_type ? *workload.key_type : workload.kv_type;
  for (const Layer& layer : of_one_device(model, devices).layers) {
    if (layer.attends == Attends::all) continue;
    const Term token = kv_bytes_per_token(layer, workload.kv_type, workload.key_type);
    std::vector<Factor> factors{{"layers", layer.count},
                                {"batch", workload.batch},
                                {workload.page_tokens > 0 ? "tokens in pages" : "tokens",
                                 tokens_kept(layer, workload, devices)}};
    factors.insert(factors.end(), token.factors.begin(), token.factors.end());
    parts.push_back(of_group(layer, product("kv_cache_of_layers", kUnit, std::move(factors))));
    if (key_type.channel_bytes == 0 || layer.latent.given()) continue;
    parts.push_back(of_group(layer, product("key_scales_of_layers", kUnit,
                                            {{"layers", layer.count},
                                             {"kv_heads", layer.kv_heads},
                                             {"head_dim", layer.head_dim},
                                             {"bytes", key_type.channel_bytes}},
                                            "by channel, of all sequences together")));
  }
  return sum("kv_cache", kUnit, std::move(parts));
}

Term weight_bytes(const ModelDescription& whole, const Workload& workload, const Devices& devices) {
  check(workload);
  check(devices, whole);
  const ModelDescription model = of_one_device(whole, devices);
  const Term all = parameters(model);
  const StorageType type = weight_type_of(model, workload), plain = plain_type_of(type);
  std::vector<Term> parts;
  for (const Term& part : all.parts) {
    const bool small = part.id == "norms" || part.id == "other";
    parts.push_back(stored_part(model, workload, part.id, part.value,
                                part.id == "experts" ? expert_type_of(model, workload)
                                : small              ? plain
                                                     : type));
  }
  return sum("weights", kUnit, std::move(parts));
}

Term scratch_bytes(const ModelDescription& whole, const Workload& workload,
                   const Devices& devices) {
  check(whole);
  check(workload);
  check(devices, whole);
  const ModelDescription model = of_one_device(whole, devices);
  const Factor rows{"rows", rows_under_way(workload, devices)};
  const Factor bytes{"bytes", workload.activation_type.block_bytes};
  const bool apart = workload.scratch == Scratch::apart;
  Count widest = 0, expanded = 0, latents = 0;
  for (const Layer& layer : model.layers) {
    widest = std::max({widest, attention_width(layer), ffn_width(layer)});
    if (!layer.latent.given() || workload.prefill_form == LatentForm::absorbed) continue;
    latents = std::min(Count(workload.batch) * Count(on_one_device(workload.context(), devices)),
                       Count(workload.scratch_tokens));
    expanded =
        std::max(expanded, Count(layer.q_heads) * Count(layer.latent.nope_dim +
                                                        layer.latent.rope_dim + layer.value_dim));
  }
  std::vector<Term> parts;
  if (apart) {
    parts = scratch_apart(model, workload, rows, bytes);
  } else {
    parts = {product("residual", kUnit,
                     {constant(2), rows, {"model_dim", model.layers.front().model_dim}, bytes},
                     "x and what is being added to it"),
             product("widest_step", kUnit, {rows, {"columns", widest}, bytes},
                     "q, k, v and the heads' outputs, or the feed-forward's hidden rows")};
  }
  if (expanded > Count(0)) {
    parts.push_back(product("expanded_keys", kUnit,
                            {{"latents", latents}, {"columns", expanded}, bytes},
                            "keys and values of all heads made from so many latents at a time"));
  }
  if (model.output_matrix && model.vocab_size > 0) {
    parts.push_back(
        product("logits", kUnit,
                {{"batch", workload.batch}, {"vocab_size", model.vocab_size}, {"bytes", 4}}));
  }
  return sum("scratch", kUnit, std::move(parts),
             "estimate: " + rows.value.grouped() + " rows under way, reused from layer to layer");
}

Term memory_bytes(const ModelDescription& model, const Workload& workload, const Devices& devices) {
  return sum("memory", kUnit,
             {weight_bytes(model, workload, devices), kv_cache_bytes(model, workload, devices),
              scratch_bytes(model, workload, devices)});
}

}  // namespace polyhead::inline v0::cost
