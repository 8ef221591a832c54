// The integer path: int8 or int4 codes of k and v under bfloat16 queries. A row of q becomes int16
// times one power of two; a block of 32 dims of k multiplies it in integers, exactly, and joins the
// score times the key's scale. A key block's weights, times their values' scales, become int16
// times one power of two a row and block of dims; they multiply the codes of v in integers. All
// else is the float32 path's. Included inside an ISA namespace after simd_int16.hpp, codes.hpp and
// path_float32.hpp.

struct IntegerPath : Float32Path {
  using Dot = DotInt16;
  static constexpr bool kInteger = true;
  static constexpr std::int64_t kBlock = 32;  // dims that share a scale
  static constexpr std::int64_t kBlockSteps = kBlock / 2;
  // Dims of values beside each other: the products of a dot in two instructions need a register.
  static constexpr int kValueRows = Dot::kFused ? Simd::kRows : Simd::kRows - 1;

  static std::int64_t blocks(std::int64_t dim) { return (dim + kBlock - 1) / kBlock; }
  static std::int64_t padded(std::int64_t dim) { return blocks(dim) * kBlock; }
  /// Pairs of dims, the last block's padding included; pairs of keys of whole blocks.
  static std::int64_t steps(std::int64_t n) { return blocks(n) * kBlockSteps; }
  /// A row of q ends with what its integers are multiplied by, a packed key with its scales.
  static std::int64_t q_steps(std::int64_t dim) { return steps(dim) + 1; }
  static std::int64_t k_steps(std::int64_t dim) { return steps(dim) + blocks(dim); }

  // --- queries ---

  static bool direct_q(const Operand&, std::int64_t) { return false; }
  static void transpose_q(float* to, const float* const (&rows)[kLanes], std::int64_t n, float) {
    transpose_in(to, rows, n);
  }

  /// A row of q for prefill: pairs of dims in order.
  static void widen_q(float* to, const std::byte* from, const AttendCall& call,
                      std::int64_t kv_head, float factor) {
    pack_q<false>(to, from, call, kv_head, factor);
  }

  /// A row of q for decoding: of four dims the first and the third are a pair, then the others.
  static void q_row(float* to, const std::byte* from, const AttendCall& call, std::int64_t kv_head,
                    float factor) {
    pack_q<true>(to, from, call, kv_head, factor);
  }

  template <bool kEveryOther>
  static void pack_q(float* to, const std::byte* from, const AttendCall& call, std::int64_t kv_head,
                     float factor) {
    const std::int64_t dim = call.head_dim, end = padded(dim);
    alignas(64) float row[kMaxDim];
    widen_row(row, from, call.q.type, call.q.dim, dim);
    const Scales& scales = call.k.scales;
    if (scales.shift == 0) {  // by channel: a part of the query
      const float* channel = scales.data + kv_head * scales.head;
      for (std::int64_t d = 0; d < dim; ++d) row[d] *= channel[d * scales.block];
    }
    for (std::int64_t d = dim; d < end; ++d) row[d] = 0.0f;
    Simd::I most = Simd::broadcast_int(0);
    for (std::int64_t d = 0; d < end; d += kLanes)
      most = Int16::larger(most, magnitude(Simd::load(row + d)));
    const Fit fit = fit_of(Int16::largest(most));
    for (std::int64_t d = 0; d < end; d += 2 * kLanes) {
      const Simd::I low = whole_numbers(Simd::load(row + d), fit.to_int);
      const Simd::I high = whole_numbers(Simd::load(row + d + kLanes), fit.to_int);
      Simd::I pairs = Simd::bits(Int16::join(low, high));
      if constexpr (kEveryOther) pairs = Int16::pair_every_other(pairs);
      Simd::store_int(to + d / 2, pairs);
    }
    alignas(64) float back[kLanes];
    Simd::store(back, fit.back);
    to[steps(dim)] = back[0] * factor;
  }

  // --- codes as int16 ---

  template <class Visit>
  static void visit_codes(ElementType type, const Visit& visit) {
    if (type == ElementType::int4) return visit(Codes<ElementType::int4>{});
    return visit(Codes<ElementType::int8>{});
  }

