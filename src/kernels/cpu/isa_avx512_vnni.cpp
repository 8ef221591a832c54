// AVX-512 kernels over the int16 dot of VNNI, which every processor that avx512_bf16 is for has,
// with VBMI (base/processor.cpp).
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx512_vnni {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx512.hpp"
#include "kernels/cpu/int16_avx512.hpp"
#include "kernels/cpu/dot_int16.hpp"
#include "kernels/cpu/kernels_integer.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx512_vnni

POLYHEAD_TARGET_END
#endif
