// A number that stands for what was added to it, in order.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace polyhead::inline v0::models {

/// FNV-1a over what is added: tells things apart, is no secret's hash.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) step(static_cast<unsigned char>(c));
    step(0);
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) step(static_cast<unsigned char>(number >> shift));
  }
  void add(double number) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    add(bits);
  }
  std::uint64_t value() const { return hash_; }

 private:
  void step(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace polyhead::inline v0::models
