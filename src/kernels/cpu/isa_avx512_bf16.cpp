// AVX-512 kernels over the bf16 dot; float32 ones are shared with AVX-512.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx512_bf16 {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx512.hpp"
#include "kernels/cpu/kernels_bfloat16.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx512_bf16

POLYHEAD_TARGET_END
#endif