  /// Of four bytes a lane, the codes in bytes 0 and 2, or with kOdd in 1 and 3; of int4 in their
  /// low or high halves.
  template <class Elements, bool kHigh, bool kOdd>
  POLYHEAD_INLINE static Simd::V every_other(Simd::I words) {
    constexpr int kBits = Elements::kNibbles ? 4 : 8;
    return Simd::from_bits(Int16::bits_of<(kOdd ? 8 : 0) + (kHigh ? 4 : 0), kBits>(words));
  }

  /// The dim of a block that the first lane of vector i of a part stands for.
  template <class Elements>
  static constexpr int dim_of(int part, int i) {
    return Elements::kNibbles ? part * kLanes + i * kBlock / 2 : (2 * part + i) * kLanes;
  }
  /// The bytes of a part: they lie one after the other.
  template <class Elements>
  static constexpr std::int64_t kPartBytes = Elements::byte_of(kBlock) / Int16::kParts;

  /// What stands for the second key of a pair that has only one.
  static const std::byte* no_row() {
    alignas(64) static constexpr std::byte kZeros[kBlock] = {};
    return kZeros;
  }

  // --- weights ---

  /// Stored only: a block may come in several segments, but is one sum.
  template <bool kExact, class Weight>
  POLYHEAD_INLINE static void weights(const Weight& weight, float* p, int key_begin, int key_end,
                                      Simd::V&, Simd::V&) {
    for (int key = key_begin; key < key_end; ++key) {
      Simd::V w[1];
      weight(key, w);
      Simd::store(p + key * kTile, w[0]);
    }
  }

  /// total[0 .. kTile) += the weights of a tile, [key][kTile]: 16 chains that become one by halves,
  /// a vector each. Decoding has them in the lanes of one.
  static void sum_tile(const float* weights, int keys, int vectors, float* total) {
    for (int v = 0; v < vectors; ++v) {
      Simd::V sum[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        sum[i] = i < keys ? Simd::load(weights + i * kTile + v * kLanes) : Simd::zero();
        for (int key = i + kLanes; key < keys; key += kLanes)
          sum[i] = Simd::add(sum[i], Simd::load(weights + key * kTile + v * kLanes));
      }
#pragma GCC unroll 4
      for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) sum[i] = Simd::add(sum[i], sum[i + half]);
      }
      float* to = total + v * kLanes;
      Simd::store(to, Simd::add(Simd::load(to), sum[0]));
    }
  }

  /// The same of kR rows, `stride` apart; what is past the end becomes 0.
  template <int kR>
  static void sum_weights(float* p, std::int64_t stride, int keys, float* total, float* exact,
                          bool) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      float* row = p + r * stride;
      for (int key = keys; key < kKeyBlock; ++key) row[key] = 0.0f;
      Simd::V sum = Simd::load(row);
