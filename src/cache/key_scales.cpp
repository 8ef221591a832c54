#include "cache/key_scales.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/footprint.hpp"
#include "base/refuse.hpp"
#include "base/shape_text.hpp"
#include "cache/append.hpp"

namespace polyhead::inline v0::cache {
namespace {

std::vector<std::int64_t> extents_of(const KeyScalesShape& shape) {
  if (shape.layers) return {*shape.layers, shape.kv_heads, shape.head_dim};
  return {shape.kv_heads, shape.head_dim};
}

void check_shape(const char* call, const ConstView& scales, const KeyScalesShape& shape) {
  const detail::Layout& layout = scales.layout;
  const std::vector<std::int64_t> expected = extents_of(shape);
  if (scales.type == ElementType::float32 && layout.axes == std::ssize(expected) &&
      !layout.too_many_axes &&
      std::ranges::equal(expected, std::span(layout.extents).first(expected.size())))
    return;
  base::refuse(call, "key_scales are ", element_name(scales.type), " ", shown_shape(scales),
               ", expected float32 ", base::shape_text(expected), ": ",
               shape.layers ? "layers, " : "", "kv_heads, head_dim");
}

}  // namespace

// By bits, since a caller's environment may read subnormal numbers as zeros.
bool is_key_scale(float scale) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(scale) & 0x7fffffffu;
  return magnitude != 0 && magnitude < 0x7f800000u;
}

std::vector<float> take_key_scales(const char* call, const ConstView& scales, ElementType type,
                                   const KeyScalesShape& shape) {
  std::vector<float> copy;
  if (!scales.given()) return copy;
  if (!base::is_scaled(type))
    base::refuse(call, "key_scales are given, but ", element_name(type), " has no scales");
  check_shape(call, scales, shape);
  base::footprint_of(call, "key_scales", scales);
  const std::int64_t* const strides = scales.layout.strides.data() + (shape.layers ? 1 : 0);
  for (std::int64_t layer = 0; layer < shape.layers.value_or(1); ++layer) {
    const std::int64_t first = shape.layers ? layer * scales.layout.strides[0] : 0;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        copy.push_back(
            static_cast<const float*>(scales.data)[first + h * strides[0] + d * strides[1]]);
        if (is_key_scale(copy.back())) continue;
        const std::string where = shape.layers ? "layer " + std::to_string(layer) + ", " : "";
        base::refuse(call, "key_scales has ", copy.back(), " at ", where, "head ", h, ", dim ", d,
                     ", expected ", kKeyScales);
      }
    }
  }
  return copy;
}

}  // namespace polyhead::inline v0::cache
