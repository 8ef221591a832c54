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

  /// A row of bfloat16 and zeros up to a whole number of matrices.
  static void depth_row(float* to, const std::byte* from, std::int64_t stride, std::int64_t dim) {
    pair_row(to, from, stride, dim);
    const std::int64_t pairs = steps(dim);
    std::memset(to + pairs, 0, static_cast<std::size_t>(q_steps(dim) - pairs) * 4);
  }

  static void widen_q(float* to, const std::byte* from, const AttendCall& call, std::int64_t,
                      float) {
    depth_row(to, from, call.q.dim, call.head_dim);
  }

  /// Whether rows are whole matrices that begin on cache lines.
  static bool direct_k(const Operand& k, const std::byte* rows, std::int64_t dim) {
    const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows));
    return k.dim == 2 && dim % kDepth == 0 && (at | k.token) % kRowBytes == 0;
  }

  /// Rows [0, keys) and zeros up to a multiple of 32 of them.
  template <class Scratch, class Block>
  static void load_keys(Block& to, const AttendCall& call, const Sequence& s, std::int64_t kv_head,
                        std::int64_t block, int keys, Scratch& memory) {
    const std::int64_t row = packed_row_floats(k_steps(call.head_dim));
    for (int key = 0; key < keys;) {
      const std::byte* k = key_rows(call, s, call.k, s.k, kv_head, block + key).data;
      const std::int64_t run = run_of(call, s, block + key);
      if (key == 0 && run >= keys && keys % kDepth == 0 && direct_k(call.k, k, call.head_dim)) {
        to.k = {k, call.k.token, 4};
        return;
      }
      const int end = static_cast<int>(std::min<std::int64_t>(keys, key + run));
      for (; key < end; ++key, k += call.k.token)
        depth_row(memory.k + key * row, k, call.k.dim, call.head_dim);
    }
    for (std::int64_t key = keys; key < whole_depth(keys); ++key)
      std::memset(memory.k + key * row, 0, static_cast<std::size_t>(k_steps(call.head_dim)) * 4);
    to.k = {reinterpret_cast<const std::byte*>(memory.k), row * 4, 4};
  }

  /// Where the matrix of dims 16 g .. and keys 32 half .. of a block begins: V^T, a row a dim.
  static float* values_of(float* v, std::int64_t g, int half) {
    return v + (2 * g + half) * kFloats;
  }

  template <class Scratch, class Block>
  static void load_values(Block& to, const AttendCall& call, const Sequence& s,
                          std::int64_t kv_head, std::int64_t block, int keys, Scratch& memory) {
    const std::uint16_t* row[kDepth];
    __m512i largest = _mm512_setzero_si512();
    for (int half = 0; half * kDepth < keys; ++half) {
      place_values(row, call, s, kv_head, block + half * kDepth,
                   std::min(keys - half * kDepth, kDepth), memory);
      for (std::int64_t d = 0; d < call.value_dim; d += kDepth)
        turn_values(memory, row, d, call.value_dim, half, largest);
    }
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    to.finite = _mm512_cmpge_epu16_mask(largest, exponent) == 0 ? Block::yes : Block::no;
    to.v = {reinterpret_cast<const std::byte*>(memory.v), 0, 0};
  }

  /// Where the rows of 32 keys lie, dense; null past the last one.
  template <class Scratch>
  static void place_values(const std::uint16_t** row, const AttendCall& call, const Sequence& s,
                           std::int64_t kv_head, std::int64_t first, int keys, Scratch& memory) {
    std::uint16_t* gathered = reinterpret_cast<std::uint16_t*>(memory.rows);
    for (int key = 0; key < keys;) {
      const std::byte* v = key_rows(call, s, call.v, s.v, kv_head, first + key).data;
      const auto end = std::min<std::int64_t>(keys, key + run_of(call, s, first + key));
      for (; key < end; ++key, v += call.v.token) {
        row[key] = reinterpret_cast<const std::uint16_t*>(v);
        if (call.v.dim == 2) continue;
        std::uint16_t* dense = gathered + key * (call.value_dim + kRows);
        for (std::int64_t d = 0; d < call.value_dim; ++d)
          std::memcpy(dense + d, v + d * call.v.dim, 2);
        row[key] = dense;
      }
    }
    for (int key = keys; key < kDepth; ++key) row[key] = nullptr;
  }

  /// Dims [d, d + 32) of 32 keys' rows into two matrices; `largest` takes in their magnitudes.
  template <class Scratch>
  static void turn_values(Scratch& memory, const std::uint16_t* const* row, std::int64_t d,
                          std::int64_t dim, int half, __m512i& largest) {
    const std::int64_t left = dim - d;
    const __mmask32 lanes =
        left >= kDepth ? ~__mmask32{0} : static_cast<__mmask32>((std::uint32_t{1} << left) - 1);
    const auto load = [&](int key) POLYHEAD_LAMBDA {
      return row[key] ? _mm512_maskz_loadu_epi16(lanes, row[key] + d) : _mm512_setzero_si512();
    };
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    for (int part = 0; part < 2 && part * kRows < left; ++part) {
      const __m512i order = part == 0 ? low_pairs() : high_pairs();
      Simd::V pair[kRows];
      memory.fetcher->fetch(kFetched);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const __m512i even = load(2 * i), odd = load(2 * i + 1);
        pair[i] = Simd::from_bits(_mm512_permutex2var_epi16(even, order, odd));
        largest = _mm512_max_epu16(largest, _mm512_and_si512(Simd::bits(pair[i]), magnitude));
      }
      Simd::transpose(pair);
      float* to = values_of(memory.v, d / kRows + part, half);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) Simd::store(to + i * kRows, pair[i]);
    }
  }
};
