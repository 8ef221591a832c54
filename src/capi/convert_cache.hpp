// Conversions that only the caches' side of the C door needs.
#pragma once

#include "capi/convert.hpp"
#include "polyhead/cache_file.h"
#include "polyhead/polyhead_cache_c.h"

namespace polyhead::inline v0::capi {

/// v of a cache of `config`: null where its values are in the keys.
template <class Config>
void need_values(const char* call, const Config& config, const polyhead_view* v) {
  if (!config.values_in_keys) need(call, "v", v);
}

/// Refuses null, or a struct_bytes that is not right; then fills it, as far as an older program's
/// goes.
void fill_kv_view(const char* call, polyhead_kv_view* view, const KvView& from);

CacheFingerprint to_fingerprint(const char* call, const polyhead_cache_fingerprint* print);
polyhead_cache_fingerprint to_c(const CacheFingerprint& print);

}  // namespace polyhead::inline v0::capi
