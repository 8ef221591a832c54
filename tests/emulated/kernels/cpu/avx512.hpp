// The AVX-512 intrinsics that the kernels use, as what they mean. Functions of the same names in
// the kernels' namespace are found before the compiler's own. Source: Intel's intrinsics guide and
// manual, volume 2.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/common.hpp"

// Macros in g++'s headers.
#undef _mm512_setr_ps
#undef _mm512_setr_epi32
#undef _mm512_setr_epi64

namespace polyhead::inline v0::kernels::cpu {
namespace emulated {

template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(64)));
};
template <class T>
using Lanes = typename Vector<T>::type;
template <class T>
inline constexpr int kCount = 64 / static_cast<int>(sizeof(T));

template <class T, class From>
POLYHEAD_INLINE Lanes<T> lanes(From v) {
  return reinterpret_cast<Lanes<T>>(v);
}
template <class From>
POLYHEAD_INLINE __m512i integers(From v) {
  return reinterpret_cast<__m512i>(v);
}

/// f(i) in each lane i.
template <class T, class F>
POLYHEAD_INLINE Lanes<T> each(const F& f) {
  T all[kCount<T>];
  for (int i = 0; i < kCount<T>; ++i) all[i] = static_cast<T>(f(i));
  return std::bit_cast<Lanes<T>>(all);
}
/// Bit i is holds(i).
template <class T, class F>
POLYHEAD_INLINE std::uint64_t mask(const F& holds) {
  std::uint64_t bits = 0;
  for (int i = 0; i < kCount<T>; ++i) bits |= std::uint64_t{holds(i)} << i;
  return bits;
}
POLYHEAD_INLINE bool set(std::uint64_t mask, int i) { return (mask >> i & 1) != 0; }

/// Lanes of a and, after them, of b, by the numbers in `from`.
template <class T>
POLYHEAD_INLINE __m512i picked(__m512i from, __m512i a, __m512i b) {
  const auto at = lanes<T>(from), x = lanes<T>(a), y = lanes<T>(b);
  return integers(each<T>([=](int i) {
    const auto lane = static_cast<int>(at[i] % (2 * kCount<T>));
    return lane < kCount<T> ? x[lane] : y[lane - kCount<T>];
  }));
}
/// Within each 128 bits, the lower or the upper lanes of a and b in turns.
template <class T, int kUpper, class From>
POLYHEAD_INLINE Lanes<T> unpacked(From a, From b) {
  constexpr int kPart = kCount<T> / 4;
  const auto x = lanes<T>(a), y = lanes<T>(b);
  return each<T>([=](int i) {
    return (i % 2 ? y : x)[i / kPart * kPart + kUpper * kPart / 2 + i % kPart / 2];
  });
}

/// A function of 256 bits on both halves.
struct Halves {
  __m256 low, high;
};
template <class F, class... Vectors>
POLYHEAD_INLINE __m512 on_halves(const F& f, Vectors... v) {
  return std::bit_cast<__m512>(
      Halves{f(std::bit_cast<Halves>(v).low...), f(std::bit_cast<Halves>(v).high...)});
}

template <class T>
POLYHEAD_INLINE T read(const void* from) {
  T to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

/// Subnormal numbers are zeros to the products of bfloat16.
POLYHEAD_INLINE float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
POLYHEAD_INLINE float from_bfloat16(std::uint16_t bits) {
  return flushed(std::bit_cast<float>(std::uint32_t{bits} << 16));
}
POLYHEAD_INLINE std::uint16_t to_bfloat16(float x) {
  if (std::isnan(x)) return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16 | 64);
  const auto bits = std::bit_cast<std::uint32_t>(flushed(x));
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// a * 2^floor(b), rounded once. An infinite b has its own meaning whatever a is.
POLYHEAD_INLINE float scaled(float a, float b) {
  if (std::isinf(b)) {
    const bool wrong = b > 0 ? a == 0 : std::isinf(a);
    if (wrong) return std::numeric_limits<float>::quiet_NaN();
    return std::isnan(a) ? (b > 0 ? b : 0.0f) : std::copysign(b > 0 ? b : 0.0f, a);
  }
  if (std::isnan(a) || std::isnan(b)) return a + b;
  const double power = std::fmax(-300.0, std::fmin(300.0, std::floor(static_cast<double>(b))));
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(power) + 1023);
  return static_cast<float>(static_cast<double>(a) * std::bit_cast<double>(exponent << 52));
}

}  // namespace emulated

