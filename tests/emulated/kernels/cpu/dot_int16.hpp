// Instead of src/kernels/cpu/dot_int16.hpp: VPDPWSSD as Intel's manual has it.

struct DotInt16 {
  static constexpr bool kFused = true;
  POLYHEAD_INLINE static Simd::V dot(Simd::V a, Simd::V b, Simd::V acc) {
    const auto x = emulated::lanes<int>(a), y = emulated::lanes<int>(b);
    const auto even = (x << 16 >> 16) * (y << 16 >> 16), odd = (x >> 16) * (y >> 16);
    const auto sum = emulated::lanes<std::uint32_t>(acc) + emulated::lanes<std::uint32_t>(even) +
                     emulated::lanes<std::uint32_t>(odd);
    return emulated::lanes<float>(sum);
  }
};
