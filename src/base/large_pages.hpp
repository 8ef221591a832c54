// Large pages of the system under large arrays.
#pragma once

#include <cstddef>

#include "base/memory.hpp"

namespace polyhead::inline v0::base {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;  // bytes

/// Asks the system for large pages under the whole ones within `bytes` from `data`: with pages of
/// 4 KiB each piece of memory that was not read lately costs a walk through the page table. A hint;
/// without effect where the system has none.
void prefer_large_pages(void* data, std::size_t bytes);

/// An array that is read all over, as weights and pools of pages are: from one large page on it
/// begins with one, and asks for them.
template <class T>
AlignedBuffer<T> in_large_pages(std::size_t count) {
  if (count < kLargePage / sizeof(T)) return AlignedBuffer<T>(count);
  AlignedBuffer<T> buffer(count, kLargePage);
  prefer_large_pages(buffer.data(), buffer.bytes());
  return buffer;
}

}  // namespace polyhead::inline v0::base
