// AVX-512 (F, BW, DQ, VL): 16 lanes. Included inside an ISA namespace, within its target region.

// g++ 12 takes the "undefined" operands inside its own AVX-512 headers for uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

struct Simd {
  using V = __m512;
  using I = __m512i;
  using M = __mmask16;
  using StoredMask = std::uint16_t;
  static constexpr int kLanes = 16;
  static constexpr int kExponents = 1;
  static constexpr int kRows =
      8;  // 8 x 3 accumulators + 3 operands + 1 broadcast fill 28 of 32 registers
  static constexpr int kVectors = 3;
  static constexpr bool kNarrowTiles = true;  // of float16, half a vector wide
  static constexpr bool kFloat8ByFloat16 = false;

  POLYHEAD_INLINE static V zero() { return _mm512_setzero_ps(); }
  POLYHEAD_INLINE static V load(const float* p) { return _mm512_loadu_ps(p); }
  POLYHEAD_INLINE static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  /// Past the caches, to a whole vector's boundary; before others may read it, fence().
  POLYHEAD_INLINE static void stream(float* p, V v) { _mm512_stream_ps(p, v); }
  POLYHEAD_INLINE static void fence() { _mm_sfence(); }
  POLYHEAD_INLINE static V broadcast(float x) { return _mm512_set1_ps(x); }
  /// Four bytes at any address in every lane. As integers: on Zen 4 vbroadcastss of 512 bits takes
  /// arithmetic's time as well as a load, vpbroadcastd a load alone (docs/kernel-notes.md).
  POLYHEAD_INLINE static V broadcast_at(const void* p) {
    int x;
    __builtin_memcpy(&x, p, 4);
    return _mm512_castsi512_ps(_mm512_set1_epi32(x));
  }
  /// Keeps the compiler from moving v's load past this place, to other loads.
  POLYHEAD_INLINE static void settle(V& v) { POLYHEAD_SETTLE(v); }
  POLYHEAD_INLINE static V add(V a, V b) { return _mm512_add_ps(a, b); }
  POLYHEAD_INLINE static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  POLYHEAD_INLINE static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  POLYHEAD_INLINE static V div(V a, V b) { return _mm512_div_ps(a, b); }
  POLYHEAD_INLINE static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  /// c - a * b
  POLYHEAD_INLINE static V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
  /// fma where the mask is set, c elsewhere: a masked operand is never read into the result.
  POLYHEAD_INLINE static V fma_masked(M m, V a, V b, V c) {
    return _mm512_mask3_fmadd_ps(a, b, c, m);
  }
  /// The second operand where either is NaN.
  POLYHEAD_INLINE static V max(V a, V b) { return _mm512_max_ps(a, b); }
  /// max where the mask is set, a elsewhere.
  POLYHEAD_INLINE static V max_masked(M m, V a, V b) { return _mm512_mask_max_ps(a, m, a, b); }
  POLYHEAD_INLINE static V min(V a, V b) { return _mm512_min_ps(a, b); }
  POLYHEAD_INLINE static V abs(V a) { return _mm512_abs_ps(a); }
  POLYHEAD_INLINE static M greater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  POLYHEAD_INLINE static M equal(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  POLYHEAD_INLINE static M not_equal(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
  POLYHEAD_INLINE static V select(M m, V a, V b) { return _mm512_mask_blend_ps(m, b, a); }
  POLYHEAD_INLINE static I select(M m, I a, I b) { return _mm512_mask_blend_epi32(m, b, a); }
  POLYHEAD_INLINE static bool any(M m) { return m != 0; }
  // Mask registers by intrinsics: g++ 12 vectorises |, & and ~ on several masks at once and loses
  // their upper halves.
  POLYHEAD_INLINE static M mask_and(M a, M b) { return _mm512_kand(a, b); }
  POLYHEAD_INLINE static M mask_or(M a, M b) { return _mm512_kor(a, b); }
  POLYHEAD_INLINE static M mask_and_not(M a, M b) { return _mm512_kandn(b, a); }
  POLYHEAD_INLINE static StoredMask store_mask(M m) { return m; }
  POLYHEAD_INLINE static M load_mask(StoredMask m) { return m; }

  POLYHEAD_INLINE static I broadcast_int(std::int32_t x) { return _mm512_set1_epi32(x); }
  POLYHEAD_INLINE static I load_int(const void* p) { return _mm512_loadu_si512(p); }
  POLYHEAD_INLINE static void store_int(void* p, I v) { _mm512_storeu_si512(p, v); }
  POLYHEAD_INLINE static I bits(V v) { return _mm512_castps_si512(v); }
  POLYHEAD_INLINE static V from_bits(I v) { return _mm512_castsi512_ps(v); }
  POLYHEAD_INLINE static I and_int(I a, I b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  POLYHEAD_INLINE static I shift_left(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  /// Arithmetic: the sign comes along.
  template <int kBits>
  POLYHEAD_INLINE static I shift_right(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  POLYHEAD_INLINE static V to_float(I a) { return _mm512_cvtepi32_ps(a); }
  /// kLanes bytes, sign-extended.
  POLYHEAD_INLINE static I load_bytes(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  /// Lanes in which `bit` (one bit a lane) is set in `words`.
  POLYHEAD_INLINE static M test(I words, I bit) { return _mm512_test_epi32_mask(words, bit); }

  /// 2^t, exactly 1 at 0 and exactly 0 at -inf, NaN for NaN; relative error 1.7e-7.
  /// Degree 5 on [-1/2, 1/2]. At -inf r is no number, of which vscalefps makes 0.
  POLYHEAD_INLINE static V exp2(V t) {
    const V n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V r = _mm512_sub_ps(t, n);
    V p = _mm512_fmadd_ps(broadcast(kExp2C5), r, broadcast(kExp2C4));
    p = _mm512_fmadd_ps(p, r, broadcast(kExp2C3));
    p = _mm512_fmadd_ps(p, r, broadcast(kExp2C2));
    p = _mm512_fmadd_ps(p, r, broadcast(kExp2C1));
    p = _mm512_fmadd_ps(p, r, broadcast(1.0f));
    return _mm512_scalef_ps(p, n);
  }
  template <int kN>
  POLYHEAD_INLINE static void exp2(V (&t)[kN]) {
    for (V& x : t) x = exp2(x);
  }

  /// Bit i is set where byte i of 64 is not zero.
  POLYHEAD_INLINE static std::uint64_t nonzero_bytes(const std::byte* p) {
    const __m512i bytes = _mm512_loadu_si512(p);
    return _mm512_test_epi8_mask(bytes, bytes);
  }

  /// The first n lanes; the rest are zero and their memory is not touched.
  POLYHEAD_INLINE static V load_first(const float* p, int n) {
    return _mm512_maskz_loadu_ps(static_cast<M>((1u << n) - 1u), p);
  }
  POLYHEAD_INLINE static void store_first(float* p, V v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<M>((1u << n) - 1u), v);
  }
  POLYHEAD_INLINE static V load_float16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  POLYHEAD_INLINE static V load_bfloat16(const std::uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  POLYHEAD_INLINE static void store_float16(std::uint16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  /// Rounds to nearest even in integers, so that denormals and NaN come out as everywhere else.
  POLYHEAD_INLINE static void store_bfloat16(std::uint16_t* p, V v) {
    const __m512i b = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_blend_epi32(nan, r, _mm512_or_si512(b, _mm512_set1_epi32(0x400000)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
  }

  /// kLanes signed bytes, widened.
  POLYHEAD_INLINE static V load_signed(const std::byte* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  struct Product {
    I low, high;
  };
  /// Both words of the products of unsigned words.
  POLYHEAD_INLINE static Product multiply_words(I a, std::uint32_t by) {
    const I b = broadcast_int(static_cast<std::int32_t>(by));
    const I even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    return {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)),
            _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
  }
  POLYHEAD_INLINE static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  /// The smaller one where the mask is set, a elsewhere.
  POLYHEAD_INLINE static I min_where(M m, I a, I b) { return _mm512_mask_min_epi32(a, m, a, b); }
  POLYHEAD_INLINE static M not_zero(I a) { return _mm512_test_epi32_mask(a, a); }
  /// Bits [kShift, kShift + 4) of each lane as a number from -8 to 7.
  template <int kShift>
  POLYHEAD_INLINE static V signed_nibble(I words) {
    const V values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, kShift), values);
  }
  /// The same times a scale, by a table made of it.
  POLYHEAD_INLINE static V nibble_table(V scale) {
    return mul(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1), scale);
  }
  template <int kShift>
  POLYHEAD_INLINE static V look_up(I words, V table) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, kShift), table);
  }
  /// What four-bit codes stand for: lowest + code.
  using Nibbles = V;
  POLYHEAD_INLINE static Nibbles nibbles(int lowest) {
    return _mm512_cvtepi32_ps(
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(lowest)));
  }
  /// The code in bits [4 place, 4 place + 4) of each lane.
  POLYHEAD_INLINE static V nibble(const Nibbles& values, I words, int place) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, static_cast<unsigned>(4 * place)),
                                 values);
  }

  /// The two halves of a and b that a step of across() joins: of lanes, then of pairs of them, and
  /// so on.
  template <int kStep>
  POLYHEAD_INLINE static V first_half(V a, V b) {
    if constexpr (kStep == 0) return _mm512_unpacklo_ps(a, b);
    if constexpr (kStep == 1) return _mm512_shuffle_ps(a, b, 0x44);
    return _mm512_shuffle_f32x4(a, b, 0x88);
  }
  template <int kStep>
  POLYHEAD_INLINE static V second_half(V a, V b) {
    if constexpr (kStep == 0) return _mm512_unpackhi_ps(a, b);
    if constexpr (kStep == 1) return _mm512_shuffle_ps(a, b, 0xee);
    return _mm512_shuffle_f32x4(a, b, 0xdd);
  }

  /// A vector of a tile, kLanes / 2 steps of each of two rows.
  POLYHEAD_INLINE static V load_tile(const float* low, const float* high) {
    const __m512d both =
        _mm512_castpd256_pd512(_mm256_loadu_pd(reinterpret_cast<const double*>(low)));
    return _mm512_castpd_ps(
        _mm512_insertf64x4(both, _mm256_loadu_pd(reinterpret_cast<const double*>(high)), 1));
  }
  /// In half of a vector, as they are: widen_float16() widens a step of a transposed tile.
  POLYHEAD_INLINE static V load_tile_float16(const std::uint16_t* low, const std::uint16_t* high) {
    return from_bits(_mm512_castsi256_si512(two_of_16_bits(low, high)));
  }
  /// Stage 0, 1 or 2 of the transposition of such vectors; later ones do nothing. Vector i holds
  /// rows i and i + 8; at the end step i of all rows.
  POLYHEAD_INLINE static void transpose_narrow(V (&lane)[8], int stage) {
    __m256i from[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) from[i] = narrow(lane[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (stage == 0) {
        lane[2 * i] = wide(_mm256_unpacklo_epi16(from[2 * i], from[2 * i + 1]));
        lane[2 * i + 1] = wide(_mm256_unpackhi_epi16(from[2 * i], from[2 * i + 1]));
      } else if (stage == 1) {
        const int a = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2 * 2;
        lane[to] = wide(_mm256_unpacklo_epi32(from[a], from[a + 2]));
        lane[to + 1] = wide(_mm256_unpackhi_epi32(from[a], from[a + 2]));
      } else if (stage == 2) {
        lane[2 * i] = wide(_mm256_unpacklo_epi64(from[i], from[i + 4]));
        lane[2 * i + 1] = wide(_mm256_unpackhi_epi64(from[i], from[i + 4]));
      }
    }
  }
  POLYHEAD_INLINE static V widen_float16(V v) { return _mm512_cvtph_ps(narrow(v)); }

  /// Transposes a 16 x 16 block of 32-bit values in registers.
  POLYHEAD_INLINE static void transpose(V (&r)[16]) {
    V a[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[4 * i + 0] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
      r[4 * i + 2] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
      a[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
      a[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
      a[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_f32x4(a[i], a[8 + i], 0x88);
      r[4 + i] = _mm512_shuffle_f32x4(a[4 + i], a[12 + i], 0x88);
      r[8 + i] = _mm512_shuffle_f32x4(a[i], a[8 + i], 0xdd);
      r[12 + i] = _mm512_shuffle_f32x4(a[4 + i], a[12 + i], 0xdd);
    }
  }

 private:
  POLYHEAD_INLINE static __m256i narrow(V v) { return _mm512_castsi512_si256(bits(v)); }
  POLYHEAD_INLINE static V wide(__m256i v) { return from_bits(_mm512_castsi256_si512(v)); }
  POLYHEAD_INLINE static __m256i two_of_16_bits(const std::uint16_t* low,
                                                const std::uint16_t* high) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
  }
};