// --- constants, loads and stores ---

POLYHEAD_INLINE __m512 _mm512_setzero_ps() { return __m512{}; }
POLYHEAD_INLINE __m512i _mm512_setzero_si512() { return __m512i{}; }
/// x - 0 is x, where x + 0 would not be -0.
POLYHEAD_INLINE __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
POLYHEAD_INLINE __m512i _mm512_set1_epi32(int x) {
  return emulated::integers(emulated::Lanes<int>{} + x);
}
POLYHEAD_INLINE __m512i _mm512_set1_epi16(short x) {
  return emulated::integers(emulated::each<short>([x](int) { return x; }));
}
template <class... Numbers>
POLYHEAD_INLINE __m512 _mm512_setr_ps(Numbers... x) {
  return __m512{static_cast<float>(x)...};
}
template <class... Numbers>
POLYHEAD_INLINE __m512i _mm512_setr_epi32(Numbers... x) {
  return emulated::integers(emulated::Lanes<int>{x...});
}
template <class... Numbers>
POLYHEAD_INLINE __m512i _mm512_setr_epi64(Numbers... x) {
  return __m512i{x...};
}
/// The last number is that of lane 0.
template <class... Numbers>
POLYHEAD_INLINE __m512i _mm512_set_epi16(Numbers... x) {
  const short all[] = {static_cast<short>(x)...};
  return emulated::integers(emulated::each<short>([&all](int i) { return all[31 - i]; }));
}

POLYHEAD_INLINE __m512 _mm512_loadu_ps(const void* p) { return emulated::read<__m512>(p); }
POLYHEAD_INLINE __m512i _mm512_loadu_si512(const void* p) { return emulated::read<__m512i>(p); }
POLYHEAD_INLINE void _mm512_storeu_ps(void* p, __m512 v) { std::memcpy(p, &v, sizeof v); }
POLYHEAD_INLINE void _mm512_storeu_si512(void* p, __m512i v) { std::memcpy(p, &v, sizeof v); }
POLYHEAD_INLINE void _mm512_stream_ps(void* p, __m512 v) {
  *static_cast<__m512*>(__builtin_assume_aligned(p, 64)) = v;
}
// A lane whose bit is not set is neither read nor written.
POLYHEAD_INLINE __m512 _mm512_maskz_loadu_ps(std::uint16_t mask, const void* p) {
  return emulated::each<float>([mask, p](int i) {
    return emulated::set(mask, i) ? emulated::read<float>(static_cast<const float*>(p) + i) : 0.0f;
  });
}
POLYHEAD_INLINE void _mm512_mask_storeu_ps(void* p, std::uint16_t mask, __m512 v) {
  for (int i = 0; i < 16; ++i) {
    const float x = v[i];
    if (emulated::set(mask, i)) std::memcpy(static_cast<float*>(p) + i, &x, sizeof x);
  }
}
POLYHEAD_INLINE __m512i _mm512_maskz_loadu_epi16(std::uint32_t mask, const void* p) {
  return emulated::integers(emulated::each<short>([mask, p](int i) {
    return emulated::set(mask, i) ? emulated::read<short>(static_cast<const char*>(p) + 2 * i)
                                  : short{0};
  }));
}
POLYHEAD_INLINE __m256i _mm256_maskz_loadu_epi16(std::uint16_t mask, const void* p) {
  return emulated::read<__m256i>(
      std::bit_cast<std::array<char, 64>>(_mm512_maskz_loadu_epi16(mask, p)).data());
}
POLYHEAD_INLINE __m256i _mm256_maskz_loadu_epi8(std::uint32_t mask, const void* p) {
  char all[32] = {};
  for (int i = 0; i < 32; ++i) {
    if (emulated::set(mask, i)) all[i] = static_cast<const char*>(p)[i];
  }
  return emulated::read<__m256i>(all);
}
POLYHEAD_INLINE void _mm512_mask_storeu_epi16(void* p, std::uint32_t mask, __m512i v) {
  const auto x = emulated::lanes<short>(v);
  for (int i = 0; i < 32; ++i) {
    const short one = x[i];
    if (emulated::set(mask, i)) std::memcpy(static_cast<short*>(p) + i, &one, sizeof one);
  }
}

