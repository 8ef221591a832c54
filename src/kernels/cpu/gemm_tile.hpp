// One tile of a product: rows of x are broadcast, a panel's weights are the lanes. Included inside
// an ISA namespace after outer_product.hpp and rows.hpp.

inline constexpr std::int64_t kGemmChunk = 16;  // steps between prefetches: a line of a row of x
// Bytes fetched ahead when weights only stream by, and those that are converted.
inline constexpr std::int64_t kGemmLead = 4096, kConvertedLead = 2048;

/// How weights lie and multiply: `kInputs` inputs a step, `kBytes` bytes a lane, a whole number of
/// `kWholeSteps` steps; kRows rows of x a tile, which begin at multiples of kAlignment bytes;
/// kGroup panels that share a pass over the rows.
struct WeightsOfLanes {
  using Unit = NoMatrixUnit;
  static constexpr int kRows = Simd::kRows, kWholeSteps = 1, kGroup = 2;
  static constexpr int kAlignment = 1;
};
struct Float32Weights : WeightsOfLanes {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 4;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load(reinterpret_cast<const float*>(p));
  }
};
struct Float16Weights : WeightsOfLanes {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 2;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load_float16(reinterpret_cast<const std::uint16_t*>(p));
  }
};
struct Bfloat16Weights : WeightsOfLanes {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 2;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load_bfloat16(reinterpret_cast<const std::uint16_t*>(p));
  }
};

#if defined(POLYHEAD_SIMD_BF16)
struct Bfloat16Pairs : WeightsOfLanes {
  using Dot = DotBf16;
  static constexpr int kInputs = 2, kBytes = 4;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load(reinterpret_cast<const float*>(p));
  }
};
#endif

#if defined(POLYHEAD_SIMD_AMX)
/// Pairs of inputs, 16 of them a row of a matrix. Arithmetic takes so little time that x must not
/// be read for every two panels.
struct Bfloat16Matrices {
  using Unit = MatrixUnit;
  static constexpr int kInputs = 2, kBytes = 4;
  static constexpr int kRows = 2 * MatrixUnit::kRows, kWholeSteps = MatrixUnit::kDepth / 2;
  static constexpr int kGroup = 8, kAlignment = 64;
};
using GemmBfloat16 = Bfloat16Matrices;
#elif defined(POLYHEAD_SIMD_BF16)
using GemmBfloat16 = Bfloat16Pairs;
#else
using GemmBfloat16 = Bfloat16Weights;
#endif

/// Steps of one panel.
template <class Weights>
POLYHEAD_INLINE std::int64_t gemm_steps(std::int64_t in) {
  constexpr std::int64_t kWhole = Weights::kInputs * Weights::kWholeSteps;
  return (in + kWhole - 1) / kWhole * Weights::kWholeSteps;
}

/// Rows of the next row tile of x that each panel of a group fetches.
template <class Weights>
inline constexpr int kGemmNextRows = (Weights::kRows + Weights::kGroup - 1) / Weights::kGroup;

/// One tile of kR rows and one panel, over `steps` steps.
struct GemmTile {
  const std::byte* x;
  std::int64_t x_row;
  const std::byte* weights;
  std::int64_t steps;
  float* sums;  ///< partial sums in, where not `first`, and out, where not `last`
  std::int64_t sums_row;
  std::int64_t columns;  ///< of the panel that exist
  const float* bias;
  bool first, last;

  // What comes next, fetched a little in every chunk of steps (outcomes do not depend on it): its
  // share of the next rows of x, a slice of the next weights, and the sums of the next tile.
  const std::byte *next_x, *next_weights;
  std::int64_t next_lines;  ///< of weights, a chunk
  const std::byte* next_sums;
  std::int64_t next_sums_row;  ///< bytes
};

template <int kR>
POLYHEAD_INLINE void load_sums(Simd::V (&acc)[kR][kVectors], const GemmTile& tile) {
  for (int r = 0; r < kR; ++r) {
    const float* row = tile.sums + r * tile.sums_row;
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t left = tile.columns - v * kLanes;
      if (tile.first)
        acc[r][v] = Simd::zero();
      else if (left >= kLanes)
        acc[r][v] = Simd::load(row + v * kLanes);
      else
        acc[r][v] =
            left > 0 ? Simd::load_first(row + v * kLanes, static_cast<int>(left)) : Simd::zero();
    }
  }
}

template <int kR>
POLYHEAD_INLINE void store_sums(const Simd::V (&acc)[kR][kVectors], float* to, std::int64_t to_row,
                                std::int64_t columns) {
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t left = columns - v * kLanes;
      float* const at = to + r * to_row + v * kLanes;
      if (left >= kLanes)
        Simd::store(at, acc[r][v]);
      else if (left > 0)
        Simd::store_first(at, acc[r][v], static_cast<int>(left));
    }
  }
}

template <int kR>
POLYHEAD_INLINE void add_bias(Simd::V (&acc)[kR][kVectors], const float* bias,
                              std::int64_t columns) {
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t left = std::min<std::int64_t>(columns - v * kLanes, kLanes);
    if (left <= 0) return;
    const Simd::V b = Simd::load_first(bias + v * kLanes, static_cast<int>(left));
    for (int r = 0; r < kR; ++r) acc[r][v] = Simd::add(acc[r][v], b);
  }
}

POLYHEAD_INLINE void fetch_sums(const GemmTile& tile, std::int64_t row) {
  const std::byte* const at = tile.next_sums + row * tile.next_sums_row;
  for (int line = 0; line < kTile * 4; line += 64) __builtin_prefetch(at + line, 1, 3);
}

