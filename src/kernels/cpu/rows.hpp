// Rows in and out: conversion, packing of Q^T, K and V, and the way back from lanes to rows.
// Included inside an ISA namespace after a Simd struct.

inline constexpr int kLanes = Simd::kLanes;
inline constexpr int kVectors = Simd::kVectors;
inline constexpr int kTile = kLanes * kVectors;  // query lanes of one tile

/// A tile of decoding: so many steps of kLanes rows, that many vectors. Two rows lie beside each
/// other in one, where it has the lanes for four steps of each.
inline constexpr int kTileSteps = kLanes > 4 ? kLanes / 2 : 4;

/// Calls `f(n, r)` for runs of n rows from r on, n a constant of at most kMost, that make up all
/// `rows`: as many of kMost as there are, then of half as many, down to 1.
template <int kMost, class F>
POLYHEAD_INLINE void by_rows(int rows, const F& f, int r = 0) {
  for (; r + kMost <= rows; r += kMost) f(std::integral_constant<int, kMost>{}, r);
  if constexpr (kMost > 1) by_rows<kMost / 2>(rows, f, r);
}

/// Calls `f(n)`, n the smallest power of two that is at least `rows`, or kMost.
template <int kMost, class F>
POLYHEAD_INLINE void at_least(int rows, const F& f) {
  if constexpr (kMost > 1) {
    if (rows <= kMost / 2) return at_least<kMost / 2>(rows, f);
  }
  f(std::integral_constant<int, kMost>{});
}

/// In lane r what Join makes of the lanes of row r, of kN rows, a power of two of at most kLanes;
/// lanes from kN on repeat them. Rows are taken in pairs, whose lanes change places half by half.
template <class Join, int kN, int kStep = 0>
POLYHEAD_INLINE Simd::V across(Simd::V (&row)[kN]) {
  constexpr int kLeft = kN > 1 ? kN / 2 : 1;
  Simd::V joined[kLeft];
#pragma GCC unroll 8
  for (int i = 0; i < kLeft; ++i) {
    const Simd::V a = row[i * kN / kLeft], b = row[(i + 1) * kN / kLeft - 1];
    joined[i] =
        Join::of(Simd::template first_half<kStep>(a, b), Simd::template second_half<kStep>(a, b));
  }
  if constexpr (2 << kStep == kLanes)
    return joined[0];
  else
    return across<Join, kLeft, kStep + 1>(joined);
}

/// Stride of packed rows of n 32-bit values: whole vectors, and a cache line more so that rows
/// whose length is a power of two spread over the sets of L1.
inline std::int64_t packed_row_floats(std::int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes + 16;
}

POLYHEAD_INLINE float load_scalar(const std::byte* p, ElementType type) {
  if (type == ElementType::float32) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return type == ElementType::float16 ? to_float32(float16{bits}) : to_float32(bfloat16{bits});
}

/// to[0 .. n) = from, widened to float32.
inline void widen_row(float* to, const std::byte* from, ElementType type, std::int64_t stride,
                      std::int64_t n) {
  if (stride != element_bytes(type)) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = load_scalar(from + i * stride, type);
    return;
  }
  std::int64_t i = 0;
  if (type == ElementType::float32) {
    const float* source = reinterpret_cast<const float*>(from);
    for (; i + kLanes <= n; i += kLanes) Simd::store(to + i, Simd::load(source + i));
    if (i < n)
      Simd::store_first(to + i, Simd::load_first(source + i, static_cast<int>(n - i)),
                        static_cast<int>(n - i));
    return;
  }
  const std::uint16_t* source = reinterpret_cast<const std::uint16_t*>(from);
  const bool half = type == ElementType::float16;
  for (; i + kLanes <= n; i += kLanes) {
    Simd::store(to + i, half ? Simd::load_float16(source + i) : Simd::load_bfloat16(source + i));
  }
  if (i < n) {
    std::uint16_t tail[kLanes] = {};
    std::memcpy(tail, source + i, static_cast<std::size_t>(n - i) * 2);
    const Simd::V v = half ? Simd::load_float16(tail) : Simd::load_bfloat16(tail);
    Simd::store_first(to + i, v, static_cast<int>(n - i));
  }
}