// --- the same bits as another type; halves ---

POLYHEAD_INLINE __m512i _mm512_castps_si512(__m512 v) { return emulated::integers(v); }
POLYHEAD_INLINE __m512 _mm512_castsi512_ps(__m512i v) { return emulated::lanes<float>(v); }
POLYHEAD_INLINE __m512 _mm512_castpd_ps(__m512d v) { return emulated::lanes<float>(v); }
POLYHEAD_INLINE __m256i _mm512_castsi512_si256(__m512i v) {
  return __m256i{v[0], v[1], v[2], v[3]};
}
/// Its upper half may be anything.
POLYHEAD_INLINE __m512i _mm512_castsi256_si512(__m256i v) {
  return __m512i{v[0], v[1], v[2], v[3]};
}
POLYHEAD_INLINE __m512d _mm512_castpd256_pd512(__m256d v) {
  return __m512d{v[0], v[1], v[2], v[3]};
}
POLYHEAD_INLINE float _mm512_cvtss_f32(__m512 v) { return v[0]; }
POLYHEAD_INLINE __m512d _mm512_insertf64x4(__m512d v, __m256d half, int high) {
  for (int i = 0; i < 4; ++i) v[4 * high + i] = half[i];
  return v;
}
POLYHEAD_INLINE __m512i _mm512_inserti64x4(__m512i v, __m256i half, int high) {
  for (int i = 0; i < 4; ++i) v[4 * high + i] = half[i];
  return v;
}

// --- float arithmetic ---

POLYHEAD_INLINE __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
POLYHEAD_INLINE __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
POLYHEAD_INLINE __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
POLYHEAD_INLINE __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
POLYHEAD_INLINE __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return emulated::on_halves([](__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); },
                             a, b, c);
}
POLYHEAD_INLINE __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) {
  return emulated::on_halves([](__m256 x, __m256 y, __m256 z) { return _mm256_fnmadd_ps(x, y, z); },
                             a, b, c);
}
POLYHEAD_INLINE __m512 _mm512_max_ps(__m512 a, __m512 b) {
  return emulated::on_halves([](__m256 x, __m256 y) { return _mm256_max_ps(x, y); }, a, b);
}
POLYHEAD_INLINE __m512 _mm512_min_ps(__m512 a, __m512 b) {
  return emulated::on_halves([](__m256 x, __m256 y) { return _mm256_min_ps(x, y); }, a, b);
}
POLYHEAD_INLINE __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
POLYHEAD_INLINE __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
/// The table of bits 0xf8 alone.
POLYHEAD_INLINE __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int table) {
  if (table != 0xf8) __builtin_trap();
  return a | (b & c);
}
POLYHEAD_INLINE __m512 _mm512_abs_ps(__m512 a) {
  return _mm512_castsi512_ps(_mm512_castps_si512(a) & _mm512_set1_epi32(0x7fffffff));
}
/// To whole numbers, the only rounding that is used.
POLYHEAD_INLINE __m512 _mm512_roundscale_ps(__m512 a, int rounding) {
  static_assert((_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) == 8);
  if (rounding != 8) __builtin_trap();
  return emulated::on_halves(
      [](__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); },
      a);
}
POLYHEAD_INLINE __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  return emulated::each<float>([a, b](int i) { return emulated::scaled(a[i], b[i]); });
}

// --- masks ---

