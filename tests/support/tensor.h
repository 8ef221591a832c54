// A small owned array of any element type and layout, poisoned with NaN between and around its
// elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/element.hpp"
#include "polyhead/types.h"
#include "support/random.h"

namespace polyhead::test {

using Index = std::vector<std::int64_t>;
inline constexpr ElementType f32 = ElementType::float32, f16 = ElementType::float16,
                             bf16 = ElementType::bfloat16;

/// Bytes between elements that lie `elements` apart.
inline std::int64_t bytes_apart(ElementType type, std::int64_t elements) {
  return type == ElementType::int4 ? elements / 2 : elements * element_bytes(type);
}

/// Calls f(index) for every index, the last axis fastest.
template <class F>
void for_each_index(const Index& extents, F f) {
  for (std::int64_t extent : extents) {
    if (extent == 0) return;
  }
  Index at(extents.size(), 0);
  while (true) {
    f(at);
    std::size_t axis = extents.size();
    while (axis > 0 && ++at[axis - 1] == extents[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

class Tensor {
 public:
  Tensor() = default;

  /// Axes lie in memory as `order` says, outermost first (empty: as they come), with `gap` elements
  /// of poison after each innermost row.
  Tensor(ElementType type, Index extents, std::vector<int> order = {}, std::int64_t gap = 0)
      : type_(type), extents_(std::move(extents)), strides_(extents_.size(), 0) {
    if (order.empty()) {
      order.resize(extents_.size());
      std::iota(order.begin(), order.end(), 0);
    }
    std::int64_t stride = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      const std::size_t axis = static_cast<std::size_t>(order[i]);
      strides_[axis] = stride;
      stride *= extents_[axis];
      if (i + 1 == order.size()) stride += gap;
    }
    bytes_.resize(static_cast<std::size_t>(stride * element_bytes(type)));
    poison();
  }

  /// All ones: a NaN in every floating type, -1 in every integer, true in a boolean.
  void poison() {
    if (!bytes_.empty()) std::memset(bytes_.data(), 0xff, bytes_.size());
  }

  ElementType type() const { return type_; }
  const Index& extents() const { return extents_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  bool given() const { return !extents_.empty(); }

  View view() {
    View view;
    if (!given()) return view;
    view.data = bytes_.data();
    view.type = type_;
    view.layout = layout();
    return view;
  }
  ConstView const_view() const { return const_cast<Tensor*>(this)->view(); }

  std::byte* address(const Index& at) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] * strides_[axis];
    return bytes_.data() + offset * element_bytes(type_);
  }
  const std::byte* address(const Index& at) const { return const_cast<Tensor*>(this)->address(at); }

  double get(const Index& at) const {
    const std::byte* from = address(at);
    switch (type_) {
      case ElementType::int32: {
        std::int32_t value;
        std::memcpy(&value, from, sizeof value);
        return value;
      }
      case ElementType::int64:
        return static_cast<double>(get_int(at));
      case ElementType::boolean:
        return *from != std::byte{0} ? 1.0 : 0.0;
      default:
        return base::load_float32(from, type_);
    }
  }
  std::int64_t get_int(const Index& at) const {
    std::int64_t value;
    std::memcpy(&value, address(at), sizeof value);
    return value;
  }

  void set(const Index& at, double value) {
    std::byte* to = address(at);
    if (type_ == ElementType::int32) {
      const std::int32_t v = static_cast<std::int32_t>(value);
      std::memcpy(to, &v, sizeof v);
    } else if (type_ == ElementType::int64) {
      const std::int64_t v = static_cast<std::int64_t>(value);
      std::memcpy(to, &v, sizeof v);
    } else if (type_ == ElementType::boolean) {
      *to = value != 0.0 ? std::byte{1} : std::byte{0};
    } else {
      base::store_float32(to, type_, static_cast<float>(value));
    }
  }

  /// value(index) into every element.
  template <class F>
  void fill(F value) {
    for_each_index(extents_, [&](const Index& at) { set(at, value(at)); });
  }
  void fill_normal(Random& random, double deviation = 1.0, double mean = 0.0) {
    fill([&](const Index&) { return mean + deviation * random.normal(); });
  }

  /// The same elements in another layout.
  Tensor relaid(std::vector<int> order, std::int64_t gap = 0) const {
    Tensor other(type_, extents_, std::move(order), gap);
    for_each_index(extents_, [&](const Index& at) {
      std::memcpy(other.address(at), address(at), static_cast<std::size_t>(element_bytes(type_)));
    });
    return other;
  }

 private:
  detail::Layout layout() const {
    detail::Layout layout;
    layout.axes = static_cast<int>(extents_.size());
    for (std::size_t axis = 0; axis < extents_.size(); ++axis) {
      layout.extents[axis] = extents_[axis];
      layout.strides[axis] = strides_[axis];
    }
    return layout;
  }

  ElementType type_ = ElementType::float32;
  Index extents_, strides_;
  std::vector<std::byte> bytes_;
};

/// How many elements differ in a bit; the layouts may.
inline std::int64_t differing_bits(const Tensor& a, const Tensor& b) {
  if (!a.given()) return 0;
  std::int64_t count = 0;
  const std::size_t bytes = static_cast<std::size_t>(element_bytes(a.type()));
  for_each_index(a.extents(), [&](const Index& at) {
    if (std::memcmp(a.address(at), b.address(at), bytes) != 0) ++count;
  });
  return count;
}

}  // namespace polyhead::test
