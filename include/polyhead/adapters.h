// What other libraries mean by a word, in the words of this one. docs/coming-from.md says the rest:
// most of it is another stride, offset or mask.
#pragma once

#include <cstdint>

#include "polyhead/mask.h"
#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Each query sees the last `keys` keys up to its own, which counts: what `sliding_window` means in
/// Hugging Face's configurations, and causal() & window(keys - 1, 0) here. Throws InvalidArgument
/// for fewer than one.
Mask last_keys(std::int64_t keys, Align align = Align::unstated);

/// LSEs to the base of 2, in which FlashInfer has them, and back: each number of `lse`, float32 of
/// any axes and strides, is divided by ln 2 or multiplied with it, in double and rounded once.
/// Infinities and NaN stay, and what is beyond float32 becomes an infinity. Throws InvalidArgument,
/// with nothing written.
void lse_to_base2(View lse);
void lse_from_base2(View lse);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