POLYHEAD_INLINE __m512 _mm512_mask_blend_ps(std::uint16_t mask, __m512 a, __m512 b) {
  return emulated::each<float>([=](int i) { return emulated::set(mask, i) ? b[i] : a[i]; });
}
POLYHEAD_INLINE __m512i _mm512_mask_blend_epi32(std::uint16_t mask, __m512i a, __m512i b) {
  return _mm512_castps_si512(
      _mm512_mask_blend_ps(mask, _mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}
POLYHEAD_INLINE __m512i _mm512_mask_blend_epi16(std::uint32_t mask, __m512i a, __m512i b) {
  const auto x = emulated::lanes<short>(a), y = emulated::lanes<short>(b);
  return emulated::integers(
      emulated::each<short>([=](int i) { return emulated::set(mask, i) ? y[i] : x[i]; }));
}
POLYHEAD_INLINE __m512 _mm512_mask3_fmadd_ps(__m512 a, __m512 b, __m512 c, std::uint16_t mask) {
  return _mm512_mask_blend_ps(mask, c, _mm512_fmadd_ps(a, b, c));
}
POLYHEAD_INLINE __m512 _mm512_mask_max_ps(__m512 from, std::uint16_t mask, __m512 a, __m512 b) {
  return _mm512_mask_blend_ps(mask, from, _mm512_max_ps(a, b));
}
POLYHEAD_INLINE __m512 _mm512_maskz_mul_ps(std::uint16_t mask, __m512 a, __m512 b) {
  return _mm512_mask_blend_ps(mask, __m512{}, a * b);
}
POLYHEAD_INLINE std::uint16_t _mm512_cmp_ps_mask(__m512 a, __m512 b, int how) {
  return static_cast<std::uint16_t>(emulated::mask<float>([=](int i) {
    const float x = a[i], y = b[i];
    switch (how) {
      case _CMP_GT_OQ:
        return x > y;
      case _CMP_EQ_OQ:
        return x == y;
      case _CMP_NEQ_UQ:
        return x != y;
      case _CMP_UNORD_Q:
        return std::isunordered(x, y);
    }
    __builtin_trap();
  }));
}
POLYHEAD_INLINE std::uint16_t _mm512_kand(std::uint16_t a, std::uint16_t b) { return a & b; }
POLYHEAD_INLINE std::uint16_t _mm512_kor(std::uint16_t a, std::uint16_t b) { return a | b; }
/// The first one is the one inverted.
POLYHEAD_INLINE std::uint16_t _mm512_kandn(std::uint16_t a, std::uint16_t b) {
  return static_cast<std::uint16_t>(~a & b);
}
POLYHEAD_INLINE std::uint16_t _mm512_knot(std::uint16_t a) {
  return static_cast<std::uint16_t>(~a);
}
POLYHEAD_INLINE std::uint16_t _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const auto both = emulated::lanes<int>(a & b);
  return static_cast<std::uint16_t>(emulated::mask<int>([both](int i) { return both[i] != 0; }));
}
POLYHEAD_INLINE std::uint64_t _mm512_test_epi8_mask(__m512i a, __m512i b) {
  const auto both = emulated::lanes<signed char>(a & b);
  return emulated::mask<signed char>([both](int i) { return both[i] != 0; });
}
POLYHEAD_INLINE std::uint32_t _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
  const auto x = emulated::lanes<short>(a), y = emulated::lanes<short>(b);
  return static_cast<std::uint32_t>(emulated::mask<short>([=](int i) { return x[i] == y[i]; }));
}
POLYHEAD_INLINE std::uint32_t _mm512_cmpge_epu16_mask(__m512i a, __m512i b) {
  const auto x = emulated::lanes<std::uint16_t>(a), y = emulated::lanes<std::uint16_t>(b);
  return static_cast<std::uint32_t>(emulated::mask<short>([=](int i) { return x[i] >= y[i]; }));
}
POLYHEAD_INLINE std::uint16_t _mm512_cmplt_epu32_mask(__m512i a, __m512i b) {
  const auto x = emulated::lanes<std::uint32_t>(a), y = emulated::lanes<std::uint32_t>(b);
  return static_cast<std::uint16_t>(emulated::mask<int>([=](int i) { return x[i] < y[i]; }));
}

// --- integer arithmetic ---

