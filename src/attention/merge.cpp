// Joining partial results by their LSE.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "base/ceil_div.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"
#include "base/share_out.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::Operand;

constexpr const char* kCall = "merge_partials";
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Validated arguments: `outs` and `lses` are those of part 0, the others lie `part` bytes apart.
struct Merge {
  std::int64_t parts = 0, batch = 0, tokens = 0, heads = 0, dim = 0;
  Operand outs, lses, out, lse;
  std::int64_t outs_part = 0, lses_part = 0;
  const float* sink = nullptr;
  std::int64_t sink_stride = 0;
};

Operand operand_of(const ConstView& view, int first_axis) {
  if (view.data == nullptr) return {nullptr, view.type};
  std::int64_t strides[4] = {};
  for (int axis = first_axis; axis < view.layout.axes; ++axis) {
    strides[axis - first_axis] = door::kernel_stride(view, axis);
  }
  std::byte* data =
      const_cast<std::byte*>(static_cast<const std::byte*>(view.data));  // inputs are only read
  return {data, view.type, strides[0], strides[1], strides[2], strides[3]};
}

Merge resolve(const MergeArguments& from) {
  const std::int64_t* sizes =
      from.outs.layout.extents.data();  // of missing axes 0, and refused just below
  Merge merge;
  merge.parts = sizes[0], merge.batch = sizes[1], merge.tokens = sizes[2], merge.heads = sizes[3],
  merge.dim = sizes[4];
  const door::Axis parts{"parts", merge.parts}, batch{"batch", merge.batch},
      tokens{"tokens", merge.tokens}, heads{"heads", merge.heads}, dim{"dim", merge.dim};
  door::check_axes(kCall, "outs", from.outs, {parts, batch, tokens, heads, dim});
  door::check_axes(kCall, "lses", from.lses, {parts, batch, tokens, heads});
  door::check_axes(kCall, "out", from.out, {batch, tokens, heads, dim});
  door::check_floating(kCall, "outs", from.outs);
  door::check_type(kCall, "lses", from.lses, ElementType::float32);
  door::check_floating(kCall, "out", from.out);
  if (from.lse.given()) {
    door::check_axes(kCall, "lse", from.lse, {batch, tokens, heads});
    door::check_type(kCall, "lse", from.lse, ElementType::float32);
  }
  if (from.sink.given()) {
    door::check_axes(kCall, "sink", from.sink, {heads});
    door::check_type(kCall, "sink", from.sink, ElementType::float32);
    merge.sink = static_cast<const float*>(from.sink.data);
    merge.sink_stride = merge.heads <= 1 ? 0 : from.sink.layout.strides[0];
  }
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(merge.batch, merge.tokens, &rows) ||
      __builtin_mul_overflow(rows, merge.heads, &rows) || rows > INT64_MAX / 65536) {
    base::refuse(kCall, "outs: batch (", merge.batch, ") times tokens (", merge.tokens,
                 ") times heads (", merge.heads, ") overflow 64 bits");
  }
  const door::Footprint inputs[] = {door::footprint_of(kCall, "outs", from.outs),
                                    door::footprint_of(kCall, "lses", from.lses),
                                    door::footprint_of(kCall, "sink", from.sink)};
  if (from.sink.given())
    door::check_sinks(kCall, "sink", merge.sink, merge.sink_stride, merge.heads);
  const door::Footprint out = door::footprint_of(kCall, "out", from.out);
  const door::Footprint lse = door::footprint_of(kCall, "lse", from.lse);
  door::check_writable(kCall, out, inputs, 3);
  door::check_writable(kCall, lse, inputs, 3);
  door::check_writable(kCall, lse, &out, 1);

  merge.outs = operand_of(from.outs, 1);
  merge.lses = operand_of(from.lses, 1);
  merge.out = operand_of(from.out, 0);
  merge.lse = operand_of(from.lse, 0);
  if (from.outs.data != nullptr) merge.outs_part = door::kernel_stride(from.outs, 0);
  if (from.lses.data != nullptr) merge.lses_part = door::kernel_stride(from.lses, 0);
  return merge;
}

