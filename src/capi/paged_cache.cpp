// The paged cache behind polyhead_cache_c.h.
#include "polyhead/paged_cache.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capi/convert_cache.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

/// Numbers of `count` tokens; null: none are told.
std::span<const std::int32_t> to_tokens(const char* call, const int32_t* tokens, int64_t count) {
  if (tokens == nullptr) return {};
  return to_span(call, "tokens", tokens, count);
}

}  // namespace

polyhead_status polyhead_paged_cache_create(const polyhead_paged_cache_config* config,
                                            polyhead_paged_cache** cache) {
  constexpr const char* kCall = "polyhead_paged_cache_create";
  return guarded(kCall, [&] {
    const polyhead_paged_cache_config from = read_struct(kCall, "config", config);
    need(kCall, "cache", cache);
    polyhead::PagedCacheConfig to;
    to.pages = not_zero(kCall, "config.pages", from.pages);
    unless_zero(to.page_tokens, from.page_tokens);
    unless_zero(to.layers, from.layers);
    unless_zero(to.kv_heads, from.kv_heads);
    to.head_dim = not_zero(kCall, "config.head_dim", from.head_dim);
    to.value_dim = from.value_dim;
    to.type = to_element(kCall, "config.element_type", from.element_type);
    to.values_in_keys = to_bool(kCall, "config.values_in_keys", from.values_in_keys);
    to.key_scales = to_view(kCall, "config.key_scales", from.key_scales);
    *cache = new polyhead_paged_cache{polyhead::PagedCache(to)};
  });
}

void polyhead_paged_cache_destroy(polyhead_paged_cache* cache) { delete cache; }

polyhead_status polyhead_paged_cache_bytes(const polyhead_paged_cache* cache, int64_t* bytes) {
  constexpr const char* kCall = "polyhead_paged_cache_bytes";
  return told(kCall, cache, "bytes", bytes, [&](const auto& of) { return of.bytes(); });
}

polyhead_status polyhead_paged_cache_free_pages(const polyhead_paged_cache* cache, int64_t* pages) {
  constexpr const char* kCall = "polyhead_paged_cache_free_pages";
  return told(kCall, cache, "pages", pages, [&](const auto& of) { return of.free_pages(); });
}

polyhead_status polyhead_paged_cache_remembered_pages(const polyhead_paged_cache* cache,
                                                      int64_t* pages) {
  constexpr const char* kCall = "polyhead_paged_cache_remembered_pages";
  return told(kCall, cache, "pages", pages, [&](const auto& of) { return of.remembered_pages(); });
}

polyhead_status polyhead_paged_cache_serve(polyhead_paged_cache* cache,
                                           const polyhead_cache_fingerprint* print) {
  constexpr const char* kCall = "polyhead_paged_cache_serve";
  return guarded(kCall,
                 [&] { need(kCall, "cache", cache)->cache.serve(to_fingerprint(kCall, print)); });
}

polyhead_status polyhead_paged_sequence_create(polyhead_paged_cache* cache, uint64_t salt,
                                               int64_t* sequence) {
  constexpr const char* kCall = "polyhead_paged_sequence_create";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need(kCall, "sequence", sequence);
    *sequence = cache->cache.create(salt);
  });
}

polyhead_status polyhead_paged_sequence_fork(polyhead_paged_cache* cache, int64_t sequence,
                                             int64_t* forked) {
  constexpr const char* kCall = "polyhead_paged_sequence_fork";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need(kCall, "forked", forked);
    *forked = cache->cache.fork(sequence);
  });
}

polyhead_status polyhead_paged_sequence_release(polyhead_paged_cache* cache, int64_t sequence) {
  constexpr const char* kCall = "polyhead_paged_sequence_release";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.release(sequence); });
}

polyhead_status polyhead_paged_sequence_length(const polyhead_paged_cache* cache, int64_t sequence,
                                               int64_t* length) {
  constexpr const char* kCall = "polyhead_paged_sequence_length";
  return told(kCall, cache, "length", length, [&](const auto& of) { return of.length(sequence); });
}

polyhead_status polyhead_paged_sequence_truncate(polyhead_paged_cache* cache, int64_t sequence,
                                                 int64_t length) {
  constexpr const char* kCall = "polyhead_paged_sequence_truncate";
  return guarded(kCall, [&] { need(kCall, "cache", cache)->cache.truncate(sequence, length); });
}

