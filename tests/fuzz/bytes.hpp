// The bytes of one fuzz input, used up from the front: what a target makes its case of. Behind the
// end come zeros, so every input is a whole case and a longer one only says more of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace polyhead::fuzz {

class Bytes {
 public:
  explicit Bytes(std::string_view from) : left_(from) {}
  Bytes(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  unsigned next() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  std::string take(std::size_t count) {
    const std::string taken(left_.substr(0, count));
    left_.remove_prefix(taken.size());
    return taken;
  }

  /// A whole number within [least, most], of as many bytes as that range needs.
  template <class Integer>
  Integer between(Integer least, Integer most) {
    const auto range = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
    const std::uint64_t value = word(range);
    const std::uint64_t within =
        range == std::numeric_limits<std::uint64_t>::max() ? value : value % (range + 1);
    return static_cast<Integer>(static_cast<std::uint64_t>(least) + within);
  }
  /// Any value of an integer type.
  template <class Integer>
  Integer any() {
    return between(std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max());
  }
  float between(float least, float most) {
    constexpr float kSteps = 65535.0f;
    return least + (most - least) * (static_cast<float>(between<int>(0, 65535)) / kSteps);
  }
  template <class T, std::size_t count>
  T pick(const T (&of)[count]) {
    return of[between<std::size_t>(0, count - 1)];
  }

 private:
  std::uint64_t word(std::uint64_t range) {
    std::uint64_t value = 0;
    for (; range != 0; range >>= 8) value = value << 8 | next();
    return value;
  }

  std::string_view left_;
};

}  // namespace polyhead::fuzz
