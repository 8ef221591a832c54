// Conversions that only the layer's side of the C door needs.
#pragma once

#include <memory>
#include <optional>

#include "capi/convert_cache.hpp"
#include "capi/handles.hpp"
#include "polyhead/layer.h"
#include "polyhead/polyhead_layer_c.h"
#include "polyhead/rope.h"

namespace polyhead::inline v0::capi {

RopeConfig to_rope(const char* call, const polyhead_rope_config* config);
/// None for a null pointer.
std::optional<RopeConfig> to_rope_if_any(const char* call, const polyhead_rope_config* config);

/// What the configurations of both layers say alike, but for their modifiers.
template <class To, class From>
void take_common(const char* call, const From& from, To& to) {
  unless_zero(to.norm_eps, from.norm_eps);
  if (from.weight_type != 0)
    to.weight_type = to_element(call, "config.weight_type", from.weight_type);
  to.rope = to_rope_if_any(call, from.rope);
  to.mask = to_mask(call, from.mask);
}

/// A handle of a layer of `config` and `weights`.
template <class Handle, class Config, class Weights>
Handle* make_layer(const char* call, Config config, const Weights& weights,
                   const polyhead_modifiers* modifiers, const polyhead_options* options) {
  auto made = std::make_unique<Handle>(call, modifiers);
  config.modifiers = made->modifiers.modifiers();
  made->layer.emplace(config, weights, to_options(call, options));
  return made.release();
}

/// NULL adds nothing. The workspace is the caller's.
LayerCall to_layer_call(const char* name, const polyhead_layer_call* call);

/// `from` has a cache.
PagedSequences to_pages(const char* call, const polyhead_paged_sequences& from);

/// Calls body(sequences) for a layer that goes on with `pages`; what became of their pool.
template <class Handle, class Body>
polyhead_status guarded_pages(const char* call, const char* name, const Handle* handle,
                              const polyhead_paged_sequences* pages, const Body& body) {
  polyhead_paged_sequences from = {};
  const polyhead_status read = guarded(call, [&] {
    need(call, name, handle);
    from = read_struct(call, "pages", pages);
    need(call, "pages.cache", from.cache);
  });
  if (read != POLYHEAD_OK) return read;
  return guarded_pool(call, from.cache, [&](PagedCache&) { return body(to_pages(call, from)); });
}

}  // namespace polyhead::inline v0::capi
