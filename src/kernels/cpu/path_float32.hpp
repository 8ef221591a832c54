// The float32 path: every element type, widened where it is not float32 already.
// Included inside an ISA namespace after outer_product.hpp and tile.hpp.

/// How K and V elements become 32-bit steps. `load` gives lanes [at, at + n) of a row, zero past n,
/// touching no more.
struct Float32Elements : TilesOfWords {
  static constexpr bool kCodes = false;
  static constexpr bool kSteps = true;  // four bytes a step
  static constexpr std::int64_t byte_of(std::int64_t at) { return at * 4; }
  static constexpr std::int64_t byte_of_values(std::int64_t at) { return at * 4; }
  POLYHEAD_INLINE static Simd::V load(const std::byte* row, std::int64_t at, int n) {
    const float* p = reinterpret_cast<const float*>(row) + at;
    return n >= kLanes ? Simd::load(p) : Simd::load_first(p, n);
  }
};

/// Elements of 16 bits, widened.
struct WidenedElements : TilesOfWords {
  static constexpr bool kCodes = false;
  static constexpr bool kSteps = false;
  static constexpr std::int64_t byte_of(std::int64_t at) { return at * 2; }
  static constexpr std::int64_t byte_of_values(std::int64_t at) { return at * 2; }

 protected:
  /// Lanes [at, at + n) of a row, of which kLanes can be read: copied where they are fewer.
  POLYHEAD_INLINE static const std::uint16_t* lanes(const std::byte* row, std::int64_t at, int n,
                                                    std::uint16_t (&tail)[kLanes]) {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(row) + at;
    if (n >= kLanes) return p;
    std::memset(tail, 0, sizeof tail);
    std::memcpy(tail, p, static_cast<std::size_t>(n) * 2);
    return tail;
  }
};

/// Tiles hold two steps in a word, whose halves are float32 but for zeros.
struct Bfloat16Elements : WidenedElements {
  static constexpr int kWordSteps = 2;
  POLYHEAD_INLINE static Simd::V load(const std::byte* row, std::int64_t at, int n) {
    std::uint16_t tail[kLanes];
    return Simd::load_bfloat16(lanes(row, at, n, tail));
  }
  POLYHEAD_INLINE static Simd::V step(const Simd::V (&words)[kTileSteps], int i) {
    const Simd::I bits = Simd::bits(words[i / 2]);
    if (i % 2 == 0) return Simd::from_bits(Simd::shift_left<16>(bits));
    return Simd::from_bits(Simd::and_int(bits, Simd::broadcast_int(~0xffff)));
  }
};

/// Tiles are widened on the way in or, where Lanes transposes half vectors in less time, once they
/// are transposed (docs/kernel-notes.md). A template, so that only one of the two is compiled.
template <class Lanes>
struct Float16ElementsOf : WidenedElements {
  static constexpr std::int64_t kTileBytes = 2 * kTileSteps;
  static constexpr bool kNarrow = Lanes::kNarrowTiles;
  POLYHEAD_INLINE static Simd::V load(const std::byte* row, std::int64_t at, int n) {
    std::uint16_t tail[kLanes];
    return Simd::load_float16(lanes(row, at, n, tail));
  }
  POLYHEAD_INLINE static Simd::V load_tile(const std::byte* low, const std::byte* high) {
    return Simd::load_tile_float16(reinterpret_cast<const std::uint16_t*>(low),
                                   reinterpret_cast<const std::uint16_t*>(high));
  }
  POLYHEAD_INLINE static void transpose(Simd::V (&lane)[kTileSteps], int stage) {
    if constexpr (kNarrow)
      Lanes::transpose_narrow(lane, stage);
    else
      transpose_tile(lane, stage);
  }
  POLYHEAD_INLINE static Simd::V step(const Simd::V (&words)[kTileSteps], int i) {
    if constexpr (kNarrow)
      return Lanes::widen_float16(words[i]);
    else
      return words[i];
  }
};
using Float16Elements = Float16ElementsOf<Simd>;

struct Float32Path {
  using Dot = DotFloat32;
  static constexpr bool kBfloat16 = false;
  static constexpr bool kInteger = false;
  using Unit = NoMatrixUnit;
  static constexpr bool kMatrix = false;

