// How far what is held in a type lies from the value it was given.
#pragma once

#include <algorithm>
#include <cmath>

#include "polyhead/types.h"

namespace polyhead::test {

/// The most by which `value` and what `type` holds of it differ: half the distance of the type's
/// numbers there, the last step before the subnormal ones at least. Codes with a scale share it
/// with values of magnitude up to `largest`; of int4 it is a whole step, since its codes reach -8
/// at the extreme and end at 7 on the other side. The scale's own rounding adds a few of float32's.
inline double half_step(ElementType type, double value, double largest) {
  const double magnitude = std::abs(value), and_scale = 1.0 + 1e-6;
  switch (type) {
    case ElementType::float16:
      return std::max(magnitude * 0x1p-11, 0x1p-25);
    case ElementType::bfloat16:
      return magnitude * 0x1p-8;
    case ElementType::int8:
      return largest / 127.0 / 2.0 * and_scale;
    case ElementType::int4:
      return largest / 8.0 * and_scale;
    case ElementType::float8_e4m3:
      return std::max(magnitude * 0x1p-4, 0x1p-10);
    case ElementType::float8_e5m2:
      return std::max(magnitude * 0x1p-3, 0x1p-17);
    default:
      return 0.0;
  }
}

}  // namespace polyhead::test
