// Small descriptions for the planner's tests.
#pragma once

#include "polyhead/cost.h"

namespace polyhead::cost {

inline Layer mha(std::int64_t model_dim, std::int64_t heads, std::int64_t kv_heads = 0) {
  Layer layer;
  layer.model_dim = model_dim;
  layer.q_heads = heads;
  layer.kv_heads = kv_heads > 0 ? kv_heads : heads;
  layer.head_dim = layer.value_dim = model_dim / heads;
  return layer;
}

inline ModelDescription only(Layer layer) {
  ModelDescription model;
  model.layers = {layer};
  return model;
}

inline Workload prompt_of(std::int64_t tokens, Counting counting = Counting::full) {
  Workload work;
  work.prompt = tokens;
  work.counting = counting;
  return work;
}

}  // namespace polyhead::cost
