// How errors of values count, from the projection that they go through.
#include <cstddef>

#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "frames/door.hpp"
#include "frames/head_rows.hpp"
#include "frames/rope_pairs.hpp"

namespace polyhead::inline v0 {
namespace frames {
namespace {

constexpr const char* kCall = "value_moments";

void check_projection(const ConstView& w_o, std::int64_t kv_heads, std::int64_t value_dim) {
  base::check_size(kCall, "kv_heads", kv_heads, 1, kMostHeads);
  base::check_size(kCall, "value_dim", value_dim, 1, base::kMaxDim);
  if (w_o.layout.too_many_axes || w_o.layout.axes != 2) {
    base::refuse(kCall, "w_o has ", base::Axes(w_o.layout),
                 "; expected [out, q_heads * value_dim]");
  }
  if (!base::is_floating(w_o.type)) {
    base::refuse(kCall, "w_o is ", element_name(w_o.type),
                 "; expected float32, float16 or bfloat16");
  }
  base::footprint_of(kCall, "w_o", w_o);
  if (w_o.layout.extents[0] < 1) base::refuse(kCall, "w_o has no rows, expected at least one");
  const std::int64_t columns = w_o.layout.extents[1], heads = columns / value_dim;
  if (columns % value_dim == 0 && heads > 0 && heads % kv_heads == 0) return;
  base::refuse(kCall, "w_o has ", columns, " columns, expected those of whole groups of ", kv_heads,
               " KV heads of ", value_dim);
}

}  // namespace
}  // namespace frames

std::vector<double> value_moments(ConstView w_o, std::int64_t kv_heads, std::int64_t value_dim,
                                  const Options& options) {
  frames::check_projection(w_o, kv_heads, value_dim);
  const Crew crew = frames::checked_crew(frames::kCall, options);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  const std::int64_t outputs = w_o.layout.extents[0], heads = w_o.layout.extents[1] / value_dim;
  const std::int64_t row_stride = base::kernel_stride(w_o, 0);
  const std::int64_t column_stride = base::kernel_stride(w_o, 1);
  const auto* const data = static_cast<const std::byte*>(w_o.data);
  frames::TurnedBackSums sums(kv_heads, value_dim);
  std::vector<double> rows(static_cast<std::size_t>(outputs * value_dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    double* to = rows.data();
    for (std::int64_t row = 0; row < outputs; ++row) {
      for (std::int64_t d = 0; d < value_dim; ++d) {
        const std::int64_t column = head * value_dim + d;
        *to++ = base::load_float32(data + row * row_stride + column * column_stride, w_o.type);
      }
    }
    sums.add(crew, head / (heads / kv_heads), rows);
  }
  return sums.over(1, {}).moment;  // their mean: only its shape matters
}

}  // namespace polyhead::inline v0
