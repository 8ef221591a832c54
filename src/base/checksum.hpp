// A number that tells long arrays of bytes apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace polyhead::inline v0::base {

/// Of bytes that come in pieces. Eight of them at a time, so that large caches and weights are not
/// held up by it. Finds damage, not malice. Files of caches end with it: another one would be
/// another version of them.
class Checksum {
 public:
  /// `bytes` of all pieces together.
  explicit Checksum(std::uint64_t bytes) : sum_(0x9e3779b97f4a7c15u ^ bytes) {}

  void add(std::span<const std::byte> piece) {
    if (pending_ > 0) {  // of the piece before, as many as make a word
      const std::size_t taken = std::min(sizeof word_ - pending_, piece.size());
      keep(piece.first(taken));
      piece = piece.subspan(taken);
      if (pending_ < sizeof word_) return;
      mix(word_);
      word_ = 0;
      pending_ = 0;
    }
    for (; piece.size() >= sizeof word_; piece = piece.subspan(sizeof word_)) {
      std::uint64_t word;
      std::memcpy(&word, piece.data(), sizeof word);
      mix(word);
    }
    keep(piece);
  }

  /// When all pieces were added.
  std::uint64_t value() {
    mix(word_);
    return sum_;
  }

 private:
  void mix(std::uint64_t word) {
    sum_ = (sum_ ^ word) * 0x9fb21c651e98df25u;
    sum_ ^= sum_ >> 29;
  }
  void keep(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::memcpy(reinterpret_cast<std::byte*>(&word_) + pending_, bytes.data(), bytes.size());
    pending_ += bytes.size();
  }

  std::uint64_t sum_, word_ = 0;
  std::size_t pending_ = 0;  ///< bytes in word_
};

inline std::uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum(bytes.size());
  sum.add(bytes);
  return sum.value();
}

}  // namespace polyhead::inline v0::base
