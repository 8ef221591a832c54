// The one meaning of every weight type: float32 values of stored blocks.
//
// Blocks are ggml's (ggml-common.h, block_q4_0 and so on; its dequantize_row_* give these values).
// Every value is one float32 product and, for types with a minimum, one float32 sum after it, each
// rounded on its own (no fma):
//
//   w = scale * float(q)            q4_0, q5_0, q8_0, q3_k, q6_k
//   w = scale * float(q) + minimum  q4_1, q5_1; q2_k, q4_k, q5_k, whose minimum is -(dmin * m)
//
// where the k types have scale = d * float(s), itself rounded to float32, for each 16 or 32 weights
// of a block, and d and dmin are float16 widened. Kernels that keep weights quantised compute the
// same in the same order, so that they agree to the bit.
#include <array>
#include <bit>
#include <cstring>

#include "base/element.hpp"
#include "models/model_file.hpp"

namespace polyhead::inline v0::models {
namespace {

float half_at(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return base::float16_bits_to_float32(bits);
}

int byte_at(const std::byte* at, int index) { return std::to_integer<int>(at[index]); }
int signed_at(const std::byte* at, int index) {
  return static_cast<std::int8_t>(std::to_integer<std::uint8_t>(at[index]));
}

/// 16 bytes of two weights each: low halves are weights 0 .. 15, high ones 16 .. 31.
template <class Value>
void spread_nibbles(const std::byte* nibbles, float* to, const Value& value) {
  for (int i = 0; i < 16; ++i) {
    to[i] = value(byte_at(nibbles, i) & 15);
    to[i + 16] = value(byte_at(nibbles, i) >> 4);
  }
}

/// Eight bits as eight bytes of 0 or 16: the fifth bits of eight weights.
constexpr std::array<std::uint64_t, 256> kFifthBits = [] {
  std::array<std::uint64_t, 256> table{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    for (unsigned i = 0; i < 8; ++i) table[bits] |= std::uint64_t{bits >> i & 1u} << (8 * i + 4);
  }
  return table;
}();

/// The same with a fifth bit for each weight, four bytes of them.
template <class Value>
void spread_five_bits(const std::byte* nibbles, const std::byte* fifth, float* to,
                      const Value& value) {
  std::array<std::uint8_t, 32> high;
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&high[static_cast<std::size_t>(8 * i)],
                &kFifthBits[static_cast<std::size_t>(byte_at(fifth, i))], 8);
  }
  for (std::size_t i = 0; i < 16; ++i) {
    const int byte = byte_at(nibbles, static_cast<int>(i));
    to[i] = value((byte & 15) | high[i]);
    to[i + 16] = value((byte >> 4) | high[i + 16]);
  }
}

// One block each.

void q4_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  spread_nibbles(block + 2, to, [&](int q) { return d * static_cast<float>(q - 8); });
}

void q4_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  spread_nibbles(block + 4, to, [&](int q) { return d * static_cast<float>(q) + m; });
}

void q5_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  spread_five_bits(block + 6, block + 2, to, [&](int q) { return d * static_cast<float>(q - 16); });
}

void q5_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  spread_five_bits(block + 8, block + 4, to, [&](int q) { return d * static_cast<float>(q) + m; });
}

void q8_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) to[i] = d * static_cast<float>(signed_at(block + 2, i));
}

// The k types: 256 weights in groups of 16 or 32 with a scale each; several groups take their bits
// from the same bytes.

void q2_k(const std::byte* block, float* to) {
  const std::byte* scales = block;
  const std::byte* bits = block + 16;
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int group = 0; group < 16; ++group) {
    const int scale = byte_at(scales, group), shift = group / 2 % 4 * 2;
    const float step = d * static_cast<float>(scale & 15);
    const float minimum = dmin * static_cast<float>(scale >> 4);
    const std::byte* from = bits + group / 8 * 32 + group % 2 * 16;
    for (int i = 0; i < 16; ++i) {
      to[group * 16 + i] = step * static_cast<float>(byte_at(from, i) >> shift & 3) - minimum;
    }
  }
}

