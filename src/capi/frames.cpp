// Frames behind polyhead_frames_c.h.
#include "polyhead/polyhead_frames_c.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "capi/convert_layer.hpp"
#include "capi/handles.hpp"
#include "frames/door.hpp"
#include "polyhead/code_frame.h"

namespace polyhead::inline v0::capi {

/// What one side of a layer's frames is for.
struct FrameSizes {
  std::int64_t kv_heads = 0, dim = 0;
};

}  // namespace polyhead::inline v0::capi

using namespace polyhead::capi;

struct polyhead_layer_frames {
  polyhead::LayerFrames frames;
  FrameSizes keys, values;
};

struct polyhead_frame_calibration {
  polyhead::FrameCalibrationConfig config;
  polyhead::FrameCalibration calibration;
};

namespace {

/// A caller's frame, copied and checked; its sizes are left alone where it is none.
polyhead::CodeFrame to_frame(const char* call, const std::string& name,
                             const polyhead_code_frame* frame, FrameSizes& sizes) {
  polyhead::CodeFrame to;
  if (frame == nullptr) return to;
  const polyhead_code_frame from = read_struct(call, name.c_str(), frame);
  if (!from.centre && !from.stretch && !from.carry && !from.cost) return to;
  polyhead::base::check_size(call, (name + ".kv_heads").c_str(), from.kv_heads, 1,
                             polyhead::frames::kMostHeads);
  polyhead::base::check_size(call, (name + ".dim").c_str(), from.dim, 1, polyhead::base::kMaxDim);
  const std::int64_t rows = from.kv_heads * from.dim;
  const auto copy = [&](const char* part, const float* numbers, std::int64_t count) {
    const auto span = to_span(call, (name + part).c_str(), numbers, count);
    return std::vector<float>(span.begin(), span.end());
  };
  to.centre = copy(".centre", from.centre, rows);
  to.stretch = copy(".stretch", from.stretch, rows);
  if (from.carry || from.cost) {
    to.carry = copy(".carry", from.carry, rows * from.dim);
    to.cost = copy(".cost", from.cost, rows);
  }
  polyhead::frames::check_frame(call, name.c_str(), to, from.kv_heads, from.dim);
  sizes = {from.kv_heads, from.dim};
  return to;
}

/// A frame's arrays; null is not filled.
void fill_frame(polyhead_code_frame* to, const polyhead::CodeFrame& from, const FrameSizes& sizes) {
  if (to == nullptr) return;
  const auto data = [](const std::vector<float>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
  };
  to->kv_heads = sizes.kv_heads;
  to->dim = sizes.dim;
  to->centre = data(from.centre);
  to->stretch = data(from.stretch);
  to->carry = data(from.carry);
  to->cost = data(from.cost);
}

/// The rows [.., heads, dim] are of the sizes that the frame, if there is one, was made for; 0
/// heads: any.
void check_sizes(const char* call, const char* name, const polyhead_view* rows,
                 const FrameSizes& frame, std::int64_t heads) {
  if (rows == nullptr || rows->axes < 3 || rows->axes > 4 || frame.dim == 0) return;
  const std::int64_t found[] = {rows->extents[rows->axes - 2], rows->extents[rows->axes - 1]};
  if (heads != 0 && found[0] != heads) {
    refuse("%s: %s has %lld heads, expected %lld as the frame", call, name,
           static_cast<long long>(found[0]), static_cast<long long>(heads));
  }
  if (found[1] != frame.dim) {
    refuse("%s: %s has a dim of %lld, expected %lld as the frame", call, name,
           static_cast<long long>(found[1]), static_cast<long long>(frame.dim));
  }
}

}  // namespace

polyhead_status polyhead_layer_frames_create(const polyhead_code_frame* keys,
                                             const polyhead_code_frame* values,
                                             polyhead_layer_frames** frames) {
  constexpr const char* kCall = "polyhead_layer_frames_create";
  return guarded(kCall, [&] {
    need(kCall, "frames", frames);
    polyhead_layer_frames made;
    made.frames.keys = to_frame(kCall, "keys", keys, made.keys);
    made.frames.values = to_frame(kCall, "values", values, made.values);
    *frames = new polyhead_layer_frames(std::move(made));
  });
}

void polyhead_layer_frames_destroy(polyhead_layer_frames* frames) { delete frames; }

polyhead_status polyhead_layer_frames_get(const polyhead_layer_frames* frames,
                                          polyhead_code_frame* keys, polyhead_code_frame* values) {
  constexpr const char* kCall = "polyhead_layer_frames_get";
  return guarded(kCall, [&] {
    need(kCall, "frames", frames);
    check_written(kCall, "keys", keys);
    check_written(kCall, "values", values);
    fill_frame(keys, frames->frames.keys, frames->keys);
    fill_frame(values, frames->frames.values, frames->values);
  });
}

