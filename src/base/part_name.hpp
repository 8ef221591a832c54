// How a file is called while it is written, before it takes the place that it is for.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

namespace polyhead::inline v0::base {

/// A name beside `target` that no other writer of this or another process has. File systems take it
/// wherever they take the target's: of a long name it has the beginning only.
inline std::string part_name(const std::string& target) {
  static std::atomic<std::uint64_t> count{0};
  constexpr std::size_t kMost = 100;  // bytes: with the ending less than the least limit, 143
  const std::size_t name = target.find_last_of('/') + 1;  // 0 where there is no folder
  return target.substr(0, std::min(target.size(), name + kMost)) + ".part-" +
         std::to_string(::getpid()) + "-" + std::to_string(count++);
}

}  // namespace polyhead::inline v0::base
