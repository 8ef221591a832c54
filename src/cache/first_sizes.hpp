// What the first saved cache or sequence of a file says of itself, for who has none to fill yet.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "polyhead/cache_file.h"

namespace polyhead::inline v0::cache {

/// Fills in the sizes and tokens of `info` from the front of what caches or sequences of its kind
/// wrote. Returns what is wrong with them, or nothing.
std::string read_first_sizes(std::span<const std::byte> from, CacheFileInfo& info);

}  // namespace polyhead::inline v0::cache
