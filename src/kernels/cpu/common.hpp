// What every ISA file needs before it opens its target region: standard headers and constants,
// nothing inline of theirs is compiled with an ISA's flags.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/codes.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/backend.hpp"
#include "kernels/dropout.hpp"

#define POLYHEAD_INLINE inline __attribute__((always_inline))
#define POLYHEAD_LAMBDA __attribute__((always_inline))  // the same of a lambda

namespace polyhead::inline v0::kernels::cpu {

/// Whether the processor is one of Intel's.
inline bool is_made_by_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

/// `p`, about which the compiler forgets what it knows. Where many rows are read from one pointer,
/// g++ gives each a pointer of its own, more than there are registers, and memory waits for them
/// (docs/kernel-notes.md).
template <class T>
POLYHEAD_INLINE T* forget(T* p) {
  __asm__("" : "+r"(p));
  return p;
}

/// Caches that lines are fetched into, as __builtin_prefetch names them.
inline constexpr int kIntoL1 = 3, kIntoL2 = 2;

/// Fetches the lines of kBytes bytes from `at` on.
template <std::int64_t kBytes, int kInto>
POLYHEAD_INLINE void fetch_lines(const std::byte* at) {
#pragma GCC unroll 8
  for (std::int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(at + line, 0, kInto);
}

// 2^r on [-1/2, 1/2] as 1 + r (C1 + r (C2 + ...)): minimax, relative error 9.2e-8.
inline constexpr float kExp2C1 = 0.6931470036506653f;
inline constexpr float kExp2C2 = 0.24022242426872253f;
inline constexpr float kExp2C3 = 0.05550733581185341f;
inline constexpr float kExp2C4 = 0.009671512991189957f;
inline constexpr float kExp2C5 = 0.001326472614891827f;

// 1.5 * 2^23 + 127: in a sum with a number within 2^22 the lowest bits are that number, rounded to
// a whole one, and the bias of an exponent.
inline constexpr float kExp2Magic = 12583039.0f;

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr double kLn2 = 0.693147180559945309417;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// kBits[j]: bit j alone, to be tested in words of 32.
inline constexpr auto kBits = [] {
  std::array<std::int32_t, 32> bits{};
  for (std::size_t j = 0; j < bits.size(); ++j)
    bits[j] = static_cast<std::int32_t>(std::uint32_t{1} << j);
  return bits;
}();

// kNumbers[j]: j, the number of a key in its block, read straight into all lanes.
inline constexpr auto kNumbers = [] {
  std::array<std::int32_t, kKeyBlock> numbers{};
  for (std::size_t j = 0; j < numbers.size(); ++j) numbers[j] = static_cast<std::int32_t>(j);
  return numbers;
}();

// A row's reference maximum moves when a block exceeds it by this much (log2): P stays below 2^8,
// and the accumulators are almost never rescaled. slack() has when rounded weights ask for less.
inline constexpr float kRescaleLog2 = 8.0f;

}  // namespace polyhead::inline v0::kernels::cpu
