// A file's bytes with harm done to them, as disks and people do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random.h"

namespace polyhead::test {

/// Calls check(bytes, place) for `flips` copies of `good` with one bit turned, `place` being the
/// byte, and for copies cut short: by a byte, to half, to nothing; `place` is then their size.
template <class Check>
void for_each_damage(const std::string& good, int flips, const Check& check) {
  Random random(1);
  for (int i = 0; i < flips; ++i) {
    std::string bytes = good;
    const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(good.size())));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
    check(bytes, at);
  }
  for (const std::size_t size : {good.size() - 1, good.size() / 2, std::size_t{0}})
    check(good.substr(0, size), size);
}

/// A copy of `good` with `count` random bytes somewhere, mostly among its first `sizes`, and
/// sometimes cut short.
inline std::vector<std::byte> with_lies(const std::vector<std::byte>& good, std::size_t sizes,
                                        int count, Random& random) {
  std::vector<std::byte> bytes = good;
  for (int n = 0; n < count; ++n) {
    const std::size_t most = random.chance(0.8) ? sizes : bytes.size();
    bytes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(most)))] =
        static_cast<std::byte>(random.next());
  }
  if (random.chance(0.3))
    bytes.resize(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(good.size()))));
  return bytes;
}

}  // namespace polyhead::test
