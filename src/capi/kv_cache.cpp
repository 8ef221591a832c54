// The contiguous cache behind polyhead_cache_c.h, and scales by channel.
#include "polyhead/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "capi/convert_cache.hpp"
#include "capi/handles.hpp"
#include "polyhead/paged_cache.h"

using namespace polyhead::capi;

polyhead_status polyhead_key_scales_by_channel(const polyhead_view* k, int32_t element_type,
                                               const polyhead_view* scales) {
  constexpr const char* kCall = "polyhead_key_scales_by_channel";
  return guarded(kCall, [&] {
    const polyhead::View to = to_view(kCall, "scales", need(kCall, "scales", scales));
    const std::vector<float> made = polyhead::key_scales_by_channel(
        to_view(kCall, "k", need(kCall, "k", k)), to_element(kCall, "element_type", element_type));
    const std::int64_t heads = k->extents[2], dim = k->extents[3];
    if (!is_dense_float32(to, {heads, dim}) || (to.data == nullptr && !made.empty())) {
      refuse("%s: scales is not dense float32 [%lld, %lld]: kv_heads, head_dim", kCall,
             static_cast<long long>(heads), static_cast<long long>(dim));
    }
    std::ranges::copy(made, static_cast<float*>(to.data));
  });
}

polyhead_status polyhead_kv_cache_create(const polyhead_kv_cache_config* config,
                                         polyhead_kv_cache** cache) {
  constexpr const char* kCall = "polyhead_kv_cache_create";
  return guarded(kCall, [&] {
    const polyhead_kv_cache_config from =
        read_struct(kCall, "config", config, offsetof(polyhead_kv_cache_config, key_scales));
    need(kCall, "cache", cache);
    check_reserved(kCall, "config.reserved", from.reserved);
    polyhead::KvCacheConfig to;
    unless_zero(to.batch, from.batch);
    unless_zero(to.kv_heads, from.kv_heads);
    to.head_dim = not_zero(kCall, "config.head_dim", from.head_dim);
    to.value_dim = from.value_dim;
    to.type = to_element(kCall, "config.element_type", from.element_type);
    to.capacity = from.capacity;
    to.growing = to_bool(kCall, "config.growing", from.growing);
    to.values_in_keys = to_bool(kCall, "config.values_in_keys", from.values_in_keys);
    to.key_scales = to_view(kCall, "config.key_scales", from.key_scales);
    *cache = new polyhead_kv_cache{polyhead::KvCache(to)};
  });
}

void polyhead_kv_cache_destroy(polyhead_kv_cache* cache) { delete cache; }

polyhead_status polyhead_kv_cache_length(const polyhead_kv_cache* cache, int64_t sequence,
                                         int64_t* length) {
  constexpr const char* kCall = "polyhead_kv_cache_length";
  return told(kCall, cache, "length", length, [&](const auto& of) { return of.length(sequence); });
}

polyhead_status polyhead_kv_cache_capacity(const polyhead_kv_cache* cache, int64_t* capacity) {
  constexpr const char* kCall = "polyhead_kv_cache_capacity";
  return told(kCall, cache, "capacity", capacity, [&](const auto& of) { return of.capacity(); });
}

polyhead_status polyhead_kv_cache_bytes(const polyhead_kv_cache* cache, int64_t* bytes) {
  constexpr const char* kCall = "polyhead_kv_cache_bytes";
  return told(kCall, cache, "bytes", bytes, [&](const auto& of) { return of.bytes(); });
}

polyhead_status polyhead_kv_cache_append(polyhead_kv_cache* cache, const polyhead_view* k,
                                         const polyhead_view* v, const polyhead_view* counts) {
  constexpr const char* kCall = "polyhead_kv_cache_append";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need_values(kCall, cache->cache.config(), v);
    cache->cache.append(to_view(kCall, "k", need(kCall, "k", k)), to_view(kCall, "v", v),
                        to_view(kCall, "counts", counts));
  });
}

polyhead_status polyhead_kv_cache_truncate(polyhead_kv_cache* cache, int64_t sequence,
                                           int64_t length) {
  constexpr const char* kCall = "polyhead_kv_cache_truncate";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.truncate(sequence, length); });
}

polyhead_status polyhead_kv_cache_keep(polyhead_kv_cache* cache, int64_t sequence, int64_t first,
                                       const int64_t* places, int64_t count) {
  constexpr const char* kCall = "polyhead_kv_cache_keep";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache)
        ->cache.keep(sequence, first, to_span(kCall, "places", places, count));
  });
}

polyhead_status polyhead_kv_cache_clear(polyhead_kv_cache* cache) {
  constexpr const char* kCall = "polyhead_kv_cache_clear";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.clear(); });
}

polyhead_status polyhead_kv_cache_view(const polyhead_kv_cache* cache, polyhead_kv_view* view) {
  constexpr const char* kCall = "polyhead_kv_cache_view";
  return guarded(kCall,
                 [&] { fill_kv_view(kCall, view, need(kCall, "cache", cache)->cache.view()); });
}

polyhead_status polyhead_kv_cache_views(const polyhead_kv_cache* cache, polyhead_view* keys,
                                        polyhead_view* values, polyhead_view* lengths) {
  constexpr const char* kCall = "polyhead_kv_cache_views";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    check_written(kCall, "keys", keys);
    check_written(kCall, "values", values);
    check_written(kCall, "lengths", lengths);
    fill_view(keys, cache->cache.keys());
    fill_view(values, cache->cache.values());
    fill_view(lengths, cache->cache.lengths());
  });
}
