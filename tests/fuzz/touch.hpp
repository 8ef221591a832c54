// Reads every element of a view, so that a sanitizer sees what lies outside.
#pragma once

#include <cstdint>

#include "polyhead/types.h"

namespace polyhead::fuzz {

inline unsigned touch_axis(const ConstView& view, int axis, const unsigned char* at) {
  if (axis == view.layout.axes) {
    unsigned sum = 0;
    for (int i = 0; i < element_bytes(view.type); ++i) sum += at[i];
    return sum;
  }
  unsigned sum = 0;
  for (std::int64_t i = 0; i < view.layout.extents[axis]; ++i) {
    sum +=
        touch_axis(view, axis + 1, at + i * view.layout.strides[axis] * element_bytes(view.type));
  }
  return sum;
}

inline void touch(const ConstView& view) {
  for (int axis = 0; axis < view.layout.axes; ++axis) {
    if (view.layout.extents[axis] == 0) return;  // the others may be huge
  }
  volatile unsigned sum = touch_axis(view, 0, static_cast<const unsigned char*>(view.data));
  (void)sum;
}

}  // namespace polyhead::fuzz
