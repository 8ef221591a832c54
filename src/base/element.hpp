// Conversions between float32 and the 16-bit storage types, bit by bit: the same on every
// processor.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "polyhead/types.h"

namespace polyhead::inline v0::base {

inline float bfloat16_bits_to_float32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; a NaN stays one (made quiet, its payload cut).
inline std::uint16_t float32_to_bfloat16_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float16_bits_to_float32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN, made quiet
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// Round to nearest, ties to even, subnormals included; a NaN stays one.
inline std::uint16_t float32_to_float16_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // from 65,520: infinity
  if (magnitude >= 0x38800000u) {                       // normal: from 2^-14
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude <= 0x33000000u)
    return static_cast<std::uint16_t>(sign);  // up to 2^-25, half the smallest: zero
  // Subnormal: the significand with its hidden bit, shifted so that the unit is 2^-24; exponent is
  // 102 .. 112.
  const std::uint32_t shift = 126u - (magnitude >> 23);
  const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t quotient = significand >> shift;
  const std::uint32_t rest = significand & ((1u << shift) - 1u);
  const std::uint32_t half = 1u << (shift - 1u);
  const std::uint32_t up = rest > half || (rest == half && (quotient & 1u) != 0) ? 1u : 0u;
  return static_cast<std::uint16_t>(sign | (quotient + up));
}

/// The floating-point element at `at`, which must lie on its type's alignment.
inline float load_float32(const std::byte* at, ElementType type) {
  if (type == ElementType::float32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return type == ElementType::float16 ? float16_bits_to_float32(bits)
                                      : bfloat16_bits_to_float32(bits);
}

/// Writes `value` to `at`, rounded to a floating-point `type`.
inline void store_float32(std::byte* at, ElementType type, float value) {
  if (type == ElementType::float32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == ElementType::float16 ? float32_to_float16_bits(value)
                                                          : float32_to_bfloat16_bits(value);
  std::memcpy(at, &bits, sizeof bits);
}

constexpr bool is_floating(ElementType type) {
  return type == ElementType::float32 || type == ElementType::float16 ||
         type == ElementType::bfloat16;
}

constexpr bool is_integer(ElementType type) {
  return type == ElementType::int32 || type == ElementType::int64;
}

}  // namespace polyhead::inline v0::base
