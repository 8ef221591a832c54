// The bf16 dot product of AVX512_BF16. Included after simd_avx512.hpp, inside an ISA namespace that
// has it.

/// acc + a0 b0 + a1 b1, each lane a pair of bfloat16; one instruction, so one rounding order
/// everywhere.
struct DotBf16 {
#if defined(__clang__)
  // Not by intrinsics: clang 16's optimiser recurses without end over the casts to __m512bh.
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
#else
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
#endif
  // Not by the intrinsic: g++ 12 takes its mask for one of 8 bits and drops the upper lanes.
  POLYHEAD_INLINE static Simd::V dot_masked(Simd::M m, Simd::V a, Simd::V b, Simd::V acc) {
    asm("vdpbf16ps %2, %1, %0%{%3%}" : "+v"(acc) : "v"(a), "v"(b), "Yk"(m));
    return acc;
  }
};
