// The two products of a tile where the processor multiplies matrices: S^T = K Q^T and O^T += V^T
// P^T of a whole block of keys at once. What no segment covers has a weight of 0. Included inside
// an ISA namespace after path_matrix.hpp, tile.hpp and fetcher.hpp.

struct MatrixProducts {
  const AttendCall& call;
  const Scratch& memory;
  const int vectors;  // of lanes

  static constexpr int kRows = MatrixPath::kRows, kDepth = MatrixPath::kDepth;
  static constexpr int kPairs = kDepth / 2;
  static constexpr std::int64_t kTileBytes = kTile * 4;

  /// Of each half of a block, whether vector v of the tile sees anything there.
  static bool covers(const Sight& sight, int v, int half) {
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      if (v >= part.first && v < part.last && part.key_begin < (half + 1) * kDepth &&
          part.key_end > half * kDepth)
        return true;
    }
    return false;
  }

  // --- scores ---

  /// [key][lane] of what the segments cover, and of more; q is the tile's, [step][kTile].
  void scores(const Sight& sight, const float* q) const {
    for (int half = 0; half * kDepth < kKeyBlock; ++half) {
      // Two vectors share each load of keys.
      int v = 0;
      for (; v + 2 <= vectors; v += 2) {
        if (covers(sight, v, half) || covers(sight, v + 1, half)) score_keys<2>(half, v, q);
      }
      if (v < vectors && covers(sight, v, half)) score_keys<1>(half, v, q);
    }
  }

  /// Of 32 keys and one or two vectors of lanes.
  template <int kV>
  POLYHEAD_INLINE void score_keys(int half, int v, const float* q) const {
    const std::int64_t steps = MatrixPath::q_steps(call.head_dim);
    const StridedRows low = memory.rows_of_keys[2 * half], high = memory.rows_of_keys[2 * half + 1];
    float* const to = memory.scores + half * kDepth * kTile + v * kLanes;
    q += v * kLanes;
    MatrixUnit::zero<0>();
    MatrixUnit::zero<1>();
    if constexpr (kV == 2) {
      MatrixUnit::zero<2>();
      MatrixUnit::zero<3>();
    }
    for (std::int64_t s = 0; s < steps; s += kPairs) {
      memory.fetcher->fetch(MatrixPath::kFetched);
      MatrixUnit::load<4>(low.data + s * 4, low.stride);
      MatrixUnit::load<6>(q + s * kTile, kTileBytes);
      MatrixUnit::multiply<0, 4, 6>();
      MatrixUnit::load<5>(high.data + s * 4, high.stride);
      MatrixUnit::multiply<1, 5, 6>();
      if constexpr (kV == 2) {
        MatrixUnit::load<7>(q + s * kTile + kLanes, kTileBytes);
        MatrixUnit::multiply<2, 4, 7>();
        MatrixUnit::multiply<3, 5, 7>();
      }
    }
    MatrixUnit::store<0>(to, kTileBytes);
    MatrixUnit::store<1>(to + kRows * kTile, kTileBytes);
    if constexpr (kV == 2) {
      MatrixUnit::store<2>(to + kLanes, kTileBytes);
      MatrixUnit::store<3>(to + kRows * kTile + kLanes, kTileBytes);
    }
  }

  // --- weighted sums ---

  /// [pair][lane] of a vector of lanes.
  float* weights(int v) const { return memory.scores + v * kLanes; }

  /// Adds a block; `first`: to nothing, whatever lies there. Weights are pairs of keys,
  /// [pair][lane].
  void add(const Sight& sight, State& state, KeyBlock& rows, int keys, bool first) const {
    clear_unseen(sight, keys);
    const bool lone = !MatrixPath::is_turned(rows), all = sight.kind != Sight::some;
    if (lone && all && goes_by_rows(state, first)) return add_by_rows(state, keys, first);
    turn_rows_back(state);
    if (lone && (!all || MatrixPath::coded(call.v)))
      MatrixPath::turn_block(rows, call, keys, memory);
    if (sight.kind == Sight::some && rows.finite == KeyBlock::no)
      return add_by_lanes(sight, state, first);
    if (!MatrixPath::is_turned(rows)) return add_while_turning(state, keys, first);
    for (int v = 0; v < vectors; ++v) {
      const Part part{v, covers(sight, v, 0), covers(sight, v, 1), first};
      if (!first && !part.low && !part.high) continue;
      for (std::int64_t g = 0; g * kRows < call.value_dim; g += 2) add_dims(part, g, state, g);
    }
  }

  /// Of a block that all lanes see.
  void add_while_turning(State& state, int keys, bool first) const {
    MatrixPath::Magnitude unused{Simd::bits(Simd::zero())};
    for (std::int64_t g = 0; g * kRows < call.value_dim; g += 2) {
      for (int half = 0; half * kDepth < keys; ++half)
        MatrixPath::turn_values(memory, half, g * kRows, call.value_dim, 0, unused);
      for (int v = 0; v < vectors; ++v) add_dims({v, true, keys > kDepth, first}, 0, state, g);
    }
  }

  // A lone tile of few rows has its sums by rows, O += P V: values are then put together in pairs,
  // two shuffles for 64 of them, and not turned, which is ten. Each product of a matrix is the same
  // sum either way.

  bool goes_by_rows(const State& state, bool first) const {
    return first ? vectors == 1 && call.value_dim % kDepth == 0 : state.rows > 0;
  }

  /// Of a block that all lanes see: state.o becomes [state.rows][value_dim], of every 32 dims first
  /// those of pair_values' first matrix.
  void add_by_rows(State& state, int keys, bool first) const {
    state.rows = memory.lanes[0].count;
    const int halves = keys > kDepth ? 2 : 1;
    turn_weights(halves);
    const std::int64_t row_bytes = call.value_dim * 4;
    for (std::int64_t d = 0; d < call.value_dim; d += kDepth) {
      for (int half = 0; half < halves; ++half)
        MatrixPath::pair_values(memory, call.v.type, half, d);
      float* const o = state.o + d;
      if (first) {
        MatrixUnit::zero<2>();
        MatrixUnit::zero<3>();
      } else {
        MatrixUnit::load<2>(o, row_bytes);
        MatrixUnit::load<3>(o + kRows, row_bytes);
      }
      for (int half = 0; half < halves; ++half) {
        memory.fetcher->fetch(MatrixPath::kFetched);
        MatrixUnit::load<7>(turned_weights(half), kTileBytes);
        MatrixUnit::load<4>(MatrixPath::values_of(memory.v, 0, half), MatrixPath::kRowBytes);
        MatrixUnit::multiply<2, 7, 4>();
        MatrixUnit::load<5>(MatrixPath::values_of(memory.v, 1, half), MatrixPath::kRowBytes);
        MatrixUnit::multiply<3, 7, 5>();
      }
      MatrixUnit::store<2>(o, row_bytes);
      MatrixUnit::store<3>(o + kRows, row_bytes);
    }
  }

  /// [lane][pair] of 32 keys, beside [pair][lane]: with one vector of lanes the next is free.
  float* turned_weights(int half) const { return weights(1) + half * kPairs * kTile; }
  void turn_weights(int halves) const {
    for (int half = 0; half < halves; ++half) {
      Simd::V pair[kPairs];
      for (int i = 0; i < kPairs; ++i)
        pair[i] = Simd::load(weights(0) + (half * kPairs + i) * kTile);
      Simd::transpose(pair);
      for (int lane = 0; lane < kLanes; ++lane)
        Simd::store(turned_weights(half) + lane * kTile, pair[lane]);
    }
  }

  /// Sums by rows become those that all else expects.
  void turn_rows_back(State& state) const {
    if (state.rows == 0) return;
    float* const by_rows = memory.v;  // has room for 32 rows
    std::memcpy(by_rows, state.o, static_cast<std::size_t>(state.rows * call.value_dim) * 4);
    for (std::int64_t d = 0; d < call.value_dim; d += kRows) {
      Simd::V dims[kRows];
      for (int row = 0; row < kRows; ++row) {
        dims[row] =
            row < state.rows ? Simd::load(by_rows + row * call.value_dim + d) : Simd::zero();
      }
      Simd::transpose(dims);
      float* const o = state.o + (d / kDepth * kDepth + d % kDepth / 4) * kTile;
      for (int i = 0; i < kRows; ++i) Simd::store(o + (i / 4 * 8 + i % 4) * kTile, dims[i]);
    }
    state.rows = 0;
  }

  /// A vector of lanes, what of a block it sees, and whether there are sums before it.
  struct Part {
    int v;
    bool low, high, first;
  };

  /// Up to 32 dims from 16 g on, of which the values lie where those from 16 `at` on would.
  void add_dims(const Part& part, std::int64_t at, State& state, std::int64_t g) const {
    float* const o = state.o + g * kRows * kTile + part.v * kLanes;
    const std::int64_t dims = call.value_dim - g * kRows;
    if (dims >= 2 * kRows) return sum_dims<2>(part, at, o, kTileBytes);
    sum_some(part, at, o, dims);
    if (dims > kRows) sum_some(part, at + 1, o + kRows * kTile, dims - kRows);
  }

  /// Pairs that no segment covers, within halves that any does. Segments begin at multiples of 8
  /// keys.
  void clear_unseen(const Sight& sight, int keys) const {
    if (sight.kind == Sight::everything && keys == kKeyBlock) return;
    std::uint32_t seen[kVectors] = {};
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      const auto below = [](int key) { return (std::uint64_t{1} << ((key + 1) / 2)) - 1; };
      const auto pairs = static_cast<std::uint32_t>(below(part.key_end) & ~below(part.key_begin));
      for (int v = part.first; v < part.last; ++v) seen[v] |= pairs;
    }
    for (int pair = 0; pair < kKeyBlock / 2; ++pair) {
      for (int v = 0; v < vectors; ++v) {
        if ((seen[v] >> pair & 1) == 0) Simd::store(weights(v) + pair * kTile, Simd::zero());
      }
    }
  }

  /// Of 16 or 32 dims whose values begin at matrix g; rows of their sums are `stride` bytes apart.
  template <int kG>
  POLYHEAD_INLINE void sum_dims(const Part& part, std::int64_t g, float* o,
                                std::int64_t stride) const {
    float* const second = o + kRows * (stride / 4);
    if (part.first) {
      MatrixUnit::zero<0>();
      if constexpr (kG == 2) MatrixUnit::zero<1>();
    } else {
      MatrixUnit::load<0>(o, stride);
      if constexpr (kG == 2) MatrixUnit::load<1>(second, stride);
    }
    if (part.low) sum_half<kG>(part.v, g, 0);
    if (part.high) sum_half<kG>(part.v, g, 1);
    MatrixUnit::store<0>(o, stride);
    if constexpr (kG == 2) MatrixUnit::store<1>(second, stride);
  }
  template <int kG>
  POLYHEAD_INLINE void sum_half(int v, std::int64_t g, int half) const {
    memory.fetcher->fetch(MatrixPath::kFetched);
    MatrixUnit::load<6>(weights(v) + half * kPairs * kTile, kTileBytes);
    MatrixUnit::load<4>(MatrixPath::values_of(memory.v, g, half), MatrixPath::kRowBytes);
    MatrixUnit::multiply<0, 4, 6>();
    if constexpr (kG == 2) {
      MatrixUnit::load<5>(MatrixPath::values_of(memory.v, g + 1, half), MatrixPath::kRowBytes);
      MatrixUnit::multiply<1, 5, 6>();
    }
  }

  /// Of the last dims: as many as there are, by way of a matrix of their own.
  void sum_some(const Part& part, std::int64_t g, float* o, std::int64_t dims) const {
    if (dims >= kRows) return sum_dims<1>(part, g, o, kTileBytes);
    alignas(64) float some[kRows * kLanes] = {};
    for (std::int64_t d = 0; d < dims; ++d)
      Simd::store(some + d * kLanes, Simd::load(o + d * kTile));
    sum_dims<1>(part, g, some, kLanes * 4);
    for (std::int64_t d = 0; d < dims; ++d)
      Simd::store(o + d * kTile, Simd::load(some + d * kLanes));
  }

  // --- values that are not finite ---

  /// The same by lanes, in the order of the matrix unit: a NaN that a lane does not see would leak
  /// through 0 times NaN.
  void add_by_lanes(const Sight& sight, State& state, bool first) const {
    Simd::StoredMask seen[kKeyBlock * kVectors] = {};
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      for (int key = part.key_begin; key < part.key_end; ++key) {
        for (int v = part.first; v < part.last; ++v)
          seen[key * kVectors + v] =
              part.full ? Simd::store_mask(everywhere()) : sight.masks[key * kVectors + v];
      }
    }
    for (int v = 0; v < vectors; ++v) {
      for (std::int64_t d = 0; d < call.value_dim; ++d) {
        float* const o = state.o + d * kTile + v * kLanes;
        Simd::V sum = first ? Simd::zero() : Simd::load(o);
        for (int half = 0; half < 2; ++half) {
          if (covers(sight, v, half))
            sum = Simd::add(sum, half_of_dim(d, half, weights(v), seen + v));
        }
        Simd::store(o, sum);
      }
    }
  }

  static Simd::M everywhere() { return Simd::equal(Simd::zero(), Simd::zero()); }

  Simd::V half_of_dim(std::int64_t d, int half, const float* weights,
                      const Simd::StoredMask* seen) const {
    const float* row = MatrixPath::values_of(memory.v, d / kRows, half) + d % kRows * kRows;
    Simd::V even = Simd::zero(), odd = Simd::zero();
    for (int i = 0; i < kPairs; ++i) {
      const int pair = half * kPairs + i;
      const Simd::I value =
          Simd::bits(Simd::broadcast_at(reinterpret_cast<const std::byte*>(row + i)));
      const Simd::I weight = Simd::bits(Simd::load(weights + pair * kTile));
      even = Simd::fma_masked(Simd::load_mask(seen[2 * pair * kVectors]), low_half(value),
                              low_half(weight), even);
      odd = Simd::fma_masked(Simd::load_mask(seen[(2 * pair + 1) * kVectors]), high_half(value),
                             high_half(weight), odd);
    }
    return Simd::add(even, odd);
  }

  /// The halves of pairs as float32, subnormal ones as zero.
  static Simd::V low_half(Simd::I pair) {
    return normal(Simd::from_bits(_mm512_slli_epi32(pair, 16)));
  }
  static Simd::V high_half(Simd::I pair) {
    return normal(Simd::from_bits(
        Simd::and_int(pair, Simd::broadcast_int(static_cast<std::int32_t>(0xffff0000)))));
  }
  static Simd::V normal(Simd::V x) {
    const Simd::M exponent = Simd::test(Simd::bits(x), Simd::broadcast_int(0x7f800000));
    return Simd::select(exponent, x, Simd::zero());
  }
};
