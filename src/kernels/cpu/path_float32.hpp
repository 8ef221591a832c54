// The float32 path: every element type, widened where it is not float32 already.
// Included inside an ISA namespace after outer_product.hpp and tile.hpp.

struct Float32Path {
  using Dot = DotFloat32;
  static constexpr bool kBfloat16 = false;

  static std::int64_t steps(std::int64_t n) { return n; }

  /// Whether rows of q can be transposed from where they lie.
  static bool direct_q(const Operand& q, std::int64_t dim) {
    return q.type == ElementType::float32 && q.dim == 4 && dim % kLanes == 0;
  }
  static void transpose_q(float* to, const float* const (&rows)[kLanes], std::int64_t n,
                          float factor) {
    transpose_in(to, rows, n, Simd::broadcast(factor));
  }

  /// A row of q as 32-bit steps, without its factor.
  static void widen_q(float* to, const std::byte* from, const Operand& q, std::int64_t dim) {
    widen_row(to, from, q.type, q.dim, dim);
  }

  /// A row of q as 32-bit steps, times its factor.
  static void q_row(float* to, const std::byte* from, const Operand& q, std::int64_t dim,
                    float factor) {
    widen_row(to, from, q.type, q.dim, dim);
    const Simd::V f = Simd::broadcast(factor);
    for (std::int64_t i = 0; i < dim; i += kLanes)
      Simd::store(to + i, Simd::mul(Simd::load(to + i), f));
  }

  /// K and V can be read where they lie. Rows a power of two apart share sets of L1, but copying
  /// them first costs more (docs/performance.md).
  static bool direct(const Operand& x) { return x.type == ElementType::float32 && x.dim == 4; }

  static BroadcastOperand rows(const Operand& x, const std::byte* from, float* packed,
                               std::int64_t dim, int keys) {
    if (direct(x)) return {from, x.token, 4};
    const std::int64_t row_floats = packed_row_floats(dim);
    for (int key = 0; key < keys; ++key)
      widen_row(packed + key * row_floats, from + key * x.token, x.type, x.dim, dim);
    return {reinterpret_cast<const std::byte*>(packed), row_floats * 4, 4};
  }

  template <class Scratch, class Block>
  static void load_keys(Block& to, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    to.k = rows(call.k, s.k + kv_head * call.k.head + block * call.k.token, memory.k, call.head_dim,
                keys);
  }

  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const std::byte* from = s.v + kv_head * call.v.head + block * call.v.token;
    const BroadcastOperand v = rows(call.v, from, memory.v, call.value_dim, keys);
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
    for (int key = key_begin; key < key_end; ++key) {
      const Simd::V w = weight(key);
      total = Simd::add(total, w);
      Simd::store(p + key * kTile, w);
    }
    exact = total;
  }

  static void drop(float* p, int key) { p[key * kTile] = 0.0f; }

  template <int kR, int kV>
  POLYHEAD_INLINE static void weigh_masked(Simd::V (&acc)[kR][kV], const BroadcastOperand& v,
                                           const float* p, const Simd::StoredMask* masks,
                                           int key_begin, std::int64_t steps, bool) {
    outer_product_masked<Dot, kR, kV>(acc, v, p, kTile, masks + key_begin * kVectors, steps);
  }

  // --- decoding ---

  static bool whole(std::int64_t, std::int64_t) { return true; }

  template <class Elements>
  POLYHEAD_INLINE static Simd::V load_steps(const std::byte* row, std::int64_t at, int n,
                                            std::int64_t) {
    return Elements::load(row, at, n);
  }

  template <class Elements>
  POLYHEAD_INLINE static Simd::V value_lanes(const std::byte* rows, std::int64_t row_bytes, int key,
                                             int, std::int64_t d, int n, std::int64_t ahead) {
    const std::byte* row = rows + key * row_bytes;
    if (ahead != 0) __builtin_prefetch(row + ahead + d * Elements::kStepBytes, 0, 3);
    return Elements::load(row, d, n);
  }

  static bool step_visible(std::uint64_t word, int key) { return word >> key & 1; }
  POLYHEAD_INLINE static Simd::V visible_part(Simd::V value, std::uint64_t, int) { return value; }

  /// Adds a block's weights in key order.
  static void sum_weights(float* p, int keys, float& total, float& exact, bool) {
    float sum = total;
    for (int key = 0; key < keys; ++key) sum += p[key];
    total = exact = sum;
  }
};
