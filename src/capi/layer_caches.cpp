// The layer over caches behind polyhead_layer_c.h.
#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"
#include "polyhead/layer.h"

using namespace polyhead::capi;

namespace {

polyhead::SlidingPositions to_positions(const char* call, int32_t positions) {
  if (positions == POLYHEAD_POSITIONS_ORIGINAL) return polyhead::SlidingPositions::original;
  if (positions == POLYHEAD_POSITIONS_IN_CACHE) return polyhead::SlidingPositions::in_cache;
  refuse(
      "%s: positions (%d) are none, expected POLYHEAD_POSITIONS_ORIGINAL (0) or "
      "POLYHEAD_POSITIONS_IN_CACHE (1)",
      call, positions);
}

}  // namespace

polyhead_status polyhead_layer_forward_paged(const polyhead_layer* layer, const polyhead_view* x,
                                             const polyhead_paged_sequences* pages,
                                             const polyhead_view* y,
                                             const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_forward_paged";
  return guarded_pages(kCall, "layer", layer, pages, [&](const polyhead::PagedSequences& from) {
    return layer->layer->forward(to_view(kCall, "x", x), from, to_view(kCall, "y", y),
                                 to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_forward_sliding(const polyhead_layer* layer, const polyhead_view* x,
                                               polyhead_sliding_cache* cache,
                                               const polyhead_view* y, int32_t positions,
                                               const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_forward_sliding";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    need(kCall, "cache", cache);
    layer->layer->forward(to_view(kCall, "x", x), cache->cache, to_view(kCall, "y", y),
                          to_positions(kCall, positions), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_project_context(const polyhead_layer* layer,
                                               const polyhead_view* context,
                                               polyhead_kv_cache* cache,
                                               const polyhead_view* lengths,
                                               const polyhead_view* positions) {
  constexpr const char* kCall = "polyhead_layer_project_context";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    need(kCall, "cache", cache);
    layer->layer->project_context(to_view(kCall, "context", context), cache->cache,
                                  to_view(kCall, "lengths", lengths),
                                  to_view(kCall, "positions", positions));
  });
}

polyhead_status polyhead_layer_cross(const polyhead_layer* layer, const polyhead_view* x,
                                     const polyhead_kv_cache* context, const polyhead_view* y,
                                     const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_cross";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    need(kCall, "context", context);
    layer->layer->cross(to_view(kCall, "x", x), context->cache, to_view(kCall, "y", y),
                        to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_cross_view(const polyhead_layer* layer, const polyhead_view* x,
                                          const polyhead_kv_view* context, const polyhead_view* y,
                                          const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_cross_view";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    layer->layer->cross(to_view(kCall, "x", x), to_kv_view(kCall, need(kCall, "context", context)),
                        to_view(kCall, "y", y), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_attend_view(const polyhead_layer* layer, const polyhead_view* q,
                                           const polyhead_kv_view* kv, const polyhead_view* heads,
                                           const polyhead_layer_call* call) {
  constexpr const char* kCall = "polyhead_layer_attend_view";
  return guarded(kCall, [&] {
    need(kCall, "layer", layer);
    layer->layer->attend(to_view(kCall, "q", q), to_kv_view(kCall, need(kCall, "kv", kv)),
                         to_view(kCall, "heads", heads), to_layer_call(kCall, call));
  });
}
