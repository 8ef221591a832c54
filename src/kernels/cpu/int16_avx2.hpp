// int16 numbers of AVX2: what the integer path does with the halves of 32-bit lanes, and their dot
// product. Included after simd_avx2.hpp, inside an ISA namespace.

struct Int16 {
  using V = Simd::V;
  using I = Simd::I;

  POLYHEAD_INLINE static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  /// The larger one as numbers without a sign, and the largest lane.
  POLYHEAD_INLINE static I larger(I a, I b) { return _mm256_max_epu32(a, b); }
  POLYHEAD_INLINE static I largest(I a) {
    a = larger(a, _mm256_permute4x64_epi64(a, 0x4e));
    a = larger(a, _mm256_shuffle_epi32(a, 0x4e));
    return larger(a, _mm256_shuffle_epi32(a, 0xb1));
  }
  /// The exponents of floats without a sign.
  POLYHEAD_INLINE static I exponents(I bits) { return _mm256_srli_epi32(bits, 23); }
  /// Lanes whose bits are a float's without a sign, and finite.
  POLYHEAD_INLINE static Simd::M is_number(I bits) {
    const I most = Simd::broadcast_int(0x7f7fffff);
    return Simd::from_bits(_mm256_cmpeq_epi32(larger(bits, most), most));
  }
  POLYHEAD_INLINE static bool all_numbers(I bits) {
    return _mm256_movemask_ps(is_number(bits)) == (1 << Simd::kLanes) - 1;
  }

  /// The low halves of two vectors' lanes: as pairs lane by lane, or one vector after the other.
  POLYHEAD_INLINE static V pair(I even, I odd) {
    return Simd::from_bits(_mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa));
  }
  POLYHEAD_INLINE static V join(I first, I second) {
    const I low = Simd::broadcast_int(0xffff);
    const I halves = _mm256_packus_epi32(Simd::and_int(first, low), Simd::and_int(second, low));
    return Simd::from_bits(_mm256_permute4x64_epi64(halves, 0xd8));
  }
  /// Of four numbers the first and the third become a pair, then the others.
  POLYHEAD_INLINE static I pair_every_other(I numbers) {
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(numbers, 0xd8), 0xd8);
  }
  /// kBits of each number, from bit kAt on, sign-extended.
  template <int kAt, int kBits>
  POLYHEAD_INLINE static I bits_of(I numbers) {
    return _mm256_srai_epi16(_mm256_slli_epi16(numbers, 16 - kBits - kAt), 16 - kBits);
  }

  // Blocks of 32 codes: int8 in order, or int4 whose low halves come before the high ones.

  /// A block's numbers in order, 16 vectors' lanes in all.
  template <bool kNibbles>
  POLYHEAD_INLINE static void store_block(float* to, const std::byte* block) {
    if constexpr (kNibbles) {
      const I bytes = _mm256_cvtepu8_epi16(load_128(block));
      Simd::store_int(to, bits_of<0, 4>(bytes));
      Simd::store_int(to + Simd::kLanes, bits_of<4, 4>(bytes));
    } else {
      Simd::store_int(to, _mm256_cvtepi8_epi16(load_128(block)));
      Simd::store_int(to + Simd::kLanes, _mm256_cvtepi8_epi16(load_128(block + 16)));
    }
  }

  static constexpr int kParts = 2;  // of a block, that value_pairs() takes at once

  /// Two rows' parts of a block as pairs, in two vectors; in_order() puts them in the order of
  /// dims.
  template <bool kNibbles>
  POLYHEAD_INLINE static void value_pairs(V (&to)[2], const std::byte* even, const std::byte* odd) {
    if constexpr (kNibbles) {
      const auto row = [&](const std::byte* from) POLYHEAD_LAMBDA {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
      };
      const I bytes = _mm256_or_si256(row(even), _mm256_slli_epi32(row(odd), 16));
      to[0] = Simd::from_bits(bits_of<0, 4>(bytes));
      to[1] = Simd::from_bits(bits_of<4, 4>(bytes));
    } else {
      const I first = _mm256_cvtepi8_epi16(load_128(even));
      const I second = _mm256_cvtepi8_epi16(load_128(odd));
      to[0] = Simd::from_bits(_mm256_unpacklo_epi16(first, second));
      to[1] = Simd::from_bits(_mm256_unpackhi_epi16(first, second));
    }
  }

  /// Of 8 dims of int8 that are unpacked together, 4 come into each vector.
  template <bool kNibbles>
  POLYHEAD_INLINE static void in_order(V (&pairs)[2]) {
    if constexpr (kNibbles) return;
    const V low = pairs[0], high = pairs[1];
    pairs[0] = _mm256_permute2f128_ps(low, high, 0x20);
    pairs[1] = _mm256_permute2f128_ps(low, high, 0x31);
  }

  /// The sum of all lanes, half by half.
  POLYHEAD_INLINE static float sum_by_halves(V x) {
    x = Simd::add(x, _mm256_permute2f128_ps(x, x, 0x01));
    x = Simd::add(x, _mm256_permute_ps(x, 0x4e));
    return _mm256_cvtss_f32(Simd::add(x, _mm256_permute_ps(x, 0xb1)));
  }

 private:
  POLYHEAD_INLINE static __m128i load_128(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
};

/// acc + a0 b0 + a1 b1, each lane a pair of int16 and acc an int32. Exact, so that the order of the
/// sums does not matter. In two instructions: only the second one waits for the sum before.
struct DotInt16 {
  static constexpr bool kFused = false;
  // The sum is not by the intrinsic: g++ 12 adds products to each other first, for which it has no
  // registers, and copies every accumulator.
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    const Simd::I product = _mm256_madd_epi16(Simd::bits(a), Simd::bits(b));
    asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(product));
    return acc;
  }
};
