// Weights into panels, and rows of x into the form that a product reads. Included inside an ISA
// namespace after gemm.hpp.

inline constexpr std::int64_t kPackSteps = 64;  // steps of a panel transposed at once: in L1

/// Bytes from one lane to the next, inputs a step, steps and panels of a packed matrix.
struct GemmShape {
  std::int64_t bytes, inputs, steps, panels;
};

inline GemmShape gemm_shape(const GemmWeights& w) {
  const std::int64_t panels = (w.out + kTile - 1) / kTile;
  if (w.type == ElementType::bfloat16) {
    return {GemmBfloat16::kBytes, GemmBfloat16::kInputs, gemm_steps<GemmBfloat16>(w.in), panels};
  }
  return {element_bytes(w.type), 1, w.in, panels};
}

inline std::int64_t gemm_packed_bytes(const GemmWeights& w) {
  if (w.blocks.bits != 0) return quantised_bytes(w.blocks, w.in, w.out);
  const GemmShape shape = gemm_shape(w);
  return shape.panels * shape.steps * kTile * shape.bytes;
}

/// Where element (o, i) lies in the panels.
POLYHEAD_INLINE std::int64_t gemm_place(const GemmWeights& w, const GemmShape& shape,
                                        std::int64_t o, std::int64_t i) {
  const std::int64_t lane = (o / kTile * shape.steps + i / shape.inputs) * kTile + o % kTile;
  return lane * shape.bytes + i % shape.inputs * element_bytes(w.type);
}

/// Steps [first, first + count) of up to kTile rows of 32-bit values, transposed into
/// to[step - first][lane]; lanes from `rows` on are zero.
inline void transpose_steps(float* to, const float* from, std::int64_t row_floats,
                            std::int64_t rows, std::int64_t first, std::int64_t count) {
  alignas(64) static constexpr float kZeros[kPackSteps] = {};
  for (std::int64_t lane = 0; lane < kTile; lane += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      row[i] = lane + i < rows ? from + (lane + i) * row_floats + first : kZeros;
    }
    transpose_in(to + lane, row, count);
  }
}

/// Rows of a panel rounded to pairs of bfloat16, filled up with zeros.
inline void pack_pairs(std::byte* to, const GemmShape& shape, std::int64_t in, std::int64_t count,
                       const float* rows, std::int64_t row_floats) {
  alignas(64) float narrow[kTile][kPackSteps];
  for (std::int64_t step = 0; step < shape.steps; step += kPackSteps) {
    const std::int64_t steps = std::min(kPackSteps, shape.steps - step);
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t inputs = std::min(steps * 2, in - step * 2);
      std::fill(narrow[row] + inputs / 2, narrow[row] + steps, 0.0f);
      narrow_row(reinterpret_cast<std::byte*>(narrow[row]), rows + row * row_floats + step * 2,
                 ElementType::bfloat16, 2, inputs);
    }
    transpose_steps(reinterpret_cast<float*>(to) + step * kTile, narrow[0], kPackSteps, count, 0,
                    steps);
  }
}

inline void gemm_pack_panel(std::byte* to, const GemmWeights& w, std::int64_t panel,
                            std::int64_t count, const float* rows, std::int64_t row_floats) {
  const GemmShape shape = gemm_shape(w);
  to += panel * shape.steps * kTile * shape.bytes;
  if (shape.inputs == 2) return pack_pairs(to, shape, w.in, count, rows, row_floats);
  alignas(64) float wide[kPackSteps * kTile];
  for (std::int64_t step = 0; step < shape.steps; step += kPackSteps) {
    const std::int64_t steps = std::min(kPackSteps, shape.steps - step);
    std::byte* const at = to + step * kTile * shape.bytes;
    if (w.type == ElementType::float32) {
      transpose_steps(reinterpret_cast<float*>(at), rows, row_floats, count, step, steps);
      continue;
    }
    transpose_steps(wide, rows, row_floats, count, step, steps);
    narrow_row(at, wide, w.type, 2, steps * kTile);
  }
}

/// Of quantised weights: unpacks the weight's whole block, for tests and single looks.
inline float quantised_weight(const GemmWeights& w, std::int64_t o, std::int64_t i) {
  alignas(64) float block[256 * kTile];
  const int inputs = w.blocks.block();
  kernels_of(w.blocks).unpack(w, o / kTile, i / inputs * inputs, inputs, block);
  return block[i % inputs * kTile + o % kTile];
}

inline float gemm_weight(const GemmWeights& w, std::int64_t o, std::int64_t i) {
  if (w.blocks.bits != 0) return quantised_weight(w, o, i);
  return load_scalar(w.panels + gemm_place(w, gemm_shape(w), o, i), w.type);
}

inline bool gemm_direct(const GemmWeights& w, ElementType type) {
  if (w.type != ElementType::bfloat16) return type == ElementType::float32;
  return GemmBfloat16::kInputs == 2 && type == ElementType::bfloat16 &&
         w.in % (2 * GemmBfloat16::kWholeSteps) == 0;
}

inline std::int64_t gemm_prepared_bytes(const GemmWeights& w) {
  return (gemm_shape(w).steps * 4 + 63) / 64 * 64;
}

/// For bfloat16 weights x is rounded to bfloat16, also where it is multiplied as float32.
inline void gemm_prepare(std::byte* to, const GemmWeights& w, const std::byte* row,
                         ElementType type, std::int64_t stride) {
  if (w.type != ElementType::bfloat16)
    return widen_row(reinterpret_cast<float*>(to), row, type, stride, w.in);
  constexpr std::int64_t kPiece = 256;
  alignas(64) float wide[kPiece];
  alignas(64) std::byte narrow[kPiece * 2];
  for (std::int64_t i = 0; i < w.in; i += kPiece) {
    const std::int64_t n = std::min(kPiece, w.in - i);
    widen_row(wide, row + i * stride, type, stride, n);
    if constexpr (GemmBfloat16::kInputs == 2) {
      narrow_row(to + i * 2, wide, ElementType::bfloat16, 2, n);
    } else {
      narrow_row(narrow, wide, ElementType::bfloat16, 2, n);
      widen_row(reinterpret_cast<float*>(to) + i, narrow, ElementType::bfloat16, 2, n);
    }
  }
  if (GemmBfloat16::kInputs == 2 && w.in > 0) {
    const std::int64_t end = gemm_shape(w).steps * 4;
    std::memset(to + w.in * 2, 0, static_cast<std::size_t>(end - w.in * 2));
  }
}

inline constexpr GemmTable kGemmTable{kTile,
                                      kGemmSumFloats * 4,
                                      WeightsOfLanes::kGroup* kGemmSteps* kTile * 4,
                                      gemm_packed_bytes,
                                      gemm_pack_panel,
                                      pack_blocks,
                                      gemm_weight,
                                      gemm_direct,
                                      GemmBfloat16::kAlignment,
                                      gemm_prepared_bytes,
                                      gemm_prepare,
                                      gemm_multiply,
                                      widen_row,
                                      narrow_row};