POLYHEAD_INLINE __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return emulated::integers(emulated::lanes<std::uint32_t>(a) + emulated::lanes<std::uint32_t>(b));
}
POLYHEAD_INLINE __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return emulated::integers(emulated::lanes<std::uint32_t>(a) - emulated::lanes<std::uint32_t>(b));
}
POLYHEAD_INLINE __m512i _mm512_add_epi16(__m512i a, __m512i b) {
  return emulated::integers(emulated::lanes<std::uint16_t>(a) + emulated::lanes<std::uint16_t>(b));
}
POLYHEAD_INLINE __m512i _mm512_mask_min_epi32(__m512i from, std::uint16_t mask, __m512i a,
                                              __m512i b) {
  const auto x = emulated::lanes<int>(a), y = emulated::lanes<int>(b);
  return _mm512_mask_blend_epi32(mask, from, emulated::integers(x < y ? x : y));
}
POLYHEAD_INLINE __m512i _mm512_max_epu32(__m512i a, __m512i b) {
  const auto x = emulated::lanes<std::uint32_t>(a), y = emulated::lanes<std::uint32_t>(b);
  return emulated::integers(x > y ? x : y);
}
POLYHEAD_INLINE __m512i _mm512_max_epu16(__m512i a, __m512i b) {
  const auto x = emulated::lanes<std::uint16_t>(a), y = emulated::lanes<std::uint16_t>(b);
  return emulated::integers(x > y ? x : y);
}
POLYHEAD_INLINE std::uint32_t _mm512_reduce_max_epu32(__m512i a) {
  const auto x = emulated::lanes<std::uint32_t>(a);
  std::uint32_t most = 0;
  for (int i = 0; i < 16; ++i) most = x[i] > most ? x[i] : most;
  return most;
}
// Bits that are shifted by as many places as there are, or more, are gone.
POLYHEAD_INLINE __m512i _mm512_slli_epi32(__m512i a, unsigned by) {
  return by > 31 ? __m512i{} : emulated::integers(emulated::lanes<std::uint32_t>(a) << by);
}
POLYHEAD_INLINE __m512i _mm512_srli_epi32(__m512i a, unsigned by) {
  return by > 31 ? __m512i{} : emulated::integers(emulated::lanes<std::uint32_t>(a) >> by);
}
POLYHEAD_INLINE __m512i _mm512_slli_epi64(__m512i a, unsigned by) {
  return by > 63 ? __m512i{} : emulated::integers(emulated::lanes<std::uint64_t>(a) << by);
}
POLYHEAD_INLINE __m512i _mm512_srli_epi64(__m512i a, unsigned by) {
  return by > 63 ? __m512i{} : emulated::integers(emulated::lanes<std::uint64_t>(a) >> by);
}
POLYHEAD_INLINE __m512i _mm512_mul_epu32(__m512i a, __m512i b) {
  const auto x = emulated::lanes<std::uint64_t>(a), y = emulated::lanes<std::uint64_t>(b);
  return emulated::integers((x & 0xffffffffu) * (y & 0xffffffffu));
}
POLYHEAD_INLINE __m512i _mm512_srai_epi32(__m512i a, unsigned by) {
  return emulated::integers(emulated::lanes<int>(a) >> static_cast<int>(by > 31 ? 31 : by));
}
POLYHEAD_INLINE __m512i _mm512_maskz_slli_epi32(std::uint16_t mask, __m512i a, unsigned by) {
  return _mm512_mask_blend_epi32(mask, __m512i{}, _mm512_slli_epi32(a, by));
}
POLYHEAD_INLINE __m512i _mm512_slli_epi16(__m512i a, unsigned by) {
  if (by > 15) return __m512i{};
  const auto x = emulated::lanes<std::uint16_t>(a);
  return emulated::integers(emulated::each<std::uint16_t>([x, by](int i) { return x[i] << by; }));
}
POLYHEAD_INLINE __m512i _mm512_srai_epi16(__m512i a, unsigned by) {
  const auto x = emulated::lanes<short>(a);
  const int places = by > 15 ? 15 : static_cast<int>(by);
  return emulated::integers(emulated::each<short>([x, places](int i) { return x[i] >> places; }));
}
POLYHEAD_INLINE __m512i _mm512_sllv_epi16(__m512i a, __m512i by) {
  const auto x = emulated::lanes<std::uint16_t>(a), places = emulated::lanes<std::uint16_t>(by);
  return emulated::integers(
      emulated::each<std::uint16_t>([=](int i) { return places[i] > 15 ? 0 : x[i] << places[i]; }));
}

