// What attention() would do of a call, in words.
#pragma once

#include <string>

#include "polyhead/attention.h"

namespace polyhead::inline v0 {

/// As Plan::describe() of the call says it, without a plan: k and v may have types of their own.
/// Throws what attention() throws before it computes.
std::string describe_call(const AttentionArguments& arguments, const Options& options);

}  // namespace polyhead::inline v0
