// Which instruction set multiplies, and works on rows.
#include "kernels/cpu/gemm_table.hpp"

#include "kernels/cpu/rowwise_table.hpp"

namespace polyhead::inline v0::kernels::cpu {

namespace portable {
const GemmTable& gemm_table();
const RowTable& row_table();
}
#if defined(__x86_64__)
namespace avx2 {
const GemmTable& gemm_table();
const RowTable& row_table();
}
namespace avx512 {
const GemmTable& gemm_table();
const RowTable& row_table();
}
namespace avx512_bf16 {
const GemmTable& gemm_table();
const RowTable& row_table();
}
namespace amx_bf16 {
const GemmTable& gemm_table();
}
#endif

const GemmTable& gemm(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::gemm_table();
    case Isa::avx512:
      return avx512::gemm_table();
    case Isa::avx512_bf16:
      return avx512_bf16::gemm_table();
    case Isa::amx_bf16:
      return amx_bf16::gemm_table();
#endif
    default:
      return portable::gemm_table();
  }
}

const RowTable& rowwise(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::row_table();
    case Isa::avx512:
      return avx512::row_table();
    case Isa::avx512_bf16:
    case Isa::amx_bf16:
      return avx512_bf16::row_table();
#endif
    default:
      return portable::row_table();
  }
}

}  // namespace polyhead::inline v0::kernels::cpu
