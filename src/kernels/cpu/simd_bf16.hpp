// Numbers as the bf16 dot takes them. Included after simd_avx512.hpp, inside an ISA namespace that
// has AVX512_BF16.

#include "kernels/cpu/dot_bf16.hpp"

/// The first `count` of 32 lanes, or all of them.
POLYHEAD_INLINE __mmask32 first_of_32(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((std::uint32_t{1} << count) - 1);
}

/// Rounds two rows to bfloat16 and pairs them lane by lane: `even` in the low half, `odd` in the
/// high one.
POLYHEAD_INLINE Simd::V round_to_pairs(Simd::V even, Simd::V odd) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, halves));
}
