// The list of CPU instruction sets and their tables.
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0::kernels::cpu {

namespace portable {
extern const ElementPath float32_path;
}  // namespace portable
#if defined(__x86_64__)
namespace avx2 {
extern const ElementPath float32_path;
}  // namespace avx2
namespace avx2_int16 {
extern const ElementPath integer_path;
}  // namespace avx2_int16
namespace avx512 {
extern const ElementPath float32_path;
}  // namespace avx512
namespace avx512_bf16 {
extern const ElementPath bfloat16_path;
}  // namespace avx512_bf16
namespace amx_bf16 {
extern const ElementPath bfloat16_path;
}  // namespace amx_bf16
namespace avx512_vnni {
extern const ElementPath integer_path;
}  // namespace avx512_vnni
#endif

const Backend& backend(Isa isa) {
  static const Backend portable{Isa::portable, portable::float32_path, {}, {}};
#if defined(__x86_64__)
  static const Backend avx2{Isa::avx2, avx2::float32_path, {}, avx2_int16::integer_path};
  static const Backend avx512{Isa::avx512, avx512::float32_path, {}, {}};
  static const Backend avx512_bf16{Isa::avx512_bf16, avx512::float32_path,
                                   avx512_bf16::bfloat16_path, avx512_vnni::integer_path};
  static const Backend amx_bf16{Isa::amx_bf16, avx512::float32_path, amx_bf16::bfloat16_path,
                                avx512_vnni::integer_path};
  switch (isa) {
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512_bf16;
    case Isa::amx_bf16:
      return amx_bf16;
    default:
      break;
  }
#endif
  (void)isa;
  return portable;
}

}  // namespace polyhead::inline v0::kernels::cpu
