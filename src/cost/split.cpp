#include "cost/split.hpp"

#include "base/ceil_div.hpp"
#include "cost/calls.hpp"
#include "cost/terms.hpp"

namespace polyhead::inline v0::cost {
namespace {

Term all_reduces(const ModelDescription& model, const Workload& workload, Phase phase,
                 const Devices& devices) {
  std::vector<Term> parts;
  for (const Layer& layer : model.layers) {
    const StorageType& type = workload.activation_type;
    const Count elements =
        Count(workload.batch) * calls_of(layer, workload, phase).queries * Count(layer.model_dim);
    const Count bytes = ceil_div(elements, type.block_elements) * Count(type.block_bytes);
    parts.push_back(
        of_group(layer, product("all_reduce_of_layers", Unit::bytes,
                                {{"layers", layer.count},
                                 {"passes", trains(phase) ? 2 : 1},
                                 {"all_reduces", layer.ffn.ffn_dim > 0 ? 2 : 1},
                                 {"2 · (devices - 1)", 2 * (devices.count - 1)},
                                 {"bytes of a share", ceil_div(bytes, devices.count)}},
                                "a ring all-reduce sends its share 2 (devices - 1) times")));
  }
  return sum("sent", Unit::bytes, std::move(parts));
}

Term round_the_ring(const ModelDescription& model, const Workload& workload, Phase phase,
                    const Devices& devices) {
  std::vector<Term> parts;
  for (const Layer& layer : model.layers) {
    const Factor count{"layers", layer.count}, batch{"batch", workload.batch};
    const Factor others{"devices - 1", devices.count - 1};
    if (decodes(phase)) {
      const std::int64_t width =
          layer.latent.given() ? layer.latent.kv_rank + layer.latent.rope_dim : layer.head_dim;
      const std::int64_t value = layer.latent.given() ? layer.latent.kv_rank : layer.value_dim;
      const Count a_query =
          Count(layer.q_heads) * Count(width) * Count(workload.activation_type.block_bytes);
      const Count a_partial = Count(layer.q_heads) * Count(value + 1) * Count(4);
      parts.push_back(of_group(
          layer, product("queries_of_layers", Unit::bytes,
                         {count,
                          batch,
                          others,
                          {"steps", calls_of(layer, workload, phase).queries},
                          {"query + partial", a_query + a_partial}},
                         "the query to every device, a float32 output and LSE back from each")));
    } else {
      parts.push_back(of_group(
          layer,
          product("keys_of_layers", Unit::bytes,
                  {count,
                   {"passes", trains(phase) ? 3 : 1},
                   batch,
                   others,
                   {"tokens of a device", base::ceil_div(workload.prompt, devices.count)},
                   {"bytes a token", key_bytes(layer, workload)}},
                  trains(phase) ? "keys and values forward, again backward, and their gradients"
                                : "every device's keys and values visit every other")));
    }
  }
  return sum("sent", Unit::bytes, std::move(parts));
}

}  // namespace

ModelDescription of_one_device(const ModelDescription& model, const Devices& devices) {
  check(devices, model);
  if (devices.split != Split::tensor) return model;
  ModelDescription part = model;
  part.vocab_size = base::ceil_div(model.vocab_size, devices.count);
  for (Layer& layer : part.layers) {
    layer.q_heads = base::ceil_div(layer.q_heads, devices.count);
    layer.kv_heads = base::ceil_div(layer.kv_heads, devices.count);
    layer.ffn.ffn_dim = base::ceil_div(layer.ffn.ffn_dim, devices.count);
    layer.ffn.shared_dim = base::ceil_div(layer.ffn.shared_dim, devices.count);
  }
  return part;
}

std::int64_t on_one_device(std::int64_t tokens, const Devices& devices) {
  return devices.split == Split::ring ? base::ceil_div(tokens, devices.count) : tokens;
}

Term sent_bytes(const ModelDescription& model, const Workload& workload, Phase phase,
                const Devices& devices) {
  check(model);
  check(workload);
  check(devices, model);
  if (devices.count == 1) return product("sent", Unit::bytes, {constant(0)});
  return devices.split == Split::tensor ? all_reduces(model, workload, phase, devices)
                                        : round_the_ring(model, workload, phase, devices);
}

}  // namespace polyhead::inline v0::cost
