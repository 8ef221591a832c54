// Numbers rounded to int16 of one power of two, for the dot product of AVX512_VNNI. Included after
// simd_avx512.hpp, inside an ISA namespace that has it.

#include "kernels/cpu/dot_int16.hpp"

/// The bits of a number's magnitude.
POLYHEAD_INLINE Simd::I magnitude(Simd::V x) {
  return Simd::and_int(Simd::bits(x), Simd::broadcast_int(0x7fffffff));
}
POLYHEAD_INLINE Simd::I larger(Simd::I a, Simd::I b) { return _mm512_max_epu32(a, b); }

/// What numbers are multiplied by so that the largest of them, and with it all of them, fit int16,
/// and what the integers are multiplied by to mean them again: powers of two, so that nothing is
/// rounded but to a whole number. One lane each.
struct Fit {
  Simd::V to_int, back;
};

/// Lanes whose bits are a float's without a sign, and finite.
POLYHEAD_INLINE Simd::M is_number(Simd::I bits) {
  return _mm512_cmplt_epu32_mask(bits, Simd::broadcast_int(0x7f800000));
}
POLYHEAD_INLINE bool all_numbers(Simd::I bits) { return !Simd::any(_mm512_knot(is_number(bits))); }

/// `most` holds the bits of the largest magnitude, which as integers without a sign are in the
/// order of the floats: Inf and NaN are above all numbers, and make `back` NaN.
POLYHEAD_INLINE Fit fit_of(Simd::I most) {
  // The exponent of what has 15 bits before the point; 32,767.5 and more would round to 2^15.
  constexpr int kCarry = 0x100, kPlaces = 14, kBias = 127;
  const Simd::I rounded = Simd::add_int(most, Simd::broadcast_int(kCarry));
  // Numbers that small have fewer bits; neither power may leave the normal range.
  const Simd::I exponent = larger(_mm512_srli_epi32(rounded, 23), Simd::broadcast_int(kPlaces + 1));
  const Simd::I up = _mm512_sub_epi32(Simd::broadcast_int(2 * kBias + kPlaces), exponent);
  const Simd::I down = _mm512_sub_epi32(exponent, Simd::broadcast_int(kPlaces));
  const Simd::M finite = is_number(most);
  return {Simd::from_bits(_mm512_maskz_slli_epi32(finite, up, 23)),
          Simd::select(finite, Simd::from_bits(_mm512_slli_epi32(down, 23)),
                       Simd::broadcast(std::numeric_limits<float>::quiet_NaN()))};
}

/// x * to_int rounded to whole numbers, to nearest and even ones, in the low halves of the lanes.
POLYHEAD_INLINE Simd::I whole_numbers(Simd::V x, Simd::V to_int) {
  const Simd::V shift = Simd::broadcast(12582912.0f);  // 1.5 * 2^23: its unit is 1
  return Simd::bits(Simd::fma(x, to_int, shift));
}

/// The low halves of two vectors' lanes: as pairs lane by lane, or one vector after the other.
POLYHEAD_INLINE Simd::V pair_lanes(Simd::I even, Simd::I odd) {
  return Simd::from_bits(_mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16)));
}
POLYHEAD_INLINE Simd::V join_lanes(Simd::I first, Simd::I second) {
  const __m512i low_halves =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return Simd::from_bits(_mm512_permutex2var_epi16(first, low_halves, second));
}
