#include "base/large_pages.hpp"

#include <algorithm>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace polyhead::inline v0::base {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
void prefer_large_pages(void* data, std::size_t bytes) {
  // Whole large pages within the array alone: its neighbours keep what they have.
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (begin + bytes) / kLargePage * kLargePage;
  if (end <= first) return;
  static_cast<void>(
      madvise(static_cast<std::byte*>(data) + (first - begin), end - first, MADV_HUGEPAGE));
}
#else
void prefer_large_pages(void*, std::size_t) {}
#endif

std::shared_ptr<std::byte> LargePages::take(std::size_t bytes) {
  constexpr std::size_t kMost = 16 * kLargePage;  // taken in advance
  const std::size_t lines = bytes / kCacheLine + (bytes % kCacheLine != 0 ? 1 : 0);
  if (!pages_ || lines > (pages_->size() - used_) / kCacheLine) {
    // As much again as there is: a few small arrays take little, many of them few allocations.
    const std::size_t size = std::max(lines, std::min(total_, kMost) / kCacheLine) * kCacheLine;
    pages_ = std::make_shared<AlignedBuffer<std::byte>>(in_large_pages<std::byte>(size));
    used_ = 0;
  }
  std::byte* const at = pages_->data() + used_;
  used_ += lines * kCacheLine;
  total_ += lines * kCacheLine;
  return {pages_, at};
}

}  // namespace polyhead::inline v0::base
