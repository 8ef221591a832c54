// Bytes of a saved cache, put at the end and taken from the front.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

namespace polyhead::inline v0::cache {

/// What is wrong where take() finds too little.
inline constexpr const char* kCutShort = "it is cut short";

/// What takes bytes, piece by piece.
using Sink = std::function<void(std::span<const std::byte>)>;

/// Puts them at the end of `to`, which outlives it.
Sink at_end_of(std::vector<std::byte>& to);

/// Throws InvalidArgument for one that takes none.
void check_sink(const char* call, const Sink& to);

inline void put(const Sink& to, const void* data, std::size_t bytes) {
  to({static_cast<const std::byte*>(data), bytes});
}

/// Moves the front of `from` to `to`; false, with nothing moved, where there is not enough.
inline bool take(std::span<const std::byte>& from, void* to, std::size_t bytes) {
  if (from.size() < bytes) return false;
  if (bytes > 0) std::memcpy(to, from.data(), bytes);
  from = from.subspan(bytes);
  return true;
}

}  // namespace polyhead::inline v0::cache
