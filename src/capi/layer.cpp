// The layer behind polyhead_layer_c.h.
#include "polyhead/layer.h"

#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

polyhead::LayerConfig to_config(const char* call, const polyhead_layer_config& from) {
  polyhead::LayerConfig to;
  to.model_dim = from.model_dim;
  unless_zero(to.q_heads, from.q_heads);
  to.kv_heads = from.kv_heads;
  to.head_dim = from.head_dim;
  to.value_dim = from.value_dim;
  to.context_dim = from.context_dim;
  to.use_projections = !to_bool(call, "config.no_projections", from.no_projections);
  to.qk_norm = to_bool(call, "config.qk_norm", from.qk_norm);
  take_common(call, from, to);
  return to;
}

polyhead::LayerWeights to_weights(const char* call, const polyhead_layer_weights* weights) {
  const polyhead_layer_weights from = read_struct(call, "weights", weights);
  polyhead::LayerWeights to;
  to.w_q = to_view(call, "weights.w_q", from.w_q);
  to.w_k = to_view(call, "weights.w_k", from.w_k);
  to.w_v = to_view(call, "weights.w_v", from.w_v);
  to.w_qkv = to_view(call, "weights.w_qkv", from.w_qkv);
  to.w_o = to_view(call, "weights.w_o", from.w_o);
  to.b_q = to_view(call, "weights.b_q", from.b_q);
  to.b_k = to_view(call, "weights.b_k", from.b_k);
  to.b_v = to_view(call, "weights.b_v", from.b_v);
  to.b_qkv = to_view(call, "weights.b_qkv", from.b_qkv);
  to.b_o = to_view(call, "weights.b_o", from.b_o);
  to.q_norm = to_view(call, "weights.q_norm", from.q_norm);
  to.k_norm = to_view(call, "weights.k_norm", from.k_norm);
  return to;
}

}  // namespace

polyhead_status polyhead_layer_create(const polyhead_layer_config* config,
                                      const polyhead_layer_weights* weights,
                                      const polyhead_options* options, polyhead_layer** layer) {
  constexpr const char* kCall = "polyhead_layer_create";
  return guarded(kCall, [&] {
    const polyhead_layer_config from = read_struct(kCall, "config", config);
    need(kCall, "layer", layer);
    *layer = make_layer<polyhead_layer>(kCall, to_config(kCall, from), to_weights(kCall, weights),
                                        from.modifiers, options);
  });
}

void polyhead_layer_destroy(polyhead_layer* layer) { delete layer; }

polyhead_status polyhead_layer_workspace_create(polyhead_layer_workspace** workspace) {
  constexpr const char* kCall = "polyhead_layer_workspace_create";
  return guarded(kCall, [&] {
    need(kCall, "workspace", workspace);  // first: an assignment makes what it assigns before
    *workspace = new polyhead_layer_workspace{};
  });
}

void polyhead_layer_workspace_destroy(polyhead_layer_workspace* workspace) { delete workspace; }

polyhead_status polyhead_layer_workspace_bytes(const polyhead_layer_workspace* workspace,
                                               size_t* bytes) {
  constexpr const char* kCall = "polyhead_layer_workspace_bytes";
  return guarded(kCall, [&] {
    need(kCall, "workspace", workspace);
    *need(kCall, "bytes", bytes) = workspace->workspace.bytes();
  });
}

polyhead_status polyhead_layer_describe(const polyhead_layer* layer, char* text, size_t text_bytes,
                                        size_t* needed) {
  constexpr const char* kCall = "polyhead_layer_describe";
  return guarded(kCall, [&] {
    copy_text(kCall, need(kCall, "layer", layer)->layer->describe(), text, text_bytes, needed);
  });
}

