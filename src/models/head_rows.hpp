// Rows of heads as attention's arguments hold them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/element.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0::models {

/// The last three axes of rows [.., tokens, heads, dim] of one sequence or one ragged run.
struct HeadRows {
  explicit HeadRows(const ConstView& view)
      : data(static_cast<const std::byte*>(view.data)), type(view.type) {
    const auto axes = static_cast<std::size_t>(view.layout.axes);
    tokens = view.layout.extents[axes - 3];
    heads = view.layout.extents[axes - 2];
    dim = view.layout.extents[axes - 1];
    token_stride_ = view.layout.strides[axes - 3];
    head_stride_ = view.layout.strides[axes - 2];
  }

  const std::byte* row(std::int64_t t, std::int64_t h) const {
    return data + (t * token_stride_ + h * head_stride_) * element_bytes(type);
  }
  float value(const std::byte* row, std::int64_t d) const {
    return base::load_float32(row + d * element_bytes(type), type);
  }

  const std::byte* data;
  ElementType type;
  std::int64_t tokens, heads, dim;

 private:
  std::int64_t token_stride_, head_stride_;  // elements
};

}  // namespace polyhead::inline v0::models
