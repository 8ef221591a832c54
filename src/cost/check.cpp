// Refusing impossible descriptions, by name.
#include <cmath>
#include <utility>

#include "base/refuse.hpp"
#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {
namespace {

constexpr std::int64_t kLargestSize = 1'000'000'000;  // heads, dims, layers: far beyond any model

using Named = std::pair<const char*, std::int64_t>;

void check_size(const char* name, std::int64_t size, std::int64_t least, std::int64_t most) {
  if (size < least || size > most) {
    base::refuse("cost", name, " (", size, ") is not from ", least, " to ", most);
  }
}

void check_ffn(const FeedForward& ffn) {
  for (const Named& size :
       {Named{"ffn_dim", ffn.ffn_dim}, {"experts", ffn.experts}, {"shared_dim", ffn.shared_dim}}) {
    check_size(size.first, size.second, 0, kLargestSize);
  }
  if (ffn.experts > 0) check_size("experts_used", ffn.experts_used, 1, ffn.experts);
}

void check_latent(const Layer& layer) {
  for (const Named& size : {Named{"q_rank", layer.latent.q_rank},
                            {"kv_rank", layer.latent.kv_rank},
                            {"nope_dim", layer.latent.nope_dim},
                            {"rope_dim", layer.latent.rope_dim}}) {
    check_size(size.first, size.second, 0, kLargestSize);
  }
  if (!layer.latent.given()) return;
  if (layer.latent.nope_dim + layer.latent.rope_dim == 0)
    base::refuse("cost", "nope_dim + rope_dim (0) is not at least 1");
  if (layer.window != 0)
    base::refuse("cost", "window (", layer.window, ") with latent attention; expected 0");
  if (layer.attends != Attends::causal)
    base::refuse("cost", "latent attention of an encoder; expected a causal layer");
}

void check_layer(const Layer& layer) {
  for (const Named& size : {Named{"count of layers", layer.count},
                            {"model_dim", layer.model_dim},
                            {"q_heads", layer.q_heads},
                            {"value_dim", layer.value_dim}}) {
    check_size(size.first, size.second, 1, kLargestSize);
  }
  check_size("norm_parameters", layer.norm_parameters, 0, kUnlimited);
  check_size("window", layer.window, 0, kUnlimited);
  check_latent(layer);
  if (!layer.latent.given()) {
    check_size("kv_heads", layer.kv_heads, 1, kLargestSize);
    check_size("head_dim", layer.head_dim, 1, kLargestSize);
    if (layer.q_heads % layer.kv_heads != 0) {
      base::refuse("cost", "q_heads (", layer.q_heads, ") is not a multiple of kv_heads (",
                   layer.kv_heads, ")");
    }
  }
  if (layer.window != 0 && layer.attends != Attends::causal)
    base::refuse("cost", "window (", layer.window, ") of a layer that is not causal; expected 0");
  check_ffn(layer.ffn);
}

void check_type(const char* what, const StorageType& type) {
  if (type.block_elements < 1 || type.block_bytes < 1 || type.block_elements > kLargestSize ||
      type.block_bytes > kLargestSize || type.channel_bytes < 0) {
    base::refuse("cost", what, " ", type.name, " has blocks of ", type.block_elements,
                 " elements in ", type.block_bytes, " bytes; expected at least 1");
  }
}

void check_rate(const char* name, double rate, bool needed) {
  if (!std::isfinite(rate) || rate < 0 || (needed && rate == 0))
    base::refuse("cost", name, " (", rate, ") is not a positive number");
}

}  // namespace

void check(const ModelDescription& model) {
  if (model.layers.empty()) base::refuse("cost", "layers (0) is not at least 1");
  for (const Layer& layer : model.layers) check_layer(layer);
  for (const StoredWeights& entry : model.stored) {
    check_size("stored.weights", entry.weights, 0, kUnlimited);
    check_type("stored type", entry.type);
  }
  check_size("vocab_size", model.vocab_size, 0, kLargestSize);
  check_size("position_rows", model.position_rows, 0, kUnlimited);
  check_size("other_parameters", model.other_parameters, 0, kUnlimited);
  check_size("context_length", model.context_length, 0, kUnlimited);
}

void check(const Workload& workload) {
  check_size("batch", workload.batch, 1, kUnlimited);
  check_size("prompt", workload.prompt, 0, kUnlimited);
  check_size("generated", workload.generated, 0, kUnlimited);
  check_size("chunk", workload.chunk, 0, kUnlimited);
  check_size("page_tokens", workload.page_tokens, 0, kUnlimited);
  check_size("scratch_tokens", workload.scratch_tokens, 1, kUnlimited);
  check_type("KV type", workload.kv_type);
  if (workload.key_type) check_type("key type", *workload.key_type);
  if (workload.ring) {
    check_size("ring.chunk", workload.ring->chunk, 1, kUnlimited);
    check_size("ring.first_tokens", workload.ring->first_tokens, 0, kUnlimited);
  }
  check_type("activation type", workload.activation_type);
  if (workload.weight_type) check_type("weight type", *workload.weight_type);
}

void check(const Machine& machine) {
  check_rate("f32_flops", machine.f32_flops, false);
  check_rate("f16_flops", machine.f16_flops, false);
  check_rate("fp8_flops", machine.fp8_flops, false);
  check_rate("memory_bandwidth", machine.memory_bandwidth, true);
  check_rate("link_bandwidth", machine.link_bandwidth, false);
  if (machine.memory_bytes < 1)
    base::refuse("cost", "memory_bytes (", machine.memory_bytes, ") is not at least 1");
}

void check(const Utilisation& shares) {
  check_rate("utilisation.gemm", shares.gemm, true);
  check_rate("utilisation.attention", shares.attention, true);
  check_rate("utilisation.bandwidth", shares.bandwidth, true);
  check_rate("utilisation.cache_bandwidth", shares.cache_bandwidth, false);
  check_rate("utilisation.row_wise", shares.row_wise, false);
}

void check(const Devices& devices, const ModelDescription& model) {
  check_size("devices", devices.count, 1, kLargestSize);
  if (devices.split == Split::none && devices.count > 1)
    base::refuse("cost", "devices (", devices.count, ") without a split; expected tensor or ring");
  if (devices.split != Split::tensor) return;
  for (const Layer& layer : model.layers) {
    if (layer.q_heads % devices.count != 0) {
      base::refuse("cost", "q_heads (", layer.q_heads, ") is not a multiple of devices (",
                   devices.count, ") in a tensor split");
    }
    const std::int64_t kv = layer.latent.given() ? devices.count : layer.kv_heads;
    if (kv % devices.count != 0 && devices.count % kv != 0) {
      base::refuse("cost", "kv_heads (", kv, ") and devices (", devices.count,
                   "): neither is a multiple of the other in a tensor split");
    }
  }
}

}  // namespace polyhead::inline v0::cost
