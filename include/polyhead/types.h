// Element types and strided views: how arrays enter and leave the library.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// IEEE 754 binary16, as bits. Storage only: the library computes in float32.
struct float16 {
  std::uint16_t bits = 0;
};

/// bfloat16 (the upper half of a float32), as bits. Storage only.
struct bfloat16 {
  std::uint16_t bits = 0;
};

/// What one element of a view is. `boolean` is one byte (0 is false, all else true); `bit` is one
/// bit of a packed row, lowest bit first. The last four are codes that only caches hold
/// (kv_view.h): int8 and int4 times a scale, and the two 8-bit floats of the OCP specification.
enum class ElementType : std::uint8_t {
  float32,
  float16,
  bfloat16,
  int32,
  int64,
  boolean,
  bit,
  int8,
  int4,
  float8_e4m3,
  float8_e5m2
};

/// Bytes of one element; 0 for `bit` and `int4`, which have none of their own.
constexpr int element_bytes(ElementType type) {
  switch (type) {
    case ElementType::float32:
    case ElementType::int32:
      return 4;
    case ElementType::float16:
    case ElementType::bfloat16:
      return 2;
    case ElementType::int64:
      return 8;
    case ElementType::boolean:
    case ElementType::int8:
    case ElementType::float8_e4m3:
    case ElementType::float8_e5m2:
      return 1;
    case ElementType::bit:
    case ElementType::int4:
      return 0;
  }
  return 0;
}

/// The name of an element type as users write it ("float32", "bfloat16", ...).
const char* element_name(ElementType type);

/// The element type of a C++ type: bool and std::uint8_t are boolean, other integers by their size.
template <class T>
constexpr ElementType element_type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return ElementType::float32;
  else if constexpr (std::is_same_v<U, float16>)
    return ElementType::float16;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return ElementType::bfloat16;
  else if constexpr (std::is_same_v<U, bool> || std::is_same_v<U, std::uint8_t>)
    return ElementType::boolean;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 4)
    return ElementType::int32;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 8)
    return ElementType::int64;
  else
    static_assert(sizeof(U) == 0, "polyhead: no element type for this C++ type");
}

inline constexpr int kMaxAxes = 5;

namespace detail {

/// The part views share: extents and strides of up to kMaxAxes axes, both in elements, copied at
/// construction.
struct Layout {
  int axes = 0;
  std::array<std::int64_t, kMaxAxes> extents{};
  std::array<std::int64_t, kMaxAxes> strides{};
  bool too_many_axes = false;  ///< more axes were given than a view holds: refused at the door

  constexpr Layout() = default;

  template <std::integral I>
  constexpr Layout(std::initializer_list<I> sizes) {
    take(sizes, extents);
    std::int64_t stride = 1;
    for (auto axis = static_cast<std::size_t>(axes); axis-- > 0;) {
      strides[axis] = stride;
      // Unsigned: an overflowing product wraps here and is refused at the door, where extents are
      // checked.
      stride = static_cast<std::int64_t>(
          static_cast<std::uint64_t>(stride) *
          static_cast<std::uint64_t>(extents[axis] > 0 ? extents[axis] : 1));
    }
  }

  /// Integers of several types in one list.
  template <std::integral... I>
    requires(sizeof...(I) > 1)
  constexpr Layout(I... sizes)
      : Layout(std::initializer_list<std::int64_t>{static_cast<std::int64_t>(sizes)...}) {}

  template <std::integral I, std::integral J>
  constexpr Layout(std::initializer_list<I> sizes, std::initializer_list<J> steps)
      : Layout(Layout(sizes), Layout(steps)) {}

  /// The extents of `sizes` with those of `steps` for strides.
  constexpr Layout(const Layout& sizes, const Layout& steps)
      : axes(sizes.axes),
        extents(sizes.extents),
        strides(steps.extents),
        too_many_axes(sizes.too_many_axes || steps.too_many_axes || sizes.axes != steps.axes) {}