  static std::int64_t steps(std::int64_t n) { return n; }
  /// Of a row of q and of a packed key, all that belongs to them included.
  static std::int64_t q_steps(std::int64_t dim) { return dim; }
  static std::int64_t k_steps(std::int64_t dim) { return dim; }
  static std::int64_t padded(std::int64_t dim) { return dim; }

  /// Whether rows of q can be transposed from where they lie.
  static bool direct_q(const Operand& q, std::int64_t dim) {
    return q.type == ElementType::float32 && q.dim == 4 && dim % kLanes == 0;
  }
  static void transpose_q(float* to, const float* const (&rows)[kLanes], std::int64_t n,
                          float factor) {
    transpose_in(to, rows, n, Simd::broadcast(factor));
  }

  /// A row of q as 32-bit steps, without its factor: transpose_q knows it.
  static void widen_q(float* to, const std::byte* from, const AttendCall& call, std::int64_t,
                      float) {
    widen_row(to, from, call.q.type, call.q.dim, call.head_dim);
  }

  /// A row of q as 32-bit steps, times its factor.
  static void q_row(float* to, const std::byte* from, const AttendCall& call, std::int64_t,
                    float factor) {
    widen_row(to, from, call.q.type, call.q.dim, call.head_dim);
    const Simd::V f = Simd::broadcast(factor);
    for (std::int64_t i = 0; i < call.head_dim; i += kLanes)
      Simd::store(to + i, Simd::mul(Simd::load(to + i), f));
  }

  /// Whether rows far apart, which share sets of L1 and lie on many pages, are copied first: where
  /// they are read for few lanes at a time, and so often, and on Intel's processors
  /// (docs/kernel-notes.md).
  static bool gathers() { return kLanes < 16 || is_made_by_intel(); }

  /// K and V can be read where they lie.
  static bool direct(const Operand& x, std::int64_t dim) {
    return x.type == ElementType::float32 && x.dim == 4 && (x.token <= 8 * dim || !gathers());
  }

  /// The rows of a block of k or v: where they lie, or copied where their type, their dims or the
  /// pages they lie on ask for it.
  static BroadcastOperand rows(const AttendCall& call, const Sequence& s, const Operand& x,
                               const std::byte* first, std::int64_t kv_head, std::int64_t block,
                               int keys, float* packed, std::int64_t dim) {
    const std::int64_t row_floats = packed_row_floats(dim);
    for (int key = 0; key < keys;) {
      KeyRows from = key_rows(call, s, x, first, kv_head, block + key);
      const std::int64_t run = run_of(call, s, block + key);
      if (key == 0 && run >= keys && direct(x, dim)) return {from.data, x.token, 4};
      const int end = static_cast<int>(std::min<std::int64_t>(keys, key + run));
      for (; key < end; ++key, from.data += x.token, from.scales += x.scales.token)
        widen_key_row(packed + key * row_floats, from, x, dim);
    }
    return {reinterpret_cast<const std::byte*>(packed), row_floats * 4, 4};
  }

