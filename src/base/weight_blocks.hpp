// Blocks of quantised weights taken apart, and what their parts mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/weight_type.hpp"

namespace polyhead::inline v0::base {

/// What a quantised type consists of. A weight is step * code, plus its group's minimum where the
/// type has one: float32, the product rounded before the sum. Every such product is exact in
/// float32 (a step has at most 18 significant bits, a code 6; or 11 and 8), so that a fused
/// multiply-add gives the same.
struct BlockForm {
  std::uint8_t bits = 0;    ///< of a stored code: 4 or 8; 0: not quantised
  std::uint8_t group = 32;  ///< weights that share a step
  bool scaled =
      false;  ///< step = d * scale and minimum = -(dmin * lift), a group each; else d, dmin
  bool minimum = false;
  std::int8_t lowest = 0;  ///< 4 bits: what the stored code 0 stands for

  bool operator==(const BlockForm&) const = default;
  /// Weights that share d and dmin.
  int block() const { return scaled ? 256 : 32; }
};

/// The smallest form that holds a type; bits are 0 for plain elements.
BlockForm block_form(WeightType type);

/// A form that holds the weights of both; bits are 0 where there is none.
BlockForm common_form(const BlockForm& a, const BlockForm& b);

/// A block of any type, its weights in order.
struct BlockParts {
  std::int8_t codes[256];             ///< with `lowest` in them
  std::uint16_t d = 0, dmin = 0;      ///< bits of float16
  std::int8_t scales[16], lifts[16];  ///< a group each
};

/// Takes one block (block_bytes(type), any alignment) apart. A type that lacks a part leaves the
/// value that changes nothing: dmin -0, or 0 for scaled types; lifts 0.
void unpack_block(WeightType type, const std::byte* block, BlockParts& parts);

/// The weights of a quantised block: block_weights(type) of them.
void dequantise_block(WeightType type, const std::byte* block, float* to);

}  // namespace polyhead::inline v0::base
