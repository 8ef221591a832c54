// Projections for any processor: 128-bit compiler vectors, no target region.
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace polyhead::inline v0::kernels::cpu::portable {
#include "kernels/cpu/simd_portable.hpp"

#include "kernels/cpu/gemm.inc"

const GemmTable& gemm_table() { return kGemmTable; }
const RowTable& row_table() { return kRowTable; }
}  // namespace polyhead::inline v0::kernels::cpu::portable
