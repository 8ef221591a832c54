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

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed, double deviation) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(deviation * random.normal());
  return values;
}

}  // namespace polyhead::test
