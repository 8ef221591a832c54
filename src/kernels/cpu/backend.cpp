// The list of CPU instruction sets and their tables.
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0::kernels::cpu {

namespace portable {
AttendKernel prefill_float32();
AttendKernel decode_float32();
InspectKernel inspect_float32();
HeadKernel heads_float32();
}  // namespace portable
#if defined(__x86_64__)
namespace avx2 {
AttendKernel prefill_float32();
AttendKernel decode_float32();
InspectKernel inspect_float32();
HeadKernel heads_float32();
}  // namespace avx2
namespace avx512 {
AttendKernel prefill_float32();
AttendKernel decode_float32();
InspectKernel inspect_float32();
HeadKernel heads_float32();
}  // namespace avx512
namespace avx512_bf16 {
AttendKernel prefill_bfloat16();
AttendKernel decode_bfloat16();
InspectKernel inspect_bfloat16();
HeadKernel heads_bfloat16();
}  // namespace avx512_bf16
#endif

const Backend& backend(Isa isa) {
  static const Backend portable{Isa::portable,
                                portable::prefill_float32(),
                                portable::decode_float32(),
                                {},
                                {},
                                portable::inspect_float32(),
                                {},
                                portable::heads_float32(),
                                {}};
#if defined(__x86_64__)
  static const Backend avx2{Isa::avx2,
                            avx2::prefill_float32(),
                            avx2::decode_float32(),
                            {},
                            {},
                            avx2::inspect_float32(),
                            {},
                            avx2::heads_float32(),
                            {}};
  static const Backend avx512{Isa::avx512,
                              avx512::prefill_float32(),
                              avx512::decode_float32(),
                              {},
                              {},
                              avx512::inspect_float32(),
                              {},
                              avx512::heads_float32(),
                              {}};
  static const Backend avx512_bf16{Isa::avx512_bf16,
                                   avx512::prefill_float32(),
                                   avx512::decode_float32(),
                                   avx512_bf16::prefill_bfloat16(),
                                   avx512_bf16::decode_bfloat16(),
                                   avx512::inspect_float32(),
                                   avx512_bf16::inspect_bfloat16(),
                                   avx512::heads_float32(),
                                   avx512_bf16::heads_bfloat16()};
  switch (isa) {
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512_bf16;
    default:
      break;
  }
#endif
  (void)isa;
  return portable;
}

}  // namespace polyhead::inline v0::kernels::cpu
