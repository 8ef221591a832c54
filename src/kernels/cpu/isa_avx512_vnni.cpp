// AVX-512 kernels over the int16 dot of VNNI, which every processor with the bf16 dot has too.
#include "kernels/cpu/common.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

// g++ 12 takes the "undefined" operands inside its own AVX-512 headers for uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__clang__)
#pragma clang attribute push(                                                                   \
        __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
            apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif

namespace polyhead::inline v0::kernels::cpu::avx512_vnni {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx512.hpp"
#include "kernels/cpu/kernels_integer.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::avx512_vnni

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
