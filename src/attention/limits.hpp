// What a plan is for: which limits make sense, and which calls are within them.
#pragma once

#include "kernels/contract.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0 {

ElementType v_type_of(const Limits& limits);

/// Refuses limits of which there can be no plan.
void check_limits(const Limits& limits);

/// Refuses, in the name of `call`, what is larger than the limits or of other dims and types;
/// `cached`: k and v came as a view of a cache.
void check_within(const Limits& limits, const char* call, const kernels::AttendCall& found,
                  bool cached);

}  // namespace polyhead::inline v0
