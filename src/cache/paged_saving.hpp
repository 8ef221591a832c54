// What files ask of saved sequences and of the cache that is to take them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "polyhead/cache_file.h"

namespace polyhead::inline v0::cache {

/// The keys' scales by channel of what PagedCache::save wrote. Returns why they cannot be told, or
/// nothing.
std::string read_key_scales(std::span<const std::byte> from, KeyScales& scales);

/// How a fingerprint's model, weights or RoPE differ from those that a cache serves; empty: not at
/// all.
std::string other_model(const CacheFingerprint& found, const CacheFingerprint& expected);

}  // namespace polyhead::inline v0::cache
