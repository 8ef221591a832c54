// AVX-512 kernels over the matrix products of AMX, for bfloat16.
#include "kernels/cpu/common.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

// g++ 12 takes the "undefined" operands inside its own AVX-512 headers for uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__clang__)
#pragma clang attribute push(                                                                       \
        __attribute__((target(                                                                      \
                "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c"))), \
            apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c")
#endif

namespace polyhead::inline v0::kernels::cpu::amx_bf16 {
// The kernels are written over the Simd type before them: the order counts.
// clang-format off
#include "kernels/cpu/simd_avx512.hpp"
#include "kernels/cpu/kernels_matrix.inc"
// clang-format on
}  // namespace polyhead::inline v0::kernels::cpu::amx_bf16

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
