#include "cache/append.hpp"

#include "base/element.hpp"
#include "base/footprint.hpp"
#include "base/refuse.hpp"
#include "base/shape_text.hpp"

namespace polyhead::inline v0::cache {

std::string shown_shape(const ConstView& view) {
  if (view.layout.too_many_axes) return "of too many axes";
  return base::shape_text({view.layout.extents.data(), static_cast<std::size_t>(view.layout.axes)});
}

void check_index(const char* call, const char* name, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  if (count == 0) base::refuse(call, name, " (", index, ") is given, but there is none");
  base::refuse(call, name, " (", index, ") is not within 0 .. ", count - 1);
}

void check_rows(const char* call, const char* name, const ConstView& view, const RowsShape& shape) {
  if (view.layout.axes == 0)
    base::refuse(call, name, " is not given; expected [batch, tokens, kv_heads, dim]");
  if (view.layout.axes != 4 || view.layout.too_many_axes) {
    base::refuse(call, name, " has ", base::Axes(view.layout),
                 "; expected [batch, tokens, kv_heads, dim]");
  }
  if (!base::is_floating(view.type)) {
    base::refuse(call, name, " is ", element_name(view.type),
                 "; expected float32, float16 or bfloat16");
  }
  const std::int64_t expected[] = {shape.batch, shape.tokens, shape.heads, shape.dim};
  const char* const axes[] = {"batch", "tokens", "kv_heads", "dim"};
  for (int axis = 0; axis < 4; ++axis) {
    const std::int64_t extent = view.layout.extents[static_cast<std::size_t>(axis)];
    if (extent < 0)
      base::refuse(call, name, " has ", axes[axis], " ", extent, "; expected at least 0");
    if (extent != expected[axis])
      base::refuse(call, name, " has ", axes[axis], " ", extent, "; expected ", expected[axis]);
  }
  base::footprint_of(call, name, view);
}

std::int64_t count_at(const ConstView& counts, std::int64_t sequence, std::int64_t tokens) {
  if (!counts.given()) return tokens;
  const std::int64_t at = counts.layout.extents[0] == 1 ? 0 : sequence * counts.layout.strides[0];
  return counts.type == ElementType::int32 ? static_cast<const std::int32_t*>(counts.data)[at]
                                           : static_cast<const std::int64_t*>(counts.data)[at];
}

void check_counts(const char* call, const ConstView& counts, std::int64_t batch,
                  std::int64_t tokens) {
  if (!counts.given()) return;
  if (!base::is_integer(counts.type)) {
    base::refuse(call, "counts are ", element_name(counts.type), "; expected int32 or int64");
  }
  if (counts.layout.axes != 1 || counts.layout.too_many_axes || counts.layout.extents[0] != batch) {
    base::refuse(call, "counts are ", shown_shape(counts), ", expected [", batch, "]: batch");
  }
  base::footprint_of(call, "counts", counts);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t count = count_at(counts, b, tokens);
    if (count < 0 || count > tokens) {
      base::refuse(call, "counts[", b, "] (", count, ") is not from 0 to tokens (", tokens, ")");
    }
  }
}

ConstView counts_apart(const ConstView& counts, std::span<const std::int64_t> array,
                       std::vector<std::int64_t>& copy) {
  if (!base::begins_in(counts, array)) return counts;
  copy.resize(static_cast<std::size_t>(counts.layout.extents[0]));
  for (std::size_t b = 0; b < copy.size(); ++b)
    copy[b] = count_at(counts, static_cast<std::int64_t>(b), 0);
  return ConstView(copy.data(), {counts.layout.extents[0]});
}

SourceRow source_row(const ConstView& rows, std::int64_t sequence, std::int64_t token,
                     std::int64_t head) {
  const auto& extents = rows.layout.extents;
  const auto& strides = rows.layout.strides;
  const std::int64_t bytes = element_bytes(rows.type);
  // The stride of a single element means nothing.
  const auto at = [&](int axis, std::int64_t index) {
    return extents[static_cast<std::size_t>(axis)] == 1
               ? 0
               : index * strides[static_cast<std::size_t>(axis)];
  };
  const std::int64_t offset = at(0, sequence) + at(1, token) + at(2, head);
  return {static_cast<const std::byte*>(rows.data) + offset * bytes, rows.type,
          extents[3] == 1 ? bytes : strides[3] * bytes};
}

Fresh Ragged::fresh(const ConstView& k, const ConstView& v, const ConstView& offsets) {
  Fresh rows{k, v, {}, offsets};
  for (ConstView* view : {&rows.k, &rows.v}) {
    if (!view->given()) continue;
    const auto& [axes, extents, strides, too_many] = view->layout;
    view->layout = {{std::int64_t{1}, extents[0], extents[1], extents[2]},
                    {std::int64_t{0}, strides[0], strides[1], strides[2]}};
  }
  return rows;
}

}  // namespace polyhead::inline v0::cache
