#include "cache/store.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/large_pages.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::cache {
namespace {

/// Products of what a store's sizes are.
struct Sizes {
  const char* name;
  const StoreShape& shape;

  std::int64_t product(std::int64_t count, std::int64_t size) const {
    if (size != 0 && count > std::numeric_limits<std::int64_t>::max() / size) {
      base::refuse(name, "the bytes of rows [", shape.slots, ", ", shape.heads, ", ", shape.tokens,
                   ", ", shape.dim, "] (batch or pages, kv_heads, tokens, dim) of ",
                   element_name(shape.type), " overflow 64 bits");
    }
    return count * size;
  }
};

float value_at(const SourceRow& from, std::int64_t d) {
  return base::load_float32(from.data + d * from.step, from.type);
}

/// The one of largest magnitude; a NaN counts as the largest.
float extreme_of(const float* values, std::int64_t n) {
  float extreme = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(std::fabs(values[i]) <= std::fabs(extreme))) extreme = values[i];
    if (std::isnan(extreme)) break;
  }
  return extreme;
}

/// Channels that were 0 throughout: the least of the other scales of the head, or 1.
void fill_empty_channels(std::vector<float>& scales, std::int64_t dim) {
  for (auto head = scales.begin(); dim > 0 && head != scales.end(); head += dim) {
    float least = 0.0f;
    for (auto scale = head; scale != head + dim; ++scale) {
      const float size = std::fabs(*scale);
      if (size > 0.0f && (least == 0.0f || size < least)) least = size;
    }
    std::replace(head, head + dim, 0.0f, least > 0.0f ? least : 1.0f);
  }
}

}  // namespace

bool is_storable(std::int64_t type) {
  if (type != static_cast<std::uint8_t>(type)) return false;
  const auto known = static_cast<ElementType>(type);
  return base::is_floating(known) || base::is_code(known);
}

void check_storable(const char* call, ElementType type) {
  if (is_storable(static_cast<std::int64_t>(type))) return;
  base::refuse(call, "type is ", element_name(type), ", expected ", base::kTypesOfCaches);
}

Store::Store(const char* name, const StoreShape& shape, std::vector<float> channel_scales)
    : shape_(shape), channel_scales_(std::move(channel_scales)) {
  const Sizes sizes{name, shape};
  row_bytes_ = base::is_code(shape.type)
                   ? sizes.product(base::code_blocks(shape.dim),
                                   base::code_row_bytes(shape.type, base::kCodeBlock))
                   : sizes.product(shape.dim, element_bytes(shape.type));
  if (base::is_scaled(shape.type) && channel_scales_.empty())
    blocks_ = base::code_blocks(shape.dim);
  const std::int64_t rows = sizes.product(sizes.product(shape.slots, shape.heads), shape.tokens);
  sizes.product(sizes.product(rows, blocks_), 4);
  data_ =
      base::in_large_pages<std::byte>(static_cast<std::size_t>(sizes.product(rows, row_bytes_)));
  scales_ = base::in_large_pages<float>(static_cast<std::size_t>(rows * blocks_));
}

std::int64_t Store::bytes() const {
  return static_cast<std::int64_t>(data_.bytes() + scales_.bytes() + channel_scales_.size() * 4);
}

void Store::write(std::int64_t slot, std::int64_t head, std::int64_t token, const SourceRow& from) {
  if (shape_.dim == 0) return;  // there is no memory either
  std::byte* const to = row(slot, head, token);
  if (base::is_code(shape_.type)) return encode(to, slot, head, token, from);
  const std::int64_t bytes = element_bytes(shape_.type);
  if (from.type == shape_.type && from.step == bytes) {
    std::memcpy(to, from.data, static_cast<std::size_t>(row_bytes_));
    return;
  }
  for (std::int64_t d = 0; d < shape_.dim; ++d) {
    if (from.type == shape_.type)
      std::memcpy(to + d * bytes, from.data + d * from.step, static_cast<std::size_t>(bytes));
    else
      base::store_float32(to + d * bytes, shape_.type, value_at(from, d));
  }
}

void Store::encode(std::byte* to, std::int64_t slot, std::int64_t head, std::int64_t token,
                   const SourceRow& from) {
  std::memset(to, 0, static_cast<std::size_t>(row_bytes_));
  for (std::int64_t block = 0; block < base::code_blocks(shape_.dim); ++block) {
    const std::int64_t first = block * base::kCodeBlock;
    const std::int64_t n = std::min(base::kCodeBlock, shape_.dim - first);
    float values[base::kCodeBlock];
    for (std::int64_t i = 0; i < n; ++i) values[i] = value_at(from, first + i);
    if (!base::is_scaled(shape_.type)) {
      const bool e4m3 = shape_.type == ElementType::float8_e4m3;
      for (std::int64_t i = 0; i < n; ++i)
        to[first + i] = static_cast<std::byte>(base::float32_to_float8(values[i], e4m3));
      continue;
    }
    float of_block = 0.0f;
    if (blocks_ > 0) {
      of_block = base::code_scale(shape_.type, extreme_of(values, n));
      *scale(slot, head, block, token) = of_block;
    }
    const float* const by_channel =
        blocks_ > 0 ? nullptr : channel_scales_.data() + head * shape_.dim + first;
    for (std::int64_t i = 0; i < n; ++i) {
      const float s = by_channel ? by_channel[i] : of_block;
      base::store_integer_code(to, shape_.type, first + i,
                               base::integer_code_of(shape_.type, values[i], s));
    }
  }
}

