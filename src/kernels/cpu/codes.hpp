// Codes of quantised caches as vectors of float32: for every code what base/codes.hpp says.
// Included inside an ISA namespace after rows.hpp.

/// How one kind of code becomes float32. `value` takes lanes that hold a code each, sign-extended.
template <ElementType kType>
struct Codes : TilesOfWords {
  static constexpr bool kCodes = true;
  static constexpr bool kSteps = false;
  static constexpr bool kScaled = kType == ElementType::int8 || kType == ElementType::int4;
  static constexpr bool kNibbles = kType == ElementType::int4;
  static constexpr bool kByFloat16 = !kScaled && Simd::kFloat8ByFloat16;

  /// Where dim `at`, a multiple of kLanes, begins in a row.
  static constexpr std::int64_t byte_of(std::int64_t at) {
    return kNibbles ? at / 32 * 16 + at % 16 : at;
  }
  static constexpr std::int64_t byte_of_values(std::int64_t at) { return byte_of(at); }

  POLYHEAD_INLINE static Simd::V value(Simd::I code) {
    if constexpr (kScaled) {
      return Simd::to_float(code);
    } else {
      const Simd::V plain = finite<24>(code), size = Simd::abs(plain);
      const Simd::V nan = Simd::broadcast(std::numeric_limits<float>::quiet_NaN());
      const Simd::V special = kE4m3 ? nan
                                    : Simd::select(Simd::greater(size, Simd::broadcast(65536.0f)),
                                                   nan, Simd::broadcast(kInfinity));
      const Simd::V whole = Simd::select(
          Simd::greater(size, Simd::broadcast(kE4m3 ? 448.0f : 57344.0f)), special, plain);
      const Simd::I sign =
          Simd::and_int(code, Simd::broadcast_int(std::numeric_limits<std::int32_t>::min()));
      return Simd::from_bits(Simd::bits(whole) | sign);
    }
  }

  /// Dims [at, at + kLanes) of a row, unscaled; `at` is a multiple of kLanes.
  POLYHEAD_INLINE static Simd::V load(const std::byte* row, std::int64_t at) {
    if constexpr (kByFloat16) {
      Simd::V value[1];
      load_by_float16(value, row + byte_of(at));
      return value[0];
    }
    const Simd::I bytes = Simd::load_bytes(row + byte_of(at));
    if constexpr (!kNibbles) return value(bytes);
    return value(at % 32 < 16 ? half<0>(bytes) : half<1>(bytes));
  }

  /// kC vectors of 8-bit floats where Lanes has a way of its own, which others do not compile.
  template <int kC, class Lanes = Simd>
  POLYHEAD_INLINE static void load_by_float16(Simd::V (&to)[kC], const std::byte* codes) {
    Lanes::template load_float8<kE4m3>(to, codes);
  }

  /// The low or the high half of each lane's lowest byte, sign-extended.
  template <int kHigh>
  POLYHEAD_INLINE static Simd::I half(Simd::I lanes) {
    return Simd::shift_right<28>(Simd::shift_left < kHigh ? 24 : 28 > (lanes));
  }

  /// The code that begins at bit kShift of each lane, as float32. Without kSpecial, codes of 8-bit
  /// floats are finite.
  template <int kShift, bool kSpecial>
  POLYHEAD_INLINE static Simd::V lane(Simd::I lanes) {
    if constexpr (kNibbles) return Simd::template signed_nibble<kShift>(lanes);
    if constexpr (kScaled || kSpecial)
      return value(Simd::shift_right<24>(Simd::shift_left<24 - kShift>(lanes)));
    return finite<24 - kShift>(lanes);
  }

  // A finite 8-bit float x stands at kPlace of a float32 whose exponent is rebased. That is x where
  // it is normal; where it is not, 2 x - 2^-7 (e4m3) is, and it is the smaller of the two. (Placing
  // the bits as they are and multiplying would take a third of the time on paper, and several times
  // as much where operands are subnormal.)
  static constexpr bool kE4m3 = kType == ElementType::float8_e4m3;
  static constexpr int kPlace = kE4m3 ? 20 : 21;
  static constexpr std::int32_t kMagnitude = 0x7f << kPlace;
  static constexpr std::int32_t kBase = (kE4m3 ? 120 : 112) << 23;
  static constexpr float kTwiceLeast = kE4m3 ? 0x1p-6f : 0x1p-14f;

