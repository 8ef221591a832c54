// Projections with AVX2.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace polyhead::inline v0::kernels::cpu::avx2 {
#include "kernels/cpu/simd_avx2.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
const RowTable& row_table() { return kRowTable; }
}  // namespace polyhead::inline v0::kernels::cpu::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
