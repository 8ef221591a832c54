// One tile of a product by the matrix unit: 32 rows of x and the 48 lanes of a panel. Included
// inside an ISA namespace after matrix_amx.hpp and gemm_tile.hpp.

inline constexpr std::int64_t kSumsBytes = kTile * 4;  // a row of sums outside the matrix unit

/// Matrices 0 .. 5: kG x 3 of sums; 6 holds x, 7 weights.
template <int kG, class Visit>
POLYHEAD_INLINE void for_sums(float* first, const Visit& visit) {
  const auto row = [&](auto g) POLYHEAD_LAMBDA {
    float* const at = first + g * MatrixUnit::kRows * kTile;
    visit(std::integral_constant<int, g * 3>{}, at);
    visit(std::integral_constant<int, g * 3 + 1>{}, at + kLanes);
    visit(std::integral_constant<int, g * 3 + 2>{}, at + 2 * kLanes);
  };
  row(std::integral_constant<int, 0>{});
  if constexpr (kG == 2) row(std::integral_constant<int, 1>{});
}

template <int kG>
POLYHEAD_INLINE void multiply_chunk(const std::byte* x, std::int64_t x_row, const std::byte* w) {
  constexpr std::int64_t kStride = kTile * Bfloat16Matrices::kBytes;
  const auto lanes = [&](auto v) POLYHEAD_LAMBDA {
    MatrixUnit::load<7>(w + v * kLanes * Bfloat16Matrices::kBytes, kStride);
    MatrixUnit::load<6>(x, x_row);
    MatrixUnit::multiply<v, 6, 7>();
    if constexpr (kG == 2) {
      MatrixUnit::load<6>(x + MatrixUnit::kRows * x_row, x_row);
      MatrixUnit::multiply<3 + v, 6, 7>();
    }
  };
  lanes(std::integral_constant<int, 0>{});
  lanes(std::integral_constant<int, 1>{});
  lanes(std::integral_constant<int, 2>{});
}

/// All chunks of 32 inputs. Weights of few rows only stream by.
template <int kG>
POLYHEAD_INLINE void multiply_chunks(const GemmTile& tile, bool streams) {
  constexpr std::int64_t kChunkBytes = kGemmChunk * kTile * Bfloat16Matrices::kBytes;
  constexpr std::int64_t kLead = 2 * kChunkBytes;
  static_assert(kGemmChunk == Bfloat16Matrices::kWholeSteps);
  const std::byte *x = tile.x, *w = tile.weights, *next = tile.next_weights, *next_x = tile.next_x;
  for (std::int64_t left = tile.steps; left > 0; left -= kGemmChunk) {
    if (streams) {
      fetch_lines<kChunkBytes, kIntoL1>(w + kLead);
    } else {
      for (int r = 0; r < kGemmNextRows<Bfloat16Matrices>; ++r)
        __builtin_prefetch(next_x + r * tile.x_row, 0, 3);
      for (std::int64_t line = 0; line < tile.next_lines; ++line, next += 64)
        __builtin_prefetch(next, 0, 2);
    }
    multiply_chunk<kG>(x, tile.x_row, w);
    x += kGemmChunk * 4, next_x += kGemmChunk * 4;
    w += kChunkBytes;
  }
}

/// The first `count` of kG times 16 rows.
template <int kG>
inline void matrix_tile(const GemmTile& tile, const GemmOutput& out, int count, bool streams) {
  alignas(64) float sums[kG * MatrixUnit::kRows][kTile];  // where the matrix unit takes them from
  const auto by_row = [&](const auto& visit) POLYHEAD_LAMBDA {
    GemmTile row = tile;
    for (int r = 0; r < count; ++r, row.sums += row.sums_row) {
      Simd::V acc[1][kVectors];
      visit(acc, row, r);
    }
  };
  const bool few = count < kG * MatrixUnit::kRows;
  if (few) MatrixUnit::shape_for_product(count);
  if (tile.first) {
    for_sums<kG>(sums[0], [](auto m, float*) POLYHEAD_LAMBDA { MatrixUnit::zero<m>(); });
  } else {
    by_row([&](auto& acc, const GemmTile& row, int r) POLYHEAD_LAMBDA {
      load_sums<1>(acc, row);
      store_sums<1>(acc, sums[r], kTile, kTile);
    });
    for_sums<kG>(sums[0],
                 [](auto m, float* at) POLYHEAD_LAMBDA { MatrixUnit::load<m>(at, kSumsBytes); });
  }
  multiply_chunks<kG>(tile, streams);
  for_sums<kG>(sums[0],
               [](auto m, float* at) POLYHEAD_LAMBDA { MatrixUnit::store<m>(at, kSumsBytes); });
  if (few) MatrixUnit::shape_for_product(MatrixUnit::kRows);
  by_row([&](auto& acc, const GemmTile& row, int r) POLYHEAD_LAMBDA {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[0][v] = Simd::load(sums[r] + v * kLanes);
    finish_rows<1>(acc, row, {out.y + r * out.row, out.type, out.row, out.column});
  });
}

template <>
inline std::int64_t gemm_rows_tile<Bfloat16Matrices>(std::int64_t rows, const GemmTile& tile,
                                                     const GemmOutput& out) {
  constexpr int kOne = MatrixUnit::kRows;
  if (rows >= 2 * kOne) return matrix_tile<2>(tile, out, 2 * kOne, false), 2 * kOne;
  const int count = static_cast<int>(std::min<std::int64_t>(rows, kOne));
  return matrix_tile<1>(tile, out, count, rows < kOne), count;
}
