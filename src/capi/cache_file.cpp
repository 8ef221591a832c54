// Files of caches behind polyhead_cache_c.h.
#include "polyhead/cache_file.h"

#include <algorithm>
#include <vector>

#include "capi/convert_cache.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

/// The caches behind `count` handles, each of them once.
template <class Cache, class Handle>
std::vector<Cache*> to_caches(const char* call, Handle* const* handles, int64_t count) {
  std::vector<Cache*> list;
  for (Handle* handle : to_span(call, "caches", handles, count)) {
    Cache* const cache = &need(call, "caches entry", handle)->cache;
    if (std::ranges::find(list, cache) != list.end())
      refuse("%s: caches has one cache twice", call);
    list.push_back(cache);
  }
  return list;
}

}  // namespace

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

polyhead_status polyhead_paged_sequences_save(const char* path,
                                              const polyhead_cache_fingerprint* print,
                                              const polyhead_paged_cache* cache,
                                              const int64_t* sequences, int64_t count) {
  constexpr const char* kCall = "polyhead_paged_sequences_save";
  return guarded(kCall, [&] {
    need(kCall, "cache", cache);
    polyhead::save_sequences(need(kCall, "path", path), to_fingerprint(kCall, print), cache->cache,
                             to_span(kCall, "sequences", sequences, count));
  });
}

polyhead_status polyhead_paged_sequences_load(const char* path,
                                              const polyhead_cache_fingerprint* print,
                                              polyhead_paged_cache* cache, uint64_t salt,
                                              int64_t* sequences, int64_t count) {
  constexpr const char* kCall = "polyhead_paged_sequences_load";
  return guarded_pool(kCall, cache, [&](polyhead::PagedCache& pool) {
    const auto to = to_span(kCall, "sequences", sequences, count);
    std::vector<std::int64_t> loaded;
    const auto status = polyhead::load_sequences(need(kCall, "path", path),
                                                 to_fingerprint(kCall, print), pool, loaded, salt);
    if (status == polyhead::PagedCache::Status::exhausted) return status;
    if (loaded.size() != to.size()) {
      for (const std::int64_t sequence : loaded) pool.release(sequence);
      refuse("%s: %s holds %zu sequences, expected %zu", kCall, path, loaded.size(), to.size());
    }
    std::ranges::copy(loaded, to.begin());
    return status;
  });
}
