// Seeded numbers, the same on every machine and standard library.
#pragma once

#include <cstdint>
#include <vector>

namespace polyhead::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  std::uint64_t next();
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  bool chance(double p) { return uniform() < p; }

  /// About normal, mean 0 and deviation 1: the sum of four uniforms, so that no library function
  /// decides the bits.
  double normal();

 private:
  std::uint64_t state_;
};

/// Numbers about normal, mean 0 and that deviation.
std::vector<float> random_floats(std::int64_t count, std::uint64_t seed, double deviation = 1.0);

}  // namespace polyhead::test