polyhead_status polyhead_enter_frames(const polyhead_layer_frames* frames, const polyhead_view* q,
                                      const polyhead_view* k, const polyhead_view* v,
                                      const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_enter_frames";
  return guarded(kCall, [&] {
    need(kCall, "frames", frames);
    const polyhead::View views[] = {to_view(kCall, "q", q), to_view(kCall, "k", k),
                                    to_view(kCall, "v", v)};
    check_sizes(kCall, "q", q, frames->keys, 0);
    check_sizes(kCall, "k", k, frames->keys, frames->keys.kv_heads);
    check_sizes(kCall, "v", v, frames->values, frames->values.kv_heads);
    polyhead::enter_frames(frames->frames, views[0], views[1], views[2],
                           to_options(kCall, options));
  });
}

polyhead_status polyhead_leave_frames(const polyhead_layer_frames* frames, const polyhead_view* out,
                                      const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_leave_frames";
  return guarded(kCall, [&] {
    need(kCall, "frames", frames);
    const polyhead::View view = to_view(kCall, "out", need(kCall, "out", out));
    check_sizes(kCall, "out", out, frames->values, 0);
    polyhead::leave_frames(frames->frames, view, to_options(kCall, options));
  });
}

polyhead_status polyhead_value_moments(const polyhead_view* w_o, int64_t kv_heads,
                                       int64_t value_dim, double* moments, int64_t count,
                                       const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_value_moments";
  return guarded(kCall, [&] {
    const std::span<double> to = to_span(kCall, "moments", moments, count);
    const std::vector<double> made =
        polyhead::value_moments(to_view(kCall, "w_o", need(kCall, "w_o", w_o)), kv_heads, value_dim,
                                to_options(kCall, options));
    if (made.size() != to.size()) {
      refuse("%s: count (%lld) is not %zu: kv_heads * value_dim * value_dim", kCall,
             static_cast<long long>(count), made.size());
    }
    std::ranges::copy(made, to.begin());
  });
}

polyhead_status polyhead_frame_calibration_create(const polyhead_frame_calibration_config* config,
                                                  polyhead_frame_calibration** calibration) {
  constexpr const char* kCall = "polyhead_frame_calibration_create";
  return guarded(kCall, [&] {
    const polyhead_frame_calibration_config from = read_struct(kCall, "config", config);
    need(kCall, "calibration", calibration);
    check_reserved(kCall, "config.reserved", from.reserved);
    polyhead::FrameCalibrationConfig to;
    unless_zero(to.kv_heads, from.kv_heads);
    to.q_heads = from.q_heads != 0 ? from.q_heads : to.kv_heads;
    to.head_dim = not_zero(kCall, "config.head_dim", from.head_dim);
    to.value_dim = from.value_dim != 0 ? from.value_dim : to.head_dim;
    to.rope = to_rope_if_any(kCall, from.rope);
    to.centred = !to_bool(kCall, "config.not_centred", from.not_centred);
    *calibration = new polyhead_frame_calibration{to, polyhead::FrameCalibration(to)};
  });
}

void polyhead_frame_calibration_destroy(polyhead_frame_calibration* calibration) {
  delete calibration;
}

polyhead_status polyhead_frame_calibration_add(polyhead_frame_calibration* calibration,
                                               const polyhead_view* q, const polyhead_view* k,
                                               const polyhead_view* v,
                                               const polyhead_view* positions,
                                               const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_frame_calibration_add";
  return guarded(kCall, [&] {
    need(kCall, "calibration", calibration)
        ->calibration.add(to_view(kCall, "q", need(kCall, "q", q)),
                          to_view(kCall, "k", need(kCall, "k", k)),
                          to_view(kCall, "v", need(kCall, "v", v)),
                          to_view(kCall, "positions", positions), to_options(kCall, options));
  });
}

polyhead_status polyhead_frame_calibration_tokens(const polyhead_frame_calibration* calibration,
                                                  int64_t* tokens) {
  constexpr const char* kCall = "polyhead_frame_calibration_tokens";
  return guarded(kCall, [&] {
    const auto& of = need(kCall, "calibration", calibration)->calibration;
    *need(kCall, "tokens", tokens) = of.tokens();
  });
}

polyhead_status polyhead_frame_calibration_frames(const polyhead_frame_calibration* calibration,
                                                  int32_t element_type, int64_t length,
                                                  const double* moments, int64_t count,
                                                  polyhead_layer_frames** frames) {
  constexpr const char* kCall = "polyhead_frame_calibration_frames";
  return guarded(kCall, [&] {
    need(kCall, "calibration", calibration);
    need(kCall, "frames", frames);
    const auto& config = calibration->config;
    polyhead_layer_frames made;
    made.frames =
        calibration->calibration.frames(to_element(kCall, "element_type", element_type), length,
                                        to_span(kCall, "moments", moments, count));
    if (made.frames.keys.given()) made.keys = {config.kv_heads, config.head_dim};
    if (made.frames.values.given()) made.values = {config.kv_heads, config.value_dim};
    *frames = new polyhead_layer_frames(std::move(made));
  });
}
