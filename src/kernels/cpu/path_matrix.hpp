// The bfloat16 path where the processor multiplies matrices: queries, softmax and rounded weights
// are those of path_bfloat16.hpp, keys and values lie as matrices of 16 x 32. Included inside an
// ISA namespace after path_bfloat16.hpp and matrix_amx.hpp.

struct MatrixPath : Bfloat16Path {
  using Unit = MatrixUnit;
  using Products = struct MatrixProducts;
  static constexpr bool kMatrix = true;
  static constexpr int kRows = MatrixUnit::kRows, kDepth = MatrixUnit::kDepth;
  static constexpr std::int64_t kRowBytes = 64;           // of a matrix
  static constexpr std::int64_t kFloats = kRows * kRows;  // of a matrix

  static constexpr int kFetched = 16;  // lines beside each small step of a block

  static std::int64_t whole_rows(std::int64_t n) { return (n + kRows - 1) / kRows * kRows; }
  static std::int64_t whole_depth(std::int64_t n) { return (n + kDepth - 1) / kDepth * kDepth; }

  static std::int64_t q_steps(std::int64_t dim) { return whole_depth(dim) / 2; }
  static std::int64_t k_steps(std::int64_t dim) { return whole_depth(dim) / 2; }
  static std::int64_t padded(std::int64_t dim) { return whole_rows(dim); }

  /// Zeros after a row of pairs, up to a whole number of matrices.
  static void fill_depth(float* row, std::int64_t dim) {
    const std::int64_t pairs = steps(dim), left = q_steps(dim) - pairs;
    if (left > 0) std::memset(row + pairs, 0, static_cast<std::size_t>(left) * 4);
  }

  static void widen_q(float* to, const std::byte* from, const AttendCall& call, std::int64_t,
                      float) {
    pair_row(to, from, call.q.dim, call.head_dim);
    fill_depth(to, call.head_dim);
  }

