// Large pages of the system under large arrays.
#pragma once

#include <cstddef>
#include <memory>

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

/// Arrays that are read one after the other and live about as long, such as a model's weights: they
/// lie next to each other, so that small ones are on large pages too. Not for several threads at
/// once.
class LargePages {
 public:
  /// Room for `bytes` in all; arrays that do not fit any more have memory of their own.
  explicit LargePages(std::size_t bytes) : room_(bytes) {}

  /// Uninitialised memory, aligned to a cache line. It keeps the pages that it lies on, and the
  /// last array there frees them.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  std::size_t room_;                                 // bytes
  std::shared_ptr<AlignedBuffer<std::byte>> pages_;  // where there is room, from the first array on
  std::size_t used_ = 0;                             // of them
};

}  // namespace polyhead::inline v0::base
