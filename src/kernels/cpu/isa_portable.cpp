// Kernels for any processor: 128-bit compiler vectors, no target region.
#include "kernels/cpu/common.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace polyhead::inline v0::kernels::cpu::portable {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_portable.hpp"
#include "kernels/cpu/kernels_float32.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::portable
