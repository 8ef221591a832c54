// What one device of several has.
#pragma once

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {

/// Tokens of `tokens` on the fullest device of a ring; all of them otherwise.
std::int64_t on_one_device(std::int64_t tokens, const Devices& devices);

}  // namespace polyhead::inline v0::cost