// --- conversions ---

POLYHEAD_INLINE __m512 _mm512_cvtepi32_ps(__m512i a) {
  return __builtin_convertvector(emulated::lanes<int>(a), __m512);
}
POLYHEAD_INLINE __m512i _mm512_cvtepi8_epi32(__m128i a) {
  const auto x = std::bit_cast<std::array<signed char, 16>>(a);
  return emulated::integers(
      emulated::each<int>([&x](int i) { return x[static_cast<unsigned>(i)]; }));
}
POLYHEAD_INLINE __m512i _mm512_cvtepu8_epi32(__m128i a) {
  const auto x = std::bit_cast<std::array<unsigned char, 16>>(a);
  return emulated::integers(
      emulated::each<int>([&x](int i) { return x[static_cast<unsigned>(i)]; }));
}
POLYHEAD_INLINE __m512i _mm512_cvtepu16_epi32(__m256i a) {
  const auto x = std::bit_cast<std::array<std::uint16_t, 16>>(a);
  return emulated::integers(
      emulated::each<int>([&x](int i) { return x[static_cast<unsigned>(i)]; }));
}
POLYHEAD_INLINE __m512i _mm512_cvtepi8_epi16(__m256i a) {
  const auto x = std::bit_cast<std::array<signed char, 32>>(a);
  return emulated::integers(
      emulated::each<short>([&x](int i) { return x[static_cast<unsigned>(i)]; }));
}
POLYHEAD_INLINE __m512i _mm512_cvtepu8_epi16(__m256i a) {
  const auto x = std::bit_cast<std::array<unsigned char, 32>>(a);
  return emulated::integers(
      emulated::each<short>([&x](int i) { return x[static_cast<unsigned>(i)]; }));
}
POLYHEAD_INLINE __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const auto x = emulated::lanes<int>(a);
  std::uint16_t low[16];
  for (int i = 0; i < 16; ++i) low[i] = static_cast<std::uint16_t>(x[i]);
  return emulated::read<__m256i>(low);
}
POLYHEAD_INLINE __m512 _mm512_cvtph_ps(__m256i a) {
  return std::bit_cast<__m512>(emulated::Halves{_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                                                _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))});
}
POLYHEAD_INLINE __m256i _mm512_cvtps_ph(__m512 a, int rounding) {
  static_assert((_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) == 8);
  if (rounding != 8) __builtin_trap();
  const auto halves = std::bit_cast<emulated::Halves>(a);
  return _mm256_set_m128i(_mm256_cvtps_ph(halves.high, 0), _mm256_cvtps_ph(halves.low, 0));
}
/// The second one's lanes come first.
POLYHEAD_INLINE __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  return reinterpret_cast<__m512bh>(emulated::each<std::uint16_t>(
      [=](int i) { return emulated::to_bfloat16(i < 16 ? low[i] : high[i - 16]); }));
}

// --- lanes in another order ---

