// Projections with AVX-512.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if !defined(__clang__)
// g++ 12 takes the undefined pass-through operands of its own intrinsics for uninitialised ones.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__clang__)
#pragma clang attribute push(                                                        \
        __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
            apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

namespace polyhead::inline v0::kernels::cpu::avx512 {
#include "kernels/cpu/simd_avx512.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
const RowTable& row_table() { return kRowTable; }
}  // namespace polyhead::inline v0::kernels::cpu::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
