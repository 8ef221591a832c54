// Projections with AVX2.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"
#include "kernels/cpu/target.hpp"

#if defined(__x86_64__)
POLYHEAD_TARGET_BEGIN("avx2,fma,f16c")

namespace polyhead::inline v0::kernels::cpu::avx2 {
#include "kernels/cpu/simd_avx2.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
const RowTable& row_table() { return kRowTable; }
}  // namespace polyhead::inline v0::kernels::cpu::avx2

POLYHEAD_TARGET_END
#endif
