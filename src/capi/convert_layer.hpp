// Conversions that only the layer's side of the C door needs.
#pragma once

#include "capi/convert.hpp"
#include "polyhead/polyhead_layer_c.h"
#include "polyhead/rope.h"

namespace polyhead::inline v0::capi {

/// A zero is "the default", which `unless_zero` replaces where the caller gave another number.
template <class T, class U>
void unless_zero(T& to, U from) {
  if (from != 0) to = from;
}

RopeConfig to_rope(const char* call, const polyhead_rope_config* config);

/// A view that the library is to fill: null, or one whose struct_bytes is right.
void check_written_view(const char* call, const char* name, const polyhead_view* view);
void fill_view(polyhead_view* view, const ConstView& from);

}  // namespace polyhead::inline v0::capi
