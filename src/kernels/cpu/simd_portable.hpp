// Four lanes of compiler vectors: any processor with 128-bit vectors or none (SSE2, NEON, WASM).
// Included inside an ISA namespace; opens no target region.

struct Simd {
  typedef float V __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::uint32_t U __attribute__((vector_size(16)));
  using M = I;  // all ones or all zeros a lane
  using StoredMask = M;
  static constexpr int kLanes = 4;
  static constexpr int kExponents = 1;
#if defined(__aarch64__)
  static constexpr int kRows = 8;  // 32 registers
#else
  static constexpr int kRows = 4;  // 4 x 3 accumulators fit 16 registers
#endif
  static constexpr int kVectors = 3;
  static constexpr bool kNarrowTiles = false;  // of float16, half a vector wide
  static constexpr bool kFloat8ByFloat16 = false;

  POLYHEAD_INLINE static V zero() { return V{}; }
  POLYHEAD_INLINE static V load(const float* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  POLYHEAD_INLINE static void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
  /// As others write past the caches.
  POLYHEAD_INLINE static void stream(float* p, V v) { store(p, v); }
  POLYHEAD_INLINE static void fence() {}
  POLYHEAD_INLINE static V broadcast(float x) { return V{x, x, x, x}; }
  /// Four bytes at any address in every lane.
  POLYHEAD_INLINE static V broadcast_at(const void* p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return broadcast(x);
  }
  POLYHEAD_INLINE static void settle(V&) {}  // registers differ by target
  POLYHEAD_INLINE static V add(V a, V b) { return a + b; }
  POLYHEAD_INLINE static V sub(V a, V b) { return a - b; }
  POLYHEAD_INLINE static V mul(V a, V b) { return a * b; }
  POLYHEAD_INLINE static V div(V a, V b) { return a / b; }
  /// a * b + c, fused where the baseline has it (NEON), two roundings elsewhere; the same
  /// everywhere in one build.
  POLYHEAD_INLINE static V fma(V a, V b, V c) {
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
  }
  POLYHEAD_INLINE static V fnma(V a, V b, V c) { return fma(-a, b, c); }
  POLYHEAD_INLINE static V fma_masked(M m, V a, V b, V c) { return select(m, fma(a, b, c), c); }
  /// The second operand where either is NaN.
  POLYHEAD_INLINE static V max(V a, V b) { return select(greater(a, b), a, b); }
  /// max where the mask is set, a elsewhere.
  POLYHEAD_INLINE static V max_masked(M m, V a, V b) { return select(m, max(a, b), a); }
  POLYHEAD_INLINE static V min(V a, V b) { return select(greater(b, a), a, b); }
  POLYHEAD_INLINE static V abs(V a) { return from_bits(bits(a) & 0x7fffffff); }
  POLYHEAD_INLINE static M greater(V a, V b) { return a > b; }
  POLYHEAD_INLINE static M equal(V a, V b) { return a == b; }
  POLYHEAD_INLINE static M not_equal(V a, V b) { return a != b; }
  POLYHEAD_INLINE static V select(M m, V a, V b) {
    return from_bits((m & bits(a)) | (~m & bits(b)));
  }
  POLYHEAD_INLINE static I select(M m, I a, I b) { return (m & a) | (~m & b); }
  POLYHEAD_INLINE static bool any(M m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
  POLYHEAD_INLINE static M mask_and(M a, M b) { return a & b; }
  POLYHEAD_INLINE static M mask_or(M a, M b) { return a | b; }
  POLYHEAD_INLINE static M mask_and_not(M a, M b) { return a & ~b; }
  POLYHEAD_INLINE static StoredMask store_mask(M m) { return m; }
  POLYHEAD_INLINE static M load_mask(const StoredMask& m) { return m; }

  POLYHEAD_INLINE static I broadcast_int(std::int32_t x) { return I{x, x, x, x}; }
  POLYHEAD_INLINE static I load_int(const void* p) {
    I v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  POLYHEAD_INLINE static void store_int(void* p, I v) { __builtin_memcpy(p, &v, sizeof v); }
  POLYHEAD_INLINE static I bits(V v) {
    I i;
    __builtin_memcpy(&i, &v, sizeof i);
    return i;
  }
  POLYHEAD_INLINE static V from_bits(I i) {
    V v;
    __builtin_memcpy(&v, &i, sizeof v);
    return v;
  }
  POLYHEAD_INLINE static I and_int(I a, I b) { return a & b; }
  template <int kBits>
  POLYHEAD_INLINE static I shift_left(I a) {
    return reinterpret_cast<I>(reinterpret_cast<U>(a) << kBits);
  }
  /// Arithmetic: the sign comes along.
  template <int kBits>
  POLYHEAD_INLINE static I shift_right(I a) {
    return a >> kBits;
  }
  POLYHEAD_INLINE static V to_float(I a) { return __builtin_convertvector(a, V); }
  /// kLanes bytes, sign-extended.
  POLYHEAD_INLINE static I load_bytes(const void* p) {
    std::int8_t b[4];
    __builtin_memcpy(b, p, sizeof b);
    return I{b[0], b[1], b[2], b[3]};
  }
  POLYHEAD_INLINE static M test(I words, I bit) { return (words & bit) != 0; }

  /// 2^t, exactly 1 at 0, 0 below 2^-126 where results that small are flushed, NaN for NaN;
  /// relative error 2e-7. As AVX2's (simd_avx2.hpp).
  POLYHEAD_INLINE static V exp2(V t) {
    const V magic = broadcast(kExp2Magic);
    const V x = max(broadcast(-127.0f), t);
    const V shifted = x + magic;
    const V r = x - (shifted - magic);
    V p = fma(broadcast(kExp2C5), r, broadcast(kExp2C4));
    p = fma(p, r, broadcast(kExp2C3));
    p = fma(p, r, broadcast(kExp2C2));
    p = fma(p, r, broadcast(kExp2C1));
    p = fma(p, r, broadcast(1.0f));
    return p * from_bits(reinterpret_cast<I>(reinterpret_cast<U>(shifted) << 23));
  }
  template <int kN>
  POLYHEAD_INLINE static void exp2(V (&t)[kN]) {
    for (V& x : t) x = exp2(x);
  }

  /// Bit i is set where byte i of 64 is not zero.
  POLYHEAD_INLINE static std::uint64_t nonzero_bytes(const std::byte* p) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; i += 8) {
      std::uint64_t x;
      __builtin_memcpy(&x, p + i, 8);
      // The top bit of each byte: set where any bit is; then gather the eight top bits.
      const std::uint64_t low = 0x7f7f7f7f7f7f7f7fu;
      const std::uint64_t top = (((x & low) + low) | x) & ~low;
      word |= ((top >> 7) * 0x0102040810204080u >> 56) << i;
    }
    return word;
  }

  POLYHEAD_INLINE static V load_first(const float* p, int n) {
    V v{};
    __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * 4);
    return v;
  }
  POLYHEAD_INLINE static void store_first(float* p, V v, int n) {
    __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * 4);
  }
  POLYHEAD_INLINE static V load_float16(const std::uint16_t* p) {
    // Widen by shifts; a multiply by 2^112 rebases the exponent and makes denormals right.
    const I h{p[0], p[1], p[2], p[3]};
    const V magnitude = from_bits((h & 0x7fff) << 13) * broadcast(0x1p112f);
    const M special = (h & 0x7c00) == 0x7c00;
    const I finite = bits(magnitude);
    const I infinite = ((h & 0x7fff) << 13) | 0x7f800000;
    return from_bits(select(special, infinite, finite) | ((h & 0x8000) << 16));
  }
  POLYHEAD_INLINE static V load_bfloat16(const std::uint16_t* p) {
    const I h{p[0], p[1], p[2], p[3]};
    return from_bits(h << 16);
  }
  POLYHEAD_INLINE static void store_float16(std::uint16_t* p, V v) {
    for (int i = 0; i < 4; ++i) p[i] = to_float16(v[i]).bits;
  }
  POLYHEAD_INLINE static void store_bfloat16(std::uint16_t* p, V v) {
    for (int i = 0; i < 4; ++i) p[i] = to_bfloat16(v[i]).bits;
  }

  /// kLanes signed bytes, widened.
  POLYHEAD_INLINE static V load_signed(const std::byte* p) {
    std::int8_t b[4];
    __builtin_memcpy(b, p, 4);
    return __builtin_convertvector((I{b[0], b[1], b[2], b[3]}), V);
  }
  struct Product {
    I low, high;
  };
  /// Both words of the products of unsigned words.
  POLYHEAD_INLINE static Product multiply_words(I a, std::uint32_t by) {
    typedef std::uint64_t Wide __attribute__((vector_size(16)));
    const Wide words = reinterpret_cast<Wide>(a), low = words & 0xffffffffu, high = words >> 32;
    const Wide even = low * by, odd = high * by;
    return {reinterpret_cast<I>((even & 0xffffffffu) | (odd << 32)),
            reinterpret_cast<I>((even >> 32) | (odd & 0xffffffff00000000u))};
  }
  /// Wraps around.
  POLYHEAD_INLINE static I add_int(I a, I b) {
    return reinterpret_cast<I>(reinterpret_cast<U>(a) + reinterpret_cast<U>(b));
  }
  /// The smaller one where the mask is set, a elsewhere.
  POLYHEAD_INLINE static I min_where(M m, I a, I b) { return select(m & (b < a), b, a); }
  POLYHEAD_INLINE static M not_zero(I a) { return a != 0; }
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
    return __builtin_convertvector(((words >> (4 * place)) & 15) + lowest, V);
  }

  /// The two halves of a and b that a step of across() joins: of lanes, then of pairs of them.
  template <int kStep>
  POLYHEAD_INLINE static V first_half(V a, V b) {
    return kStep == 0 ? V{a[0], b[0], a[1], b[1]} : V{a[0], a[1], b[0], b[1]};
  }
  template <int kStep>
  POLYHEAD_INLINE static V second_half(V a, V b) {
    return kStep == 0 ? V{a[2], b[2], a[3], b[3]} : V{a[2], a[3], b[2], b[3]};
  }

  /// A vector of a tile, kLanes steps of the first row: it has no room for another.
  POLYHEAD_INLINE static V load_tile(const float* row, const float*) { return load(row); }
  POLYHEAD_INLINE static V load_tile_float16(const std::uint16_t* row, const std::uint16_t*) {
    return load_float16(row);
  }

  /// Transposes a 4 x 4 block of 32-bit values.
  POLYHEAD_INLINE static void transpose(V (&r)[4]) {
    const V a{r[0][0], r[1][0], r[2][0], r[3][0]};
    const V b{r[0][1], r[1][1], r[2][1], r[3][1]};
    const V c{r[0][2], r[1][2], r[2][2], r[3][2]};
    const V d{r[0][3], r[1][3], r[2][3], r[3][3]};
    r[0] = a;
    r[1] = b;
    r[2] = c;
    r[3] = d;
  }
};
