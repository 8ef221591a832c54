// int16 numbers of AVX-512: what the integer path does with the halves of 32-bit lanes. Included
// after simd_avx512.hpp, inside an ISA namespace.

struct Int16 {
  using V = Simd::V;
  using I = Simd::I;

  POLYHEAD_INLINE static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  /// The larger one as numbers without a sign, and the largest lane.
  POLYHEAD_INLINE static I larger(I a, I b) { return _mm512_max_epu32(a, b); }
  POLYHEAD_INLINE static I largest(I a) {
    return Simd::broadcast_int(static_cast<std::int32_t>(_mm512_reduce_max_epu32(a)));
  }
  /// The exponents of floats without a sign.
  POLYHEAD_INLINE static I exponents(I bits) { return _mm512_srli_epi32(bits, 23); }
  /// Lanes whose bits are a float's without a sign, and finite.
  POLYHEAD_INLINE static Simd::M is_number(I bits) {
    return _mm512_cmplt_epu32_mask(bits, Simd::broadcast_int(0x7f800000));
  }
  POLYHEAD_INLINE static bool all_numbers(I bits) {
    return !Simd::any(_mm512_knot(is_number(bits)));
  }

  /// The low halves of two vectors' lanes: as pairs lane by lane, or one vector after the other.
  POLYHEAD_INLINE static V pair(I even, I odd) {
    return Simd::from_bits(_mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16)));
  }
  POLYHEAD_INLINE static V join(I first, I second) {
    const __m512i low_halves =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return Simd::from_bits(_mm512_permutex2var_epi16(first, low_halves, second));
  }
  /// Of four numbers the first and the third become a pair, then the others.
  POLYHEAD_INLINE static I pair_every_other(I numbers) {
    return _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(numbers, 0xd8), 0xd8);
  }
  /// kBits of each number, from bit kAt on, sign-extended.
  template <int kAt, int kBits>
  POLYHEAD_INLINE static I bits_of(I numbers) {
    return _mm512_srai_epi16(_mm512_slli_epi16(numbers, 16 - kBits - kAt), 16 - kBits);
  }

  // Blocks of 32 codes: int8 in order, or int4 whose low halves come before the high ones.

  /// A block's numbers in order, 16 vectors' lanes in all.
  template <bool kNibbles>
  POLYHEAD_INLINE static void store_block(float* to, const std::byte* block) {
    if constexpr (kNibbles) {
      const __m256i bytes = _mm256_broadcastsi128_si256(load_128(block));
      const __m512i to_top = _mm512_inserti64x4(_mm512_set1_epi16(12), _mm256_set1_epi16(8), 1);
      Simd::store_int(
          to, _mm512_srai_epi16(_mm512_sllv_epi16(_mm512_cvtepu8_epi16(bytes), to_top), 12));
    } else {
      Simd::store_int(to, _mm512_cvtepi8_epi16(load_256(block)));
    }
  }

  static constexpr int kParts = 1;  // of a block, that value_pairs() takes at once

  /// Two rows' blocks as pairs, in two vectors; in_order() puts them in the order of dims.
  template <bool kNibbles>
  POLYHEAD_INLINE static void value_pairs(V (&to)[2], const std::byte* even, const std::byte* odd) {
    if constexpr (kNibbles) {
      // Byte d of both rows in the upper halves of lane d's two words: one instruction less than
      // lower halves take to be widened. vpermt2b, without the insert, takes longer.
      const __m512i both = _mm512_castsi256_si512(
          _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(even)), load_128(odd), 1));
      const __m512i order = _mm512_add_epi32(
          _mm512_set1_epi32(0x10100000),
          _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505,
                            0x06060606, 0x07070707, 0x08080808, 0x09090909, 0x0a0a0a0a, 0x0b0b0b0b,
                            0x0c0c0c0c, 0x0d0d0d0d, 0x0e0e0e0e, 0x0f0f0f0f));
      const __m512i words = _mm512_permutexvar_epi8(order, both);
      to[0] = Simd::from_bits(bits_of<8, 4>(words));
      to[1] = Simd::from_bits(bits_of<12, 4>(words));
    } else {
      const __m512i first = _mm512_cvtepi8_epi16(load_256(even));
      const __m512i second = _mm512_cvtepi8_epi16(load_256(odd));
      to[0] = Simd::from_bits(_mm512_unpacklo_epi16(first, second));
      to[1] = Simd::from_bits(_mm512_unpackhi_epi16(first, second));
    }
  }

  /// Of 8 dims of int8 that are unpacked together, 4 come into each vector.
  template <bool kNibbles>
  POLYHEAD_INLINE static void in_order(V (&pairs)[2]) {
    if constexpr (kNibbles) return;
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i low = Simd::bits(pairs[0]), high = Simd::bits(pairs[1]);
    pairs[0] = Simd::from_bits(_mm512_permutex2var_epi64(low, first, high));
    pairs[1] = Simd::from_bits(_mm512_permutex2var_epi64(low, second, high));
  }

  /// The sum of all lanes, half by half.
  POLYHEAD_INLINE static float sum_by_halves(V x) {
    x = Simd::add(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = Simd::add(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = Simd::add(x, _mm512_permute_ps(x, 0x4e));
    return _mm512_cvtss_f32(Simd::add(x, _mm512_permute_ps(x, 0xb1)));
  }

 private:
  POLYHEAD_INLINE static __m128i load_128(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  POLYHEAD_INLINE static __m256i load_256(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
};
