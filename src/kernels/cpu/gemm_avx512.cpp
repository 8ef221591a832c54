// Projections with AVX-512.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx512 {
#include "kernels/cpu/simd_avx512.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
const RowTable& row_table() { return kRowTable; }
}  // namespace polyhead::inline v0::kernels::cpu::avx512

POLYHEAD_TARGET_END
#endif
