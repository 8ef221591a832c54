// The bfloat16 path: q bfloat16, k and v bfloat16 or 8-bit floats, products by the bf16 dot over
// pairs of dims (scores) or keys (weighted sum). Included inside an ISA namespace after
// simd_bf16.hpp, float8_bf16.hpp, outer_product.hpp and tile.hpp.

struct Bfloat16Path {
  using Dot = DotBf16;
  static constexpr bool kBfloat16 = true;
  static constexpr bool kInteger = false;
  using Unit = NoMatrixUnit;
  static constexpr bool kMatrix = false;

  static std::int64_t steps(std::int64_t n) { return (n + 1) / 2; }
  static std::int64_t q_steps(std::int64_t dim) { return steps(dim); }
  static std::int64_t k_steps(std::int64_t dim) { return steps(dim); }
  static std::int64_t padded(std::int64_t dim) { return dim; }

  /// A row of bfloat16 as pairs, an odd last one paired with zero.
  static void pair_row(float* to, const std::byte* from, std::int64_t stride, std::int64_t dim) {
    std::uint16_t* pairs = reinterpret_cast<std::uint16_t*>(to);
    if (stride == 2)
      std::memcpy(pairs, from, static_cast<std::size_t>(dim) * 2);
    else
      for (std::int64_t i = 0; i < dim; ++i) std::memcpy(pairs + i, from + i * stride, 2);
    if (dim % 2 != 0) pairs[dim] = 0;
  }

  /// A row of 8-bit floats as bfloat16. Not inline: beside it what reads bfloat16 where it lies
  /// would be compiled worse.
  __attribute__((noinline)) static void float8_row(std::uint16_t* to, const std::byte* from,
                                                   ElementType type, std::int64_t dim) {
    if (type == ElementType::float8_e4m3)
      Float8Pairs<true>::widen(to, from, dim);
    else
      Float8Pairs<false>::widen(to, from, dim);
  }

  /// A row of k as pairs.
  static void key_row(float* to, const std::byte* from, const Operand& k, std::int64_t dim) {
    if (k.type == ElementType::bfloat16) return pair_row(to, from, k.dim, dim);
    std::uint16_t* pairs = reinterpret_cast<std::uint16_t*>(to);
    float8_row(pairs, from, k.type, dim);
    if (dim % 2 != 0) pairs[dim] = 0;
  }

  /// Whether rows are bfloat16 one after the other.
  static bool dense(const Operand& x) { return x.type == ElementType::bfloat16 && x.dim == 2; }

  /// A row of v that is not dense, as one that is.
  static void value_row(std::uint16_t* to, const std::byte* from, const Operand& v,
                        std::int64_t dim) {
    if (v.type != ElementType::bfloat16) return float8_row(to, from, v.type, dim);
    for (std::int64_t d = 0; d < dim; ++d) std::memcpy(to + d, from + d * v.dim, 2);
  }

  /// Whether rows of q can be transposed from where they lie.
  static bool direct_q(const Operand& q, std::int64_t dim) {
    return q.dim == 2 && dim % (2 * kLanes) == 0;
  }
  static void transpose_q(float* to, const float* const (&rows)[kLanes], std::int64_t n, float) {
    transpose_in(to, rows, n);
  }

  static void widen_q(float* to, const std::byte* from, const AttendCall& call, std::int64_t,
                      float) {
    pair_row(to, from, call.q.dim, call.head_dim);
  }

  static void q_row(float* to, const std::byte* from, const AttendCall& call, std::int64_t, float) {
    pair_row(to, from, call.q.dim, call.head_dim);
  }

  /// Which of two rows' elements make pairs 0 .. 15, and 16 .. 31.
  POLYHEAD_INLINE static __m512i low_pairs() {
    return _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                            6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  }
  POLYHEAD_INLINE static __m512i high_pairs() {
    return _mm512_add_epi16(low_pairs(), _mm512_set1_epi16(16));
  }

