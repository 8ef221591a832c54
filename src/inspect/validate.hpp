// The door of the second pass.
#pragma once

#include "kernels/contract.hpp"
#include "polyhead/inspect.h"

namespace polyhead::inline v0::door {

/// Checks both arguments of inspect() and gives what the second pass takes. Throws InvalidArgument;
/// allocates only then.
kernels::InspectCall resolve_inspect(const AttentionArguments& call,
                                     const InspectArguments& wanted);

}  // namespace polyhead::inline v0::door
