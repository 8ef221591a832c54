// The sliding cache behind polyhead_cache_c.h.
#include "polyhead/sliding_cache.h"

#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"
#include "polyhead/sliding_attention.h"

using namespace polyhead::capi;

namespace {

/// One call's arguments and what they point to, on the stack of the exported function.
class InCacheCall {
 public:
  InCacheCall(const char* call, const polyhead_in_cache_arguments* arguments)
      : InCacheCall(call, read_struct(call, "arguments", arguments)) {}
  const polyhead::InCacheArguments& arguments() const { return arguments_; }

 private:
  InCacheCall(const char* call, const polyhead_in_cache_arguments& from)
      : modifiers_(call, from.modifiers),
        arguments_{.q = to_view(call, "q", need(call, "q", from.q)),
                   .out = to_view(call, "out", need(call, "out", from.out)),
                   .lse = to_view(call, "lse", from.lse),
                   .counts = to_view(call, "counts", from.counts),
                   .q_offsets = to_view(call, "q_offsets", from.q_offsets),
                   .modifiers = modifiers_.modifiers()} {}

  ModifierSet modifiers_;
  polyhead::InCacheArguments arguments_;
};

}  // namespace

polyhead_status polyhead_sliding_cache_create(const polyhead_sliding_cache_config* config,
                                              polyhead_sliding_cache** cache) {
  constexpr const char* kCall = "polyhead_sliding_cache_create";
  return guarded(kCall, [&] {
    const polyhead_sliding_cache_config from = read_struct(kCall, "config", config);
    need(kCall, "cache", cache);
    polyhead::SlidingCacheConfig to;
    unless_zero(to.batch, from.batch);
    unless_zero(to.kv_heads, from.kv_heads);
    to.head_dim = not_zero(kCall, "config.head_dim", from.head_dim);
    to.value_dim = from.value_dim;
    to.type = to_element(kCall, "config.element_type", from.element_type);
    to.window = from.window;
    to.first_tokens = from.first_tokens;
    unless_zero(to.chunk, from.chunk);
    to.values_in_keys = to_bool(kCall, "config.values_in_keys", from.values_in_keys);
    to.key_scales = to_view(kCall, "config.key_scales", from.key_scales);
    *cache = new polyhead_sliding_cache{polyhead::SlidingCache(to)};
  });
}

void polyhead_sliding_cache_destroy(polyhead_sliding_cache* cache) { delete cache; }

polyhead_status polyhead_sliding_cache_length(const polyhead_sliding_cache* cache, int64_t sequence,
                                              int64_t* length) {
  constexpr const char* kCall = "polyhead_sliding_cache_length";
  return told(kCall, cache, "length", length, [&](const auto& of) { return of.length(sequence); });
}

polyhead_status polyhead_sliding_cache_held(const polyhead_sliding_cache* cache, int64_t sequence,
                                            int64_t* held) {
  constexpr const char* kCall = "polyhead_sliding_cache_held";
  return told(kCall, cache, "held", held, [&](const auto& of) { return of.held(sequence); });
}

polyhead_status polyhead_sliding_cache_oldest(const polyhead_sliding_cache* cache, int64_t sequence,
                                              int64_t* oldest) {
  constexpr const char* kCall = "polyhead_sliding_cache_oldest";
  return told(kCall, cache, "oldest", oldest, [&](const auto& of) { return of.oldest(sequence); });
}

polyhead_status polyhead_sliding_cache_bytes(const polyhead_sliding_cache* cache, int64_t* bytes) {
  constexpr const char* kCall = "polyhead_sliding_cache_bytes";
  return told(kCall, cache, "bytes", bytes, [&](const auto& of) { return of.bytes(); });
}

polyhead_status polyhead_sliding_cache_append(polyhead_sliding_cache* cache, const polyhead_view* k,
                                              const polyhead_view* v, const polyhead_view* counts) {
  constexpr const char* kCall = "polyhead_sliding_cache_append";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need_values(kCall, cache->cache.config(), v);
    cache->cache.append(to_view(kCall, "k", need(kCall, "k", k)), to_view(kCall, "v", v),
                        to_view(kCall, "counts", counts));
  });
}

polyhead_status polyhead_sliding_cache_truncate(polyhead_sliding_cache* cache, int64_t sequence,
                                                int64_t length) {
  constexpr const char* kCall = "polyhead_sliding_cache_truncate";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.truncate(sequence, length); });
}

