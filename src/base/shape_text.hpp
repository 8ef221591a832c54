// Shapes as messages print them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace polyhead::inline v0::base {

/// "[2, 5, 4]".
inline std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace polyhead::inline v0::base