  /// Whether rows are whole matrices that begin on cache lines.
  static bool direct_k(const Operand& k, const std::byte* rows, std::int64_t dim) {
    const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows));
    return dense(k) && dim % kDepth == 0 && (at | k.token) % kRowBytes == 0;
  }

  /// Of each 16 keys, the rows where they lie, or copied with zeros up to whole matrices.
  template <class Scratch, class Block>
  static void load_keys(Block&, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    for (int key = 0; key < whole_depth(keys); key += kRows) {
      StridedRows& to = memory.rows_of_keys[key / kRows];
      if (key + kRows <= keys && run_of(call, s, block + key) >= kRows) {
        to = {key_rows(call, s, call.k, s.k, kv_head, block + key).data, call.k.token};
        if (direct_k(call.k, to.data, call.head_dim)) continue;
      }
      to = copy_keys(call, s, kv_head, block, key, keys, memory);
    }
  }

  /// Keys [first, first + 16) of a block that has `keys`.
  template <class Scratch>
  static StridedRows copy_keys(const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                               std::int64_t block, int first, int keys, Scratch& memory) {
    const std::int64_t row = packed_row_floats(k_steps(call.head_dim));
    for (int key = first; key < first + kRows; ++key) {
      float* const to = memory.k + key * row;
      if (key >= keys) {
        std::memset(to, 0, static_cast<std::size_t>(k_steps(call.head_dim)) * 4);
        continue;
      }
      key_row(to, key_rows(call, s, call.k, s.k, kv_head, block + key).data, call.k, call.head_dim);
      fill_depth(to, call.head_dim);
    }
    return {reinterpret_cast<const std::byte*>(memory.k + first * row), row * 4};
  }

  /// Where the matrix of dims 16 g .. and keys 32 half .. of a block begins: V^T, a row a dim.
  static float* values_of(float* v, std::int64_t g, int half) {
    return v + (2 * g + half) * kFloats;
  }

  /// The values of a block for several tiles. One tile alone has them turned, or put together in
  /// pairs, 32 dims at a time, when it adds them: L1 holds what lies between.
  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const bool later =
        memory.lone_tile && (dense(call.v) || (coded(call.v) && call.value_dim % kDepth == 0));
    to.v = {nullptr, 0, 0};
    Magnitude largest{Simd::bits(Simd::zero())};
    for (int half = 0; half * kDepth < keys; ++half) {
      place_values(memory.value_rows + half * kDepth, call, s, kv_head, block + half * kDepth,
                   std::min(keys - half * kDepth, kDepth), later, memory);
      if (!later) turn_half(memory, call.value_dim, half, largest);
    }
    if (!later) have_turned(to, memory, largest);
  }
  template <class Block>
  static bool is_turned(const Block& rows) {
    return rows.v.data != nullptr;
  }
  template <class Scratch, class Block>
  static void turn_block(Block& to, const AttendCall& call, int keys, const Scratch& memory) {
    Magnitude largest{Simd::bits(Simd::zero())};
    for (int half = 0; half * kDepth < keys; ++half) {
      if (coded(call.v)) widen_codes(memory, call, half);
      turn_half(memory, call.value_dim, half, largest);
    }
    have_turned(to, memory, largest);
  }

  /// Of 8-bit floats.
  static bool coded(const Operand& x) { return x.type != ElementType::bfloat16; }

  /// Rows of 32 keys' codes become rows of values.
  template <class Scratch>
  static void widen_codes(const Scratch& memory, const AttendCall& call, int half) {
    const std::uint16_t** const row = memory.value_rows + half * kDepth;
    for (int key = 0; key < kDepth && row[key] != nullptr; ++key) {
      std::uint16_t* const to = gathered_row(memory, call, key);
      float8_row(to, reinterpret_cast<const std::byte*>(row[key]), call.v.type, call.value_dim);
      row[key] = to;
    }
  }
  template <class Scratch>
  static std::uint16_t* gathered_row(const Scratch& memory, const AttendCall& call, int key) {
    return reinterpret_cast<std::uint16_t*>(memory.rows) + key * (call.value_dim + kRows);
  }

  /// The largest magnitude among what was turned.
  struct Magnitude {
    __m512i bits;
    bool finite() const { return _mm512_cmpge_epu16_mask(bits, _mm512_set1_epi16(0x7f80)) == 0; }
    POLYHEAD_INLINE void take(Simd::V pairs) {
      bits = _mm512_max_epu16(bits, _mm512_and_si512(Simd::bits(pairs), _mm512_set1_epi16(0x7fff)));
    }
  };
  template <class Scratch, class Block>
  static void have_turned(Block& to, const Scratch& memory, const Magnitude& largest) {
    to.finite = largest.finite() ? Block::yes : Block::no;
    to.v = {reinterpret_cast<const std::byte*>(memory.v), 0, 0};
  }
  template <class Scratch>
  static void turn_half(const Scratch& memory, std::int64_t dim, int half, Magnitude& largest) {
    for (std::int64_t d = 0; d < dim; d += kDepth)
      turn_values(memory, half, d, dim, d / kRows, largest);
  }

  /// Where the rows of 32 keys lie, dense or `as_they_lie` anyhow; null past the last one.
  template <class Scratch>
  static void place_values(const std::uint16_t** row, const AttendCall& call, const Sequence& s,
                           std::int64_t kv_head, std::int64_t first, int keys, bool as_they_lie,
                           const Scratch& memory) {
    as_they_lie = as_they_lie || dense(call.v);
    for (int key = 0; key < keys;) {
      const std::byte* v = key_rows(call, s, call.v, s.v, kv_head, first + key).data;
      const auto end = std::min<std::int64_t>(keys, key + run_of(call, s, first + key));
      if (as_they_lie) {
        for (; key < end; ++key, v += call.v.token)
          row[key] = reinterpret_cast<const std::uint16_t*>(v);
        continue;
      }
      for (; key < end; ++key, v += call.v.token) {
        std::uint16_t* const to = gathered_row(memory, call, key);
        value_row(to, v, call.v, call.value_dim);
        row[key] = to;
      }
    }
    for (int key = keys; key < kDepth; ++key) row[key] = nullptr;
  }

  /// Dims [d, d + 32) of 32 keys' rows into matrices g and g + 1.
  template <class Scratch>
  static void turn_values(const Scratch& memory, int half, std::int64_t d, std::int64_t dim,
                          std::int64_t g, Magnitude& largest) {
    const std::uint16_t* const* const row = memory.value_rows + half * kDepth;
    if (dim - d >= kDepth && row[kDepth - 1] != nullptr)
      turn<true>(memory, row, half, d, kDepth, g, largest);
    else
      turn<false>(memory, row, half, d, dim - d, g, largest);
  }

  /// Dims [d, d + 32) of 32 keys' rows in pairs of keys, a row a pair: matrices 0 and 1 of those in
  /// `memory` for `half`, of dims 8 i .. 8 i + 3 and 8 i + 4 .. 8 i + 7.
  template <class Scratch>
  static void pair_values(const Scratch& memory, ElementType type, int half, std::int64_t d) {
    switch (type) {
      case ElementType::bfloat16:
        return pair_rows<AsTheyLie>(memory, half, d);
      case ElementType::float8_e4m3:
        return pair_rows<Float8Pairs<true>>(memory, half, d);
      default:
        return pair_rows<Float8Pairs<false>>(memory, half, d);
    }
  }

  struct AsTheyLie {
    POLYHEAD_INLINE static void pair_in_parts(Simd::V (&to)[2], const std::uint16_t* even,
                                              const std::uint16_t* odd, std::int64_t d) {
      const __m512i a = even ? _mm512_loadu_si512(even + d) : _mm512_setzero_si512();
      const __m512i b = odd ? _mm512_loadu_si512(odd + d) : _mm512_setzero_si512();
      to[0] = Simd::from_bits(_mm512_unpacklo_epi16(a, b));
      to[1] = Simd::from_bits(_mm512_unpackhi_epi16(a, b));
    }
  };

 private:
  template <class Pairs, class Scratch>
  POLYHEAD_INLINE static void pair_rows(const Scratch& memory, int half, std::int64_t d) {
    const std::uint16_t* const* const row = memory.value_rows + half * kDepth;
    for (int pair = 0; pair < kRows; ++pair) {
      if (pair % (kRows / 2) == 0) memory.fetcher->fetch(kFetched);
      Simd::V both[2];
      Pairs::pair_in_parts(both, row[2 * pair], row[2 * pair + 1], d);
      for (int part = 0; part < 2; ++part)
        Simd::store(values_of(memory.v, part, half) + pair * kRows, both[part]);
    }
  }

  /// kWhole: there are all 32 rows, and 32 dims of each.
  template <bool kWhole, class Scratch>
  POLYHEAD_INLINE static void turn(const Scratch& memory, const std::uint16_t* const* row, int half,
                                   std::int64_t d, std::int64_t left, std::int64_t g,
                                   Magnitude& largest) {
    const __mmask32 lanes = first_of_32(left);
    const auto load = [&](int key) POLYHEAD_LAMBDA {
      if constexpr (kWhole) return _mm512_loadu_si512(row[key] + d);
      return row[key] ? _mm512_maskz_loadu_epi16(lanes, row[key] + d) : _mm512_setzero_si512();
    };
    // Pairs are put together within 128 bits, so that of 32 dims every other four come out at once.
    for (int part = 0; part < 2; ++part) {
      Simd::V pair[kRows];
      memory.fetcher->fetch(kFetched);
      row = forget(row);  // or 32 pointers are kept
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const __m512i even = load(2 * i), odd = load(2 * i + 1);
        pair[i] = Simd::from_bits(part == 0 ? _mm512_unpacklo_epi16(even, odd)
                                            : _mm512_unpackhi_epi16(even, odd));
        largest.take(pair[i]);
      }
      Simd::transpose(pair);
      float* const to = forget(values_of(memory.v, g, half));
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const int at = i / 4 * 8 + part * 4 + i % 4;
        if (!kWhole && at / kRows * kRows >= left) continue;  // no such matrix
        Simd::store(values_of(to, at / kRows, 0) + at % kRows * kRows, pair[i]);
      }
    }
  }
};
