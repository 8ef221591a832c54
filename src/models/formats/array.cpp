#include "models/formats/array.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/shape_text.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::formats {

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return -1;
    if (extent == 0) {
      empty = true;
    } else if (count > std::numeric_limits<std::int64_t>::max() / extent) {
      return -1;  // refused even when another extent is 0: such a shape is a lie anyway
    } else {
      count *= extent;
    }
  }
  return empty ? 0 : count;
}

detail::Layout dense_layout(std::span<const std::int64_t> shape, bool fortran) {
  detail::Layout layout;
  layout.axes = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t step = 0; step < shape.size(); ++step) {
    const std::size_t axis = fortran ? step : shape.size() - 1 - step;
    layout.extents[axis] = shape[axis];
    layout.strides[axis] = stride;
    if (shape[axis] > 0) stride *= shape[axis];
  }
  return layout;
}

Array array_at(const std::byte* data, ElementType type, const detail::Layout& layout,
               std::int64_t count, std::shared_ptr<const void> owner) {
  const auto bytes = static_cast<std::size_t>(element_bytes(type));
  // A bit has no bytes of its own and lies anywhere.
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(data) % bytes == 0)
    return {ConstView(data, type, layout), std::move(owner)};
  const std::size_t size = static_cast<std::size_t>(count) * bytes;
  auto copy =
      std::make_shared<std::vector<std::byte>>(size);  // operator new aligns for every element type
  if (size > 0) std::memcpy(copy->data(), data, size);
  const std::byte* aligned = copy->data();
  return {ConstView(aligned, type, layout), std::move(copy)};
}

Array array_of_float64(const std::string& place, const std::byte* data,
                       const detail::Layout& layout, std::int64_t count) {
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values->size(); ++i) {
    double value;
    std::memcpy(&value, data + i * sizeof(double), sizeof(double));
    (*values)[i] = static_cast<float>(value);
    if (std::isinf((*values)[i]) && !std::isinf(value))
      throw too_large(place, value, ElementType::float32);
  }
  const float* first = values->data();
  return {ConstView(static_cast<const void*>(first), ElementType::float32, layout),
          std::move(values)};
}

std::string shape_text(std::span<const std::int64_t> shape) { return base::shape_text(shape); }

std::string shape_text(const detail::Layout& layout) {
  return shape_text({layout.extents.data(), static_cast<std::size_t>(layout.axes)});
}

}  // namespace polyhead::inline v0::formats