  template <class Scratch, class Block>
  static void load_keys(Block& to, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    to.k = rows(call, s, call.k, s.k, kv_head, block, keys, memory.k, call.head_dim);
  }

  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const BroadcastOperand v =
        rows(call, s, call.v, s.v, kv_head, block, keys, memory.v, call.value_dim);
    to.v = {v.data, 4, v.row_bytes};
  }

  /// Finds out whether V has a NaN or an Inf: x - x is then not 0.
  template <class Block>
  static void check_finite(Block& to, int keys, std::int64_t dim) {
    Simd::V sum = Simd::zero();
    for (int key = 0; key < keys; ++key) {
      const float* row = reinterpret_cast<const float*>(to.v.data + key * to.v.step_bytes);
      std::int64_t d = 0;
      for (; d + kLanes <= dim; d += kLanes) {
        const Simd::V x = Simd::load(row + d);
        sum = Simd::add(sum, Simd::sub(x, x));
      }
      if (d < dim) {
        const Simd::V x = Simd::load_first(row + d, static_cast<int>(dim - d));
        sum = Simd::add(sum, Simd::sub(x, x));
      }
    }
    to.finite = Simd::any(Simd::not_equal(sum, Simd::zero())) ? Block::no : Block::yes;
  }

  template <bool kExact, class Weight>
  POLYHEAD_INLINE static void weights(const Weight& weight, float* p, int key_begin, int key_end,
                                      Simd::V& total, Simd::V& exact) {
    constexpr int kBeside = Simd::kExponents;
    const auto add = [&]<int kN>(int key, std::integral_constant<int, kN>) POLYHEAD_LAMBDA {
      Simd::V w[kN];
      weight(key, w);
#pragma GCC unroll 4
      for (int i = 0; i < kN; ++i) {
        total = Simd::add(total, w[i]);
        Simd::store(p + (key + i) * kTile, w[i]);
      }
    };
    int key = key_begin;
    for (; key + kBeside <= key_end; key += kBeside)
      add(key, std::integral_constant<int, kBeside>{});
    if constexpr (kBeside > 1) {
      for (; key < key_end; ++key) add(key, std::integral_constant<int, 1>{});
    }
    exact = total;
  }

  /// Of the weights of key `key` in the lanes from `p` on those that are kept; the others become 0.
  POLYHEAD_INLINE static void keep(float* p, int key, TileDropout::Kept kept) {
    float* const at = p + key * kTile;
    Simd::store_int(at, Simd::and_int(Simd::load_int(at), reinterpret_cast<Simd::I>(kept)));
  }

  template <int kR, int kV>
  POLYHEAD_INLINE static void weigh_masked(Simd::V (&acc)[kR][kV], const BroadcastOperand& v,
                                           const float* p, const Simd::StoredMask* masks,
                                           int key_begin, std::int64_t steps, bool) {
    outer_product_masked<Dot, kR, kV>(acc, v, p, kTile, masks + key_begin * kVectors, steps);
  }

  // --- decoding ---

  /// Whether steps of keys can be read where they lie, one at a time.
  static bool broadcasts(const AttendCall& call) { return call.k.type == ElementType::float32; }

  /// How k and v of a type are read.
  template <class Visit>
  static void visit_elements(const AttendCall& call, const Visit& visit) {
    switch (call.k.type) {
      case ElementType::float16:
        return visit(Float16Elements{});
      case ElementType::bfloat16:
        return visit(Bfloat16Elements{});
      case ElementType::int8:
        return visit(Codes<ElementType::int8>{});
      case ElementType::int4:
        return visit(Codes<ElementType::int4>{});
      case ElementType::float8_e4m3:
        return visit(Codes<ElementType::float8_e4m3>{});
      case ElementType::float8_e5m2:
        return visit(Codes<ElementType::float8_e5m2>{});
      default:
        return visit(Float32Elements{});
    }
  }

  static bool whole(std::int64_t, std::int64_t) { return true; }

  template <class Elements>
  POLYHEAD_INLINE static Simd::V load_steps(const std::byte* row, std::int64_t at, int n,
                                            std::int64_t) {
    return Elements::load(row, at, n);
  }

  /// Dims [d, d + n) of values that lie one after the other, a key a step.
  template <class Elements>
  class Values {
   public:
    Values(const KeyRows& rows, const Operand& x, std::int64_t d, int n)
        : row_(rows.data),
          scales_(rows.scales),
          token_(x.token),
          step_(x.scales),
          d_(Elements::kCodes ? d : 0),
          n_(n) {
      if (!Elements::kCodes) row_ += Elements::byte_of_values(d);
    }

    /// In kC vectors: n is kLanes where kC > 1.
    template <bool, int kC>
    POLYHEAD_INLINE void read(Simd::V (&to)[kC]) const {
      if constexpr (Elements::kCodes) {
        Elements::load_values(to, row_, d_, scales_, step_);
      } else {
#pragma GCC unroll 8
        for (int c = 0; c < kC; ++c) to[c] = Elements::load(row_, c * kLanes, kC > 1 ? kLanes : n_);
      }
    }
    POLYHEAD_INLINE void advance() {
      row_ = forget(row_ + token_);
      if constexpr (Elements::kCodes) scales_ += step_.token;
    }

   private:
    const std::byte* row_;
    const float* scales_;
    const std::int64_t token_;
    const Scales step_;
    const std::int64_t d_;
    const int n_;
  };

  static bool step_visible(std::uint64_t word, int key) { return word >> key & 1; }
  POLYHEAD_INLINE static Simd::V visible_part(Simd::V value, std::uint64_t, int) { return value; }

  /// Adds a block's weights in key order, kR rows `stride` apart beside each other.
  template <int kR>
  static void sum_weights(float* p, std::int64_t stride, int keys, float* total, float* exact,
                          bool) {
    add_chains<kR>(p, stride, keys, total);
    std::memcpy(exact, total, kR * sizeof(float));
  }
};