polyhead_status polyhead_paged_sequence_keep(polyhead_paged_cache* cache, int64_t sequence,
                                             int64_t first, const int64_t* places,
                                             const int32_t* tokens, int64_t count) {
  constexpr const char* kCall = "polyhead_paged_sequence_keep";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    return pool.keep(sequence, first, to_span(kCall, "places", places, count),
                     to_tokens(kCall, tokens, count));
  });
}

polyhead_status polyhead_paged_sequence_adopt_prefix(polyhead_paged_cache* cache, int64_t sequence,
                                                     const int32_t* tokens, int64_t count,
                                                     int64_t* adopted) {
  constexpr const char* kCall = "polyhead_paged_sequence_adopt_prefix";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    const std::int64_t got =
        cache->cache.adopt_prefix(sequence, to_span(kCall, "tokens", tokens, count));
    if (adopted != nullptr) *adopted = got;
  });
}

polyhead_status polyhead_paged_sequence_extend(polyhead_paged_cache* cache, int64_t sequence,
                                               int64_t count, const int32_t* tokens) {
  constexpr const char* kCall = "polyhead_paged_sequence_extend";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    return pool.extend(sequence, count, to_tokens(kCall, tokens, count));
  });
}

polyhead_status polyhead_paged_sequences_extend(polyhead_paged_cache* cache,
                                                const polyhead_paged_extension* const* parts,
                                                int64_t count) {
  constexpr const char* kCall = "polyhead_paged_sequences_extend";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& of) {
    std::vector<polyhead::PagedCache::Extension> to;
    for (const polyhead_paged_extension* const part : to_span(kCall, "parts", parts, count)) {
      const std::string name = "parts[" + std::to_string(to.size()) + "]";
      const polyhead_paged_extension from = read_struct(kCall, name.c_str(), part);
      to.push_back({from.sequence, from.count, to_tokens(kCall, from.tokens, from.count)});
    }
    return of.extend(to);
  });
}

polyhead_status polyhead_paged_sequence_write(polyhead_paged_cache* cache, int64_t sequence,
                                              int64_t layer, int64_t first, const polyhead_view* k,
                                              const polyhead_view* v) {
  constexpr const char* kCall = "polyhead_paged_sequence_write";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    need_values(kCall, pool.config(), v);
    return pool.write(sequence, layer, first, to_view(kCall, "k", need(kCall, "k", k)),
                      to_view(kCall, "v", v));
  });
}

polyhead_status polyhead_paged_sequence_append(polyhead_paged_cache* cache, int64_t sequence,
                                               const polyhead_view* k, const polyhead_view* v,
                                               const int32_t* tokens) {
  constexpr const char* kCall = "polyhead_paged_sequence_append";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    const polyhead::View rows = to_view(kCall, "k", need(kCall, "k", k));
    need_values(kCall, pool.config(), v);
    return pool.append(sequence, rows, to_view(kCall, "v", v),
                       to_tokens(kCall, tokens, rows.layout.extents[0]));
  });
}

polyhead_status polyhead_paged_batch_create(polyhead_paged_batch** batch) {
  constexpr const char* kCall = "polyhead_paged_batch_create";
  return guarded(kCall, [&] {
    need(kCall, "batch", batch);  // first: an assignment makes what it assigns before
    *batch = new polyhead_paged_batch{};
  });
}

void polyhead_paged_batch_destroy(polyhead_paged_batch* batch) { delete batch; }

polyhead_status polyhead_paged_batch_set(polyhead_paged_batch* batch,
                                         const polyhead_paged_cache* cache,
                                         const int64_t* sequences, int64_t count) {
  constexpr const char* kCall = "polyhead_paged_batch_set";
  return guarded(kCall, [&] {
    need(kCall, "batch", batch);
    need(kCall, "cache", cache)
        ->cache.batch(to_span(kCall, "sequences", sequences, count), batch->batch);
  });
}

polyhead_status polyhead_paged_cache_view(const polyhead_paged_cache* cache, int64_t layer,
                                          const polyhead_paged_batch* batch,
                                          polyhead_kv_view* view) {
  constexpr const char* kCall = "polyhead_paged_cache_view";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    need(kCall, "batch", batch);
    fill_kv_view(kCall, view, cache->cache.view(layer, batch->batch));
  });
}
