// Copies of arrays beside memory that may not be touched.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "support/tensor.h"

namespace polyhead::test {

/// A copy that ends where its pages end, or begins where they begin; beyond lies memory that may
/// not be touched.
class Guarded {
 public:
  Guarded(std::span<const std::byte> from, bool at_end) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), size = from.size();
    const std::size_t body = (size + page - 1) / page * page;
    bytes_ = body + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, body, PROT_READ | PROT_WRITE);
    data_ = base_ + page + (at_end ? body - size : 0);
    if (size > 0) std::memcpy(data_, from.data(), size);
  }
  Guarded(const Tensor& from, bool at_end) : Guarded(std::span(from.bytes()), at_end) {}
  ~Guarded() { munmap(base_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte *base_, *data_;
  std::size_t bytes_;
};

}  // namespace polyhead::test
