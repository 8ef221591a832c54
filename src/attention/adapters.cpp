#include "polyhead/adapters.h"

#include <numbers>

#include "attention/validate.hpp"
#include "base/float_environment.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

/// Multiplies all numbers from `axis` on by `factor`.
void multiply(float* data, const detail::Layout& layout, int axis, double factor) {
  if (axis == layout.axes) {
    *data = static_cast<float>(*data * factor);
    return;
  }
  for (std::int64_t i = 0; i < layout.extents[axis]; ++i)
    multiply(data + i * layout.strides[axis], layout, axis + 1, factor);
}

void multiply_all(const char* call, const View& lse, double factor) {
  if (!lse.given()) base::refuse(call, "lse is not given");
  if (lse.layout.too_many_axes) base::refuse(call, "lse has ", base::Axes(lse.layout));
  door::check_type(call, "lse", lse, ElementType::float32);
  const door::Footprint footprint = door::footprint_of(call, "lse", lse);
  door::check_writable(call, footprint, nullptr, 0);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  if (!footprint.empty()) multiply(static_cast<float*>(lse.data), lse.layout, 0, factor);
}

}  // namespace

Mask last_keys(std::int64_t keys, Align align) {
  if (keys < 1) base::refuse("last_keys", "keys (", keys, ") is less than 1, the query's own");
  return causal(align) & window(keys - 1, 0, align);
}

void lse_to_base2(View lse) { multiply_all("lse_to_base2", lse, std::numbers::log2e); }

void lse_from_base2(View lse) { multiply_all("lse_from_base2", lse, std::numbers::ln2); }

}  // namespace polyhead::inline v0
