// AVX2 kernels over the int16 dot.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx2_int16 {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx2.hpp"
#include "kernels/cpu/int16_avx2.hpp"
#include "kernels/cpu/kernels_integer.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx2_int16

POLYHEAD_TARGET_END
#endif
