// Conversions that only the layer's side of the C door needs.
#pragma once

#include "capi/convert_cache.hpp"
#include "polyhead/layer.h"
#include "polyhead/polyhead_layer_c.h"
#include "polyhead/rope.h"

namespace polyhead::inline v0::capi {

RopeConfig to_rope(const char* call, const polyhead_rope_config* config);

/// NULL adds nothing. The workspace is the caller's.
LayerCall to_layer_call(const char* name, const polyhead_layer_call* call);

}  // namespace polyhead::inline v0::capi
