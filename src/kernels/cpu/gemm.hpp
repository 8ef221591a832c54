// Projections over packed panels. Included inside an ISA namespace after gemm_tile.hpp and
// gemm_quantised.hpp.

// A group of panels' weights over this many steps stay in L2 while rows pass by, and the next
// group's come in beside them: 2 panels of 48 float32 lanes are 288 KiB, 8 of pairs 1.1 MiB of the
// 2 MiB that processors with AMX have.
inline constexpr std::int64_t kGemmSteps = 768;
inline constexpr std::int64_t kGemmRows = 256;  // rows whose partial sums fit in L2 beside them
inline constexpr std::int64_t kGemmSumFloats = kGemmRows * GemmBfloat16::kGroup * kTile;

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
    const bool streams = rows() <= Weights::kRows && !quantised();
    passes = streams ? 1 : std::max<std::int64_t>((steps + kGemmSteps - 1) / kGemmSteps, 1);
    pass_steps = (steps + passes - 1) / passes;
    const int whole =  // divides kGemmSteps
        quantised() ? call.weights.blocks.block() : Weights::kWholeSteps;
    pass_steps = std::max<std::int64_t>((pass_steps + whole - 1) / whole * whole, 1);
    passes = std::max<std::int64_t>((steps + pass_steps - 1) / pass_steps, 1);
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
    tile.sums_row = Weights::kGroup * kTile;
    tile.sums =
        scratch + (row - block.first_row) * tile.sums_row + (panel - block.first_panel) * kTile;
  }

  /// What to fetch while a tile is computed: x of the next row tile, shared out over the panels of
  /// the group, and the panel's weights of the next pass or group, shared out over the row tiles.
  void look_ahead(GemmTile& tile, std::int64_t pass, std::int64_t row, std::int64_t panel) const {
    const bool more_rows = row + Weights::kRows < block.end_row;
    const bool more_passes = pass + 1 < passes;
    const std::int64_t next_step = more_passes ? (pass + 1) * pass_steps : 0;
    const std::byte* const x = more_rows ? x_at(row + Weights::kRows, pass * pass_steps)
                                         : x_at(block.first_row, next_step);
    tile.next_x = x + (panel - block.first_panel) * kGemmNextRows<Weights> * call.x_row;

    const std::int64_t tiles = std::max<std::int64_t>(rows() / Weights::kRows, 1);
    const std::int64_t next_panel = more_passes ? panel : panel + Weights::kGroup;
    tile.next_lines = 0;
    if (next_panel < last_panel && unpacked == nullptr) {
      tile.next_lines = (kGemmChunk * kStepBytes / 64 + tiles - 1) / tiles;
      const std::int64_t slice =
          tile.next_lines * 64 * ((pass_steps + kGemmChunk - 1) / kGemmChunk);
      tile.next_weights =
          weights_at(next_panel, next_step) + (row - block.first_row) / Weights::kRows * slice;
    }
    const bool same_row = panel + 1 < block.end_panel;
    GemmTile next{};
    place_sums(next, same_row ? row : (more_rows ? row + Weights::kRows : block.first_row),
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
  [[maybe_unused]] const typename Weights::Unit unit;
  for (std::int64_t panel = range.first_panel; panel < range.end_panel; panel += Weights::kGroup) {
    for (std::int64_t row = range.first_row; row < range.end_row; row += run) {
      const GemmRange block{row, std::min(row + run, range.end_row), panel,
                            std::min(panel + Weights::kGroup, range.end_panel)};
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
