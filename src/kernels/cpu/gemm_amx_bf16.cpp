// Projections with AVX-512 and the matrix products of AMX, for bfloat16.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c")

#define POLYHEAD_SIMD_AMX 1

namespace polyhead::inline v0::kernels::cpu::amx_bf16 {
#include "kernels/cpu/simd_avx512.hpp"

#include "kernels/cpu/matrix_amx.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
}  // namespace polyhead::inline v0::kernels::cpu::amx_bf16

POLYHEAD_TARGET_END
#endif
