// Projections with AVX-512 and the matrix products of AMX, for bfloat16.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if !defined(__clang__)
// g++ 12 takes the undefined pass-through operands of its own intrinsics for uninitialised ones.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
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

#define POLYHEAD_SIMD_AMX 1

namespace polyhead::inline v0::kernels::cpu::amx_bf16 {
#include "kernels/cpu/simd_avx512.hpp"

#include "kernels/cpu/matrix_amx.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
}  // namespace polyhead::inline v0::kernels::cpu::amx_bf16

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
