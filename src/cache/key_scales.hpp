// Scales of int8 and int4 keys by channel, as a cache is given them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "polyhead/types.h"

namespace polyhead::inline v0::cache {

/// What such scales are.
inline constexpr const char* kKeyScales = "finite numbers other than 0";
bool is_key_scale(float scale);

struct KeyScalesShape {
  std::int64_t kv_heads, head_dim;
  std::optional<std::int64_t> layers{};  ///< before them, where there is such an axis
};

/// A dense copy of scales of this shape (checked: float32, for int8 and int4 alone, finite and not
/// 0); nothing where they are not given.
std::vector<float> take_key_scales(const char* call, const ConstView& scales, ElementType type,
                                   const KeyScalesShape& shape);

}  // namespace polyhead::inline v0::cache
