// Rows that a cache holds exactly, whatever it holds them in: what its memory is to be, bit by bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/splitmix64.hpp"
#include "polyhead/types.h"

namespace polyhead::test {

/// One row: its values, and the codes (of float32 and 16-bit types, the bits) and scales that
/// stand for them.
struct ExactRow {
  std::vector<float> values, scales;  // scales a block of 32 dims
  std::vector<std::uint32_t> codes;

  /// A row that follows from `number`. Scales are powers of two, those of `channels` [dim] where
  /// given; else each block has one value at the end of the codes, of which its scale is made: then
  /// every quotient is a whole number and nothing is rounded.
  void make(ElementType type, std::int64_t dim, std::uint64_t number, const float* channels) {
    const auto size = static_cast<std::size_t>(dim);
    values.resize(size);
    codes.resize(size);
    scales.clear();
    const bool scaled = base::is_scaled(type), by_token = scaled && channels == nullptr;
    const int most = type == ElementType::int8 ? 127 : 7;
    for (std::size_t d = 0; d < size; ++d) {
      const std::uint64_t bits = base::splitmix64(number);
      if (!scaled) {
        codes[d] = finite(type, static_cast<std::uint32_t>(bits));
        values[d] = value_of(type, codes[d]);
        continue;
      }
      if (by_token && d % 32 == 0) begin_block(type, std::min<std::size_t>(32, size - d), bits);
      int code = static_cast<int>((bits >> 32) % static_cast<unsigned>(2 * most + 1)) - most;
      if (by_token && d % 32 == extreme_at_) code = extreme_;
      codes[d] = static_cast<std::uint32_t>(code);
      values[d] = static_cast<float>(code) * (by_token ? scales.back() : channels[d]);
    }
  }

  /// Whether `data`, a row in memory, holds these codes.
  bool held_in(const std::byte* data, ElementType type, std::int64_t dim) const {
    const std::int64_t bytes = element_bytes(type);
    for (std::int64_t d = 0; d < dim; ++d) {
      std::uint32_t found = 0;
      if (base::is_scaled(type))
        found = static_cast<std::uint32_t>(base::integer_code(data, type, d));
      else
        std::memcpy(&found, data + d * bytes, static_cast<std::size_t>(bytes));
      if (found != codes[static_cast<std::size_t>(d)]) return false;
    }
    return true;
  }

 private:
  /// A scale, and where in the block the value lies that it follows from: 127 or -127 of int8, -8
  /// of int4, whose scale has the other sign than that value.
  void begin_block(ElementType type, std::size_t count, std::uint64_t bits) {
    const bool negative = bits % 2 != 0, int8 = type == ElementType::int8;
    const float scale = std::ldexp(1.0f, static_cast<int>(bits / 2 % 9) - 4);
    scales.push_back(!int8 && negative ? -scale : scale);
    extreme_ = !int8 ? -8 : negative ? -127 : 127;
    extreme_at_ = bits / 32 % count;
  }

  /// Some bits of a number that is neither infinite nor NaN.
  static std::uint32_t finite(ElementType type, std::uint32_t bits) {
    switch (type) {
      case ElementType::float32:
        return bits & ~0x40000000u;
      case ElementType::float8_e4m3:
        return (bits & 0x7fu) == 0x7fu ? 0x7eu : bits & 0xffu;
      case ElementType::float8_e5m2:
        return (bits & 0x7cu) == 0x7cu ? bits & 0xbfu : bits & 0xffu;
      default:
        return bits & 0xbfffu;
    }
  }
  static float value_of(ElementType type, std::uint32_t bits) {
    switch (type) {
      case ElementType::float32:
        return std::bit_cast<float>(bits);
      case ElementType::float16:
        return base::float16_bits_to_float32(static_cast<std::uint16_t>(bits));
      case ElementType::bfloat16:
        return base::bfloat16_bits_to_float32(static_cast<std::uint16_t>(bits));
      default:
        return base::float8_to_float32(static_cast<std::uint8_t>(bits),
                                       type == ElementType::float8_e4m3);
    }
  }

  int extreme_ = 0;
  std::size_t extreme_at_ = 0;
};

}  // namespace polyhead::test
