// Numbers rounded to int16 of one power of two, for the dot product of int16. Included inside an
// ISA namespace after a Simd and an Int16 struct.

/// The bits of a number's magnitude.
POLYHEAD_INLINE Simd::I magnitude(Simd::V x) {
  return Simd::and_int(Simd::bits(x), Simd::broadcast_int(0x7fffffff));
}

/// What numbers are multiplied by so that the largest of them, and with it all of them, fit int16,
/// and what the integers are multiplied by to mean them again: powers of two, so that nothing is
/// rounded but to a whole number. One lane each.
struct Fit {
  Simd::V to_int, back;
};

/// The powers of two whose biased exponents these are.
POLYHEAD_INLINE Simd::V from_exponents(Simd::I exponents) {
  return Simd::from_bits(Simd::shift_left<23>(exponents));
}

/// `most` holds the bits of the largest magnitude, which as integers without a sign are in the
/// order of the floats: Inf and NaN are above all numbers, and make `back` NaN.
POLYHEAD_INLINE Fit fit_of(Simd::I most) {
  // The exponent of what has 15 bits before the point; 32,767.5 and more would round to 2^15.
  constexpr int kCarry = 0x100, kPlaces = 14, kBias = 127;
  const Simd::I rounded = Simd::add_int(most, Simd::broadcast_int(kCarry));
  // Numbers that small have fewer bits; neither power may leave the normal range.
  const Simd::I exponent =
      Int16::larger(Int16::exponents(rounded), Simd::broadcast_int(kPlaces + 1));
  const Simd::I up = Int16::sub(Simd::broadcast_int(2 * kBias + kPlaces), exponent);
  const Simd::I down = Int16::sub(exponent, Simd::broadcast_int(kPlaces));
  const Simd::M finite = Int16::is_number(most);
  return {Simd::select(finite, from_exponents(up), Simd::zero()),
          Simd::select(finite, from_exponents(down),
                       Simd::broadcast(std::numeric_limits<float>::quiet_NaN()))};
}

/// x * to_int rounded to whole numbers, to nearest and even ones, in the low halves of the lanes.
POLYHEAD_INLINE Simd::I whole_numbers(Simd::V x, Simd::V to_int) {
  const Simd::V shift = Simd::broadcast(12582912.0f);  // 1.5 * 2^23: its unit is 1
  return Simd::bits(Simd::fma(x, to_int, shift));
}
