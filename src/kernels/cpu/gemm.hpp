// Projections over packed panels, on the one microkernel's pattern: rows of x are broadcast,
// weights are the lanes. Included inside an ISA namespace after gemm_quantised.hpp.

// A group of panels' weights over this many steps stay in L2 while rows pass by, and the next
// group's come in beside them: 2 panels of 48 float32 lanes are 288 KiB.
inline constexpr std::int64_t kGemmSteps = 768;
inline constexpr std::int64_t kGemmGroup = 2;  // panels that share a pass over the rows
// Rows of the next row tile of x that each panel of a group fetches.
inline constexpr int kGemmNextRows = static_cast<int>((Simd::kRows + kGemmGroup - 1) / kGemmGroup);
inline constexpr std::int64_t kGemmRows = 256;  // rows whose partial sums fit in L2 beside them
inline constexpr std::int64_t kGemmSumFloats = kGemmRows * kGemmGroup * kTile;
inline constexpr std::int64_t kGemmChunk = 16;   // steps between prefetches: a line of a row of x
inline constexpr std::int64_t kGemmLead = 2048;  // bytes fetched ahead when weights only stream by

/// How weights lie and multiply: `kInputs` inputs a step, `kBytes` bytes a lane.
struct Float32Weights {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 4;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load(reinterpret_cast<const float*>(p));
  }
};
struct Float16Weights {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 2;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load_float16(reinterpret_cast<const std::uint16_t*>(p));
  }
};
struct Bfloat16Weights {
  using Dot = DotFloat32;
  static constexpr int kInputs = 1, kBytes = 2;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load_bfloat16(reinterpret_cast<const std::uint16_t*>(p));
  }
};

#if defined(POLYHEAD_SIMD_BF16)
struct Bfloat16Pairs {
  using Dot = DotBf16;
  static constexpr int kInputs = 2, kBytes = 4;
  POLYHEAD_INLINE static Simd::V load(const std::byte* p) {
    return Simd::load(reinterpret_cast<const float*>(p));
  }
};
using GemmBfloat16 = Bfloat16Pairs;
#else
using GemmBfloat16 = Bfloat16Weights;
#endif

/// Steps of one panel.
template <class Weights>
POLYHEAD_INLINE std::int64_t gemm_steps(std::int64_t in) {
  return (in + Weights::kInputs - 1) / Weights::kInputs;
}

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

