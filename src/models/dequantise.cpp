// The one meaning of weights: plain elements here, blocks in base/weight_blocks.hpp.
#include <cstring>

#include "base/element.hpp"
#include "base/weight_blocks.hpp"
#include "models/model_file.hpp"

namespace polyhead::inline v0::models {
namespace {

float plain_weight(WeightType type, const std::byte* at) {
  if (type == WeightType::float32) return base::load_float32(at, ElementType::float32);
  return base::load_float32(
      at, type == WeightType::float16 ? ElementType::float16 : ElementType::bfloat16);
}

/// One block, or one plain element.
void dequantise(WeightType type, const std::byte* block, float* to) {
  if (block_weights(type) == 1) {
    *to = plain_weight(type, block);
  } else {
    base::dequantise_block(type, block, to);
  }
}

}  // namespace

void dequantise_rows(const WeightTensor& tensor, std::int64_t first, std::int64_t count,
                     float* to) {
  const std::int64_t weights = block_weights(tensor.type), bytes = block_bytes(tensor.type);
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (tensor.transposed) {  // [out, in], stored as [in, out]: element by element
    const std::int64_t rows = tensor.shape.front();
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        dequantise(tensor.type, tensor.data.data() + (column * rows + first + row) * bytes,
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
    dequantise(tensor.type, from + i * bytes, to + i * weights);
}

}  // namespace polyhead::inline v0::models
