#include "layers/weight_views.hpp"

#include <cmath>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::layers {

void check_matrix(const char* call, const char* name, const ConstView& view, std::int64_t out,
                  std::int64_t in) {
  door::check_axes(call, name, view, {{"out", out}, {"in", in}});
  if (in > 0 && out > door::kMaxExtent / in) {
    base::refuse(call, name, ": out (", out, ") times in (", in,
                 ") is more than 2^48, which no copy of it could hold");
  }
  door::check_floating(call, name, view);
  door::footprint_of(call, name, view);
}

void check_vector(const char* call, const char* name, const ConstView& view, std::int64_t size) {
  if (!view.given()) base::refuse(call, name, " is not given, expected ", size, " numbers");
  door::check_axes(call, name, view, {{"size", size}});
  door::check_floating(call, name, view);
  door::footprint_of(call, name, view);
}

void refuse_given(const char* call, const char* name, const ConstView& view, const char* why) {
  if (view.given()) base::refuse(call, name, " is given, but ", why);
}

void check_numbers(const char* call, ElementType weight_type, float norm_eps) {
  if (!base::is_floating(weight_type)) {
    base::refuse(call, "weight_type (", element_name(weight_type),
                 ") is not float32, float16 or bfloat16");
  }
  if (!std::isfinite(norm_eps) || norm_eps < 0)
    base::refuse(call, "norm_eps (", norm_eps, ") is negative or not finite");
}

ConstView slice(const ConstView& view, std::int64_t first, std::int64_t count) {
  if (!view.given()) return view;
  ConstView part = view;
  part.data = static_cast<const std::byte*>(view.data) + first * door::kernel_stride(view, 0);
  part.layout.extents[0] = count;
  return part;
}

std::vector<float> floats_of(const ConstView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.layout.extents[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = base::load_float32(static_cast<const std::byte*>(view.data) +
                                       static_cast<std::int64_t>(i) * door::kernel_stride(view, 0),
                                   view.type);
  }
  return values;
}

}  // namespace polyhead::inline v0::layers