polyhead_status polyhead_layer_forward(const polyhead_layer* layer, const polyhead_view* x,
                                       const polyhead_view* y, const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_forward";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer)
        ->layer->forward(to_view(kCall, "x", x), to_view(kCall, "y", y),
                         to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_forward_cross(const polyhead_layer* layer, const polyhead_view* x,
                                             const polyhead_view* context, const polyhead_view* y,
                                             const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_forward_cross";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer)
        ->layer->forward(to_view(kCall, "x", x),
                         polyhead::ConstView(to_view(kCall, "context", context)),
                         to_view(kCall, "y", y), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_forward_cached(const polyhead_layer* layer, const polyhead_view* x,
                                              polyhead_kv_cache* cache, const polyhead_view* y,
                                              const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_forward_cached";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    need(kCall, "cache", cache);
    layer->layer->forward(to_view(kCall, "x", x), cache->cache, to_view(kCall, "y", y),
                          to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_cache_create(const polyhead_layer* layer, int64_t batch,
                                            int64_t capacity, int32_t growing, int32_t element_type,
                                            polyhead_kv_cache** cache) {
  constexpr const char* kCall = "polyhead_layer_cache_create";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    need(kCall, "cache", cache);
    const bool grows = to_bool(kCall, "growing", growing);
    polyhead::KvCacheConfig config = layer->layer->cache_config(batch, capacity, grows);
    if (element_type != 0) config.type = to_element(kCall, "element_type", element_type);
    *cache = new polyhead_kv_cache{polyhead::KvCache(config)};
  });
}

polyhead_status polyhead_layer_packed_dim(const polyhead_layer* layer, int64_t* packed_dim) {
  constexpr const char* kCall = "polyhead_layer_packed_dim";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    *need(kCall, "packed_dim", packed_dim) = layer->layer->packed_dim();
  });
}

namespace {

struct Named {
  const char* name;
  const polyhead_view* view;
};

using Layer = polyhead::MultiHeadAttention;
using Projection = void (Layer::*)(polyhead::ConstView, polyhead::View, polyhead::ConstView) const;

/// Step 1 by `project`.
polyhead_status project_by(Projection project, const char* call, const polyhead_layer* layer,
                           Named from, Named to, const polyhead_view* positions) {
  return guarded(call, [&] {
    const Layer& by = *need(call, "layer", layer)->layer;
    (by.*project)(to_view(call, from.name, from.view), to_view(call, to.name, to.view),
                  to_view(call, "positions", positions));
  });
}

}  // namespace

polyhead_status polyhead_layer_project(const polyhead_layer* layer, const polyhead_view* x,
                                       const polyhead_view* packed,
                                       const polyhead_view* positions) {
  return project_by(&Layer::project, "polyhead_layer_project", layer, {"x", x}, {"packed", packed},
                    positions);
}

polyhead_status polyhead_layer_project_q(const polyhead_layer* layer, const polyhead_view* x,
                                         const polyhead_view* q, const polyhead_view* positions) {
  return project_by(&Layer::project_q, "polyhead_layer_project_q", layer, {"x", x}, {"q", q},
                    positions);
}

polyhead_status polyhead_layer_project_kv(const polyhead_layer* layer, const polyhead_view* context,
                                          const polyhead_view* kv, const polyhead_view* positions) {
  return project_by(&Layer::project_kv, "polyhead_layer_project_kv", layer, {"context", context},
                    {"kv", kv}, positions);
}

namespace {

/// Fills q, k and v with the heads that `split` gives.
template <class Split>
polyhead_status split_into(const char* call, polyhead_view* q, polyhead_view* k, polyhead_view* v,
                           Split split) {
  return guarded(call, [&] {
    check_written(call, "q", need(call, "q", q));
    check_written(call, "k", need(call, "k", k));
    check_written(call, "v", need(call, "v", v));
    const polyhead::LayerHeads heads = split();
    fill_view(q, heads.q);
    fill_view(k, heads.k);
    fill_view(v, heads.v);
  });
}

}  // namespace

polyhead_status polyhead_layer_split(const polyhead_layer* layer, const polyhead_view* packed,
                                     polyhead_view* q, polyhead_view* k, polyhead_view* v) {
  constexpr const char* kCall = "polyhead_layer_split";
  return split_into(kCall, q, k, v, [&] {
    return need(kCall, "layer", layer)->layer->split(to_view(kCall, "packed", packed));
  });
}

polyhead_status polyhead_layer_split_cross(const polyhead_layer* layer,
                                           const polyhead_view* packed_q,
                                           const polyhead_view* packed_kv, polyhead_view* q,
                                           polyhead_view* k, polyhead_view* v) {
  constexpr const char* kCall = "polyhead_layer_split_cross";
  return split_into(kCall, q, k, v, [&] {
    return need(kCall, "layer", layer)
        ->layer->split(to_view(kCall, "packed_q", packed_q),
                       to_view(kCall, "packed_kv", packed_kv));
  });
}

polyhead_status polyhead_layer_attend(const polyhead_layer* layer, const polyhead_view* q,
                                      const polyhead_view* k, const polyhead_view* v,
                                      const polyhead_view* heads, const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_attend";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer)
        ->layer->attend(to_view(kCall, "q", q), to_view(kCall, "k", k), to_view(kCall, "v", v),
                        to_view(kCall, "heads", heads), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_output(const polyhead_layer* layer,
                                      const polyhead_view* concatenated, const polyhead_view* y) {
  constexpr const char* kCall = "polyhead_layer_output";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer)
        ->layer->output(to_view(kCall, "concatenated", concatenated), to_view(kCall, "y", y));
  });
}
