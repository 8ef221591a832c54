// Files of caches behind polyhead_cache_c.h.
#include "polyhead/cache_file.h"

#include <algorithm>
#include <vector>

#include "capi/convert_cache.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

/// The caches behind `count` handles.
template <class Cache, class Handle>
std::vector<Cache*> to_caches(const char* call, Handle* const* handles, int64_t count) {
  std::vector<Cache*> list;
  for (Handle* handle : to_span(call, "caches", handles, count))
    list.push_back(&need(call, "caches entry", handle)->cache);
  return list;
}

}  // namespace

polyhead_status polyhead_cache_file_load_info(const char* path, polyhead_cache_file_info* info) {
  using Kind = polyhead::CacheFileInfo::Kind;
  static_assert(static_cast<int>(Kind::caches) == POLYHEAD_FILE_OF_CACHES &&
                    static_cast<int>(Kind::sequences) == POLYHEAD_FILE_OF_SEQUENCES,
                "the two lists of kinds run in parallel");
  constexpr const char* kCall = "polyhead_cache_file_load_info";
  return guarded(kCall, [&] {
    check_written(kCall, "info", need(kCall, "info", info));
    const polyhead::CacheFileInfo from = polyhead::load_cache_file_info(need(kCall, "path", path));
    const bool any = from.count > 0;
    write_struct(info, polyhead_cache_file_info{.struct_bytes = 0,
                                                .print = to_c(from.fingerprint),
                                                .count = from.count,
                                                .notes_bytes = from.notes_bytes,
                                                .layers = from.layers,
                                                .batch = from.batch,
                                                .kv_heads = from.kv_heads,
                                                .head_dim = from.head_dim,
                                                .value_dim = from.value_dim,
                                                .window = from.window,
                                                .first_tokens = from.first_tokens,
                                                .chunk = from.chunk,
                                                .tokens = from.tokens,
                                                .kind = static_cast<int32_t>(from.kind),
                                                .element_type = any ? to_c(from.type) : 0,
                                                .values_in_keys = from.values_in_keys,
                                                .keys_by_channel = from.keys_by_channel});
  });
}

polyhead_status polyhead_kv_caches_save(const char* path, const polyhead_cache_fingerprint* print,
                                        const polyhead_kv_cache* const* caches, int64_t count) {
  constexpr const char* kCall = "polyhead_kv_caches_save";
  return guarded(kCall, [&] {
    polyhead::save_caches(need(kCall, "path", path), to_fingerprint(kCall, print),
                          to_caches<const polyhead::KvCache>(kCall, caches, count));
  });
}

polyhead_status polyhead_kv_caches_load(const char* path, const polyhead_cache_fingerprint* print,
                                        polyhead_kv_cache* const* caches, int64_t count) {
  constexpr const char* kCall = "polyhead_kv_caches_load";
  return guarded(kCall, [&] {
    polyhead::load_caches(need(kCall, "path", path), to_fingerprint(kCall, print),
                          to_caches<polyhead::KvCache>(kCall, caches, count));
  });
}

polyhead_status polyhead_sliding_caches_save(const char* path,
                                             const polyhead_cache_fingerprint* print,
                                             const polyhead_sliding_cache* const* caches,
                                             int64_t count) {
  constexpr const char* kCall = "polyhead_sliding_caches_save";
  return guarded(kCall, [&] {
    polyhead::save_caches(need(kCall, "path", path), to_fingerprint(kCall, print),
                          to_caches<const polyhead::SlidingCache>(kCall, caches, count));
  });
}

polyhead_status polyhead_sliding_caches_load(const char* path,
                                             const polyhead_cache_fingerprint* print,
                                             polyhead_sliding_cache* const* caches, int64_t count) {
  constexpr const char* kCall = "polyhead_sliding_caches_load";
  return guarded(kCall, [&] {
    polyhead::load_caches(need(kCall, "path", path), to_fingerprint(kCall, print),
                          to_caches<polyhead::SlidingCache>(kCall, caches, count));
  });
}

polyhead_status polyhead_paged_sequences_save(const char* path,
                                              const polyhead_cache_fingerprint* print,
                                              const polyhead_paged_cache* cache,
                                              const int64_t* sequences, int64_t count,
                                              const void* notes, size_t notes_bytes) {
  constexpr const char* kCall = "polyhead_paged_sequences_save";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    if (notes_bytes > 0) need(kCall, "notes", notes);
    polyhead::save_sequences(need(kCall, "path", path), to_fingerprint(kCall, print), cache->cache,
                             to_span(kCall, "sequences", sequences, count),
                             {static_cast<const std::byte*>(notes), notes_bytes});
  });
}

polyhead_status polyhead_paged_sequences_load(const char* path,
                                              const polyhead_cache_fingerprint* print,
                                              polyhead_paged_cache* cache, uint64_t salt,
                                              int64_t* sequences, int64_t count) {
  constexpr const char* kCall = "polyhead_paged_sequences_load";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    const auto to = to_span(kCall, "sequences", sequences, count);
    return polyhead::load_sequences(need(kCall, "path", path), to_fingerprint(kCall, print), pool,
                                    to, salt);
  });
}

polyhead_status polyhead_paged_sequences_key_scales(const char* path,
                                                    const polyhead_cache_fingerprint* print,
                                                    const polyhead_view* scales) {
  constexpr const char* kCall = "polyhead_paged_sequences_key_scales";
  return guarded(kCall, [&] {
    const polyhead::View to = to_view(kCall, "scales", need(kCall, "scales", scales));
    const polyhead::KeyScales held =
        polyhead::load_key_scales(need(kCall, "path", path), to_fingerprint(kCall, print));
    if (!held.view().given()) refuse("%s: %s holds no keys with scales by channel", kCall, path);
    if (!is_dense_float32(to, held.view().layout) || (to.data == nullptr && !held.values.empty())) {
      refuse("%s: scales is not dense float32 [%lld, %lld, %lld]: layers, kv_heads, head_dim of %s",
             kCall, static_cast<long long>(held.layers), static_cast<long long>(held.kv_heads),
             static_cast<long long>(held.head_dim), path);
    }
    std::ranges::copy(held.values, static_cast<float*>(to.data));
  });
}

polyhead_status polyhead_paged_sequences_notes(const char* path,
                                               const polyhead_cache_fingerprint* print, void* notes,
                                               size_t notes_bytes, size_t* needed) {
  constexpr const char* kCall = "polyhead_paged_sequences_notes";
  return guarded(kCall, [&] {
    if (notes_bytes > 0) need(kCall, "notes", notes);
    const std::vector<std::byte> held =
        polyhead::load_notes(need(kCall, "path", path), to_fingerprint(kCall, print));
    const std::size_t written = std::min(held.size(), notes_bytes);
    std::copy_n(held.begin(), written, static_cast<std::byte*>(notes));
    if (needed != nullptr) *needed = held.size();
  });
}
