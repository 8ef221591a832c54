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

/// 16 bytes of two weights each: low halves are weights 0 .. 15, high ones 16 .. 31. `fifth` has a
/// fifth bit for each.
template <class Value>
void spread_nibbles(const std::byte* nibbles, std::uint32_t fifth, float* to, const Value& value) {
  for (int i = 0; i < 16; ++i) {
    const auto bit = [&](int place) { return static_cast<int>(fifth >> place & 1u) << 4; };
    to[i] = value((byte_at(nibbles, i) & 15) | bit(i));
    to[i + 16] = value((byte_at(nibbles, i) >> 4) | bit(i + 16));
  }
}

std::uint32_t word_at(const std::byte* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// One block each.

void q4_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  spread_nibbles(block + 2, 0, to, [&](int q) { return d * static_cast<float>(q - 8); });
}

void q4_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  spread_nibbles(block + 4, 0, to, [&](int q) { return d * static_cast<float>(q) + m; });
}

void q5_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  spread_nibbles(block + 6, word_at(block + 2), to,
                 [&](int q) { return d * static_cast<float>(q - 16); });
}

void q5_1(const std::byte* block, float* to) {
  const float d = half_at(block), m = half_at(block + 2);
  spread_nibbles(block + 8, word_at(block + 4), to,
                 [&](int q) { return d * static_cast<float>(q) + m; });
}

void q8_0(const std::byte* block, float* to) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) to[i] = d * static_cast<float>(signed_at(block + 2, i));
}

// The k types: 256 weights. Groups of 32 or 128 take their bits from the same bytes, two or one at
// a time.

void q2_k(const std::byte* block, float* to) {
  const std::byte* scales = block;
  const std::byte* bits = block + 16;
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int scale = byte_at(scales, i / 16);
    const int q = byte_at(bits, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    const float step = d * static_cast<float>(scale & 15);
    const float minimum = dmin * static_cast<float>(scale >> 4);
    to[i] = step * static_cast<float>(q) - minimum;
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
  for (int i = 0; i < 256; ++i) {
    const int low = byte_at(bits, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    const int set = byte_at(high, i % 32) >> (i / 32) & 1;
    to[i] = scales[static_cast<std::size_t>(i / 16)] * static_cast<float>(low - (set != 0 ? 0 : 4));
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
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, group = i / 32 % 4, lane = i % 32;
    const int four = byte_at(low, half * 64 + group % 2 * 32 + lane) >> (group / 2 * 4) & 15;
    const int two = byte_at(high, half * 32 + lane) >> (group * 2) & 3;
    const float step = d * static_cast<float>(signed_at(scales, i / 16));
    to[i] = step * static_cast<float>((four | two << 4) - 32);
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
