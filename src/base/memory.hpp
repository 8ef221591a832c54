// Memory aligned to cache lines, owned by one object.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace polyhead::inline v0::base {

inline constexpr std::size_t kCacheLine = 64;  // bytes; also the width of an AVX-512 vector

/// An uninitialised array of `count` trivial T, aligned to a cache line, or more where asked, and
/// padded to whole lines. Movable only.
template <class T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t count, std::size_t alignment = kCacheLine)
      : count_(count), alignment_(alignment) {
    if (count == 0) return;
    if (count > (static_cast<std::size_t>(-1) - kCacheLine) / sizeof(T))
      throw std::bad_array_new_length();
    const std::size_t bytes = (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    data_ = static_cast<T*>(::operator new(bytes, std::align_val_t(alignment_)));
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        count_(std::exchange(other.count_, 0)),
        alignment_(other.alignment_) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(alignment_, other.alignment_);
    return *this;
  }
  ~AlignedBuffer() { ::operator delete(data_, std::align_val_t(alignment_)); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
  std::size_t alignment_ = kCacheLine;
};

}  // namespace polyhead::inline v0::base
