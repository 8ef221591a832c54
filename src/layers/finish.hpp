// Steps 3 to 5 of MultiHeadAttention's calls.
#pragma once

#include "layers/calls.hpp"

namespace polyhead::inline v0::layers {

/// Where attention writes its heads: rows of their own, of the activation type, or y where the
/// layer has no output projection and this loses no rounding. Sets arguments.out.
Rows open_heads(const Layer& layer, const Input& input, AttentionArguments& arguments,
                const Rows& y, Scratch& scratch);

/// From these heads to y; rows after the last sequence belong to none and have heads of zeros.
void close_heads(const Layer& layer, const Input& input, const Rows& heads, const Rows& y,
                 Scratch& scratch);

/// Steps 3 to 5, with q, k and v in `arguments`.
void finish(const Layer& layer, const Input& input, AttentionArguments& arguments, const Rows& y,
            Scratch& scratch);

}  // namespace polyhead::inline v0::layers
