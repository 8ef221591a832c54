// The weighted sum of one tile: O^T += V^T P^T for a block of keys. Included inside an ISA
// namespace after outer_product.hpp, tile.hpp, fetcher.hpp and a path.

template <class Path>
struct TileValues {
  const AttendCall& call;
  const Scratch& memory;
  Fetcher& fetcher;

  /// Adds a block; `first`: to nothing, whatever lies there.
  void add(const Sight& sight, State& state, KeyBlock& rows, int keys, int vectors, bool first) {
    if constexpr (Path::kMatrix)
      typename Path::Products{call, memory, vectors}.add(sight, state, rows, keys, first);
    else if constexpr (Path::kInteger)
      add_integers(state, rows, keys, vectors, first);
    else
      add_segments(sight, state, rows, keys, vectors, first);
  }

 private:
  void add_segments(const Sight& sight, State& state, KeyBlock& rows, int keys, int vectors,
                    bool first) {
    const bool whole =
        sight.segments == 1 && sight.segment[0].first == 0 && sight.segment[0].last == vectors;
    if (first && !whole)
      std::memset(state.o, 0, static_cast<std::size_t>(call.value_dim * kTile) * sizeof(float));
    if (rows.finite == KeyBlock::unknown && sight.kind == Sight::some)
      Path::check_finite(rows, keys, call.value_dim);
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      const bool fresh = first && whole;
      switch (part.last - part.first) {
        case 1:
          add_part<1>(sight, part, state, rows, fresh);
          break;
        case 2:
          add_part<2>(sight, part, state, rows, fresh);
          break;
        default:
          add_part<3>(sight, part, state, rows, fresh);
          break;
      }
    }
  }

  template <int kV>
  void add_part(const Sight& sight, const Segment& part, State& state, KeyBlock& rows, bool fresh) {
    constexpr int kR = kRowsBeside<kV>;
    std::int64_t d = 0;
    for (; d + kR <= call.value_dim; d += kR) add_rows<kR, kV>(sight, part, state, rows, d, fresh);
    for (; d + 4 <= call.value_dim; d += 4) add_rows<4, kV>(sight, part, state, rows, d, fresh);
    for (; d < call.value_dim; ++d) add_rows<1, kV>(sight, part, state, rows, d, fresh);
  }

  template <int kR, int kV>
  POLYHEAD_INLINE void add_rows(const Sight& sight, const Segment& part, State& state,
                                KeyBlock& rows, std::int64_t d, bool fresh) {
    using V = Simd::V;
    V acc[kR][kV];
    float* o = state.o + d * kTile + part.first * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v)
        acc[r][v] = fresh ? Simd::zero() : Simd::load(o + r * kTile + v * kLanes);
    }
    const std::int64_t step = Path::steps(part.key_begin), steps = Path::steps(part.key_end) - step;
    const BroadcastOperand at{rows.v.data + d * 4 + step * rows.v.step_bytes, 4, rows.v.step_bytes};
    const float* p = memory.scores + step * kTile + part.first * kLanes;
    if (part.full || (!Path::kBfloat16 && rows.finite == KeyBlock::yes)) {
      const std::byte* idle = reinterpret_cast<const std::byte*>(p);
      const Stream stream = kR > 1 ? fetcher.take(idle, steps) : Stream{idle, 0};
      outer_product<typename Path::Dot, kR, kV, true>(acc, at, p, kTile, steps, stream);
    } else {
      Path::template weigh_masked<kR, kV>(acc, at, p, sight.masks + part.first, part.key_begin,
                                          steps, rows.finite == KeyBlock::yes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Simd::store(o + r * kTile + v * kLanes, acc[r][v]);
    }
  }

  // On the integer path the whole block is one sum of integers for each block of dims.

  void add_integers(State& state, const KeyBlock& rows, int keys, int vectors, bool fresh) {
    switch (vectors) {
      case 1:
        return add_blocks<1>(state, rows, keys, fresh);
      case 2:
        return add_blocks<2>(state, rows, keys, fresh);
      default:
        return add_blocks<3>(state, rows, keys, fresh);
    }
  }

  template <int kV>
  void add_blocks(State& state, const KeyBlock& rows, int keys, bool fresh) {
    constexpr int kR = Path::kValueRows;
    alignas(64) float back[kTile];
    for (std::int64_t first = 0; first < call.value_dim; first += Path::kBlock) {
      const std::int64_t end = std::min<std::int64_t>(call.value_dim, first + Path::kBlock);
      const float* scales = memory.v_scales + first / Path::kBlock * kKeyBlock;
      Path::template round_tile<kV>(memory.rounded, back, memory.scores, scales, keys);
      std::int64_t d = first;
      for (; d + kR <= end; d += kR) add_dims<kR, kV>(state, rows, keys, d, back, fresh);
      for (; d + 2 <= end; d += 2) add_dims<2, kV>(state, rows, keys, d, back, fresh);
      for (; d < end; ++d) add_dims<1, kV>(state, rows, keys, d, back, fresh);
    }
  }

  template <int kR, int kV>
  POLYHEAD_INLINE void add_dims(State& state, const KeyBlock& rows, int keys, std::int64_t d,
                                const float* back, bool fresh) {
    Simd::V acc[kR][kV];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
    }
    const std::int64_t steps = (keys + 1) / 2;
    const BroadcastOperand at{rows.v.data + d * 4, 4, rows.v.step_bytes};
    const std::byte* idle = reinterpret_cast<const std::byte*>(memory.rounded);
    const Stream stream = kR > 1 ? fetcher.take(idle, steps) : Stream{idle, 0};
    outer_product<typename Path::Dot, kR, kV, true>(acc, at, memory.rounded, kTile, steps, stream);
    float* o = state.o + d * kTile;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        float* to = o + r * kTile + v * kLanes;
        const Simd::V before = fresh ? Simd::zero() : Simd::load(to);
        const Simd::V unit = Simd::load(back + v * kLanes);
        Simd::store(to, Simd::fma(Simd::to_float(Simd::bits(acc[r][v])), unit, before));
      }
    }
  }
};
