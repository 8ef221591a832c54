// The one microkernel: acc[row][vector] += a(row, step) * b[step][vector], for scores, P.V and
// projections alike. Included inside an ISA namespace after a Simd struct.

/// float32 multiply-add; DotBf16 has the same shape over pairs of bfloat16.
struct DotFloat32 {
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    return Simd::fma(a, b, acc);
  }
  POLYHEAD_INLINE static Simd::V dot_masked(Simd::M m, Simd::V a, Simd::V b, Simd::V acc) {
    return Simd::fma_masked(m, a, b, acc);
  }
};

/// Where the broadcast operand lies: element (row, step) is the 4 bytes at data + row * row_bytes +
/// step * step_bytes.
struct BroadcastOperand {
  const std::byte* data;
  std::int64_t row_bytes, step_bytes;
};

/// What a path without matrices has in place of the processor's matrix unit.
struct NoMatrixUnit {
  explicit NoMatrixUnit(std::int64_t = 0) {}
};

/// Rows beside kV vectors: twice as many beside one, where kRows chains of sums are too few for the
/// multiply-adds, of which 8 are under way at once.
template <int kV>
inline constexpr int kRowsBeside = kV == 1 && Simd::kRows < 8 ? 2 * Simd::kRows : Simd::kRows;

/// Cache lines that a loop fetches beside its arithmetic, one a step: what a later phase will read.
struct Stream {
  const std::byte* at;
  std::int64_t stride;
};

/// acc += a b over `steps` steps. b's step s starts at b + s * b_step (floats). One chain of dots
/// an accumulator, in step order: the bits depend on nothing else. With kFetch, a step also fetches
/// a line of `stream`.
template <class Dot, int kR, int kV, bool kFetch = false>
POLYHEAD_INLINE void outer_product(Simd::V (&acc)[kR][kV], BroadcastOperand a, const float* b,
                                   std::int64_t b_step, std::int64_t steps, Stream stream = {}) {
  using V = Simd::V;
  const std::byte* low = a.data;
  const std::byte* high =
      a.data + 4 * a.row_bytes;  // two bases keep eight rows within x86's addressing modes
  const auto step = [&]() POLYHEAD_LAMBDA {
    V operand[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) operand[v] = Simd::load(b + v * Simd::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const V x = Simd::broadcast_at(r < 4 ? low + r * a.row_bytes : high + (r - 4) * a.row_bytes);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Dot::dot(x, operand[v], acc[r][v]);
    }
    if constexpr (kFetch) {
      __builtin_prefetch(stream.at, 0, 2);
      stream.at += stream.stride;
    }
    low += a.step_bytes;
    high += a.step_bytes;
    b += b_step;
  };
  if constexpr (Simd::kLanes == 8) {  // a step of 12 multiply-adds is short (docs/kernel-notes.md)
#pragma GCC unroll 2
    for (std::int64_t s = 0; s < steps; ++s) step();
  } else {
    for (std::int64_t s = 0; s < steps; ++s) step();
  }
}

/// The same where masks (one a step and vector, kVectors apart) decide which lanes take part in a
/// step.
template <class Dot, int kR, int kV>
POLYHEAD_INLINE void outer_product_masked(Simd::V (&acc)[kR][kV], BroadcastOperand a,
                                          const float* b, std::int64_t b_step,
                                          const Simd::StoredMask* masks, std::int64_t steps) {
  using V = Simd::V;
  const std::byte* low = a.data;
  const std::byte* high = a.data + 4 * a.row_bytes;
  for (std::int64_t s = 0; s < steps; ++s) {
    V operand[kV];
    Simd::M mask[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      operand[v] = Simd::load(b + v * Simd::kLanes);
      mask[v] = Simd::load_mask(masks[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const V x = Simd::broadcast_at(r < 4 ? low + r * a.row_bytes : high + (r - 4) * a.row_bytes);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Dot::dot_masked(mask[v], x, operand[v], acc[r][v]);
    }
    low += a.step_bytes;
    high += a.step_bytes;
    b += b_step;
    masks += Simd::kVectors;
  }
}
