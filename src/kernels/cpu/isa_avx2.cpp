// AVX2 kernels.
#include "kernels/cpu/common.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace polyhead::inline v0::kernels::cpu::avx2 {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx2.hpp"
#include "kernels/cpu/kernels_float32.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
