// What one device of several has.
#pragma once

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {

/// The part of the model on one device of a tensor split: its heads, its columns, its rows of the
/// vocabulary. KV heads are replicated where there are fewer than devices. The model itself
/// otherwise.
ModelDescription of_one_device(const ModelDescription& model, const Devices& devices);

/// Tokens of `tokens` on the fullest device of a ring; all of them otherwise.
std::int64_t on_one_device(std::int64_t tokens, const Devices& devices);

}  // namespace polyhead::inline v0::cost