float Store::value(std::int64_t slot, std::int64_t head, std::int64_t token,
                   std::int64_t dim) const {
  Store& self = const_cast<Store&>(*this);  // only read
  const std::byte* const from = self.row(slot, head, token);
  if (!base::is_code(shape_.type))
    return base::load_float32(from + dim * element_bytes(shape_.type), shape_.type);
  float scale = 1.0f;
  if (blocks_ > 0)
    scale = *self.scale(slot, head, dim / base::kCodeBlock, token);
  else if (!channel_scales_.empty())
    scale = channel_scales_[static_cast<std::size_t>(head * shape_.dim + dim)];
  return base::code_to_float32(from, shape_.type, dim, scale);
}

void Store::copy(std::int64_t slot, const Store& from, std::int64_t from_slot,
                 std::int64_t tokens) {
  if (tokens == 0) return;
  Store& source = const_cast<Store&>(from);  // only read
  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    if (row_bytes_ > 0) {
      std::memcpy(row(slot, head, 0), source.row(from_slot, head, 0),
                  static_cast<std::size_t>(tokens * row_bytes_));
    }
    for (std::int64_t block = 0; block < blocks_; ++block) {
      std::memcpy(scale(slot, head, block, 0), source.scale(from_slot, head, block, 0),
                  static_cast<std::size_t>(tokens) * 4);
    }
  }
}

void Store::copy_token(std::int64_t slot, std::int64_t token, std::int64_t from_slot,
                       std::int64_t from_token) {
  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    if (row_bytes_ > 0) {
      std::memcpy(row(slot, head, token), row(from_slot, head, from_token),
                  static_cast<std::size_t>(row_bytes_));
    }
    for (std::int64_t block = 0; block < blocks_; ++block)
      *scale(slot, head, block, token) = *scale(from_slot, head, block, from_token);
  }
}

ConstView Store::rows() const {
  std::int64_t row = shape_.dim;  // elements from a row to the next
  if (base::is_code(shape_.type)) row = base::code_blocks(shape_.dim) * base::kCodeBlock;
  const detail::Layout layout{
      {shape_.slots, shape_.tokens, shape_.heads, shape_.dim},
      {shape_.tokens * row, row, shape_.slots * shape_.tokens * row, std::int64_t{1}}};
  return {data_.data(), shape_.type, layout};
}

ConstView Store::scales() const {
  if (!base::is_scaled(shape_.type)) return {};
  if (!channel_scales_.empty()) return {channel_scales_.data(), {shape_.heads, shape_.dim}};
  return {scales_.data(),
          {shape_.slots, shape_.tokens, shape_.heads, blocks_},
          {blocks_ * shape_.tokens, std::int64_t{1}, shape_.slots * blocks_ * shape_.tokens,
           shape_.tokens}};
}

std::vector<float> scales_by_channel(const char* call, const ConstView& k, ElementType type) {
  const auto& extent = k.layout.extents;
  const auto& stride = k.layout.strides;
  const std::int64_t bytes = element_bytes(k.type);
  std::int64_t channels = 0;
  if (__builtin_mul_overflow(extent[2], extent[3], &channels))
    base::refuse(call, "kv_heads (", extent[2], ") times head_dim (", extent[3], ") overflow");
  std::vector<float> extremes(static_cast<std::size_t>(channels), 0.0f);
  for (std::int64_t b = 0; b < extent[0]; ++b) {
    for (std::int64_t t = 0; t < extent[1]; ++t) {
      for (std::int64_t h = 0; h < extent[2]; ++h) {
        for (std::int64_t d = 0; d < extent[3]; ++d) {
          const std::int64_t at =
              (extent[0] > 1 ? b * stride[0] : 0) + (extent[1] > 1 ? t * stride[1] : 0) +
              (extent[2] > 1 ? h * stride[2] : 0) + (extent[3] > 1 ? d * stride[3] : 0);
          const float value =
              base::load_float32(static_cast<const std::byte*>(k.data) + at * bytes, k.type);
          if (!std::isfinite(value)) {
            base::refuse(call, "k has ", value, " in head ", h, ", dim ", d,
                         ", expected finite numbers");
          }
          float& extreme = extremes[static_cast<std::size_t>(h * extent[3] + d)];
          if (std::fabs(value) > std::fabs(extreme)) extreme = value;
        }
      }
    }
  }
  for (float& extreme : extremes) extreme = base::code_scale(type, extreme);
  fill_empty_channels(extremes, extent[3]);
  return extremes;
}

}  // namespace polyhead::inline v0::cache
