// What files read of a saved sequence without a cache for it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "polyhead/cache_file.h"

namespace polyhead::inline v0::cache {

/// The keys' scales by channel of what PagedCache::save wrote. Returns why they cannot be told, or
/// nothing.
std::string read_key_scales(std::span<const std::byte> from, KeyScales& scales);

}  // namespace polyhead::inline v0::cache
