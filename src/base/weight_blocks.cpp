// Layouts are ggml's (block_q4_0 and so on).
#include "base/weight_blocks.hpp"

#include <cstring>

#include "base/element.hpp"

namespace polyhead::inline v0::base {
namespace {

constexpr std::uint16_t kMinusZero = 0x8000;

std::uint16_t half_bits(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

int byte_at(const std::byte* at, int index) { return std::to_integer<int>(at[index]); }
std::int8_t code_of(int value) { return static_cast<std::int8_t>(value); }

/// 16 bytes of two weights each: low halves are weights 0 .. 15, high ones 16 .. 31.
void nibbles(const std::byte* from, int lowest, std::int8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = code_of((byte_at(from, i) & 15) + lowest);
  for (int i = 0; i < 16; ++i) to[i + 16] = code_of((byte_at(from, i) >> 4) + lowest);
}

/// A fifth bit for each of 32 weights.
void fifth_bits(const std::byte* from, std::int8_t* codes) {
  for (int byte = 0; byte < 4; ++byte) {
    const int bits = byte_at(from, byte);
    for (int i = 0; i < 8; ++i) {
      std::int8_t& code = codes[byte * 8 + i];
      code = code_of(code + ((bits >> i & 1) << 4));
    }
  }
}

void flat(const std::byte* block, bool minimum, BlockParts& parts) {
  parts.d = half_bits(block);
  parts.dmin = minimum ? half_bits(block + 2) : kMinusZero;
}

void q4(const std::byte* block, bool minimum, BlockParts& parts) {
  flat(block, minimum, parts);
  nibbles(block + (minimum ? 4 : 2), minimum ? 0 : -8, parts.codes);
}

void q5(const std::byte* block, bool minimum, BlockParts& parts) {
  flat(block, minimum, parts);
  const std::byte* const bits = block + (minimum ? 4 : 2);
  nibbles(bits + 4, minimum ? 0 : -16, parts.codes);
  fifth_bits(bits, parts.codes);
}

void q8_0(const std::byte* block, BlockParts& parts) {
  flat(block, false, parts);
  std::memcpy(parts.codes, block + 2, 32);
}

// The k types: 256 weights. Groups of 32 or 128 take their bits from the same bytes, two or one at
// a time.

/// Two bits of each of 256 weights.
void pairs_of_bits(const std::byte* from, std::int8_t* codes) {
  for (int part = 0; part < 8; ++part) {
    const int shift = part % 4 * 2;
    for (int i = 0; i < 32; ++i) {
      codes[part * 32 + i] = code_of(byte_at(from, part / 4 * 32 + i) >> shift & 3);
    }
  }
}

void q2_k(const std::byte* block, BlockParts& parts) {
  pairs_of_bits(block + 16, parts.codes);
  for (int i = 0; i < 16; ++i) {
    parts.scales[i] = code_of(byte_at(block, i) & 15);
    parts.lifts[i] = code_of(byte_at(block, i) >> 4);
  }
  parts.d = half_bits(block + 80);
  parts.dmin = half_bits(block + 82);
}

void q3_k(const std::byte* block, BlockParts& parts) {
  const std::byte* const packed = block + 96;  // 16 scales of 6 bits
  pairs_of_bits(block + 32, parts.codes);
  for (int part = 0; part < 8; ++part) {  // a third bit each; where it is not set, 4 is taken off
    for (int i = 0; i < 32; ++i) {
      std::int8_t& code = parts.codes[part * 32 + i];
      code = code_of(code - ((byte_at(block, i) >> part & 1) != 0 ? 0 : 4));
    }
  }
  for (int i = 0; i < 16; ++i) {
    const int low = byte_at(packed, i % 8) >> (i / 8 * 4) & 15;
    const int top = byte_at(packed, 8 + i % 4) >> (i / 4 * 2) & 3;
    parts.scales[i] = code_of((low | top << 4) - 32);
  }
  parts.d = half_bits(block + 108);
  parts.dmin = 0;
  std::memset(parts.lifts, 0, sizeof parts.lifts);
}

/// `high`: a fifth bit for each weight (q5_k), or null.
void q4_or_q5_k(const std::byte* block, const std::byte* high, const std::byte* low,
                BlockParts& parts) {
  const std::byte* const packed = block + 4;  // 8 scales and 8 minima of 6 bits
  parts.d = half_bits(block);
  parts.dmin = half_bits(block + 2);
  for (int i = 0; i < 8; ++i) {
    int scale = byte_at(packed, i % 4) & 63, lift = byte_at(packed, i % 4 + 4) & 63;
    if (i >= 4) {
      scale = (byte_at(packed, i + 4) & 15) | (byte_at(packed, i - 4) >> 6) << 4;
      lift = (byte_at(packed, i + 4) >> 4) | (byte_at(packed, i) >> 6) << 4;
    }
    parts.scales[2 * i] = parts.scales[2 * i + 1] = code_of(scale);
    parts.lifts[2 * i] = parts.lifts[2 * i + 1] = code_of(lift);
  }
  for (int part = 0; part < 8; ++part) {
    const int shift = part % 2 * 4;
    std::int8_t* const codes = parts.codes + part * 32;
    for (int i = 0; i < 32; ++i) {
      codes[i] = code_of(byte_at(low, part / 2 * 32 + i) >> shift & 15);
    }
    if (high == nullptr) continue;
    for (int i = 0; i < 32; ++i) {
      codes[i] = code_of(codes[i] | (byte_at(high, i) >> part & 1) << 4);
    }
  }
}

void q6_k(const std::byte* block, BlockParts& parts) {
  for (int part = 0; part < 8; ++part) {
    const int half = part / 4, group = part % 4;
    const std::byte* const low = block + half * 64 + group % 2 * 32;
    const std::byte* const high = block + 128 + half * 32;
    for (int i = 0; i < 32; ++i) {
      const int four = byte_at(low, i) >> (group / 2 * 4) & 15;
      const int two = byte_at(high, i) >> (group * 2) & 3;
      parts.codes[part * 32 + i] = code_of((four | two << 4) - 32);
    }
  }
  std::memcpy(parts.scales, block + 192, 16);
  std::memset(parts.lifts, 0, sizeof parts.lifts);
  parts.d = half_bits(block + 208);
  parts.dmin = 0;
}

}  // namespace

BlockForm block_form(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {4, 32, false, false, -8};
    case WeightType::q4_1:
      return {4, 32, false, true, 0};
    case WeightType::q5_0:
    case WeightType::q8_0:
      return {8, 32, false, false, 0};
    case WeightType::q5_1:
      return {8, 32, false, true, 0};
    case WeightType::q2_k:
      return {4, 16, true, true, 0};
    case WeightType::q3_k:
      return {4, 16, true, false, -4};
    case WeightType::q4_k:
      return {4, 32, true, true, 0};
    case WeightType::q5_k:
      return {8, 32, true, true, 0};
    case WeightType::q6_k:
      return {8, 16, true, false, 0};
    default:
      return {};
  }
}

BlockForm common_form(const BlockForm& a, const BlockForm& b) {
  if (a == b) return a;
  if (a.bits == 0 || b.bits == 0 || a.scaled != b.scaled) return {};
  // The one form of its kind that holds all of them.
  if (a.scaled) return {8, 16, true, true, 0};
  return {8, 32, false, a.minimum || b.minimum, 0};
}

void unpack_block(WeightType type, const std::byte* block, BlockParts& parts) {
  switch (type) {
    case WeightType::q4_0:
      return q4(block, false, parts);
    case WeightType::q4_1:
      return q4(block, true, parts);
    case WeightType::q5_0:
      return q5(block, false, parts);
    case WeightType::q5_1:
      return q5(block, true, parts);
    case WeightType::q8_0:
      return q8_0(block, parts);
    case WeightType::q2_k:
      return q2_k(block, parts);
    case WeightType::q3_k:
      return q3_k(block, parts);
    case WeightType::q4_k:
      return q4_or_q5_k(block, nullptr, block + 16, parts);
    case WeightType::q5_k:
      return q4_or_q5_k(block, block + 16, block + 48, parts);
    case WeightType::q6_k:
      return q6_k(block, parts);
    default:
      parts = {};
  }
}

void dequantise_block(WeightType type, const std::byte* block, float* to) {
  const BlockForm form = block_form(type);
  BlockParts parts;
  unpack_block(type, block, parts);
  const float d = float16_bits_to_float32(parts.d), dmin = float16_bits_to_float32(parts.dmin);
  for (int group = 0; group < form.block() / 16; ++group) {
    const float step = form.scaled ? d * static_cast<float>(parts.scales[group]) : d;
    const float minimum = form.scaled ? -(dmin * static_cast<float>(parts.lifts[group])) : dmin;
    const std::int8_t* const codes = parts.codes + group * 16;
    float* const out = to + group * 16;
    for (int i = 0; i < 16; ++i) out[i] = step * static_cast<float>(codes[i]);
    if (!form.minimum) continue;
    for (int i = 0; i < 16; ++i) out[i] += minimum;
  }
}

}  // namespace polyhead::inline v0::base