void q3_k(const std::byte* block, float* to) {
  const std::byte* high = block;  // a third bit each; where it is not set, 4 is taken off
  const std::byte* bits = block + 32;
  const std::byte* packed = block + 96;  // 16 scales of 6 bits
  const float d = half_at(block + 108);
  std::array<float, 16> scales;
  for (int i = 0; i < 16; ++i) {
    const int low = byte_at(packed, i % 8) >> (i / 8 * 4) & 15;
    const int top = byte_at(packed, 8 + i % 4) >> (i / 4 * 2) & 3;
    scales[static_cast<std::size_t>(i)] = d * static_cast<float>((low | top << 4) - 32);
  }
  for (int group = 0; group < 16; ++group) {
    const int shift = group / 2 % 4 * 2, third = group / 2;
    const std::byte* from = bits + group / 8 * 32 + group % 2 * 16;
    const float step = scales[static_cast<std::size_t>(group)];
    for (int i = 0; i < 16; ++i) {
      const int top = byte_at(high, group % 2 * 16 + i) >> third & 1;
      const int q = (byte_at(from, i) >> shift & 3) + 4 * top - 4;
      to[group * 16 + i] = step * static_cast<float>(q);
    }
  }
}

/// Scale and minimum, 6 bits each, of group i of 8 (q4_k and q5_k).
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum scale_and_minimum(const std::byte* packed, int i) {
  if (i < 4) return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
  return {(byte_at(packed, i + 4) & 15) | (byte_at(packed, i - 4) >> 6) << 4,
          (byte_at(packed, i + 4) >> 4) | (byte_at(packed, i) >> 6) << 4};
}

/// `high`: a fifth bit for each weight (q5_k), or null.
void q4_or_q5_k(const std::byte* block, const std::byte* high, const std::byte* nibbles,
                float* to) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const auto [scale, lowest] = scale_and_minimum(block + 4, group);
    const float step = d * static_cast<float>(scale);
    const float minimum = dmin * static_cast<float>(lowest);
    for (int i = 0; i < 32; ++i) {
      int q = byte_at(nibbles, group / 2 * 32 + i) >> (group % 2 * 4) & 15;
      if (high != nullptr) q |= (byte_at(high, i) >> group & 1) << 4;
      to[group * 32 + i] = step * static_cast<float>(q) - minimum;
    }
  }
}

void q4_k(const std::byte* block, float* to) { q4_or_q5_k(block, nullptr, block + 16, to); }
void q5_k(const std::byte* block, float* to) { q4_or_q5_k(block, block + 16, block + 48, to); }

void q6_k(const std::byte* block, float* to) {
  const std::byte* low = block;
  const std::byte* high = block + 128;
  const std::byte* scales = block + 192;
  const float d = half_at(block + 208);
  for (int group = 0; group < 16; ++group) {  // of 16 weights; 32 share a shift
    const int half = group / 8, quarter = group / 2 % 4, first = group % 2 * 16;
    const std::byte* four = low + half * 64 + quarter % 2 * 32 + first;
    const std::byte* two = high + half * 32 + first;
    const int four_shift = quarter / 2 * 4, two_shift = quarter * 2;
    const float step = d * static_cast<float>(signed_at(scales, group));
    for (int i = 0; i < 16; ++i) {
      const int q = (byte_at(four, i) >> four_shift & 15) | (byte_at(two, i) >> two_shift & 3) << 4;
      to[group * 16 + i] = step * static_cast<float>(q - 32);
    }
  }
}

void float32_element(const std::byte* at, float* to) { std::memcpy(to, at, sizeof *to); }
void float16_element(const std::byte* at, float* to) { *to = half_at(at); }
void bfloat16_element(const std::byte* at, float* to) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  *to = base::bfloat16_bits_to_float32(bits);
}

using Block = void (*)(const std::byte*, float*);
constexpr std::array<Block, kWeightTypes> kBlocks{float32_element,
                                                  float16_element,
                                                  bfloat16_element,
                                                  q4_0,
                                                  q4_1,
                                                  q5_0,
                                                  q5_1,
                                                  q8_0,
                                                  q2_k,
                                                  q3_k,
                                                  q4_k,
                                                  q5_k,
                                                  q6_k};

}  // namespace

void dequantise_rows(const WeightTensor& tensor, std::int64_t first, std::int64_t count,
                     float* to) {
  const Block block = kBlocks[static_cast<std::size_t>(tensor.type)];
  const std::int64_t weights = block_weights(tensor.type), bytes = block_bytes(tensor.type);
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (tensor.transposed) {  // [out, in], stored as [in, out]: element by element
    const std::int64_t rows = tensor.shape.front();
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        block(tensor.data.data() + (column * rows + first + row) * bytes,
              to + row * columns + column);
      }
    }
    return;
  }
  const std::byte* from = tensor.data.data() + first * (columns / weights) * bytes;
  if (tensor.type == WeightType::float32) {
    if (count * columns > 0)
      std::memcpy(to, from, static_cast<std::size_t>(count * columns) * sizeof *to);
    return;
  }
  for (std::int64_t i = 0; i < count * columns / weights; ++i)
    block(from + i * bytes, to + i * weights);
}

}  // namespace polyhead::inline v0::models
