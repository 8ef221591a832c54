// AVX2 with FMA and F16C: 8 lanes. Included inside an ISA namespace, within its target region.

struct Simd {
  using V = __m256;
  using I = __m256i;
  using M = __m256;  // all ones or all zeros a lane
  using StoredMask = M;
  static constexpr int kLanes = 8;
  static constexpr int kExponents = 2;  // vectors that exp2 takes at once
  static constexpr int kRows =
      4;  // 4 x 3 accumulators + 3 operands + 1 broadcast fill 16 registers
  static constexpr int kVectors = 3;
  static constexpr bool kNarrowTiles = false;  // of float16, half a vector wide
  static constexpr bool kFloat8ByFloat16 = true;

  POLYHEAD_INLINE static V zero() { return _mm256_setzero_ps(); }
  POLYHEAD_INLINE static V load(const float* p) { return _mm256_loadu_ps(p); }
  POLYHEAD_INLINE static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  /// As others write past the caches: with two stores a line that takes longer than through them
  /// (docs/kernel-notes.md).
  POLYHEAD_INLINE static void stream(float* p, V v) { store(p, v); }
  POLYHEAD_INLINE static void fence() {}
  POLYHEAD_INLINE static V broadcast(float x) { return _mm256_set1_ps(x); }
  /// Four bytes at any address in every lane.
  POLYHEAD_INLINE static V broadcast_at(const void* p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return _mm256_set1_ps(x);
  }
  /// Keeps the compiler from moving v's load past this place, to other loads.
  POLYHEAD_INLINE static void settle(V& v) { POLYHEAD_SETTLE(v); }
  POLYHEAD_INLINE static V add(V a, V b) { return _mm256_add_ps(a, b); }
  POLYHEAD_INLINE static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  POLYHEAD_INLINE static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  POLYHEAD_INLINE static V div(V a, V b) { return _mm256_div_ps(a, b); }
  POLYHEAD_INLINE static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  /// c - a * b
  POLYHEAD_INLINE static V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
  /// fma where the mask is set, c elsewhere: a masked operand is never read into the result.
  POLYHEAD_INLINE static V fma_masked(M m, V a, V b, V c) {
    return _mm256_blendv_ps(c, _mm256_fmadd_ps(a, b, c), m);
  }
  /// The second operand where either is NaN.
  POLYHEAD_INLINE static V max(V a, V b) { return _mm256_max_ps(a, b); }
  /// max where the mask is set, a elsewhere.
  POLYHEAD_INLINE static V max_masked(M m, V a, V b) {
    return _mm256_blendv_ps(a, _mm256_max_ps(a, b), m);
  }
  POLYHEAD_INLINE static V min(V a, V b) { return _mm256_min_ps(a, b); }
  POLYHEAD_INLINE static V abs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  POLYHEAD_INLINE static M greater(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  POLYHEAD_INLINE static M equal(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  POLYHEAD_INLINE static M not_equal(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
  POLYHEAD_INLINE static V select(M m, V a, V b) { return _mm256_blendv_ps(b, a, m); }
  POLYHEAD_INLINE static I select(M m, I a, I b) {
    return bits(select(m, from_bits(a), from_bits(b)));
  }
  POLYHEAD_INLINE static bool any(M m) { return _mm256_movemask_ps(m) != 0; }
  POLYHEAD_INLINE static M mask_and(M a, M b) { return _mm256_and_ps(a, b); }
  POLYHEAD_INLINE static M mask_or(M a, M b) { return _mm256_or_ps(a, b); }
  POLYHEAD_INLINE static M mask_and_not(M a, M b) { return _mm256_andnot_ps(b, a); }
  POLYHEAD_INLINE static StoredMask store_mask(M m) { return m; }
  POLYHEAD_INLINE static M load_mask(const StoredMask& m) { return m; }

  POLYHEAD_INLINE static I broadcast_int(std::int32_t x) { return _mm256_set1_epi32(x); }
  POLYHEAD_INLINE static I load_int(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  POLYHEAD_INLINE static void store_int(void* p, I v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), v);
  }
  POLYHEAD_INLINE static I bits(V v) { return _mm256_castps_si256(v); }
  POLYHEAD_INLINE static V from_bits(I v) { return _mm256_castsi256_ps(v); }
  POLYHEAD_INLINE static I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  template <int kBits>
  POLYHEAD_INLINE static I shift_left(I a) {
    return _mm256_slli_epi32(a, kBits);
  }
  /// Arithmetic: the sign comes along.
  template <int kBits>
  POLYHEAD_INLINE static I shift_right(I a) {
    return _mm256_srai_epi32(a, kBits);
  }
  POLYHEAD_INLINE static V to_float(I a) { return _mm256_cvtepi32_ps(a); }
  /// kLanes bytes, sign-extended.
  POLYHEAD_INLINE static I load_bytes(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  /// Lanes in which any bit of `bit` (one bit a lane) is set in `words`.
  POLYHEAD_INLINE static M test(I words, I bit) {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(words, bit), bit));
  }

  /// 2^t, exactly 1 at 0, 0 below 2^-126 where results that small are flushed, NaN for NaN;
  /// relative error 1.2e-7. Degree 5 on [-1/2, 1/2]. The sum with kExp2Magic rounds t to a whole
  /// number n and holds n + 127 in its low bits: at the place of an exponent these are 2^n, and 0
  /// where n is -127. max() keeps a NaN in its second operand, the last product whatever its
  /// payload makes of 2^n.
  POLYHEAD_INLINE static V exp2(V t) {
    V one[1] = {t};
    exp2(one);
    return one[0];
  }
  /// The same of each, step by step beside each other: a processor's schedulers hold few chains
  /// that come one after the other.
  template <int kN>
  POLYHEAD_INLINE static void exp2(V (&t)[kN]) {
    const V magic = broadcast(kExp2Magic);
    V r[kN], scale[kN];
    const auto each = [](const auto& step) POLYHEAD_LAMBDA {
#pragma GCC unroll 4
      for (int i = 0; i < kN; ++i) step(i);
    };
    each([&](int i) POLYHEAD_LAMBDA { t[i] = max(broadcast(-127.0f), t[i]); });
    each([&](int i) POLYHEAD_LAMBDA { scale[i] = add(t[i], magic); });
    each([&](int i) POLYHEAD_LAMBDA { r[i] = sub(t[i], sub(scale[i], magic)); });
    each([&](int i) POLYHEAD_LAMBDA { t[i] = fma(broadcast(kExp2C5), r[i], broadcast(kExp2C4)); });
    each([&](int i) POLYHEAD_LAMBDA { t[i] = fma(t[i], r[i], broadcast(kExp2C3)); });
    each([&](int i) POLYHEAD_LAMBDA { t[i] = fma(t[i], r[i], broadcast(kExp2C2)); });
    each([&](int i) POLYHEAD_LAMBDA { t[i] = fma(t[i], r[i], broadcast(kExp2C1)); });
    each([&](int i) POLYHEAD_LAMBDA { t[i] = fma(t[i], r[i], broadcast(1.0f)); });
    each([&](int i) POLYHEAD_LAMBDA {
      t[i] = mul(t[i], from_bits(_mm256_slli_epi32(bits(scale[i]), 23)));
    });
  }

  /// Bit i is set where byte i of 64 is not zero.
  POLYHEAD_INLINE static std::uint64_t nonzero_bytes(const std::byte* p) {
    const __m256i zero = _mm256_setzero_si256();
    const auto zeros = [&](const std::byte* at) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, zero)));
    };
    return ~(std::uint64_t{zeros(p)} | std::uint64_t{zeros(p + 32)} << 32);
  }

  POLYHEAD_INLINE static I first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  /// The first n lanes; the rest are zero and their memory is not touched.
  POLYHEAD_INLINE static V load_first(const float* p, int n) {
    return _mm256_maskload_ps(p, first_lanes(n));
  }
  POLYHEAD_INLINE static void store_first(float* p, V v, int n) {
    _mm256_maskstore_ps(p, first_lanes(n), v);
  }
  POLYHEAD_INLINE static V load_float16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  POLYHEAD_INLINE static V load_bfloat16(const std::uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  POLYHEAD_INLINE static void store_float16(std::uint16_t* p, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  POLYHEAD_INLINE static void store_bfloat16(std::uint16_t* p, V v) {
    const __m256i b = bits(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd);
    const M nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    r = select(nan, _mm256_or_si256(b, _mm256_set1_epi32(0x400000)), r);
    r = _mm256_srli_epi32(r, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  /// kLanes signed bytes, widened.
  POLYHEAD_INLINE static V load_signed(const std::byte* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// kC * kLanes 8-bit floats, by way of float16: e5m2 is the upper half of one, and the magnitude
  /// of e4m3, at its place, stands for 2^-8 of itself, subnormals included.
  template <bool kE4m3, int kC>
  POLYHEAD_INLINE static void load_float8(V (&to)[kC], const std::byte* p) {
    if constexpr (kC == 1) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
      to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(float16_of<kE4m3>(codes)));
    }
#pragma GCC unroll 4
    for (int c = 0; c + 1 < kC; c += 2) {
      const __m256i words =
          float16_of<kE4m3>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + c * kLanes)));
      to[c] = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
      to[c + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
    }
#pragma GCC unroll 4
    for (int c = 0; kE4m3 && c < kC; ++c) to[c] = mul(to[c], broadcast(256.0f));
  }
  struct Product {
    I low, high;
  };
  /// Both words of the products of unsigned words.
  POLYHEAD_INLINE static Product multiply_words(I a, std::uint32_t by) {
    const I b = broadcast_int(static_cast<std::int32_t>(by));
    const I even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    return {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa),
            _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
  }
  POLYHEAD_INLINE static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  /// The smaller one where the mask is set, a elsewhere.
  POLYHEAD_INLINE static I min_where(M m, I a, I b) { return select(m, _mm256_min_epi32(a, b), a); }
  POLYHEAD_INLINE static M not_zero(I a) {
    return _mm256_castsi256_ps(
        _mm256_xor_si256(_mm256_cmpeq_epi32(a, _mm256_setzero_si256()), _mm256_set1_epi32(-1)));
  }
  /// Bits [kShift, kShift + 4) of each lane as a number from -8 to 7.
  template <int kShift>
  POLYHEAD_INLINE static V signed_nibble(I words) {
    return to_float(shift_right<28>(shift_left<28 - kShift>(words)));
  }
  /// The same times a scale, by a table made of it.
  POLYHEAD_INLINE static V nibble_table(V scale) { return scale; }
  template <int kShift>
  POLYHEAD_INLINE static V look_up(I words, V table) {
    return mul(signed_nibble<kShift>(words), table);
  }
  /// What four-bit codes stand for: lowest + code.
  using Nibbles = I;
  POLYHEAD_INLINE static Nibbles nibbles(int lowest) { return broadcast_int(lowest); }
  /// The code in bits [4 place, 4 place + 4) of each lane.
  POLYHEAD_INLINE static V nibble(const Nibbles& lowest, I words, int place) {
    const I code = _mm256_and_si256(_mm256_srli_epi32(words, 4 * place), broadcast_int(15));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(code, lowest));
  }

  /// The two halves of a and b that a step of across() joins: of lanes, then of pairs of them, and
  /// so on.
  template <int kStep>
  POLYHEAD_INLINE static V first_half(V a, V b) {
    if constexpr (kStep == 0) return _mm256_unpacklo_ps(a, b);
    if constexpr (kStep == 1) return _mm256_shuffle_ps(a, b, 0x44);
    return _mm256_permute2f128_ps(a, b, 0x20);
  }
  template <int kStep>
  POLYHEAD_INLINE static V second_half(V a, V b) {
    if constexpr (kStep == 0) return _mm256_unpackhi_ps(a, b);
    if constexpr (kStep == 1) return _mm256_shuffle_ps(a, b, 0xee);
    return _mm256_permute2f128_ps(a, b, 0x31);
  }

  /// A vector of a tile, kLanes / 2 steps of each of two rows: of 32 bits, or of 16 that are
  /// widened.
  POLYHEAD_INLINE static V load_tile(const float* low, const float* high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  }
  POLYHEAD_INLINE static V load_tile_float16(const std::uint16_t* low, const std::uint16_t* high) {
    return _mm256_cvtph_ps(two_of_16_bits(low, high));
  }

  /// Transposes an 8 x 8 block of 32-bit values in registers.
  POLYHEAD_INLINE static void transpose(V (&r)[8]) {
    V a[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    V b[8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      b[4 * i + 0] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
      b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
      b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
      b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x20);
      r[4 + i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x31);
    }
  }

 private:
  template <bool kE4m3>
  POLYHEAD_INLINE static __m256i float16_of(__m128i codes) {
    if constexpr (!kE4m3) return _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    const __m256i placed = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i words = _mm256_and_si256(placed, _mm256_set1_epi16(~0x4000));  // one of two signs
    const __m256i sign = _mm256_set1_epi16(std::numeric_limits<std::int16_t>::min());
    const __m256i nan =  // a magnitude of 0x7f
        _mm256_cmpeq_epi16(_mm256_or_si256(words, sign),
                           _mm256_set1_epi16(static_cast<std::int16_t>(0xbf80)));
    return _mm256_or_si256(words, nan);
  }
  POLYHEAD_INLINE static __m128i two_of_16_bits(const std::uint16_t* low,
                                                const std::uint16_t* high) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low)),
                              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
  }
};
