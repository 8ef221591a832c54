#include "base/large_pages.hpp"

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
  const std::size_t lines = bytes / kCacheLine + (bytes % kCacheLine != 0 ? 1 : 0);
  const auto make = [](std::size_t size) {
    return std::make_shared<AlignedBuffer<std::byte>>(in_large_pages<std::byte>(size));
  };
  if (lines > (room_ - used_) / kCacheLine) {
    const auto own = make(bytes);
    return {own, own->data()};
  }
  if (!pages_) pages_ = make(room_);
  std::byte* const at = pages_->data() + used_;
  used_ += lines * kCacheLine;
  return {pages_, at};
}

}  // namespace polyhead::inline v0::base
