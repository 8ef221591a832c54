#include "frames/head_rows.hpp"

#include <bit>
#include <cstring>

#include "base/element.hpp"
#include "base/footprint.hpp"

namespace polyhead::inline v0::frames {

HeadRows::HeadRows(const ConstView& view) : type_(view.type) {
  if (!view.given()) return;
  const int last = view.layout.axes - 1;
  const std::int64_t batch = last == 3 ? view.layout.extents[0] : 1;
  if (batch == 0 || tokens_of(view) == 0 || heads_of(view) == 0 || dim_of(view) == 0) return;
  batch_ = batch;
  tokens_ = tokens_of(view);
  heads_ = heads_of(view);
  dim_ = dim_of(view);
  batch_stride_ = last == 3 ? base::kernel_stride(view, 0) : 0;
  token_stride_ = base::kernel_stride(view, last - 2);
  head_stride_ = base::kernel_stride(view, last - 1);
  dim_stride_ = dim_ > 1 ? base::kernel_stride(view, last) : element_bytes(type_);
}

void HeadRows::load(const std::byte* row, float* to) const {
  if (type_ == ElementType::float32 && dim_stride_ == 4) {
    std::memcpy(to, row, static_cast<std::size_t>(dim_) * 4);
    return;
  }
  for (std::int64_t d = 0; d < dim_; ++d) to[d] = base::load_float32(row + d * dim_stride_, type_);
}

void HeadRows::store(const float* from, std::byte* row) const {
  if (type_ == ElementType::float32 && dim_stride_ == 4) {
    std::memcpy(row, from, static_cast<std::size_t>(dim_) * 4);
    return;
  }
  for (std::int64_t d = 0; d < dim_; ++d)
    base::store_float32(row + d * dim_stride_, type_, from[d]);
}

bool all_finite(std::span<const float> numbers) {
  // Without a branch, so that it runs in lanes: a call reads all of its frame, also for one token.
  std::uint32_t all = 0;  // an exponent of ones and one more reach the highest bit
  for (const float x : numbers) all |= (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) + 0x800000u;
  return all < 0x80000000u;
}

}  // namespace polyhead::inline v0::frames
