// The two products of a tile where the processor multiplies matrices: S^T = K Q^T and O^T += V^T
// P^T of a whole block of keys at once. What no segment covers has a weight of 0. Included inside
// an ISA namespace after path_matrix.hpp, tile.hpp and fetcher.hpp.

struct MatrixProducts {
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

  /// scores[key][lane] of what the segments cover, and of more.
  static void scores(const Sight& sight, const BroadcastOperand& k, const float* q,
                     std::int64_t steps, int vectors, float* to) {
    for (int half = 0; half * kDepth < kKeyBlock; ++half) {
      const BroadcastOperand at{k.data + half * kDepth * k.row_bytes, k.row_bytes, 4};
      float* const rows = to + half * kDepth * kTile;
      // Two vectors share each load of keys.
      int v = 0;
      for (; v + 2 <= vectors; v += 2) {
        if (covers(sight, v, half) || covers(sight, v + 1, half))
          score_keys<2>(at, q + v * kLanes, steps, rows + v * kLanes);
      }
      if (v < vectors && covers(sight, v, half))
        score_keys<1>(at, q + v * kLanes, steps, rows + v * kLanes);
    }
  }

  /// Of 32 keys and one or two vectors of lanes.
  template <int kV>
  POLYHEAD_INLINE static void score_keys(const BroadcastOperand& k, const float* q,
                                         std::int64_t steps, float* to) {
    MatrixUnit::zero<0>();
    MatrixUnit::zero<1>();
    if constexpr (kV == 2) {
      MatrixUnit::zero<2>();
      MatrixUnit::zero<3>();
    }
    for (std::int64_t s = 0; s < steps; s += kPairs) {
      const std::byte* const keys = k.data + s * 4;
      MatrixUnit::load<4>(keys, k.row_bytes);
      MatrixUnit::load<6>(q + s * kTile, kTileBytes);
      MatrixUnit::multiply<0, 4, 6>();
      MatrixUnit::load<5>(keys + kRows * k.row_bytes, k.row_bytes);
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

  /// Adds a block; `first`: to nothing, whatever lies there. Weights are pairs of keys,
  /// [pair][lane].
  static void add(const Sight& sight, State& state, const KeyBlock& rows, float* weights,
                  std::int64_t value_dim, int keys, int vectors, bool first, Fetcher& fetcher) {
    clear_unseen(sight, weights, keys, vectors);
    float* const values = reinterpret_cast<float*>(const_cast<std::byte*>(rows.v.data));
    if (rows.finite == KeyBlock::no && sight.kind == Sight::some)
      return add_by_lanes(sight, state, values, weights, value_dim, vectors, first);
    for (int v = 0; v < vectors; ++v) {
      const bool low = covers(sight, v, 0), high = covers(sight, v, 1);
      if (!first && !low && !high) continue;
      std::int64_t g = 0;
      for (; (g + 2) * kRows <= value_dim; g += 2) {
        fetch(fetcher, values);
        sum_dims<2>(state.o + g * kRows * kTile + v * kLanes, kTileBytes, values, g,
                    weights + v * kLanes, low, high, first);
      }
      for (; g * kRows < value_dim; ++g)
        sum_some(state.o + v * kLanes, value_dim, values, g, weights + v * kLanes, low, high,
                 first);
    }
  }

  /// Pairs that no segment covers, within halves that any does. Segments begin at multiples of 8
  /// keys.
  static void clear_unseen(const Sight& sight, float* weights, int keys, int vectors) {
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
        if ((seen[v] >> pair & 1) == 0)
          Simd::store(weights + pair * kTile + v * kLanes, Simd::zero());
      }
    }
  }

  /// A few lines of what comes later.
  POLYHEAD_INLINE static void fetch(Fetcher& fetcher, const float* idle) {
    constexpr int kLines = 16;
    const Stream lines = fetcher.take(reinterpret_cast<const std::byte*>(idle), kLines);
    if (lines.stride == 0) return;
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(lines.at + i * lines.stride, 0, 2);
  }

  /// Of 16 or 32 dims and one vector of lanes; rows of o are `stride` bytes apart.
  template <int kG>
  POLYHEAD_INLINE static void sum_dims(float* o, std::int64_t stride, float* values, std::int64_t g,
                                       const float* weights, bool low, bool high, bool first) {
    float* const second = o + kRows * (stride / 4);
    if (first) {
      MatrixUnit::zero<0>();
      if constexpr (kG == 2) MatrixUnit::zero<1>();
    } else {
      MatrixUnit::load<0>(o, stride);
      if constexpr (kG == 2) MatrixUnit::load<1>(second, stride);
    }
    if (low) sum_half<kG>(values, g, 0, weights);
    if (high) sum_half<kG>(values, g, 1, weights);
    MatrixUnit::store<0>(o, stride);
    if constexpr (kG == 2) MatrixUnit::store<1>(second, stride);
  }
  template <int kG>
  POLYHEAD_INLINE static void sum_half(float* values, std::int64_t g, int half,
                                       const float* weights) {
    MatrixUnit::load<6>(weights + half * kPairs * kTile, kTileBytes);
    MatrixUnit::load<4>(MatrixPath::values_of(values, g, half), MatrixPath::kRowBytes);
    MatrixUnit::multiply<0, 4, 6>();
    if constexpr (kG == 2) {
      MatrixUnit::load<5>(MatrixPath::values_of(values, g + 1, half), MatrixPath::kRowBytes);
      MatrixUnit::multiply<1, 5, 6>();
    }
  }

  /// Of the last dims: as many as there are, by way of a matrix of their own.
  static void sum_some(float* o, std::int64_t value_dim, float* values, std::int64_t g,
                       const float* weights, bool low, bool high, bool first) {
    float* const at = o + g * kRows * kTile;
    const auto dims = static_cast<int>(std::min<std::int64_t>(kRows, value_dim - g * kRows));
    if (dims == kRows) return sum_dims<1>(at, kTileBytes, values, g, weights, low, high, first);
    alignas(64) float some[kRows * kLanes] = {};
    for (int d = 0; d < dims; ++d) Simd::store(some + d * kLanes, Simd::load(at + d * kTile));
    sum_dims<1>(some, kLanes * 4, values, g, weights, low, high, first);
    for (int d = 0; d < dims; ++d) Simd::store(at + d * kTile, Simd::load(some + d * kLanes));
  }

  // --- values that are not finite ---

  /// The same by lanes, in the order of the matrix unit: a NaN that a lane does not see would leak
  /// through 0 times NaN.
  static void add_by_lanes(const Sight& sight, State& state, float* values, const float* weights,
                           std::int64_t value_dim, int vectors, bool first) {
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
      for (std::int64_t d = 0; d < value_dim; ++d) {
        float* const o = state.o + d * kTile + v * kLanes;
        Simd::V sum = first ? Simd::zero() : Simd::load(o);
        for (int half = 0; half < 2; ++half) {
          if (covers(sight, v, half))
            sum = Simd::add(sum, half_of_dim(values, d, half, weights + v * kLanes, seen + v));
        }
        Simd::store(o, sum);
      }
    }
  }

  static Simd::M everywhere() { return Simd::equal(Simd::zero(), Simd::zero()); }

  static Simd::V half_of_dim(float* values, std::int64_t d, int half, const float* weights,
                             const Simd::StoredMask* seen) {
    const float* row = MatrixPath::values_of(values, d / kRows, half) + d % kRows * kRows;
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
