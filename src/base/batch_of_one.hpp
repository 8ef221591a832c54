// Views of one sequence as views of a batch.
#pragma once

#include <cstddef>

#include "polyhead/types.h"

namespace polyhead::inline v0::base {

/// [tokens, ...] as [1, tokens, ...].
template <class Strided>
Strided batch_of_one(Strided view) {
  detail::Layout& layout = view.layout;
  for (auto axis = static_cast<std::size_t>(layout.axes); axis > 0; --axis) {
    layout.extents[axis] = layout.extents[axis - 1];
    layout.strides[axis] = layout.strides[axis - 1];
  }
  layout.extents[0] = 1;
  layout.strides[0] = 0;
  ++layout.axes;
  return view;
}

}  // namespace polyhead::inline v0::base
