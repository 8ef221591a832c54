// RoPE behind polyhead_layer_c.h.
#include "polyhead/rope.h"

#include "capi/convert_layer.hpp"

using namespace polyhead::capi;

polyhead_status polyhead_apply_rope(const polyhead_view* x, const polyhead_view* positions,
                                    const polyhead_rope_config* config) {
  constexpr const char* kCall = "polyhead_apply_rope";
  return guarded(kCall, [&] {
    const polyhead::RopeConfig rope = to_rope(kCall, config);
    polyhead::apply_rope(to_view(kCall, "x", need(kCall, "x", x)),
                         to_view(kCall, "positions", need(kCall, "positions", positions)), rope);
  });
}
