// RoPE and the key-value cache behind polyhead_layer_c.h.
#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"
#include "polyhead/kv_cache.h"

using namespace polyhead::capi;

polyhead_status polyhead_apply_rope(const polyhead_view* x, const polyhead_view* positions,
                                    const polyhead_rope_config* config) {
  constexpr const char* kCall = "polyhead_apply_rope";
  return guarded(kCall, [&] {
    const polyhead::RopeConfig rope = to_rope(kCall, config);
    polyhead::apply_rope(to_view(kCall, "x", need(kCall, "x", x)),
                         to_view(kCall, "positions", need(kCall, "positions", positions)), rope);
  });
}

polyhead_status polyhead_kv_cache_create(const polyhead_kv_cache_config* config,
                                         polyhead_kv_cache** cache) {
  constexpr const char* kCall = "polyhead_kv_cache_create";
  return guarded(kCall, [&] {
    const polyhead_kv_cache_config from = read_struct(kCall, "config", config);
    need(kCall, "cache", cache);
    polyhead::KvCacheConfig to;
    to.batch = from.batch;
    to.kv_heads = from.kv_heads;
    to.head_dim = from.head_dim;
    to.value_dim = from.value_dim;
    to.type = to_element(kCall, "config.element_type", from.element_type);
    to.capacity = from.capacity;
    to.growing = to_bool(kCall, "config.growing", from.growing);
    *cache = new polyhead_kv_cache{polyhead::KvCache(to)};
  });
}

void polyhead_kv_cache_destroy(polyhead_kv_cache* cache) { delete cache; }

polyhead_status polyhead_kv_cache_length(const polyhead_kv_cache* cache, int64_t sequence,
                                         int64_t* length) {
  constexpr const char* kCall = "polyhead_kv_cache_length";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    *need(kCall, "length", length) = cache->cache.length(sequence);
  });
}

polyhead_status polyhead_kv_cache_capacity(const polyhead_kv_cache* cache, int64_t* capacity) {
  constexpr const char* kCall = "polyhead_kv_cache_capacity";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    *need(kCall, "capacity", capacity) = cache->cache.capacity();
  });
}

polyhead_status polyhead_kv_cache_append(polyhead_kv_cache* cache, const polyhead_view* k,
                                         const polyhead_view* v, const polyhead_view* counts) {
  constexpr const char* kCall = "polyhead_kv_cache_append";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    cache->cache.append(to_view(kCall, "k", need(kCall, "k", k)),
                        to_view(kCall, "v", need(kCall, "v", v)), to_view(kCall, "counts", counts));
  });
}

polyhead_status polyhead_kv_cache_truncate(polyhead_kv_cache* cache, int64_t sequence,
                                           int64_t length) {
  constexpr const char* kCall = "polyhead_kv_cache_truncate";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.truncate(sequence, length); });
}

polyhead_status polyhead_kv_cache_views(const polyhead_kv_cache* cache, polyhead_view* keys,
                                        polyhead_view* values, polyhead_view* lengths) {
  constexpr const char* kCall = "polyhead_kv_cache_views";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    check_written_view(kCall, "keys", keys);
    check_written_view(kCall, "values", values);
    check_written_view(kCall, "lengths", lengths);
    fill_view(keys, cache->cache.keys());
    fill_view(values, cache->cache.values());
    fill_view(lengths, cache->cache.lengths());
  });
}
