// A small owned array of any element type and layout, poisoned with NaN between and around its
// elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "polyhead/types.h"
#include "support/random.h"

namespace polyhead::test {

/// Where an element lies, or how many there are along each axis: a few numbers without memory of
/// their own, because tests make one for each element they look at.
class Index {
 public:
  Index() = default;
  Index(std::initializer_list<std::int64_t> values);
  Index(std::size_t axes, std::int64_t value);

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](std::size_t axis) { return values_[axis]; }
  const std::int64_t& operator[](std::size_t axis) const { return values_[axis]; }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + size_; }
  bool operator==(const Index& other) const = default;

  /// The next one within extents, the last axis fastest; false past the last.
  bool advance(const Index& extents);

 private:
  std::int64_t values_[kMaxAxes] = {};
  std::size_t size_ = 0;
};

/// `first`, then `more`.
Index joined(const Index& first, const Index& more);

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
  do f(at);
  while (at.advance(extents));
}

class Tensor {
 public:
  Tensor() = default;

  /// Axes lie in memory as `order` says, outermost first (empty: as they come), with `gap` elements
  /// of poison after each innermost row.
  Tensor(ElementType type, Index extents, std::vector<int> order = {}, std::int64_t gap = 0);

  /// All ones: a NaN in every floating type, -1 in every integer, true in a boolean.
  void poison();

  ElementType type() const { return type_; }
  const Index& extents() const { return extents_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  bool given() const { return !extents_.empty(); }

  View view();
  ConstView const_view() const { return const_cast<Tensor*>(this)->view(); }

  std::byte* address(const Index& at);
  const std::byte* address(const Index& at) const { return const_cast<Tensor*>(this)->address(at); }
  double get(const Index& at) const;
  std::int64_t get_int(const Index& at) const;
  void set(const Index& at, double value);

  /// value(index) into every element.
  template <class F>
  void fill(F value) {
    for_each_index(extents_, [&](const Index& at) { set(at, value(at)); });
  }
  void fill_normal(Random& random, double deviation = 1.0, double mean = 0.0);

  /// The same elements in another layout.
  Tensor relaid(std::vector<int> order, std::int64_t gap = 0) const;

 private:
  ElementType type_ = ElementType::float32;
  Index extents_, strides_;
  std::vector<std::byte> bytes_;
};

/// How many elements differ in a bit; the layouts may.
std::int64_t differing_bits(const Tensor& a, const Tensor& b);

}  // namespace polyhead::test
