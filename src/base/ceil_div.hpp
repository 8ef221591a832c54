// Rounding up.
#pragma once

#include <cstdint>

namespace polyhead::inline v0::base {

/// ceil(a / b) for a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The least multiple of `b` that is no less than `a`.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace polyhead::inline v0::base