  /// Two keys' rows interleaved: pair d of `to` is (even[d], odd[d]). Whether all of them are
  /// finite.
  static bool interleave(float* to, const std::uint16_t* even, const std::uint16_t* odd,
                         std::int64_t dim) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __m512i low = low_pairs(), high = high_pairs();
    __mmask32 not_finite = 0;
    for (std::int64_t d = 0; d < dim; d += 32) {
      const std::int64_t left = dim - d;
      const __mmask32 lanes = first_of_32(left);
      const __m512i a = _mm512_maskz_loadu_epi16(lanes, even + d);
      const __m512i b = odd ? _mm512_maskz_loadu_epi16(lanes, odd + d) : _mm512_setzero_si512();
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(a, exponent), exponent);
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, exponent), exponent);
      _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, low, b));
      if (left > 16) _mm512_storeu_si512(to + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
    return not_finite == 0;
  }

  template <class Scratch, class Block>
  static void load_keys(Block& to, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    const std::int64_t row = packed_row_floats(steps(call.head_dim));
    for (int key = 0; key < keys;) {
      const std::byte* k = key_rows(call, s, call.k, s.k, kv_head, block + key).data;
      const std::int64_t run = run_of(call, s, block + key);
      if (key == 0 && run >= keys && dense(call.k) && call.head_dim % 2 == 0) {
        to.k = {k, call.k.token, 4};
        return;
      }
      const int end = static_cast<int>(std::min<std::int64_t>(keys, key + run));
      for (; key < end; ++key, k += call.k.token)
        key_row(memory.k + key * row, k, call.k, call.head_dim);
    }
    to.k = {reinterpret_cast<const std::byte*>(memory.k), row * 4, 4};
  }

  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const std::int64_t row = packed_row_floats(call.value_dim);
    std::uint16_t* gathered = reinterpret_cast<std::uint16_t*>(memory.rows);
    bool finite = true;
    const std::byte* v = nullptr;
    std::int64_t run_begin = 0, run_end = 0;  // even: a page never parts a pair
    for (int key = 0; key < keys; key += 2) {
      if (key >= run_end) {
        v = key_rows(call, s, call.v, s.v, kv_head, block + key).data;
        run_begin = key;
        run_end = std::min<std::int64_t>(keys, key + run_of(call, s, block + key));
      }
      const std::uint16_t* pair[2] = {nullptr, nullptr};
      for (int i = 0; i < 2 && key + i < keys; ++i) {
        const std::byte* from = v + (key - run_begin + i) * call.v.token;
        pair[i] = reinterpret_cast<const std::uint16_t*>(from);
        if (dense(call.v)) continue;
        std::uint16_t* to_row = gathered + i * (call.value_dim + 32);
        value_row(to_row, from, call.v, call.value_dim);
        pair[i] = to_row;
      }
      finite = interleave(memory.v + key / 2 * row, pair[0], pair[1], call.value_dim) && finite;
    }
    to.finite = finite ? Block::yes : Block::no;
    to.v = {reinterpret_cast<const std::byte*>(memory.v), 4, row * 4};
  }

  /// Known since V was packed.
  template <class Block>
  static void check_finite(Block&, int, std::int64_t) {}

  /// Weights are rounded two keys at a time. The output is divided by the sum of the rounded ones
  /// (a dot with ones); LSE and statistics use the unrounded sum.
  template <bool kExact, class Weight>
  POLYHEAD_INLINE static void weights(const Weight& weight, float* p, int key_begin, int key_end,
                                      Simd::V& total, Simd::V& exact) {
    const Simd::V ones = Simd::from_bits(Simd::broadcast_int(0x3f803f80));
    for (int key = key_begin; key < key_end; key += 2) {
      Simd::V even[1], odd[1] = {Simd::zero()};
      weight(key, even);
      if (key + 1 < key_end) weight(key + 1, odd);
      if constexpr (kExact) exact = Simd::add(Simd::add(exact, even[0]), odd[0]);
      const Simd::V pair = round_to_pairs(even[0], odd[0]);
      total = DotBf16::dot(ones, pair, total);
      Simd::store(p + key / 2 * kTile, pair);  // at or before the rows just read
    }
  }

  /// Of the weights of key `key` in the lanes from `p` on those that are kept; the others become 0.
  POLYHEAD_INLINE static void keep(float* p, int key, TileDropout::Kept kept) {
    float* const at = p + key / 2 * kTile;
    kept |= key % 2 == 0 ? static_cast<std::int32_t>(0xffff0000) : 0x0000ffff;  // the other half
    Simd::store_int(at, Simd::and_int(Simd::load_int(at), reinterpret_cast<Simd::I>(kept)));
  }

  /// A pair of keys takes part in a lane that sees either. Where V is not finite, the half that a
  /// lane does not see is zeroed first, or a NaN there would leak through 0 * NaN.
  template <int kR, int kV>
  POLYHEAD_INLINE static void weigh_masked(Simd::V (&acc)[kR][kV], const BroadcastOperand& v,
                                           const float* p, const Simd::StoredMask* masks,
                                           int key_begin, std::int64_t steps, bool finite) {
    const Simd::I low_half = Simd::broadcast_int(0x0000ffff);
    const Simd::I high_half = Simd::broadcast_int(static_cast<std::int32_t>(0xffff0000));
    const Simd::StoredMask* even = masks + key_begin * kVectors;
    for (std::int64_t s = 0; s < steps; ++s) {
      const Simd::StoredMask* odd = even + kVectors;
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Simd::V x = Simd::broadcast_at(v.data + r * v.row_bytes + s * v.step_bytes);
#pragma GCC unroll 4
        for (int i = 0; i < kV; ++i) {
          const Simd::V weight = Simd::load(p + s * kTile + i * kLanes);
          const Simd::M a = even[i], b = odd[i];
          if (finite) {
            acc[r][i] = Dot::dot_masked(Simd::mask_or(a, b), x, weight, acc[r][i]);
            continue;
          }
          const Simd::V first = Simd::from_bits(Simd::and_int(Simd::bits(x), low_half));
          const Simd::V second = Simd::from_bits(Simd::and_int(Simd::bits(x), high_half));
          acc[r][i] = Dot::dot_masked(Simd::mask_and(a, b), x, weight, acc[r][i]);
          acc[r][i] = Dot::dot_masked(Simd::mask_and_not(a, b), first, weight, acc[r][i]);
          acc[r][i] = Dot::dot_masked(Simd::mask_and_not(b, a), second, weight, acc[r][i]);
        }
      }
      even += 2 * kVectors;
    }
  }

  // --- decoding ---

  struct Elements : TilesOfWords {
    static constexpr bool kCodes = false;
    static constexpr bool kSteps = true;
    /// Where step `at` of a key begins, and dim `at` of its values.
    static constexpr std::int64_t byte_of(std::int64_t at) { return at * 4; }
    static constexpr std::int64_t byte_of_values(std::int64_t at) { return at * 2; }
    POLYHEAD_INLINE static Simd::V load(const std::byte* row, std::int64_t at, int) {
      return Simd::load(reinterpret_cast<const float*>(row) + at);
    }
    POLYHEAD_INLINE static Simd::V load_steps(const std::byte* row, std::int64_t at, int n,
                                              std::int64_t dim) {
      const std::int64_t values = std::min<std::int64_t>(2 * n, dim - 2 * at);
      return Simd::from_bits(_mm512_maskz_loadu_epi16(
          first_of_32(values), reinterpret_cast<const std::uint16_t*>(row) + 2 * at));
    }

    /// As Float8Pairs::load_pairs; of one vector `lanes`.
    template <bool kWhole, int kC>
    POLYHEAD_INLINE static void load_pairs(Simd::V (&to)[kC], const std::byte* even,
                                           std::int64_t token, __mmask16 lanes) {
      const std::byte* odd = even + token;
      if constexpr (kC % 2 == 0) {
#pragma GCC unroll 4
        for (int c = 0; c < kC; c += 2) {
          const __m512i a = _mm512_loadu_si512(even + c * kLanes * 2);
          const __m512i b =
              kWhole ? _mm512_loadu_si512(odd + c * kLanes * 2) : _mm512_setzero_si512();
          to[c] = Simd::from_bits(_mm512_permutex2var_epi16(a, low_pairs(), b));
          to[c + 1] = Simd::from_bits(_mm512_permutex2var_epi16(a, high_pairs(), b));
        }
      } else {
        const __m256i low = _mm256_maskz_loadu_epi16(lanes, even);
        const __m256i high = kWhole ? _mm256_maskz_loadu_epi16(lanes, odd) : _mm256_setzero_si256();
        to[0] = Simd::from_bits(_mm512_or_si512(
            _mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
      }
    }
  };

  /// Whether steps of keys can be read where they lie, one at a time.
  static bool broadcasts(const AttendCall& call) {
    return call.k.type == ElementType::bfloat16 && call.head_dim % 2 == 0;
  }

  template <class Visit>
  static void visit_elements(const AttendCall& call, const Visit& visit) {
    switch (call.k.type) {
      case ElementType::float8_e4m3:
        return visit(Float8Pairs<true>{});
      case ElementType::float8_e5m2:
        return visit(Float8Pairs<false>{});
      default:
        return visit(Elements{});
    }
  }

  /// Whether the pairs before `end` lie within a row: not so for the last one of an odd dim.
  static bool whole(std::int64_t dim, std::int64_t end) { return 2 * end <= dim; }

  template <class Kind>
  POLYHEAD_INLINE static Simd::V load_steps(const std::byte* row, std::int64_t at, int n,
                                            std::int64_t dim) {
    return Kind::load_steps(row, at, n, dim);
  }

  /// Dims [d, d + n) of values that lie one after the other, a pair of keys a step.
  template <class Kind>
  class Values {
   public:
    Values(const KeyRows& rows, const Operand& x, std::int64_t d, int n)
        : even_(rows.data + Kind::byte_of_values(d)),
          token_(x.token),
          lanes_(n >= kLanes ? static_cast<__mmask16>(~0u)
                             : static_cast<__mmask16>((1u << n) - 1u)) {}

    /// In kC vectors: n is kLanes where kC > 1. Without kWhole, there is only the first key.
    template <bool kWhole, int kC>
    POLYHEAD_INLINE void read(Simd::V (&to)[kC]) const {
      Kind::template load_pairs<kWhole>(to, even_, token_, lanes_);
    }
    POLYHEAD_INLINE void advance() { even_ = forget(even_ + 2 * token_); }

   private:
    const std::byte* even_;
    const std::int64_t token_;
    const __mmask16 lanes_;
  };

  static bool step_visible(std::uint64_t word, int step) { return word >> (2 * step) & 3; }
  POLYHEAD_INLINE static Simd::V visible_part(Simd::V value, std::uint64_t word, int step) {
    const std::uint64_t pair = word >> (2 * step) & 3;
    const std::uint32_t halves = (pair & 1 ? 0x0000ffffu : 0u) | (pair & 2 ? 0xffff0000u : 0u);
    return Simd::from_bits(
        Simd::and_int(Simd::bits(value), Simd::broadcast_int(static_cast<std::int32_t>(halves))));
  }

  /// Adds a block's weights in key order and rounds them to pairs in place, kR rows `stride` apart
  /// beside each other.
  template <int kR>
  static void sum_weights(float* p, std::int64_t stride, int keys, float* total, float* exact,
                          bool exact_wanted) {
    if (exact_wanted) add_chains<kR>(p, stride, keys, exact);
    for (int r = 0; r < kR; ++r) {
      float* row = p + r * stride;
      for (int key = keys; key < ((keys + 31) & ~31); ++key) row[key] = 0.0f;
      for (int key = 0; key < keys; key += 32) {
        const __m512bh pairs =
            _mm512_cvtne2ps_pbh(Simd::load(row + key + kLanes), Simd::load(row + key));
        Simd::store(row + key / 2,
                    reinterpret_cast<Simd::V>(pairs));  // at or before the weights just read
      }
    }
    const Simd::V ones = Simd::from_bits(Simd::broadcast_int(0x3f803f80));
    Simd::V sum[kR];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) sum[r] = Simd::broadcast(total[r]);
    for (int step = 0; step < static_cast<int>(steps(keys)); ++step) {
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r)
        sum[r] = DotBf16::dot(ones, Simd::broadcast_at(p + r * stride + step), sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) total[r] = _mm512_cvtss_f32(sum[r]);
  }
};
