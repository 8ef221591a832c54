// The orthonormal Walsh-Hadamard transform.
#pragma once

#include <cmath>
#include <cstdint>

namespace polyhead::inline v0::frames {

/// Runs of the largest power of two that divides n, each through the transform, which is its own
/// inverse and transpose. `step` elements from one to the next.
template <class Float>
void walsh_hadamard(Float* x, std::int64_t n, std::int64_t step = 1) {
  const std::int64_t run = n & -n;
  for (std::int64_t half = 1; half < run; half *= 2) {
    for (std::int64_t first = 0; first < n; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; ++i) {
        const Float a = x[i * step], b = x[(i + half) * step];
        x[i * step] = a + b;
        x[(i + half) * step] = a - b;
      }
    }
  }
  const Float factor = Float{1} / std::sqrt(static_cast<Float>(run));
  for (std::int64_t i = 0; i < n; ++i) x[i * step] *= factor;
}

}  // namespace polyhead::inline v0::frames