#pragma GCC unroll 4
      for (int key = kLanes; key < kKeyBlock; key += kLanes)
        sum = Simd::add(sum, Simd::load(row + key));
      total[r] += Int16::sum_by_halves(sum);
      exact[r] = total[r];
    }
  }

  /// A weight times its value's scale. Where scales are not all plain, what has no weight is not
  /// read.
  template <bool kPlain>
  POLYHEAD_INLINE static Simd::V scaled(Simd::V weight, Simd::V scale) {
    if constexpr (kPlain) return Simd::mul(weight, scale);
    return Simd::select(Simd::not_equal(weight, Simd::zero()), Simd::mul(weight, scale),
                        Simd::zero());
  }
  template <bool kPlain>
  POLYHEAD_INLINE static Simd::I size_of(Simd::V scaled) {
    return kPlain ? Simd::bits(scaled) : magnitude(scaled);
  }

  // --- prefill ---

  template <class Scratch, class Block>
  static void load_keys(Block& to, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    const Operand& x = call.k;
    const std::int64_t count = blocks(call.head_dim), scale_at = steps(call.head_dim);
    const std::int64_t row_floats = packed_row_floats(k_steps(call.head_dim));
    visit_codes(x.type, [&](auto elements) {
      using Elements = decltype(elements);
      for (int key = 0; key < keys; ++key) {
        const KeyRows from = key_rows(call, s, x, s.k, kv_head, block + key);
        float* row = memory.k + key * row_floats;
        for (std::int64_t b = 0; b < count; ++b) {
          Int16::store_block<Elements::kNibbles>(row + b * kBlockSteps,
                                                 from.data + Elements::byte_of(b * kBlock));
          row[scale_at + b] = x.scales.shift == 0 ? 1.0f : from.scales[b * x.scales.block];
        }
      }
    });
    to.k = {reinterpret_cast<const std::byte*>(memory.k), row_floats * 4, 4};
  }

  /// Two rows' blocks as pairs, in the order of dims.
  template <class Elements>
  POLYHEAD_INLINE static void store_pairs(float* to, const std::byte* even, const std::byte* odd) {
    for (int part = 0; part < Int16::kParts; ++part) {
      const std::int64_t byte = part * kPartBytes<Elements>;
      Simd::V pairs[2];
      Int16::value_pairs<Elements::kNibbles>(pairs, even + byte, odd + byte);
      Int16::in_order<Elements::kNibbles>(pairs);
      for (int i = 0; i < 2; ++i) Simd::store(to + dim_of<Elements>(part, i), pairs[i]);
    }
  }

  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const Operand& x = call.v;
    const std::int64_t count = blocks(call.value_dim);
    const std::int64_t row_floats = packed_row_floats(count * kBlock);
    visit_codes(x.type, [&](auto elements) {
      using Elements = decltype(elements);
      for (int key = 0; key < keys; key += 2) {
        const KeyRows from = key_rows(call, s, x, s.v, kv_head, block + key);
        const bool both = key + 1 < keys;  // a page never parts a pair
        float* row = memory.v + key / 2 * row_floats;
        for (std::int64_t b = 0; b < count; ++b) {
          const std::byte* even = from.data + Elements::byte_of(b * kBlock);
          store_pairs<Elements>(row + b * kBlock, even, both ? even + x.token : no_row());
          const float* scale = from.scales + b * x.scales.block;
          float* scales = memory.v_scales + b * kKeyBlock + key;
          scales[0] = scale[0];
          scales[1] = both ? scale[x.scales.token] : 0.0f;
        }
      }
    });
    to.v = {reinterpret_cast<const std::byte*>(memory.v), 4, row_floats * 4};
  }

  /// A tile's weights [key][kTile] times a scale a key, as int16 pairs of keys, [pair][kTile]; the
  /// second one of a pair that has none is 0. `back` is what each row's integers are multiplied by.
  template <int kV>
  static void round_tile(float* to, float* back, const float* weights, const float* scales,
                         int keys) {
    if (plain(scales, keys))
      round_as<kV, true>(to, back, weights, scales, keys);
    else
      round_as<kV, false>(to, back, weights, scales, keys);
  }

  /// Finite, and without a sign.
  static bool plain(const float* scales, int keys) {
    Simd::I most = Simd::broadcast_int(0);
    for (int key = 0; key < keys; key += kLanes)
      most = Int16::larger(
          most, Simd::bits(Simd::load_first(scales + key, std::min(kLanes, keys - key))));
    return Int16::all_numbers(most);
  }

  template <int kV, bool kPlain>
  static void round_as(float* to, float* back, const float* weights, const float* scales,
                       int keys) {
    for (int v = 0; v < kV; ++v) {
      const float* p = weights + v * kLanes;
      Simd::I most = Simd::broadcast_int(0);
      for (int key = 0; key < keys; ++key)
        most =
            Int16::larger(most, size_of<kPlain>(scaled<kPlain>(Simd::load(p + key * kTile),
                                                               Simd::broadcast_at(scales + key))));
      const Fit fit = fit_of(most);
      Simd::store(back + v * kLanes, fit.back);
      const auto whole = [&](int key) POLYHEAD_LAMBDA {
        return whole_numbers(
            scaled<kPlain>(Simd::load(p + key * kTile), Simd::broadcast_at(scales + key)),
            fit.to_int);
      };
      float* pairs = to + v * kLanes;
      for (int key = 0; key < keys; key += 2, pairs += kTile)
        Simd::store(pairs, Int16::pair(whole(key),
                                       key + 1 < keys ? whole(key + 1) : Simd::broadcast_int(0)));
    }
  }

  // --- decoding ---

  template <class Visit>
  static void visit_elements(const AttendCall& call, const Visit& visit) {
    visit_codes(call.k.type, visit);
  }
};