/// to[0 .. n) = from, narrowed to `type`.
inline void narrow_row(std::byte* to, const float* from, ElementType type, std::int64_t stride,
                       std::int64_t n) {
  const bool dense = stride == element_bytes(type);
  std::int64_t i = 0;
  if (dense && type == ElementType::float32) {
    float* target = reinterpret_cast<float*>(to);
    for (; i + kLanes <= n; i += kLanes) Simd::store(target + i, Simd::load(from + i));
    if (i < n)
      Simd::store_first(target + i, Simd::load_first(from + i, static_cast<int>(n - i)),
                        static_cast<int>(n - i));
    return;
  }
  if (type == ElementType::float32) {
    for (; i < n; ++i) std::memcpy(to + i * stride, from + i, 4);
    return;
  }
  const bool half = type == ElementType::float16;
  for (; i < n; i += kLanes) {
    const int count = static_cast<int>(std::min<std::int64_t>(kLanes, n - i));
    std::uint16_t out[kLanes];
    const Simd::V v = Simd::load_first(from + i, count == kLanes ? kLanes : count);
    if (half)
      Simd::store_float16(out, v);
    else
      Simd::store_bfloat16(out, v);
    if (dense)
      std::memcpy(to + i * 2, out, static_cast<std::size_t>(count) * 2);
    else
      for (int j = 0; j < count; ++j) std::memcpy(to + (i + j) * stride, out + j, 2);
  }
}

/// kLanes rows of 32-bit values into one vector of lanes: to[step * kTile + lane] =
/// rows[lane][step], times `factor`. Rows are read in whole vectors; only `steps` steps are stored.
inline void transpose_in(float* to, const float* const (&rows)[kLanes], std::int64_t steps,
                         Simd::V factor) {
  for (std::int64_t s = 0; s < steps; s += kLanes) {
    Simd::V r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) r[i] = Simd::load(rows[i] + s);
    Simd::transpose(r);
    if (s + kLanes <= steps) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Simd::store(to + (s + i) * kTile, Simd::mul(r[i], factor));
    } else {
      for (int i = 0; i < steps - s; ++i) {
        Simd::store(to + (s + i) * kTile, Simd::mul(r[i], factor));
      }
    }
  }
}

/// The same without a factor: the values may be pairs of bfloat16.
inline void transpose_in(float* to, const float* const (&rows)[kLanes], std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; s += kLanes) {
    Simd::V r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) r[i] = Simd::load(rows[i] + s);
    Simd::transpose(r);
    const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
    for (int i = 0; i < n; ++i) Simd::store(to + (s + i) * kTile, r[i]);
  }
}

/// Stage 0, 1 or 2 of a tile's transposition; later ones do nothing. Vector i holds row
/// i / 4 * 8 + i % 4 and the row four after it, or row i alone; at the end step i of all rows.
POLYHEAD_INLINE void transpose_tile(Simd::V (&lane)[kTileSteps], int stage) {
  Simd::V to[kTileSteps];
  if (stage == 0) {
#pragma GCC unroll 4
    for (int i = 0; i < kTileSteps; i += 2) {
      to[i] = Simd::template first_half<0>(lane[i], lane[i + 1]);
      to[i + 1] = Simd::template second_half<0>(lane[i], lane[i + 1]);
    }
  } else if (stage == 1) {
#pragma GCC unroll 2
    for (int i = 0; i < kTileSteps; i += 4) {
      to[i] = Simd::template first_half<1>(lane[i], lane[i + 2]);
      to[i + 1] = Simd::template second_half<1>(lane[i], lane[i + 2]);
      to[i + 2] = Simd::template first_half<1>(lane[i + 1], lane[i + 3]);
      to[i + 3] = Simd::template second_half<1>(lane[i + 1], lane[i + 3]);
    }
  } else if (stage == 2 && kTileSteps == 8) {
#pragma GCC unroll 4
    for (int i = 0; i < kTileSteps / 2; ++i) {
      const Simd::V a = lane[i], b = lane[i + kTileSteps / 2];
      to[i] = Simd::template first_half<2>(a, b);
      to[i + kTileSteps / 2] = Simd::template second_half<2>(a, b);
    }
  } else {
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileSteps; ++i) lane[i] = to[i];
}

/// How tiles are read whose steps are 32 bits of a key's row: elements, pairs, or words of codes.
struct TilesOfWords {
  static constexpr int kWordSteps = 1;  // that come out of a tile's vector
  static constexpr std::int64_t kTileBytes = 4 * kTileSteps;
  static constexpr bool kNarrow = false;  // half of a vector for two rows
  POLYHEAD_INLINE static Simd::V load_tile(const std::byte* low, const std::byte* high) {
    return Simd::load_tile(reinterpret_cast<const float*>(low),
                           reinterpret_cast<const float*>(high));
  }
  POLYHEAD_INLINE static void transpose(Simd::V (&lane)[kTileSteps], int stage) {
    transpose_tile(lane, stage);
  }
  /// Step `i` of a transposed tile.
  POLYHEAD_INLINE static Simd::V step(const Simd::V (&words)[kTileSteps], int i) {
    return words[i];
  }
};

