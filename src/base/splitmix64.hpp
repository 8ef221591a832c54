// Numbers that look like chance and are the same on every machine.
#pragma once

#include <cstdint>

namespace polyhead::inline v0::base {

/// The next number of the stream that `state` stands in, which moves on. Source: Steele, Lea and
/// Flood 2014, splitmix64.
inline std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace polyhead::inline v0::base