 private:
  template <class I>
  constexpr void take(std::initializer_list<I> from, std::array<std::int64_t, kMaxAxes>& to) {
    too_many_axes = too_many_axes || from.size() > kMaxAxes;
    axes = 0;
    for (I value : from) {
      if (axes == kMaxAxes) break;
      to[static_cast<std::size_t>(axes++)] = static_cast<std::int64_t>(value);
    }
  }
};

}  // namespace detail

/// A read-only strided array: pointer, element type, extents and strides (in elements; in bits for
/// `bit`). Strides default to dense, last axis fastest. Stride 0 broadcasts; the stride of an axis
/// of extent 1 is ignored. A list may hold integers of several types. A default-constructed view is
/// "not given". The view owns nothing.
struct ConstView {
  const void* data = nullptr;
  ElementType type = ElementType::float32;
  detail::Layout layout;

  constexpr ConstView() = default;
  template <class T, std::integral I>
  constexpr ConstView(const T* pointer, std::initializer_list<I> extents)
      : data(pointer), type(element_type_of<T>()), layout(extents) {}
  template <class T, std::integral I, std::integral J>
  constexpr ConstView(const T* pointer, std::initializer_list<I> extents,
                      std::initializer_list<J> strides)
      : data(pointer), type(element_type_of<T>()), layout(extents, strides) {}
  template <class T>
  constexpr ConstView(const T* pointer, detail::Layout shape)  // integers of several types
      : data(pointer), type(element_type_of<T>()), layout(shape) {}
  template <class T>
  constexpr ConstView(const T* pointer, detail::Layout extents, detail::Layout strides)
      : data(pointer), type(element_type_of<T>()), layout(extents, strides) {}
  constexpr ConstView(const void* pointer, ElementType element, detail::Layout shape)
      : data(pointer), type(element), layout(shape) {}

  /// Whether the view was given at all. An array of zero elements may have a null pointer and still
  /// be given.
  constexpr bool given() const { return data != nullptr || layout.axes > 0; }
};

/// A strided array that the library writes.
struct View {
  void* data = nullptr;
  ElementType type = ElementType::float32;
  detail::Layout layout;

  constexpr View() = default;
  template <class T, std::integral I>
    requires(!std::is_const_v<T>)
  constexpr View(T* pointer, std::initializer_list<I> extents)
      : data(pointer), type(element_type_of<T>()), layout(extents) {}
  template <class T, std::integral I, std::integral J>
    requires(!std::is_const_v<T>)
  constexpr View(T* pointer, std::initializer_list<I> extents, std::initializer_list<J> strides)
      : data(pointer), type(element_type_of<T>()), layout(extents, strides) {}
  template <class T>
    requires(!std::is_const_v<T>)
  constexpr View(T* pointer, detail::Layout shape)  // integers of several types
      : data(pointer), type(element_type_of<T>()), layout(shape) {}
  template <class T>
    requires(!std::is_const_v<T>)
  constexpr View(T* pointer, detail::Layout extents, detail::Layout strides)
      : data(pointer), type(element_type_of<T>()), layout(extents, strides) {}
  constexpr View(void* pointer, ElementType element, detail::Layout shape)
      : data(pointer), type(element), layout(shape) {}

  constexpr bool given() const { return data != nullptr || layout.axes > 0; }
  constexpr operator ConstView() const { return {data, type, layout}; }
};

/// Reorders the axes of a [batch, heads, tokens, dim] view (of four axes) into the library's
/// [batch, tokens, heads, dim].
template <class AnyView>
constexpr AnyView from_batch_heads_tokens_dim(AnyView view) {
  std::swap(view.layout.extents[1], view.layout.extents[2]);
  std::swap(view.layout.strides[1], view.layout.strides[2]);
  return view;
}

/// Rounds to nearest, ties to even; what is too large becomes an infinity, NaN stays NaN.
float16 to_float16(float value);
bfloat16 to_bfloat16(float value);
float to_float32(float16 value);
float to_float32(bfloat16 value);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
