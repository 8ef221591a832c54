#include "base/footprint.hpp"

#include <algorithm>
#include <functional>

#include "base/refuse.hpp"

namespace polyhead::inline v0::base {
namespace {

// Bytes from the first to the last byte of a view's axes whose stride is no multiple of `period`
// (all axes for 0), or -1 where that would be more than the period.
std::int64_t span_within(const Footprint& view, std::int64_t period) {
  std::int64_t span = view.element;
  for (int axis = 0; axis < view.axes; ++axis) {
    if (view.strides[axis] % period == 0) continue;
    // No overflow: footprint_of has added up all the spans of this view.
    span += (view.extents[axis] - 1) * view.strides[axis];
    if (span > period) return -1;
  }
  return span <= period ? span : -1;
}

// Modulo the period each view is one interval; on that circle they must not meet.
bool disjoint_modulo(const Footprint& a, const Footprint& b, std::int64_t period) {
  const std::int64_t a_span = span_within(a, period), b_span = span_within(b, period);
  if (a_span < 0 || b_span < 0) return false;
  const std::uint64_t circle = static_cast<std::uint64_t>(period);
  const std::uint64_t gap = a.begin >= b.begin ? (a.begin - b.begin) % circle
                                               : (circle - (b.begin - a.begin) % circle) % circle;
  const std::int64_t offset = static_cast<std::int64_t>(gap);  // from b's interval to a's, going up
  return offset >= b_span && a_span <= period - offset;
}

// Whether steps d_k with |d_k| < extent_k, not all zero, meet |sum d_k stride_k| < element: then
// two elements touch. Axes come in descending order of stride, `reach` is what the axes from `axis`
// on can still add, `budget` bounds the search; running out counts as touching.
struct TouchSearch {
  const Footprint& view;
  int order[kMaxAxes];
  std::int64_t reach[kMaxAxes + 1];
  std::int64_t budget = 100'000;

  bool touches(int depth, std::int64_t sum, bool moved) {
    if (--budget < 0) return true;
    if (depth == view.axes) return moved && sum < view.element && sum > -view.element;
    const int axis = order[depth];
    const std::int64_t stride = view.strides[axis], extent = view.extents[axis];
    const std::int64_t rest = reach[depth + 1] + view.element - 1;
    // Steps d with |sum + d * stride| <= rest.
    const std::int64_t low = std::max(-(extent - 1), -((rest + sum) / stride));
    const std::int64_t high = std::min(extent - 1, (rest - sum) / stride);
    for (std::int64_t d = low; d <= high; ++d) {
      if (touches(depth + 1, sum + d * stride, moved || d != 0)) return true;
    }
    return false;
  }
};

}  // namespace

bool begins_in(const ConstView& view, std::span<const std::int64_t> array) {
  const std::less<const void*> before;
  return view.given() && !before(view.data, array.data()) &&
         before(view.data, array.data() + array.size());
}

std::int64_t kernel_stride(const ConstView& view, int axis) {
  if (view.layout.extents[axis] <= 1) return 0;
  const std::int64_t bytes = element_bytes(view.type);
  return view.layout.strides[axis] * (bytes > 0 ? bytes : 1);
}

Footprint footprint_of(const char* call, const char* name, const ConstView& view) {
  Footprint print;
  print.name = name;
  const detail::Layout& layout = view.layout;
  const bool bits = view.type == ElementType::bit;
  print.element = bits ? 1 : element_bytes(view.type);
  bool empty = false;
  std::int64_t low = 0, high = print.element;
  for (int axis = 0; axis < layout.axes; ++axis) {
    const std::int64_t extent = layout.extents[axis];
    if (extent < 0) refuse(call, name, ": extent ", extent, " of axis ", axis, " is negative");
    if (extent > kMaxExtent)
      refuse(call, name, ": extent ", extent, " of axis ", axis, " is more than 2^48");
    empty = empty || extent == 0;
    if (extent <= 1) continue;
    // A packed row of bits counts as one piece of whole bytes; the door has checked its strides.
    const bool bit_row = bits && axis == layout.axes - 1;
    std::int64_t stride = layout.strides[axis], span = 0;
    bool overflow = false;
    if (bit_row)
      span = (extent - 1) / 8;
    else {
      if (bits) stride /= 8;
      overflow = __builtin_mul_overflow(stride, print.element, &stride) || stride == INT64_MIN ||
                 __builtin_mul_overflow(stride, extent - 1, &span);
    }
    overflow =
        overflow || __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
    if (overflow) refuse(call, name, ": extents times strides overflow 64 bits (axis ", axis, ")");
    if (bit_row) continue;
    print.extents[print.axes] = extent;
    print.strides[print.axes++] = stride < 0 ? -stride : stride;
  }
  if (empty || layout.axes == 0) return print;

  if (bits) print.element = (layout.extents[layout.axes - 1] + 7) / 8;
  if (view.data == nullptr) refuse(call, name, ": data is null, but the view has elements");
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(view.data);
  const int bytes = element_bytes(view.type);
  if (bytes > 1 && at % static_cast<std::uintptr_t>(bytes) != 0) {
    refuse(call, name, ": data is not aligned to its element type ", element_name(view.type));
  }
  std::int64_t reach = 0;
  const std::uintptr_t below = std::uintptr_t{0} - static_cast<std::uintptr_t>(low);
  if (__builtin_sub_overflow(high, low, &reach) || reach > INT64_MAX / 4 || below > at ||
      static_cast<std::uintptr_t>(high) > UINTPTR_MAX - at) {
    refuse(call, name, ": extents times strides leave the address space");
  }
  print.begin = at - below;
  print.end = at + static_cast<std::uintptr_t>(high);
  return print;
}

bool overlaps_itself(const Footprint& view) {
  if (view.empty()) return false;
  TouchSearch search{view, {}, {}};
  for (int axis = 0; axis < view.axes; ++axis) {
    if (view.strides[axis] == 0) return true;
    search.order[axis] = axis;
  }
  std::sort(search.order, search.order + view.axes,
            [&](int a, int b) { return view.strides[a] > view.strides[b]; });
  search.reach[view.axes] = 0;
  bool nested = true;  // each stride steps over everything the smaller ones reach
  for (int depth = view.axes - 1; depth >= 0; --depth) {
    const int axis = search.order[depth];
    nested = nested && view.strides[axis] >= search.reach[depth + 1] + view.element;
    search.reach[depth] = search.reach[depth + 1] + (view.extents[axis] - 1) * view.strides[axis];
  }
  return !nested && search.touches(0, 0, false);
}

bool provably_disjoint(const Footprint& a, const Footprint& b) {
  if (a.empty() || b.empty() || a.end <= b.begin || b.end <= a.begin) return true;
  for (const Footprint* view : {&a, &b}) {
    for (int axis = 0; axis < view->axes; ++axis) {
      if (view->strides[axis] > 0 && disjoint_modulo(a, b, view->strides[axis])) return true;
    }
  }
  return false;
}

void check_writable(const char* call, const Footprint& output, const Footprint* others, int count) {
  if (overlaps_itself(output)) refuse(call, output.name, ": its elements overlap each other");
  for (int i = 0; i < count; ++i) {
    if (!provably_disjoint(output, others[i])) {
      refuse(call, output.name, " overlaps ", others[i].name, " (or cannot be shown not to)");
    }
  }
}

}  // namespace polyhead::inline v0::base
