// Shapes as messages print them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/joined.hpp"

namespace polyhead::inline v0::base {

/// "[2, 5, 4]".
inline std::string shape_text(std::span<const std::int64_t> shape) {
  return "[" + joined(shape, ", ", [](std::int64_t extent) { return std::to_string(extent); }) +
         "]";
}

}  // namespace polyhead::inline v0::base