POLYHEAD_INLINE __m512 _mm512_permutexvar_ps(__m512i from, __m512 a) {
  const auto at = emulated::lanes<std::uint32_t>(from);
  return emulated::each<float>([=](int i) { return a[at[i] % 16]; });
}
POLYHEAD_INLINE __m512i _mm512_permutexvar_epi8(__m512i from, __m512i a) {
  return emulated::picked<std::uint8_t>(from, a, a);
}
POLYHEAD_INLINE __m512i _mm512_permutexvar_epi16(__m512i from, __m512i a) {
  return emulated::picked<std::uint16_t>(from, a, a);
}
POLYHEAD_INLINE __m512i _mm512_permutexvar_epi64(__m512i from, __m512i a) {
  return emulated::picked<std::uint64_t>(from, a, a);
}
POLYHEAD_INLINE __m512i _mm512_permutex2var_epi8(__m512i a, __m512i from, __m512i b) {
  return emulated::picked<std::uint8_t>(from, a, b);
}
POLYHEAD_INLINE __m512i _mm512_permutex2var_epi16(__m512i a, __m512i from, __m512i b) {
  return emulated::picked<std::uint16_t>(from, a, b);
}
POLYHEAD_INLINE __m512i _mm512_permutex2var_epi64(__m512i a, __m512i from, __m512i b) {
  return emulated::picked<std::uint64_t>(from, a, b);
}
POLYHEAD_INLINE __m512i _mm512_broadcast_i32x4(__m128i a) {
  return emulated::each<long long>([=](int i) { return a[i % 2]; });
}
// Within each 128 bits.
POLYHEAD_INLINE __m512i _mm512_shuffle_epi8(__m512i a, __m512i from) {
  const auto at = emulated::lanes<std::uint8_t>(from), x = emulated::lanes<std::uint8_t>(a);
  return emulated::integers(emulated::each<std::uint8_t>(
      [=](int i) { return at[i] & 128 ? 0 : x[i / 16 * 16 + at[i] % 16]; }));
}
POLYHEAD_INLINE __m512i _mm512_mask_shuffle_epi8(__m512i from, std::uint64_t mask, __m512i a,
                                                 __m512i order) {
  const auto x = emulated::lanes<std::uint8_t>(from);
  const auto y = emulated::lanes<std::uint8_t>(_mm512_shuffle_epi8(a, order));
  return emulated::integers(
      emulated::each<std::uint8_t>([=](int i) { return emulated::set(mask, i) ? y[i] : x[i]; }));
}
POLYHEAD_INLINE __m512i _mm512_unpacklo_epi8(__m512i a, __m512i b) {
  return emulated::integers(emulated::unpacked<char, 0>(a, b));
}
POLYHEAD_INLINE __m512i _mm512_unpackhi_epi8(__m512i a, __m512i b) {
  return emulated::integers(emulated::unpacked<char, 1>(a, b));
}
POLYHEAD_INLINE __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) {
  return emulated::integers(emulated::unpacked<short, 0>(a, b));
}
POLYHEAD_INLINE __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) {
  return emulated::integers(emulated::unpacked<short, 1>(a, b));
}
POLYHEAD_INLINE __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return emulated::unpacked<float, 0>(a, b);
}
POLYHEAD_INLINE __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return emulated::unpacked<float, 1>(a, b);
}
POLYHEAD_INLINE __m512 _mm512_permute_ps(__m512 a, int order) {
  return emulated::each<float>([=](int i) { return a[i / 4 * 4 + (order >> i % 4 * 2 & 3)]; });
}
POLYHEAD_INLINE __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int order) {
  return emulated::each<float>(
      [=](int i) { return (i % 4 < 2 ? a : b)[i / 4 * 4 + (order >> i % 4 * 2 & 3)]; });
}
POLYHEAD_INLINE __m512i _mm512_shufflelo_epi16(__m512i a, int order) {
  const auto x = emulated::lanes<short>(a);
  return emulated::integers(emulated::each<short>(
      [=](int i) { return i % 8 < 4 ? x[i / 8 * 8 + (order >> i % 4 * 2 & 3)] : x[i]; }));
}
POLYHEAD_INLINE __m512i _mm512_shufflehi_epi16(__m512i a, int order) {
  const auto x = emulated::lanes<short>(a);
  return emulated::integers(emulated::each<short>(
      [=](int i) { return i % 8 < 4 ? x[i] : x[i / 8 * 8 + 4 + (order >> i % 4 * 2 & 3)]; }));
}
/// Whole 128 bits.
POLYHEAD_INLINE __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order) {
  return emulated::each<float>(
      [=](int i) { return (i < 8 ? a : b)[(order >> i / 4 * 2 & 3) * 4 + i % 4]; });
}

}  // namespace polyhead::inline v0::kernels::cpu
