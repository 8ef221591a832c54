// An array read from a file: a view and whatever keeps its memory alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "polyhead/types.h"

namespace polyhead::inline v0::formats {

/// A view of read-only memory together with its owner (the mapped file, or a converted copy).
struct Array {
  ConstView view;
  std::shared_ptr<const void> owner;
};

/// Elements of a shape, or -1 where the product does not fit in 63 bits (or an extent is negative).
std::int64_t element_count(std::span<const std::int64_t> shape);

/// The dense layout of a shape; `fortran` puts the first axis fastest. At most kMaxAxes axes.
detail::Layout dense_layout(std::span<const std::int64_t> shape, bool fortran = false);

/// The array at `data` in the file's memory, as it lies where its address suits its type, else as
/// an aligned copy.
Array array_at(const std::byte* data, ElementType type, const detail::Layout& layout,
               std::int64_t count, std::shared_ptr<const void> owner);

/// Doubles as float32. Infinities stay what they are; throws FileError, naming `place`, at a finite
/// number that would become one.
Array array_of_float64(const std::string& place, const std::byte* data,
                       const detail::Layout& layout, std::int64_t count);

/// "[2, 5, 4]", as messages print shapes.
std::string shape_text(const detail::Layout& layout);
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace polyhead::inline v0::formats
