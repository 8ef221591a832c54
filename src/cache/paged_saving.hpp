// What files read of a saved sequence without a cache for it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace polyhead::inline v0::cache {

/// The keys' scales by channel of what PagedCache::save wrote, [layers][kv_heads][head_dim]; empty
/// where it has none. Returns why that cannot be told, or nothing.
std::string read_key_scales(std::span<const std::byte> from, std::vector<float>& scales);

}  // namespace polyhead::inline v0::cache
