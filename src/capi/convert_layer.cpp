#include "capi/convert_layer.hpp"

#include <vector>

#include "base/footprint.hpp"
#include "capi/handles.hpp"

namespace polyhead::inline v0::capi {
namespace {

/// A copy of float32 [n]; empty where the view is not given.
std::vector<float> to_divisors(const char* call, const polyhead_view* from) {
  constexpr const char* kName = "rope.frequency_divisors";
  const ConstView view = to_view(call, kName, from);
  if (!view.given()) return {};
  if (view.type != ElementType::float32)
    refuse("%s: %s is %s, expected float32", call, kName, element_name(view.type));
  if (view.layout.axes != 1)
    refuse("%s: %s has %d axes, expected one of rotary_dims / 2", call, kName, view.layout.axes);
  base::footprint_of(call, kName, view);
  std::vector<float> to(static_cast<std::size_t>(view.layout.extents[0]));
  const auto* data = static_cast<const float*>(view.data);
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = data[static_cast<std::int64_t>(i) * view.layout.strides[0]];
  return to;
}

}  // namespace

RopeConfig to_rope(const char* call, const polyhead_rope_config* config) {
  const polyhead_rope_config from = read_struct(call, "rope", config);
  RopeConfig to;
  if (from.pairing < 0 || from.pairing > POLYHEAD_ROPE_INTERLEAVED) {
    refuse(
        "%s: rope.pairing (%d) is no pairing, expected POLYHEAD_ROPE_HALF_SPLIT (1) or "
        "POLYHEAD_ROPE_INTERLEAVED"
        " (2)",
        call, from.pairing);
  }
  to.pairing = static_cast<RopePairing>(from.pairing);
  if (from.scaling < 0 || from.scaling > POLYHEAD_ROPE_SCALING_LLAMA3) {
    refuse(
        "%s: rope.scaling (%d) is no scaling, expected POLYHEAD_ROPE_SCALING_NONE (0) .. _LLAMA3 "
        "(4)",
        call, from.scaling);
  }
  to.scaling = static_cast<RopeScaling>(from.scaling);
  unless_zero(to.base, from.base);
  to.rotary_dims = from.rotary_dims;
  unless_zero(to.factor, from.factor);
  to.original_length = from.original_length;
  unless_zero(to.beta_fast, from.beta_fast);
  unless_zero(to.beta_slow, from.beta_slow);
  to.truncate = !to_bool(call, "rope.no_truncate", from.no_truncate);
  if (to_bool(call, "rope.attention_factor_given", from.attention_factor_given)) {
    to.attention_factor = from.attention_factor;
  } else if (from.attention_factor != 0) {
    refuse("%s: rope.attention_factor (%g) is given without rope.attention_factor_given", call,
           from.attention_factor);
  }
  to.mscale = from.mscale;
  to.mscale_all_dim = from.mscale_all_dim;
  unless_zero(to.low_freq_factor, from.low_freq_factor);
  unless_zero(to.high_freq_factor, from.high_freq_factor);
  to.frequency_divisors = to_divisors(call, from.frequency_divisors);
  return to;
}

std::optional<RopeConfig> to_rope_if_any(const char* call, const polyhead_rope_config* config) {
  if (config == nullptr) return {};
  return to_rope(call, config);
}

LayerCall to_layer_call(const char* name, const polyhead_layer_call* call) {
  LayerCall to;
  if (call == nullptr) return to;
  const polyhead_layer_call from =
      read_struct(name, "call", call, offsetof(polyhead_layer_call, context_offsets));
  to.mask = to_mask(name, from.mask);
  to.bias = to_view(name, "call.bias", from.bias);
  to.lengths = to_view(name, "call.lengths", from.lengths);
  to.context_lengths = to_view(name, "call.context_lengths", from.context_lengths);
  to.offsets = to_view(name, "call.offsets", from.offsets);
  to.context_offsets = to_view(name, "call.context_offsets", from.context_offsets);
  to.positions = to_view(name, "call.positions", from.positions);
  to.context_positions = to_view(name, "call.context_positions", from.context_positions);
  to.lse = to_view(name, "call.lse", from.lse);
  to.statistics = to_statistics(name, from.entropy, from.max_weight, from.max_key);
  if (from.workspace != nullptr) to.workspace = &from.workspace->workspace;
  return to;
}

PagedSequences to_pages(const char* call, const polyhead_paged_sequences& from) {
  check_reserved(call, "pages.reserved", from.reserved);
  PagedSequences to;
  to.cache = &from.cache->cache;
  to.sequences = to_span(call, "pages.sequences", from.sequences, from.count);
  to.layer = from.layer;
  to.tokens = to_span(call, "pages.tokens", from.tokens, from.token_count);
  if (to_bool(call, "pages.room_made", from.room_made)) to.room = PagedRoom::made;
  return to;
}

}  // namespace polyhead::inline v0::capi
