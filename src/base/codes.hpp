// The codes of quantised caches, one at a time: what they mean and how a value becomes one. The
// kernels' vector forms give the same float32 for every code.
//
// A row of codes is cut into blocks of 32 dims; the last one is padded. int8 and the 8-bit floats
// are one byte a dim; of int4, byte i of a block's 16 holds dim i in its low half and dim 16 + i in
// its high half, both in two's complement.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "polyhead/types.h"

namespace polyhead::inline v0::base {

inline constexpr std::int64_t kCodeBlock = 32;

constexpr bool is_code(ElementType type) {
  return type == ElementType::int8 || type == ElementType::int4 ||
         type == ElementType::float8_e4m3 || type == ElementType::float8_e5m2;
}

/// What caches hold, for refusals.
inline constexpr const char* kTypesOfCaches =
    "float32, float16, bfloat16, int8, int4, float8_e4m3 or float8_e5m2";

/// Whether its codes are integers, which need a scale.
constexpr bool is_scaled(ElementType type) {
  return type == ElementType::int8 || type == ElementType::int4;
}

constexpr std::int64_t code_blocks(std::int64_t dim) {
  return dim / kCodeBlock + (dim % kCodeBlock != 0);  // no sum that could overflow
}

constexpr bool is_float8(ElementType type) { return is_code(type) && !is_scaled(type); }

/// Bytes of a row of `dim` codes, its padding included.
constexpr std::int64_t code_row_bytes(ElementType type, std::int64_t dim) {
  return code_blocks(dim) * (type == ElementType::int4 ? kCodeBlock / 2 : kCodeBlock);
}

/// An 8-bit float of `mantissa` bits: no infinity for e4m3, whose largest code is NaN.
constexpr float float8_to_float32(std::uint8_t code, bool e4m3) {
  const unsigned magnitude = code & 0x7fu;
  float value = 0.0f;
  if (e4m3) {
    value = magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u)
                               : std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  } else if (magnitude >= 0x7cu) {
    value = std::bit_cast<float>(magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u);
  } else {
    value = std::bit_cast<float>(magnitude << 21) * 0x1p112f;
  }
  return code & 0x80u ? -value : value;
}

/// What each code of an 8-bit float means: looked up, since the multiplication's subnormal operands
/// are slow.
constexpr std::array<float, 256> float8_values(bool e4m3) {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code)
    values[code] = float8_to_float32(static_cast<std::uint8_t>(code), e4m3);
  return values;
}
inline constexpr std::array<float, 256> kE4m3Values = float8_values(true),
                                        kE5m2Values = float8_values(false);

/// Round to nearest, ties to even. What is too large becomes the largest finite value (448 or
/// 57,344); NaN stays NaN.
inline std::uint8_t float32_to_float8(float value, bool e4m3) {
  const std::uint8_t sign = std::signbit(value) ? 0x80u : 0u;
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7fu);
  const float magnitude = std::fabs(value), most = e4m3 ? 448.0f : 57344.0f;
  const auto largest = static_cast<std::uint8_t>(e4m3 ? 0x7e : 0x7b);
  if (magnitude >= most) return static_cast<std::uint8_t>(sign | largest);
  const int mantissa = e4m3 ? 3 : 2, least = e4m3 ? -6 : -14;  // exponent of the least normal one
  const int exponent = std::max(least, magnitude > 0.0f ? std::ilogb(magnitude) : least);
  const float unit = std::ldexp(1.0f, exponent - mantissa);
  const int steps = static_cast<int>(std::nearbyint(magnitude / unit));  // exact quotient
  // Codes of one sign are in the order of their values; a carry walks into the next exponent.
  const int code = ((exponent - least) << mantissa) + steps;
  return static_cast<std::uint8_t>(sign | std::min<int>(code, largest));
}

/// The integer that element `d` of a row of int8 or int4 holds.
inline int integer_code(const std::byte* row, ElementType type, std::int64_t d) {
  if (type == ElementType::int8) return static_cast<std::int8_t>(row[d]);
  const std::int64_t in = d % kCodeBlock;
  const unsigned both = std::to_integer<unsigned>(row[d / kCodeBlock * 16 + in % 16]);
  const int half = static_cast<int>(in < 16 ? both & 15u : both >> 4);
  return half < 8 ? half : half - 16;
}

/// Element `d` of a row of codes, `scale` being its scale (integers only).
inline float code_to_float32(const std::byte* row, ElementType type, std::int64_t d, float scale) {
  if (is_scaled(type)) return static_cast<float>(integer_code(row, type, d)) * scale;
  const auto& values = type == ElementType::float8_e4m3 ? kE4m3Values : kE5m2Values;
  return values[std::to_integer<std::uint8_t>(row[d])];
}

inline void store_integer_code(std::byte* row, ElementType type, std::int64_t d, int code) {
  if (type == ElementType::int8) {
    row[d] = static_cast<std::byte>(code);
    return;
  }
  std::byte& both = row[d / kCodeBlock * 16 + d % 16];
  const auto half = static_cast<std::byte>(code & 15);
  both =
      d % kCodeBlock < 16 ? (both & std::byte{0xf0}) | half : (both & std::byte{0x0f}) | half << 4;
}

/// The scale of values whose one of largest magnitude is `extreme`: int8 codes reach 127 on both
/// sides, int4 codes reach -8 at the extreme itself and 7 on the other side. Not finite for a NaN
/// or an infinity, which then makes all that share the scale NaN or, each with its sign, infinite.
inline float code_scale(ElementType type, float extreme) {
  return type == ElementType::int8 ? std::fabs(extreme) / 127.0f : extreme / -8.0f;
}

/// The nearest code of `value`, ties to even; clamped to what the type holds. 0 for a NaN under a
/// finite scale, which no code can give back.
inline int integer_code_of(ElementType type, float value, float scale) {
  if (scale == 0.0f) return 0;
  if (!std::isfinite(scale)) return std::signbit(value) == std::signbit(scale) ? 1 : -1;
  const float most = type == ElementType::int8 ? 127.0f : 7.0f;
  const float least = type == ElementType::int8 ? -127.0f : -8.0f;
  if (std::isnan(value)) return 0;
  return static_cast<int>(std::nearbyint(std::clamp(value / scale, least, most)));
}

}  // namespace polyhead::inline v0::base