/// A block of the way back, times a factor a lane, plus zero (so that -0 never depends on what was
/// skipped): lane[i] holds steps s .. s + kLanes of lane i; from `steps` on they mean nothing.
POLYHEAD_INLINE void transpose_back(Simd::V (&lane)[kLanes], const float* from, Simd::V factor,
                                    std::int64_t s, std::int64_t steps) {
  const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    // Past the end, the last step once more: in bounds, and discarded below.
    const float* at = from + (s + (i < n ? i : n - 1)) * kTile;
    lane[i] = Simd::add(Simd::mul(Simd::load(at), factor), Simd::zero());
  }
  Simd::transpose(lane);
}

/// rows[i * row_floats + step] = from[step * kTile + i] * factor[i] + 0, in whole vectors.
inline void transpose_out(float* rows, std::int64_t row_floats, const float* from,
                          const float* factor, std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; s += kLanes) {
    Simd::V lane[kLanes];
    transpose_back(lane, from, Simd::load(factor), s, steps);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Simd::store(rows + i * row_floats + s, lane[i]);
  }
}

/// rows[i * row_floats + step] = from[step * kTile + i], in whole vectors.
inline void turn_over(float* rows, std::int64_t row_floats, const float* from, std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; s += kLanes) {
    Simd::V lane[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)  // past the end, the last step once more
      lane[i] = Simd::load(from + std::min(s + i, steps - 1) * kTile);
    Simd::transpose(lane);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Simd::store(rows + i * row_floats + s, lane[i]);
  }
}

/// As transpose_out, straight into `count` dense rows of `type`; steps is a multiple of kLanes.
template <ElementType kType>
inline void transpose_out_to(std::byte* const* rows, int count, const float* from,
                             const float* factor, std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; s += kLanes) {
    Simd::V lane[kLanes];
    transpose_back(lane, from, Simd::load(factor), s, s + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i >= count) break;  // unrolled, so that lanes stay in registers
      std::byte* to = rows[i] + s * element_bytes(kType);
      if constexpr (kType == ElementType::float32) {
        Simd::store(reinterpret_cast<float*>(to), lane[i]);
      } else if constexpr (kType == ElementType::float16) {
        Simd::store_float16(reinterpret_cast<std::uint16_t*>(to), lane[i]);
      } else {
        Simd::store_bfloat16(reinterpret_cast<std::uint16_t*>(to), lane[i]);
      }
    }
  }
}

/// Bits from up to 64 bytes, the tail's memory untouched.
POLYHEAD_INLINE std::uint64_t bits_of_bytes(const std::byte* p, std::int64_t n) {
  if (n >= kKeyBlock) return Simd::nonzero_bytes(p);
  alignas(64) std::byte tail[kKeyBlock] = {};
  std::memcpy(tail, p, static_cast<std::size_t>(n));
  return Simd::nonzero_bytes(tail);
}

/// Keys [key, key + n) of one row of a boolean table, a bit each; what is above them says nothing.
inline std::uint64_t table_bits(const PairTable& table, std::int64_t b, std::int64_t head,
                                std::int64_t query, std::int64_t key, std::int64_t n) {
  const std::int64_t row = b * table.batch + head * table.head + query * table.query;
  if (table.type == ElementType::bit) {
    std::uint64_t word = 0;
    const std::int64_t first = row + key;  // a multiple of 8: checked at the door
    std::memcpy(&word, table.data + first / 8, static_cast<std::size_t>((n + 7) / 8));
    return word;
  }
  const std::byte* at = table.data + row + key * table.key;
  if (table.key == 1) return bits_of_bytes(at, n);
  if (table.key == 0) return *at != std::byte{0} ? ~std::uint64_t{0} : 0;
  std::uint64_t word = 0;
  for (std::int64_t i = 0; i < n; ++i)
    word |= std::uint64_t{at[i * table.key] != std::byte{0}} << i;
  return word;
}

/// total[r] += p[r][0 .. n), a chain each in order, kR rows `stride` apart beside each other.
template <int kR>
inline void add_chains(const float* p, std::int64_t stride, int n, float* total) {
  float sum[kR];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) sum[r] = total[r];
  for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) sum[r] += p[r * stride + i];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) total[r] = sum[r];
}