  /// The byte that a shift to the left by kLeft brings to the top of its lane.
  template <int kLeft>
  POLYHEAD_INLINE static Simd::V finite(Simd::I lanes) {
    const Simd::I top = Simd::template shift_left<kLeft>(lanes);
    const Simd::I placed = Simd::and_int(Simd::template shift_right<24 - kPlace>(top),
                                         Simd::broadcast_int(kMagnitude));
    const Simd::V normal = Simd::from_bits(Simd::add_int(placed, Simd::broadcast_int(kBase)));
    const Simd::V other = Simd::fma(normal, Simd::broadcast(2.0f), Simd::broadcast(-kTwiceLeast));
    const Simd::I sign =
        Simd::and_int(top, Simd::broadcast_int(std::numeric_limits<std::int32_t>::min()));
    return Simd::from_bits(Simd::bits(Simd::min(normal, other)) | sign);
  }

  /// Whether any of these bytes is no finite number.
  template <int kN>
  POLYHEAD_INLINE static bool special(const Simd::V (&bytes)[kN]) {
    if constexpr (kScaled) return false;
    const Simd::I magnitude = Simd::broadcast_int(0x7f7f7f7f);
    const Simd::I most = Simd::broadcast_int(kE4m3 ? 0x01010101 : 0x04040404);
    Simd::I carries = Simd::broadcast_int(0);
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i)  // no sum of two bytes leaves its byte
      carries = carries | Simd::add_int(Simd::and_int(Simd::bits(bytes[i]), magnitude), most);
    const Simd::I tops =
        Simd::and_int(carries, Simd::broadcast_int(static_cast<std::int32_t>(0x80808080)));
    return Simd::any(Simd::not_zero(tops));
  }

  /// Dims [at, at + kLanes) of a row whose scales stand at `scales`.
  POLYHEAD_INLINE static Simd::V load_scaled(const std::byte* row, std::int64_t at,
                                             const float* scales, const Scales& step) {
    if constexpr (!kScaled) return load(row, at);
    return Simd::mul(load(row, at), Simd::broadcast(scales[at / 32 * step.block]));
  }

  /// Dims [at, at + kC * kLanes) of a row.
  template <int kC>
  POLYHEAD_INLINE static void load_values(Simd::V (&to)[kC], const std::byte* row, std::int64_t at,
                                          const float* scales, const Scales& step) {
    if constexpr (kNibbles && kLanes == 16 && kC % 2 == 0) {
#pragma GCC unroll 2
      for (int c = 0; c < kC; c += 2) {
        const std::int64_t block = at / 32 + c / 2;
        const Simd::I words = Simd::load_bytes(row + block * 16);
        const Simd::V table = Simd::nibble_table(Simd::broadcast(scales[block * step.block]));
        to[c] = Simd::template look_up<0>(words, table);
        to[c + 1] = Simd::template look_up<4>(words, table);
      }
      return;
    }
    if constexpr (kByFloat16) return load_by_float16(to, row + byte_of(at));
    bool exact = kScaled;
    if constexpr (!kScaled) {
      const Simd::V bytes[1] = {
          Simd::load_first(reinterpret_cast<const float*>(row + byte_of(at)), kC * kLanes / 4)};
      exact = special(bytes);
    }
#pragma GCC unroll 4
    for (int c = 0; c < kC; ++c) {
      const std::int64_t d = at + c * kLanes;
      to[c] = exact ? load_scaled(row, d, scales, step)
                    : finite<24>(Simd::load_bytes(row + byte_of(d)));
    }
  }
};

/// to[0 .. n) = a row of codes; whole vectors are written.
template <class Kind>
inline void widen_codes(float* to, const KeyRows& row, const Scales& step, std::int64_t n) {
  for (std::int64_t d = 0; d < n; d += kLanes) {
    if (Kind::kScaled && step.shift == 0) {
      alignas(64) float scale[kLanes];
      for (int i = 0; i < kLanes; ++i) scale[i] = d + i < n ? row.scales[(d + i) * step.block] : 0;
      Simd::store(to + d, Simd::mul(Kind::load(row.data, d), Simd::load(scale)));
    } else {
      Simd::store(to + d, Kind::load_scaled(row.data, d, row.scales, step));
    }
  }
}

/// to[0 .. n) = a row of k or v, of any type; whole vectors may be written.
inline void widen_key_row(float* to, const KeyRows& row, const Operand& x, std::int64_t n) {
  switch (x.type) {
    case ElementType::int8:
      return widen_codes<Codes<ElementType::int8>>(to, row, x.scales, n);
    case ElementType::int4:
      return widen_codes<Codes<ElementType::int4>>(to, row, x.scales, n);
    case ElementType::float8_e4m3:
      return widen_codes<Codes<ElementType::float8_e4m3>>(to, row, x.scales, n);
    case ElementType::float8_e5m2:
      return widen_codes<Codes<ElementType::float8_e5m2>>(to, row, x.scales, n);
    default:
      return widen_row(to, row.data, x.type, x.dim, n);
  }
}
