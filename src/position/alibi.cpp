#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/float_environment.hpp"
#include "base/refuse.hpp"
#include "polyhead/modifiers.h"

namespace polyhead::inline v0 {

// Source: Press et al. 2022, section 3 and the authors' code for head counts that are no power of
// two.
float alibi_slope(std::int64_t head, std::int64_t heads) {
  base::check_size("alibi_slope", "heads", heads, 1, std::numeric_limits<std::int64_t>::max());
  base::check_size("alibi_slope", "head", head, 0, heads - 1);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  // Nothing is worked out before the environment is there or after it has gone.
  asm volatile("" : "+r"(head), "+r"(heads));
  const std::int64_t power =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const double step = head < power ? static_cast<double>(head + 1) / static_cast<double>(power)
                                   : static_cast<double>(2 * (head - power) + 1) /
                                         (2.0 * static_cast<double>(power));
  auto slope = static_cast<float>(std::exp2(-8.0 * step));
  asm volatile("" : "+m"(slope));
  return slope;
}

}  // namespace polyhead::inline v0