/// One step of a tile: x broadcast from two bases, which suit x86's addressing modes.
template <class Weights, int kR>
POLYHEAD_INLINE void gemm_step(Simd::V (&acc)[kR][kVectors], const std::byte* low,
                               const std::byte* high, std::int64_t x_row, const std::byte* w) {
  Simd::V lane[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) lane[v] = Weights::load(w + v * kLanes * Weights::kBytes);
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    const Simd::V x = Simd::broadcast_at(r < 4 ? low + r * x_row : high + (r - 4) * x_row);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Weights::Dot::dot(x, lane[v], acc[r][v]);
  }
}

/// acc[row][vector] += x(row, step) * weights[step][vector] over a whole tile of rows.
template <class Weights, int kR>
POLYHEAD_INLINE void gemm_chain(Simd::V (&acc)[kR][kVectors], const GemmTile& tile) {
  constexpr int kStepBytes = kTile * Weights::kBytes;
  const std::byte* low = tile.x;
  const std::byte* high = tile.x + 4 * tile.x_row;
  const std::byte* w = tile.weights;
  const std::byte* next = tile.next_weights;
  // Rows of sums a chunk: all their lines at once, and L1 would wait for no other ones meanwhile.
  const std::int64_t chunks = std::max<std::int64_t>(tile.steps / kGemmChunk, 1);
  const std::int64_t sums_a_chunk = (kR + chunks - 1) / chunks;
  std::int64_t along = 0, sums = 0;
  std::int64_t left = tile.steps;
  for (; left >= kGemmChunk; left -= kGemmChunk) {
    for (int line = 0; line < kGemmChunk * 4; line += 64) {
#pragma GCC unroll 8
      for (int r = 0; r < kGemmNextRows<Weights>; ++r)
        __builtin_prefetch(tile.next_x + r * tile.x_row + along + line, 0, 3);
    }
    along += kGemmChunk * 4;
    for (std::int64_t line = 0; line < tile.next_lines; ++line, next += 64) {
      __builtin_prefetch(next, 0, 2);
    }
    const std::int64_t sums_end = std::min<std::int64_t>(sums + sums_a_chunk, kR);
    for (; sums < sums_end; ++sums) fetch_sums(tile, sums);
    for (int s = 0; s < kGemmChunk; ++s) {
      gemm_step<Weights, kR>(acc, low, high, tile.x_row, w);
      low += 4;
      high += 4;
      w += kStepBytes;
    }
  }
  for (; left > 0; --left) {
    gemm_step<Weights, kR>(acc, low, high, tile.x_row, w);
    low += 4;
    high += 4;
    w += kStepBytes;
  }
}

/// The same for few rows, whose weights only stream by. They are fetched into L2, from where
/// processors take them in time, since L1 waits for few lines at once; those that are converted
/// come by more slowly and gain more from L1 (docs/kernel-notes.md).
template <class Weights, int kR>
POLYHEAD_INLINE void gemm_stream(Simd::V (&acc)[kR][kVectors], const GemmTile& tile) {
  constexpr int kStepBytes = kTile * Weights::kBytes;
  const std::byte* x = tile.x;
  const std::byte* w = tile.weights;
  for (std::int64_t s = 0; s < tile.steps; ++s) {
    if constexpr (Weights::kBytes == 4)
      fetch_lines<kStepBytes, kIntoL2>(w + kGemmLead);
    else
      fetch_lines<kStepBytes, kIntoL1>(w + kConvertedLead);
    gemm_step<Weights, kR>(acc, x, x + 4 * tile.x_row, tile.x_row, w);
    x += 4;
    w += kStepBytes;
  }
}

/// Where a finished tile goes.
struct GemmOutput {
  std::byte* y;
  ElementType type;
  std::int64_t row, column;  // bytes
  bool plain() const { return type == ElementType::float32 && column == 4; }
};

/// Sums of all steps so far to where they belong.
template <int kR>
POLYHEAD_INLINE void finish_rows(Simd::V (&acc)[kR][kVectors], const GemmTile& tile,
                                 const GemmOutput& out) {
  if (!tile.last) return store_sums<kR>(acc, tile.sums, tile.sums_row, tile.columns);
  if (tile.bias != nullptr) add_bias<kR>(acc, tile.bias, tile.columns);
  if (out.plain()) {
    return store_sums<kR>(acc, reinterpret_cast<float*>(out.y), out.row / 4, tile.columns);
  }
  alignas(64) float rows[kR][kTile];
  store_sums<kR>(acc, rows[0], kTile, kTile);
  for (int r = 0; r < kR; ++r)
    narrow_row(out.y + r * out.row, rows[r], out.type, out.column, tile.columns);
}

template <class Weights, int kR>
inline void gemm_tile(const GemmTile& tile, const GemmOutput& out) {
  Simd::V acc[kR][kVectors];
  load_sums<kR>(acc, tile);
  if constexpr (kR == Simd::kRows) {
    gemm_chain<Weights, kR>(acc, tile);
  } else {
    gemm_stream<Weights, kR>(acc, tile);
  }
  finish_rows<kR>(acc, tile, out);
}

template <class Weights>
POLYHEAD_INLINE std::int64_t gemm_rows_tile(std::int64_t rows, const GemmTile& tile,
                                            const GemmOutput& out) {
  if (rows >= Simd::kRows) return gemm_tile<Weights, Simd::kRows>(tile, out), Simd::kRows;
  if constexpr (Simd::kRows > 4) {
    if (rows >= 4) return gemm_tile<Weights, 4>(tile, out), 4;
  }
  if (rows >= 2) return gemm_tile<Weights, 2>(tile, out), 2;
  return gemm_tile<Weights, 1>(tile, out), 1;
}
