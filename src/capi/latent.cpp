// Latent attention behind polyhead_layer_c.h.
#include "polyhead/latent.h"

#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

polyhead::LatentForm to_form(const char* call, const char* name, int32_t form,
                             polyhead::LatentForm unstated) {
  switch (form) {
    case 0:
      return unstated;
    case POLYHEAD_LATENT_EXPANDED:
      return polyhead::LatentForm::expanded;
    case POLYHEAD_LATENT_ABSORBED:
      return polyhead::LatentForm::absorbed;
    default:
      refuse(
          "%s: %s (%d) is no form, expected POLYHEAD_LATENT_EXPANDED (1), POLYHEAD_LATENT_ABSORBED "
          "(2) or 0",
          call, name, form);
  }
}

polyhead::LatentConfig to_config(const char* call, const polyhead_latent_config& from) {
  polyhead::LatentConfig to;
  to.model_dim = from.model_dim;
  unless_zero(to.heads, from.heads);
  to.q_rank = from.q_rank;
  to.kv_rank = from.kv_rank;
  to.nope_dim = from.nope_dim;
  to.rope_dim = from.rope_dim;
  to.value_dim = from.value_dim;
  take_common(call, from, to);
  to.form = to_form(call, "config.form", from.form, to.form);
  return to;
}

polyhead::LatentWeights to_weights(const char* call, const polyhead_latent_weights* weights) {
  const polyhead_latent_weights from = read_struct(call, "weights", weights);
  polyhead::LatentWeights to;
  to.w_q = to_view(call, "weights.w_q", from.w_q);
  to.w_q_down = to_view(call, "weights.w_q_down", from.w_q_down);
  to.q_norm = to_view(call, "weights.q_norm", from.q_norm);
  to.w_q_up = to_view(call, "weights.w_q_up", from.w_q_up);
  to.w_kv_down = to_view(call, "weights.w_kv_down", from.w_kv_down);
  to.kv_norm = to_view(call, "weights.kv_norm", from.kv_norm);
  to.w_kv_up = to_view(call, "weights.w_kv_up", from.w_kv_up);
  to.w_o = to_view(call, "weights.w_o", from.w_o);
  return to;
}

}  // namespace

polyhead_status polyhead_latent_create(const polyhead_latent_config* config,
                                       const polyhead_latent_weights* weights,
                                       const polyhead_options* options, polyhead_latent** latent) {
  constexpr const char* kCall = "polyhead_latent_create";
  return guarded(kCall, [&] {
    const polyhead_latent_config from = read_struct(kCall, "config", config);
    need(kCall, "latent", latent);
    *latent = make_layer<polyhead_latent>(kCall, to_config(kCall, from), to_weights(kCall, weights),
                                          from.modifiers, options);
  });
}

void polyhead_latent_destroy(polyhead_latent* latent) { delete latent; }

polyhead_status polyhead_latent_describe(const polyhead_latent* latent, char* text,
                                         size_t text_bytes, size_t* needed) {
  constexpr const char* kCall = "polyhead_latent_describe";
  return guarded(kCall, [&] {
    copy_text(kCall, need(kCall, "latent", latent)->layer->describe(), text, text_bytes, needed);
  });
}

polyhead_status polyhead_latent_cache_create(const polyhead_latent* latent, int64_t batch,
                                             int64_t capacity, int32_t growing,
                                             int32_t element_type, polyhead_kv_cache** cache) {
  constexpr const char* kCall = "polyhead_latent_cache_create";
  return guarded(kCall, [&] {
    need(kCall, "latent", latent);
    need(kCall, "cache", cache);
    const bool grows = to_bool(kCall, "growing", growing);
    polyhead::KvCacheConfig config = latent->layer->cache_config(batch, capacity, grows);
    if (element_type != 0) config.type = to_element(kCall, "element_type", element_type);
    *cache = new polyhead_kv_cache{polyhead::KvCache(config)};
  });
}

polyhead_status polyhead_latent_forward(const polyhead_latent* latent, const polyhead_view* x,
                                        const polyhead_view* y, int32_t form,
                                        const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_latent_forward";
  return guarded(kCall, [&] {
    const polyhead::LatentAttention& layer = *need(kCall, "latent", latent)->layer;
    layer.forward(to_view(kCall, "x", x), to_view(kCall, "y", y),
                  to_form(kCall, "form", form, layer.config().form), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_latent_forward_cached(const polyhead_latent* latent,
                                               const polyhead_view* x, polyhead_kv_cache* cache,
                                               const polyhead_view* y, int32_t form,
                                               const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_latent_forward_cached";
  return guarded(kCall, [&] {
    const polyhead::LatentAttention& layer = *need(kCall, "latent", latent)->layer;
    need(kCall, "cache", cache);
    layer.forward(to_view(kCall, "x", x), cache->cache, to_view(kCall, "y", y),
                  to_form(kCall, "form", form, layer.config().form), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_latent_forward_paged(const polyhead_latent* latent, const polyhead_view* x,
                                              const polyhead_paged_sequences* pages,
                                              const polyhead_view* y, int32_t form,
                                              const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_latent_forward_paged";
  return guarded_pages(kCall, "latent", latent, pages, [&](const polyhead::PagedSequences& from) {
    const polyhead::LatentAttention& layer = *latent->layer;
    return layer.forward(to_view(kCall, "x", x), from, to_view(kCall, "y", y),
                         to_form(kCall, "form", form, layer.config().form),
                         to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_latent_forward_sliding(const polyhead_latent* latent,
                                                const polyhead_view* x,
                                                polyhead_sliding_cache* cache,
                                                const polyhead_view* y, int32_t form,
                                                const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_latent_forward_sliding";
  return guarded(kCall, [&] {
    const polyhead::LatentAttention& layer = *need(kCall, "latent", latent)->layer;
    need(kCall, "cache", cache);
    layer.forward(to_view(kCall, "x", x), cache->cache, to_view(kCall, "y", y),
                  to_form(kCall, "form", form, layer.config().form), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_latent_rows(const polyhead_latent* latent, const polyhead_view* x,
                                     const polyhead_view* rows, const polyhead_view* positions,
                                     polyhead_layer_workspace* workspace) {
  constexpr const char* kCall = "polyhead_latent_rows";
  return guarded(kCall, [&] {
    need(kCall, "latent", latent)
        ->layer->latents(to_view(kCall, "x", x), to_view(kCall, "rows", rows),
                         to_view(kCall, "positions", positions),
                         workspace != nullptr ? &workspace->workspace : nullptr);
  });
}

polyhead_status polyhead_latent_forward_view(const polyhead_latent* latent, const polyhead_view* x,
                                             const polyhead_kv_view* kv, const polyhead_view* y,
                                             int32_t form, const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_latent_forward_view";
  return guarded(kCall, [&] {
    const polyhead::LatentAttention& layer = *need(kCall, "latent", latent)->layer;
    layer.forward(to_view(kCall, "x", x), to_kv_view(kCall, need(kCall, "kv", kv)),
                  to_view(kCall, "y", y), to_form(kCall, "form", form, layer.config().form),
                  to_layer_call(kCall, call));
  });
}
