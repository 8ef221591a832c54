// 8-bit floats as bfloat16, which every one of them is. Included inside an ISA namespace that has
// AVX512_VBMI, after rows.hpp.

/// The two bytes of the bfloat16 that each magnitude of an 8-bit float is: a NaN, an infinity and
/// subnormals are as any other.
struct Float8Table {
  alignas(64) std::uint8_t low[128] = {}, high[128] = {};
  constexpr explicit Float8Table(bool e4m3) {
    for (unsigned code = 0; code < 128; ++code) {
      const float value = base::float8_to_float32(static_cast<std::uint8_t>(code), e4m3);
      const auto bits = std::bit_cast<std::uint32_t>(value);
      low[code] = static_cast<std::uint8_t>(bits >> 16);
      high[code] = static_cast<std::uint8_t>(bits >> 24);
    }
  }
};

/// How rows of them become steps of the bf16 dot: pairs of dims (keys) or of keys (values).
template <bool kE4m3>
struct Float8Pairs : TilesOfWords {
  static constexpr bool kCodes = false;
  static constexpr bool kSteps = false;
  static constexpr int kWordSteps = 2;
  static constexpr std::int64_t byte_of(std::int64_t at) { return at * 2; }
  static constexpr std::int64_t byte_of_values(std::int64_t at) { return at; }

  /// Of a transposed tile: a word holds the four codes of two steps.
  POLYHEAD_INLINE static Simd::V step(const Simd::V (&words)[kTileSteps], int i) {
    const Bytes bytes(Simd::bits(words[i / 2]));
    const __m512i place = i % 2 == 0 ? _mm512_broadcast_i32x4(_mm_setr_epi8(
                                           0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13))
                                     : _mm512_broadcast_i32x4(_mm_setr_epi8(
                                           2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15));
    const __m512i low = _mm512_shuffle_epi8(bytes.low, place);
    return Simd::from_bits(_mm512_mask_shuffle_epi8(low, 0xaaaaaaaaaaaaaaaa, bytes.high, place));
  }

  /// Steps [at, at + n) of a row of `dim`, zero past its end.
  POLYHEAD_INLINE static Simd::V load_steps(const std::byte* row, std::int64_t at, int n,
                                            std::int64_t dim) {
    const std::int64_t count = std::min<std::int64_t>(2 * n, dim - 2 * at);
    return Simd::from_bits(widened(_mm256_maskz_loadu_epi8(first_of_32(count), row + 2 * at)));
  }

  /// Values of one key and of the one after it, `token` bytes on, or zeros without kWhole: kC
  /// vectors of dims. Rows are padded to whole blocks.
  template <bool kWhole, int kC>
  POLYHEAD_INLINE static void load_pairs(Simd::V (&to)[kC], const std::byte* even,
                                         std::int64_t token, __mmask16) {
    if constexpr (kC == 1) {
      Simd::V both[2];
      pair(both, _mm256_castsi128_si256(load_16(even)),
           kWhole ? _mm256_castsi128_si256(load_16(even + token)) : _mm256_setzero_si256());
      to[0] = both[0];
    }
#pragma GCC unroll 4
    for (int c = 0; c + 1 < kC; c += 2) {
      Simd::V both[2];
      const std::byte* const at = even + c * kLanes;
      pair(both, load_32(at), kWhole ? load_32(at + token) : _mm256_setzero_si256());
      to[c] = both[0];
      to[c + 1] = both[1];
    }
  }

  /// Codes d .. d + 31 of two rows of codes, or zeros for null, in pairs: of every 8 the first four
  /// in to[0] and the others in to[1].
  POLYHEAD_INLINE static void pair_in_parts(Simd::V (&to)[2], const std::uint16_t* even,
                                            const std::uint16_t* odd, std::int64_t d) {
    const auto load = [&](const std::uint16_t* row) POLYHEAD_LAMBDA {
      return row ? load_32(reinterpret_cast<const std::byte*>(row) + d) : _mm256_setzero_si256();
    };
    // Byte 2 i + s of 128-bit part q: code 8 q + i of row s.
    pair_codes<8>(to, load(even), load(odd),
                  _mm_setr_epi8(0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39));
  }

