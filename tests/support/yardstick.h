// How far from the double reference a result may be: the measured error of a plain two-pass float32
// computation.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/contract.hpp"

namespace polyhead::test {

/// What the kernel under test rounds on its way, which the plain computation then does too.
enum class WeightRounding { none, bfloat16 };

struct TwoPass {
  std::vector<float>
      out;  ///< [batch * q_len, q_heads, value_dim], rounded to the call's output type
  std::vector<float> lse;  ///< [batch * q_len, q_heads]
  std::vector<float> entropy;
};

/// Attention as one would write it first, in float32: all scores of a row, their maximum,
/// exponentials and sum, then the weighted values; with rounded weights the output is divided by
/// the sum of the rounded ones.
TwoPass two_pass(const kernels::AttendCall& call, WeightRounding rounding);

/// The kernel of this call multiplies values by weights rounded to bfloat16.
WeightRounding rounding_of(const kernels::AttendCall& call, Isa isa);

}  // namespace polyhead::test
