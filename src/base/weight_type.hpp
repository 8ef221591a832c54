// How the weights of models are stored: plain elements, or blocks of small integers with scales.
#pragma once

#include <cstdint>

namespace polyhead::inline v0 {

/// Names and layouts of the quantised types are GGUF's (ggml, block_q4_0 and so on).
enum class WeightType : std::uint8_t {
  float32,
  float16,
  bfloat16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k
};

/// Weights of one block: 1 for plain elements, 32, or 256 for the k types.
constexpr int block_weights(WeightType type) {
  if (type <= WeightType::bfloat16) return 1;
  return type <= WeightType::q8_0 ? 32 : 256;
}

/// Bytes of one block.
constexpr int block_bytes(WeightType type) {
  constexpr int bytes[] = {4, 2, 2, 18, 20, 22, 24, 34, 84, 110, 144, 176, 210};
  return bytes[static_cast<int>(type)];
}

/// "Q4_1", as GGUF's tools write it.
constexpr const char* weight_type_name(WeightType type) {
  constexpr const char* names[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                   "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};
  return names[static_cast<int>(type)];
}

constexpr int kWeightTypes = 13;

}  // namespace polyhead::inline v0