  /// to[0 .. dim) = a row.
  static void widen(std::uint16_t* to, const std::byte* row, std::int64_t dim) {
    std::int64_t d = 0;
    for (; d + 64 <= dim; d += 64) {
      const Bytes bytes(in_halves(_mm512_loadu_si512(row + d)));
      _mm512_storeu_si512(to + d, _mm512_unpacklo_epi8(bytes.low, bytes.high));
      _mm512_storeu_si512(to + d + 32, _mm512_unpackhi_epi8(bytes.low, bytes.high));
    }
    for (; d + 32 <= dim; d += 32) _mm512_storeu_si512(to + d, widened(load_32(row + d)));
    if (d < dim) {
      const __mmask32 rest = first_of_32(dim - d);
      _mm512_mask_storeu_epi16(to + d, rest, widened(_mm256_maskz_loadu_epi8(rest, row + d)));
    }
  }

 private:
  static constexpr Float8Table kTable{kE4m3};

  /// Of each of 64 codes.
  struct Bytes {
    __m512i low, high;
    POLYHEAD_INLINE explicit Bytes(__m512i codes)
        : low(look_up(codes, kTable.low)),
          high(_mm512_ternarylogic_epi64(look_up(codes, kTable.high), codes,
                                         _mm512_set1_epi32(static_cast<int>(0x80808080)), 0xf8)) {
    }  // a | (b & c)

   private:
    /// By all bits but the sign.
    POLYHEAD_INLINE static __m512i look_up(__m512i codes, const std::uint8_t (&table)[128]) {
      return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), codes,
                                      _mm512_loadu_si512(table + 64));
    }
  };

  POLYHEAD_INLINE static __m128i load_16(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  POLYHEAD_INLINE static __m256i load_32(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  /// The first half of 64 codes in the lower halves of 128-bit parts, the second in the upper ones.
  POLYHEAD_INLINE static __m512i in_halves(__m512i codes) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
  }

  /// 32 codes in order.
  POLYHEAD_INLINE static __m512i widened(__m256i codes) {
    const Bytes bytes(in_halves(_mm512_castsi256_si512(codes)));
    return _mm512_unpacklo_epi8(bytes.low, bytes.high);
  }

  /// Codes of two rows in pairs. `first`: which of the 64 bytes, the first row's and then the
  /// second's, go into the first 128 bits, the lower half into to[0] and the upper into to[1]; each
  /// further 128 bits take those kStep bytes on.
  template <int kStep>
  POLYHEAD_INLINE static void pair_codes(Simd::V (&to)[2], __m256i even, __m256i odd,
                                         __m128i first) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
    constexpr int kOne = kStep * 0x01010101, kTwo = 2 * kOne, kThree = 3 * kOne;
    const __m512i order =
        _mm512_add_epi32(_mm512_broadcast_i32x4(first),
                         _mm512_setr_epi32(0, 0, 0, 0, kOne, kOne, kOne, kOne, kTwo, kTwo, kTwo,
                                           kTwo, kThree, kThree, kThree, kThree));
    const Bytes bytes(_mm512_permutexvar_epi8(order, both));
    to[0] = Simd::from_bits(_mm512_unpacklo_epi8(bytes.low, bytes.high));
    to[1] = Simd::from_bits(_mm512_unpackhi_epi8(bytes.low, bytes.high));
  }

  /// Lane d of to[0] and of to[1]: codes d, and 16 + d, of both rows.
  POLYHEAD_INLINE static void pair(Simd::V (&to)[2], __m256i even, __m256i odd) {
    // Byte 8 r + 2 i + s of 128-bit part q: code 16 r + 4 q + i of row s.
    pair_codes<4>(to, even, odd,
                  _mm_setr_epi8(0, 32, 1, 33, 2, 34, 3, 35, 16, 48, 17, 49, 18, 50, 19, 51));
  }
};
