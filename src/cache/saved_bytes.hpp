// Bytes of a saved cache, put at the end and taken from the front.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace polyhead::inline v0::cache {

/// What is wrong where take() finds too little.
inline constexpr const char* kCutShort = "it is cut short";

void put(std::vector<std::byte>& to, const void* data, std::size_t bytes);

/// Moves the front of `from` to `to`; false, with nothing moved, where there is not enough.
inline bool take(std::span<const std::byte>& from, void* to, std::size_t bytes) {
  if (from.size() < bytes) return false;
  if (bytes > 0) std::memcpy(to, from.data(), bytes);
  from = from.subspan(bytes);
  return true;
}

}  // namespace polyhead::inline v0::cache
