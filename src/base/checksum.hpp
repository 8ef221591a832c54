// A number that tells long arrays of bytes apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace polyhead::inline v0::base {

/// Eight bytes at a time, so that large caches and weights are not held up by it. Finds damage, not
/// malice. Files of caches end with it: another one would be another version of them.
inline std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0x9e3779b97f4a7c15u ^ bytes.size();
  const auto mix = [&](std::uint64_t word) {
    sum = (sum ^ word) * 0x9fb21c651e98df25u;
    sum ^= sum >> 29;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  std::uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  mix(rest);
  return sum;
}

}  // namespace polyhead::inline v0::base