template <int kR>
POLYHEAD_INLINE void fetch_sums(const GemmTile& tile) {
  for (int r = 0; r < kR; ++r) {
    const std::byte* const row = tile.next_sums + r * tile.next_sums_row;
    for (int line = 0; line < kTile * 4; line += 64) __builtin_prefetch(row + line, 1, 3);
  }
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
  std::int64_t along = 0;
  std::int64_t left = tile.steps;
  for (; left >= kGemmChunk; left -= kGemmChunk) {
    for (int line = 0; line < kGemmChunk * 4; line += 64) {
#pragma GCC unroll 8
      for (int r = 0; r < kGemmNextRows; ++r)
        __builtin_prefetch(tile.next_x + r * tile.x_row + along + line, 0, 3);
    }
    along += kGemmChunk * 4;
    for (std::int64_t line = 0; line < tile.next_lines; ++line, next += 64) {
      __builtin_prefetch(next, 0, 2);
    }
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

/// The same for few rows, whose weights only stream by.
template <class Weights, int kR>
POLYHEAD_INLINE void gemm_stream(Simd::V (&acc)[kR][kVectors], const GemmTile& tile) {
  constexpr int kStepBytes = kTile * Weights::kBytes;
  const std::byte* x = tile.x;
  const std::byte* w = tile.weights;
  for (std::int64_t s = 0; s < tile.steps; ++s) {
#pragma GCC unroll 4
    for (int line = 0; line < kStepBytes; line += 64)
      __builtin_prefetch(w + kGemmLead + line, 0, 3);
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

template <class Weights, int kR>
inline void gemm_tile(const GemmTile& tile, const GemmOutput& out) {
  Simd::V acc[kR][kVectors];
  load_sums<kR>(acc, tile);
  if constexpr (kR == Simd::kRows) {
    fetch_sums<kR>(tile);
    gemm_chain<Weights, kR>(acc, tile);
  } else {
    gemm_stream<Weights, kR>(acc, tile);
  }
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

/// A run of rows against a group of panels, all steps: the weights of one pass stay in L2 while the
/// rows go by.
template <class Weights>
struct GemmBlock {
  static constexpr std::int64_t kStepBytes = kTile * Weights::kBytes;

  const GemmCall& call;
  const GemmRange& block;
  float* scratch;
  std::int64_t last_panel;  ///< of the range that this block is part of
  float* unpacked;          ///< where quantised weights of one pass go; null for others
  std::int64_t steps, passes, pass_steps;

  GemmBlock(const GemmCall& from, const GemmRange& range, float* memory, std::int64_t end_panel)
      : call(from), block(range), scratch(memory), last_panel(end_panel) {
    steps = gemm_steps<Weights>(call.weights.in);
    unpacked = quantised() ? scratch + kGemmSumFloats : nullptr;
    const bool streams = rows() <= Simd::kRows && !quantised();
    passes = streams ? 1 : std::max<std::int64_t>((steps + kGemmSteps - 1) / kGemmSteps, 1);
    pass_steps = (steps + passes - 1) / passes;
    if (!quantised()) return;
    const int whole = call.weights.blocks.block();  // divides kGemmSteps
    pass_steps = (pass_steps + whole - 1) / whole * whole;
    passes = (steps + pass_steps - 1) / pass_steps;
  }

  bool quantised() const { return call.weights.blocks.bits != 0; }

  void unpack(std::int64_t first, std::int64_t count) const {
    const QuantisedKernels& kernels = kernels_of(call.weights.blocks);
    for (std::int64_t panel = block.first_panel; panel < block.end_panel; ++panel) {
      kernels.unpack(call.weights, panel, first, count,
                     unpacked + (panel - block.first_panel) * pass_steps * kTile);
    }
  }

  std::int64_t rows() const { return block.end_row - block.first_row; }

  const std::byte* x_at(std::int64_t row, std::int64_t step) const {
    return call.x + row * call.x_row + step * 4;
  }

  const std::byte* weights_at(std::int64_t panel, std::int64_t step) const {
    if (unpacked != nullptr) {
      const std::int64_t at = (panel - block.first_panel) * pass_steps + step % pass_steps;
      return reinterpret_cast<const std::byte*>(unpacked + at * kTile);
    }
    return call.weights.panels + (panel * steps + step) * kStepBytes;
  }

  GemmOutput output_at(std::int64_t row, std::int64_t panel) const {
    return {call.y + row * call.y_row + panel * kTile * call.y_column, call.y_type, call.y_row,
            call.y_column};
  }

  /// Where a tile's partial sums lie: in y itself where it can hold them.
  void place_sums(GemmTile& tile, std::int64_t row, std::int64_t panel) const {
    const GemmOutput y = output_at(row, panel);
    if (y.plain()) {
      tile.sums = reinterpret_cast<float*>(y.y);
      tile.sums_row = y.row / 4;
      return;
    }
    tile.sums_row = kGemmGroup * kTile;
    tile.sums =
        scratch + (row - block.first_row) * tile.sums_row + (panel - block.first_panel) * kTile;
  }

  /// What to fetch while a tile is computed: x of the next row tile, shared out over the panels of
  /// the group, and the panel's weights of the next pass or group, shared out over the row tiles.
  void look_ahead(GemmTile& tile, std::int64_t pass, std::int64_t row, std::int64_t panel) const {
    const bool more_rows = row + Simd::kRows < block.end_row;
    const bool more_passes = pass + 1 < passes;
    const std::int64_t next_step = more_passes ? (pass + 1) * pass_steps : 0;
    const std::byte* const x =
        more_rows ? x_at(row + Simd::kRows, pass * pass_steps) : x_at(block.first_row, next_step);
    tile.next_x = x + (panel - block.first_panel) * kGemmNextRows * call.x_row;

    const std::int64_t tiles = std::max<std::int64_t>(rows() / Simd::kRows, 1);
    const std::int64_t next_panel = more_passes ? panel : panel + kGemmGroup;
    tile.next_lines = 0;
    if (next_panel < last_panel && unpacked == nullptr) {
      tile.next_lines = (kGemmChunk * kStepBytes / 64 + tiles - 1) / tiles;
      const std::int64_t slice =
          tile.next_lines * 64 * ((pass_steps + kGemmChunk - 1) / kGemmChunk);
      tile.next_weights =
          weights_at(next_panel, next_step) + (row - block.first_row) / Simd::kRows * slice;
    }
    const bool same_row = panel + 1 < block.end_panel;
    GemmTile next{};
    place_sums(next, same_row ? row : (more_rows ? row + Simd::kRows : block.first_row),
               same_row ? panel + 1 : block.first_panel);
    tile.next_sums = reinterpret_cast<const std::byte*>(next.sums);
    tile.next_sums_row = next.sums_row * 4;
  }

  void run() const {
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const std::int64_t step = pass * pass_steps;
      GemmTile tile{};
      tile.x_row = call.x_row;
      tile.steps = std::min(pass_steps, steps - step);
      tile.first = pass == 0;
      tile.last = pass == passes - 1;
      if (unpacked != nullptr) unpack(step, tile.steps);
      std::int64_t done = 0;
      for (std::int64_t row = block.first_row; row < block.end_row; row += done) {
        tile.x = x_at(row, step);
        for (std::int64_t panel = block.first_panel; panel < block.end_panel; ++panel) {
          const std::int64_t column = panel * kTile;
          tile.weights = weights_at(panel, step);
          tile.columns = std::min<std::int64_t>(kTile, call.weights.out - column);
          tile.bias = call.bias != nullptr ? call.bias + column : nullptr;
          place_sums(tile, row, panel);
          look_ahead(tile, pass, row, panel);
          done = gemm_rows_tile<Weights>(block.end_row - row, tile, output_at(row, panel));
        }
      }
    }
  }
};

template <class Weights>
inline void gemm_range(const GemmCall& call, const GemmRange& range, std::byte* scratch) {
  const bool plain = call.y_type == ElementType::float32 && call.y_column == 4;
  // Without float32 rows of y to keep partial sums in, scratch bounds the rows that pass at once.
  const bool one_pass = gemm_steps<Weights>(call.weights.in) <= kGemmSteps;
  const std::int64_t run = plain || one_pass ? range.end_row - range.first_row : kGemmRows;
  if (run == 0) return;
  for (std::int64_t panel = range.first_panel; panel < range.end_panel; panel += kGemmGroup) {
    for (std::int64_t row = range.first_row; row < range.end_row; row += run) {
      const GemmRange block{row, std::min(row + run, range.end_row), panel,
                            std::min(panel + kGemmGroup, range.end_panel)};
      GemmBlock<Weights>(call, block, reinterpret_cast<float*>(scratch), range.end_panel).run();
    }
  }
}

inline void gemm_multiply(const GemmCall& call, const GemmRange& range, std::byte* scratch) {
  const base::BlockForm& form = call.weights.blocks;
  if (form.bits != 0 && range.end_row - range.first_row <= kQuantisedRows) {
    return kernels_of(form).few_rows(call, range);
  }
  switch (call.weights.type) {
    case ElementType::float16:
      return gemm_range<Float16Weights>(call, range, scratch);
    case ElementType::bfloat16:
      return gemm_range<GemmBfloat16>(call, range, scratch);
    default:
      return gemm_range<Float32Weights>(call, range, scratch);
  }
}