polyhead_status polyhead_sliding_cache_keep(polyhead_sliding_cache* cache, int64_t sequence,
                                            int64_t first, const int64_t* places, int64_t count) {
  constexpr const char* kCall = "polyhead_sliding_cache_keep";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache)
        ->cache.keep(sequence, first, to_span(kCall, "places", places, count));
  });
}

polyhead_status polyhead_sliding_cache_clear(polyhead_sliding_cache* cache) {
  constexpr const char* kCall = "polyhead_sliding_cache_clear";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.clear(); });
}

polyhead_status polyhead_sliding_cache_view(const polyhead_sliding_cache* cache,
                                            polyhead_kv_view* view) {
  constexpr const char* kCall = "polyhead_sliding_cache_view";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    // Whole: without `oldest` attention would read what has been written over.
    check_written(kCall, "view", need(kCall, "view", view));
    fill_kv_view(kCall, view, cache->cache.view());
  });
}

polyhead_status polyhead_sliding_cache_mask(const polyhead_sliding_cache* cache,
                                            polyhead_mask* mask) {
  constexpr const char* kCall = "polyhead_sliding_cache_mask";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need(kCall, "mask", mask);
    check_written(kCall, "mask", mask);
    const polyhead::Mask from = cache->cache.mask();
    polyhead_mask to = {};
    to.causal = from.causal;
    to.windowed = from.windowed;
    to.left = from.left;
    to.right = from.right;
    to.align = static_cast<int32_t>(from.align);
    to.first_tokens = from.first_tokens;
    write_struct(mask, to);
  });
}

polyhead_status polyhead_sliding_cache_read(const polyhead_sliding_cache* cache, int64_t sequence,
                                            const polyhead_view* k, const polyhead_view* v) {
  constexpr const char* kCall = "polyhead_sliding_cache_read";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need_values(kCall, cache->cache.config(), v);
    cache->cache.read(sequence, to_view(kCall, "k", need(kCall, "k", k)), to_view(kCall, "v", v));
  });
}

polyhead_status polyhead_sliding_cache_attend_in_cache(const polyhead_sliding_cache* cache,
                                                       const polyhead_rope_config* rope,
                                                       const polyhead_in_cache_arguments* arguments,
                                                       const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_sliding_cache_attend_in_cache";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    const InCacheCall call(kCall, arguments);
    polyhead::attend_in_cache(cache->cache, to_rope_if_any(kCall, rope), call.arguments(),
                              to_options(kCall, options));
  });
}

polyhead_status polyhead_in_cache_plan_create(const polyhead_limits* limits,
                                              const polyhead_rope_config* rope,
                                              const polyhead_options* options,
                                              polyhead_in_cache_plan** plan) {
  constexpr const char* kCall = "polyhead_in_cache_plan_create";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    *plan = new polyhead_in_cache_plan{polyhead::InCachePlan(
        to_limits(kCall, limits), to_rope_if_any(kCall, rope), to_options(kCall, options))};
  });
}

void polyhead_in_cache_plan_destroy(polyhead_in_cache_plan* plan) { delete plan; }

polyhead_status polyhead_in_cache_workspace_create(const polyhead_in_cache_plan* plan,
                                                   polyhead_in_cache_workspace** workspace) {
  constexpr const char* kCall = "polyhead_in_cache_workspace_create";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    need(kCall, "workspace", workspace);
    *workspace = new polyhead_in_cache_workspace{plan->plan.make_workspace()};
  });
}

void polyhead_in_cache_workspace_destroy(polyhead_in_cache_workspace* workspace) {
  delete workspace;
}

polyhead_status polyhead_in_cache_workspace_bytes(const polyhead_in_cache_workspace* workspace,
                                                  size_t* bytes) {
  constexpr const char* kCall = "polyhead_in_cache_workspace_bytes";
  return guarded(kCall, [&] {
    need(kCall, "workspace", workspace);
    *need(kCall, "bytes", bytes) = workspace->workspace.bytes();
  });
}

polyhead_status polyhead_in_cache_plan_run(const polyhead_in_cache_plan* plan,
                                           const polyhead_sliding_cache* cache,
                                           const polyhead_in_cache_arguments* arguments,
                                           polyhead_in_cache_workspace* workspace) {
  constexpr const char* kCall = "polyhead_in_cache_plan_run";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    need(kCall, "cache", cache);
    need(kCall, "workspace", workspace);
    const InCacheCall call(kCall, arguments);
    plan->plan.run(cache->cache, call.arguments(), workspace->workspace);
  });
}