/// One row: a token of one head of one sequence.
struct Row {
  std::int64_t batch, token, head;
  std::int64_t in(const Operand& of) const {
    return batch * of.batch + token * of.token + head * of.head;
  }
};

double part_lse(const Merge& merge, const Row& row, std::int64_t part) {
  return base::load_float32(merge.lses.data + row.in(merge.lses) + part * merge.lses_part,
                            ElementType::float32);
}

/// What the parts' sums are together: total times exp(largest). Apart, since the sum of a large LSE
/// and a logarithm may be no other number than that LSE.
struct Joined {
  double largest = kMinusInfinity, total = 1.0;
  double lse() const { return largest + std::log(total); }
  double weight(double part) const { return std::exp(part - largest) / total; }
};

// The sum of exp(lse_p), the sink included where there is one; largest is -inf if all parts are
// empty, NaN if one is NaN.
Joined joined(const Merge& merge, const Row& row) {
  double largest = kMinusInfinity;
  for (std::int64_t part = 0; part < merge.parts; ++part) {
    const double lse = part_lse(merge, row, part);
    if (std::isnan(lse)) return {lse, 1.0};
    largest = std::max(largest, lse);
  }
  if (largest == kMinusInfinity) return {};
  const double sink =
      merge.sink != nullptr ? merge.sink[row.head * merge.sink_stride] : kMinusInfinity;
  largest = std::max(largest, sink);
  double total = std::exp(sink - largest);
  for (std::int64_t part = 0; part < merge.parts; ++part)
    total += std::exp(part_lse(merge, row, part) - largest);
  return {largest, total};
}

void merge_row(const Merge& merge, const Row& row) {
  const Joined sum = joined(merge, row);
  if (merge.lse.data != nullptr) {
    base::store_float32(merge.lse.data + row.in(merge.lse), ElementType::float32,
                        static_cast<float>(sum.lse()));
  }
  constexpr std::int64_t kDims =
      64;  // at a time: the weight of a part is computed once for so many
  for (std::int64_t first = 0; first < merge.dim; first += kDims) {
    const std::int64_t count = std::min(kDims, merge.dim - first);
    double sums[kDims] = {};
    for (std::int64_t part = 0; part < merge.parts; ++part) {
      const double own = part_lse(merge, row, part);
      if (own == kMinusInfinity) continue;  // an empty part adds nothing, whatever its out holds
      const double weight = sum.weight(own);
      const std::byte* from = merge.outs.data + part * merge.outs_part + row.in(merge.outs);
      for (std::int64_t d = 0; d < count; ++d) {
        sums[d] +=
            weight * base::load_float32(from + (first + d) * merge.outs.dim, merge.outs.type);
      }
    }
    std::byte* to = merge.out.data + row.in(merge.out);
    for (std::int64_t d = 0; d < count; ++d) {
      base::store_float32(to + (first + d) * merge.out.dim, merge.out.type,
                          static_cast<float>(sums[d]));
    }
  }
}

}  // namespace

void merge_partials(const MergeArguments& arguments, const Options& options) {
  const Merge merge = resolve(arguments);
  resolve_isa(options.isa);  // the arithmetic is the same on all; one that is none is refused
  const std::int64_t rows = merge.batch * merge.tokens * merge.heads;
  constexpr std::int64_t kRowsAnItem = 64;  // fewer are not worth waking a thread for
  const std::int64_t items = base::ceil_div(rows, kRowsAnItem);
  const Crew crew = crew_of(kCall, options).for_items(items);
  base::share_out(*crew.executor, crew.workers, items, [&](std::int64_t item, int) {
    for (std::int64_t i = item * kRowsAnItem; i < std::min(rows, (item + 1) * kRowsAnItem); ++i) {
      merge_row(merge,
                {i / merge.heads / merge.tokens, i / merge.heads % merge.tokens, i % merge.heads});
    }
  });
}

}  // namespace polyhead::inline v0
