// Rounding to int4 that puts its error where it costs least.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polyhead::inline v0::frames {

/// How errors e of a row count: e' M e, with M = L D L', L of unit diagonal and lower triangular.
struct RoundingShape {
  std::vector<float> carry;  ///< L, [dim][dim]
  std::vector<float> cost;   ///< the diagonal of D, [dim]
};

/// The shape of `moment` [dim][dim], symmetric; `damping` of its mean diagonal is added to the
/// diagonal, for directions that it was not measured in.
RoundingShape rounding_shape(std::vector<double> moment, std::int64_t dim, double damping);

/// Rounds a row of L's size, where it lies, to what a cache of int4 by token will read of it: codes
/// -8 .. 7 times a scale a block of 32. Dims are rounded from the last to the first, each after the
/// errors of those before it were carried over,
///   e' M e = sum_i D_i (e_i + sum_{j > i} L_ji e_j)^2,
/// so that each term is at most half a step but for what is clamped: the sum follows the product of
/// M's eigenvalues, where rounding each dim alone follows their sum. The scale of a block is the
/// best of a few. (LDLQ of QuIP, Chee et al. 2023; the error feedback of GPTQ.)
///
/// A scale has 5 significant bits, so that codes times scales are exact in every float type
/// (float16: from scales of 2^-20 on, whose lowest bit it has): the cache finds the same scale and
/// the same codes. A block's value of largest magnitude gets -8. float32, the same bits on every
/// instruction set. Rows with a NaN or an infinity stay as they are. base::kMaxDim at most.
void round_shaped(std::span<float> row, const float* carry, const float* cost);

}  // namespace polyhead::inline v0::frames
