// AVX2 kernels.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx2 {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx2.hpp"
#include "kernels/cpu/kernels_float32.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx2

POLYHEAD_TARGET_END
#endif
