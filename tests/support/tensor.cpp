#include "support/tensor.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/element.hpp"

namespace polyhead::test {
namespace {

template <class T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write_as(std::byte* to, double value) {
  const T written = static_cast<T>(value);
  std::memcpy(to, &written, sizeof written);
}

}  // namespace

Index::Index(std::initializer_list<std::int64_t> values) : size_(values.size()) {
  assert(size_ <= kMaxAxes);
  std::copy(values.begin(), values.end(), values_);
}

Index::Index(std::size_t axes, std::int64_t value) : size_(axes) {
  assert(size_ <= kMaxAxes);
  std::fill_n(values_, axes, value);
}

bool Index::advance(const Index& extents) {
  std::size_t axis = size_;
  while (axis > 0 && ++values_[axis - 1] == extents.values_[axis - 1]) values_[--axis] = 0;
  return axis > 0;
}

Index joined(const Index& first, const Index& more) {
  Index all(first.size() + more.size(), 0);
  for (std::size_t axis = 0; axis < all.size(); ++axis)
    all[axis] = axis < first.size() ? first[axis] : more[axis - first.size()];
  return all;
}

Tensor::Tensor(ElementType type, Index extents, std::vector<int> order, std::int64_t gap)
    : type_(type), extents_(extents), strides_(extents.size(), 0) {
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

void Tensor::poison() {
  if (!bytes_.empty()) std::memset(bytes_.data(), 0xff, bytes_.size());
}

View Tensor::view() {
  View view;
  if (!given()) return view;
  view.data = bytes_.data();
  view.type = type_;
  view.layout.axes = static_cast<int>(extents_.size());
  std::copy(extents_.begin(), extents_.end(), view.layout.extents.begin());
  std::copy(strides_.begin(), strides_.end(), view.layout.strides.begin());
  return view;
}

std::byte* Tensor::address(const Index& at) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] * strides_[axis];
  return bytes_.data() + offset * element_bytes(type_);
}

double Tensor::get(const Index& at) const {
  const std::byte* from = address(at);
  switch (type_) {
    case ElementType::int32:
      return read_as<std::int32_t>(from);
    case ElementType::int64:
      return static_cast<double>(read_as<std::int64_t>(from));
    case ElementType::boolean:
      return *from != std::byte{0} ? 1.0 : 0.0;
    default:
      return base::load_float32(from, type_);
  }
}

std::int64_t Tensor::get_int(const Index& at) const { return read_as<std::int64_t>(address(at)); }

void Tensor::set(const Index& at, double value) {
  std::byte* to = address(at);
  switch (type_) {
    case ElementType::int32:
      return write_as<std::int32_t>(to, value);
    case ElementType::int64:
      return write_as<std::int64_t>(to, value);
    case ElementType::boolean:
      *to = value != 0.0 ? std::byte{1} : std::byte{0};
      return;
    default:
      base::store_float32(to, type_, static_cast<float>(value));
  }
}

void Tensor::fill_normal(Random& random, double deviation, double mean) {
  fill([&](const Index&) { return mean + deviation * random.normal(); });
}

Tensor Tensor::relaid(std::vector<int> order, std::int64_t gap) const {
  Tensor other(type_, extents_, std::move(order), gap);
  for_each_index(extents_, [&](const Index& at) {
    std::memcpy(other.address(at), address(at), static_cast<std::size_t>(element_bytes(type_)));
  });
  return other;
}

std::int64_t differing_bits(const Tensor& a, const Tensor& b) {
  if (!a.given()) return 0;
  std::int64_t count = 0;
  const std::size_t bytes = static_cast<std::size_t>(element_bytes(a.type()));
  for_each_index(a.extents(), [&](const Index& at) {
    if (std::memcmp(a.address(at), b.address(at), bytes) != 0) ++count;
  });
  return count;
}

}  // namespace polyhead::test
