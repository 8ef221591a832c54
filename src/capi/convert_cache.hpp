// Conversions that only the caches' side of the C door needs.
#pragma once

#include <cstdint>
#include <span>

#include "capi/convert.hpp"
#include "polyhead/cache_file.h"
#include "polyhead/polyhead_cache_c.h"

namespace polyhead::inline v0::capi {

/// A struct that the library is to fill: null, or one whose struct_bytes is right.
template <class Struct>
void check_written(const char* call, const char* name, const Struct* to) {
  if (to == nullptr || to->struct_bytes == sizeof(Struct)) return;
  refuse("%s: %s.struct_bytes (%zu) is not the size of its struct, expected sizeof (%zu)", call,
         name, to->struct_bytes, sizeof(Struct));
}
void fill_view(polyhead_view* view, const ConstView& from);

/// Refuses null, or a struct_bytes that is not right; then fills it, as far as an older program's
/// goes.
void fill_kv_view(const char* call, polyhead_kv_view* view, const KvView& from);

CacheFingerprint to_fingerprint(const char* call, const polyhead_cache_fingerprint* print);

/// `count` entries at `data`, which may be null where there are none.
template <class T>
std::span<T> to_span(const char* call, const char* name, T* data, std::int64_t count) {
  if (count < 0) refuse("%s: count (%lld) is negative", call, static_cast<long long>(count));
  if (count > 0) need(call, name, data);
  return {data, static_cast<std::size_t>(count)};
}

}  // namespace polyhead::inline v0::capi
