// Address space for arrays that are far too large for memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace polyhead::test {

/// Address space without memory behind it until it is touched.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (valid()) madvise(data_, bytes_, MADV_NOHUGEPAGE);  // a touch takes 4 KiB, not 2 MiB
  }
  ~Reserved() {
    if (valid()) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool valid() const { return data_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(data_); }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace polyhead::test
