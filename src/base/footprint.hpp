// Which bytes a strided view touches: overflow, overlap with itself and overlap with others,
// without touching them.
#pragma once

#include <cstdint>
#include <span>

#include "base/limits.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0::base {

/// One view's bytes. Axes of extent 1 are left out and negative strides turned round, so every
/// stride is >= 0.
struct Footprint {
  const char* name = "";
  std::uintptr_t begin = 0,
                 end = 0;  ///< of the bytes touched; equal where the view is empty or not given
  std::int64_t element =
      0;  ///< bytes of the innermost piece: an element, or a whole packed row of bits
  int axes = 0;
  std::int64_t extents[kMaxAxes] = {};
  std::int64_t strides[kMaxAxes] = {};  ///< bytes

  bool empty() const { return begin == end; }
};

/// Measures `view`. Throws InvalidArgument naming it if an extent is negative or too large, if
/// extents times strides overflow, if there are elements but no data, or if the data is not aligned
/// to its element type.
Footprint footprint_of(const char* call, const char* name, const ConstView& view);

/// Whether two elements of one view share a byte, or cannot be shown not to.
bool overlaps_itself(const Footprint& view);

/// Whether no byte belongs to both, as far as can be shown: separate ranges, or pieces of rows of
/// one period, as the slices of a packed [tokens, 3 * heads * dim] array are.
bool provably_disjoint(const Footprint& a, const Footprint& b);

/// Throws InvalidArgument, beginning with `call`, unless `output` does not overlap itself and is
/// provably disjoint from each of `others`.
void check_writable(const char* call, const Footprint& output, const Footprint* others, int count);

/// Whether the first element of a view lies in an array.
bool begins_in(const ConstView& view, std::span<const std::int64_t> array);

/// The stride of `axis` in bytes (in bits for ElementType::bit), 0 where the axis has at most one
/// element.
std::int64_t kernel_stride(const ConstView& view, int axis);

}  // namespace polyhead::inline v0::base
