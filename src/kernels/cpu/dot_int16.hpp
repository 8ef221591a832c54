// The int16 dot product of AVX512_VNNI. Included after simd_avx512.hpp, inside an ISA namespace
// that has it.

/// acc + a0 b0 + a1 b1, each lane a pair of int16 and acc an int32 (vectors of 32-bit values have
/// one type here). Exact, so that the order of the sums does not matter.
struct DotInt16 {
  static constexpr bool kFused = true;
  // Not by the intrinsic: between casts to integers and back, g++ 12 copies every accumulator in
  // every step.
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
};
