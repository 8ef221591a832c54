// The small checks that every call's door is made of.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/joined.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {
namespace {

// "[batch, q_len, q_heads]"
std::string spelled(std::initializer_list<Axis> axes) {
  return "[" + base::joined(axes, ", ", &Axis::name) + "]";
}

bool accepts(const Axis& axis, std::int64_t extent) {
  switch (axis.rule) {
    case Axis::exact:
      return extent == axis.size;
    case Axis::or_one:
      return extent == axis.size || extent == 1;
    case Axis::at_least:
      return extent >= axis.size;
    case Axis::at_least_or_one:
      return extent >= axis.size || extent == 1;
  }
  return false;
}

const char* rule_words(Axis::Rule rule) {
  switch (rule) {
    case Axis::exact:
      return "";
    case Axis::or_one:
      return " or 1";
    case Axis::at_least:
      return " at least";
    case Axis::at_least_or_one:
      return " at least, or 1";
  }
  return "";
}

}  // namespace

void check_axes(const char* call, const char* name, const ConstView& view,
                std::initializer_list<Axis> axes) {
  if (!view.given()) base::refuse(call, name, " is not given, expected ", spelled(axes));
  if (view.layout.too_many_axes || view.layout.axes != static_cast<int>(axes.size())) {
    base::refuse(call, name, " has ", base::Axes(view.layout), ", expected ", axes.size(), ": ",
                 spelled(axes));
  }
  int index = 0;
  for (const Axis& axis : axes) {
    const std::int64_t extent = view.layout.extents[index++];
    if (extent < 0) base::refuse(call, name, ": ", axis.name, " (", extent, ") is negative");
    if (!accepts(axis, extent)) {
      base::refuse(call, name, ": ", axis.name, " is ", extent, ", expected ", axis.size,
                   axis.size == 1 && axis.rule == Axis::or_one ? "" : rule_words(axis.rule));
    }
  }
}

void check_floating(const char* call, const char* name, const ConstView& view) {
  if (!base::is_floating(view.type)) {
    base::refuse(call, name, " is ", element_name(view.type),
                 ", expected float32, float16 or bfloat16");
  }
}

void check_integer(const char* call, const char* name, const ConstView& view) {
  if (!base::is_integer(view.type)) {
    base::refuse(call, name, " is ", element_name(view.type), ", expected int32 or int64");
  }
}

void check_type(const char* call, const char* name, const ConstView& view, ElementType expected) {
  if (view.type != expected) {
    base::refuse(call, name, " is ", element_name(view.type), ", expected ",
                 element_name(expected));
  }
}

void check_sinks(const char* call, const char* name, const float* sinks, std::int64_t stride,
                 std::int64_t heads) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const float sink = sinks[h * stride];
    if (std::isnan(sink) || sink == std::numeric_limits<float>::infinity())
      base::refuse(call, name, "[", h, "] (", sink, ") is neither finite nor -inf (none)");
  }
}

std::int64_t check_ascending(const char* call, const char* name, const kernels::Integers& offsets,
                             std::int64_t batch) {
  if (offsets[0] != 0) base::refuse(call, name, "[0] is ", offsets[0], ", expected 0");
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      base::refuse(call, name, "[", b + 1, "] (", offsets[b + 1], ") is below ", name, "[", b,
                   "] (", offsets[b], "), expected ascending offsets");
    }
    longest = std::max(longest, offsets[b + 1] - offsets[b]);
  }
  return longest;
}

void check_end(const char* call, const char* name, const kernels::Integers& offsets,
               std::int64_t batch, std::int64_t tokens, const char* of) {
  if (offsets[batch] <= tokens) return;
  base::refuse(call, name, "[", batch, "] (", offsets[batch], ") is beyond the tokens of ", of,
               ", expected at most ", tokens);
}

kernels::Integers sequence_integers(const char* call, const char* name, const ConstView& view,
                                    std::int64_t batch, Inputs& inputs) {
  if (!view.given()) return {};
  check_axes(call, name, view, {{"batch", batch}});
  check_integer(call, name, view);
  inputs.add(footprint_of(call, name, view));
  return integers_of(view);
}

kernels::Integers integers_of(const ConstView& view) {
  if (!view.given()) return {};
  return {static_cast<const std::byte*>(view.data), view.type, kernel_stride(view, 0)};
}

}  // namespace polyhead::inline v0::door
