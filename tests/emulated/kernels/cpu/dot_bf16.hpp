// Instead of src/kernels/cpu/dot_bf16.hpp: VDPBF16PS as Intel's manual has it, odd elements before
// even ones.

struct DotBf16 {
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    return _mm512_fmadd_ps(even(a), even(b), _mm512_fmadd_ps(odd(a), odd(b), acc));
  }
  POLYHEAD_INLINE static Simd::V dot_masked(Simd::M m, Simd::V a, Simd::V b, Simd::V acc) {
    return Simd::select(m, dot(a, b, acc), acc);
  }

 private:
  POLYHEAD_INLINE static Simd::V even(Simd::V v) {
    return flushed(emulated::lanes<std::uint32_t>(v) << 16);
  }
  POLYHEAD_INLINE static Simd::V odd(Simd::V v) {
    return flushed(emulated::lanes<std::uint32_t>(v) & 0xffff0000u);
  }
  /// Zero, with its sign, where the exponent is.
  POLYHEAD_INLINE static Simd::V flushed(emulated::Lanes<std::uint32_t> bits) {
    const auto subnormal = (bits & 0x7f800000u) == 0;
    return emulated::lanes<float>(subnormal ? bits & 0x80000000u : bits);
  }
};
