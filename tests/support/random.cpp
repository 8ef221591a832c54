#include "support/random.h"

#include "base/splitmix64.hpp"

namespace polyhead::test {

std::uint64_t Random::next() { return base::splitmix64(state_); }

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::normal() {
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += uniform();
  return (sum - 2.0) * 1.7320508075688772;
}

}  // namespace polyhead::test
