#include "frames/door.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "frames/head_rows.hpp"

namespace polyhead::inline v0::frames {
namespace {

/// One of a frame's arrays.
struct Numbers {
  const char *name, *sizes;
  const std::vector<float>& of;
};

void check_count(const char* call, const char* frame, const Numbers& numbers,
                 std::int64_t expected) {
  if (std::ssize(numbers.of) == expected) return;
  base::refuse(call, frame, ".", numbers.name, " has ", numbers.of.size(), " numbers, expected ",
               expected, ": ", numbers.sizes);
}

void check_finite(const char* call, const char* frame, const Numbers& numbers) {
  if (all_finite(numbers.of)) return;
  const auto odd = std::ranges::find_if(numbers.of, [](float x) { return !std::isfinite(x); });
  base::refuse(call, frame, ".", numbers.name, "[", odd - numbers.of.begin(), "] is ", *odd,
               ", expected a finite number");
}

/// Every number is `right`, which is `expected` in words.
template <class Right>
void check_each(const char* call, const char* frame, const Numbers& numbers, const char* expected,
                const Right& right) {
  bool all = true;  // without a branch, as all_finite()
  for (const float x : numbers.of) all &= right(x);
  if (all) return;
  const auto odd = std::ranges::find_if(numbers.of, [&](float x) { return !right(x); });
  base::refuse(call, frame, ".", numbers.name, "[", odd - numbers.of.begin(), "] is ", *odd,
               ", expected ", expected);
}

void check_floating_rows(const char* call, const NamedView& rows) {
  const auto& [name, view] = rows;
  const int axes = view.layout.axes;
  if (view.layout.too_many_axes || (axes != 3 && axes != 4)) {
    base::refuse(call, name, " has ", base::Axes(view.layout),
                 "; expected [tokens, heads, dim] or [batch, tokens, heads, dim]");
  }
  if (!base::is_floating(view.type)) {
    base::refuse(call, name, " is ", element_name(view.type),
                 "; expected float32, float16 or bfloat16");
  }
  base::footprint_of(call, name, view);
  if (dim_of(view) > base::kMaxDim)
    base::refuse(call, name, " has ", dim_of(view), " dims, expected at most ", base::kMaxDim);
}

}  // namespace

void check_frame(const char* call, const char* name, const CodeFrame& frame, std::int64_t kv_heads,
                 std::int64_t dim, Reads reads) {
  if (!frame.given()) return;
  const base::FloatEnvironment environment(base::Subnormals::kept);  // small stretches are not 0
  constexpr const char *kRows = "kv_heads * dim", *kMatrices = "kv_heads * dim * dim";
  const std::int64_t rows = kv_heads * dim;
  const Numbers centre{"centre", kRows, frame.centre}, stretch{"stretch", kRows, frame.stretch};
  const Numbers carry{"carry", kMatrices, frame.carry}, cost{"cost", kRows, frame.cost};
  check_count(call, name, centre, rows);
  check_count(call, name, stretch, rows);
  if (!frame.carry.empty() || !frame.cost.empty()) {
    check_count(call, name, carry, rows * dim);
    check_count(call, name, cost, rows);
  }
  check_finite(call, name, centre);
  check_finite(call, name, stretch);
  check_each(call, name, stretch, "a positive number", [](float x) { return x > 0.0f; });
  if (reads == Reads::no_rounding) return;
  check_finite(call, name, carry);
  check_finite(call, name, cost);
  check_each(call, name, cost, "no number below 0", [](float x) { return x >= 0.0f; });
}

void check_rows(const char* call, std::initializer_list<NamedView> views) {
  for (const NamedView& rows : views)
    if (rows.view.given()) check_floating_rows(call, rows);
}

void check_apart(const char* call, std::initializer_list<NamedView> views) {
  base::Footprint prints[3];
  int count = 0;
  for (const auto& [name, view] : views) {
    if (!view.given()) continue;
    const base::Footprint print = base::footprint_of(call, name, view);
    base::check_writable(call, print, prints, count);
    prints[count++] = print;
  }
}

void check_same_tokens(const char* call, const NamedView& a, const NamedView& b) {
  const int axes = a.view.layout.axes;
  if (b.view.layout.axes != axes) {
    base::refuse(call, b.name, " has ", base::Axes(b.view.layout), ", expected ", a.name, "'s ",
                 axes);
  }
  for (int axis = 0; axis < axes - 2; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    const std::int64_t found = b.view.layout.extents[at], expected = a.view.layout.extents[at];
    if (found == expected) continue;
    base::refuse(call, b.name, " has ", axes - axis == 4 ? "batch " : "tokens ", found,
                 ", expected ", a.name, "'s ", expected);
  }
}

std::int64_t kv_heads_of(const char* call, const char* name, const CodeFrame& frame,
                         std::int64_t dim) {
  const std::int64_t heads = dim > 0 ? std::ssize(frame.centre) / dim : 0;
  check_frame(call, name, frame, heads, dim, Reads::no_rounding);
  return heads;
}

void check_groups(const char* call, const NamedView& rows, std::int64_t kv_heads) {
  const std::int64_t heads = heads_of(rows.view);
  if (kv_heads > 0 ? heads % kv_heads == 0 : heads == 0) return;
  base::refuse(call, rows.name, " has ", heads, " heads, expected a multiple of the KV heads, ",
               kv_heads);
}

Crew checked_crew(const char* call, const Options& options) {
  (void)resolve_isa(options.isa);  // the same bits on each, but one that cannot run is refused
  return crew_of(call, options);
}

}  // namespace polyhead::inline v0::frames
