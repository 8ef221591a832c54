// How far from the double reference a result may be: the measured error of a plain two-pass float32
// computation.
#pragma once

#include <vector>

#include "kernels/contract.hpp"

namespace polyhead::test {

/// What the kernel under test rounds on its way. The plain computation then does the same, but for
/// integers: integer_path_test.cpp has those.
enum class WeightRounding { none, bfloat16, integer };

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

/// What the kernel of this call rounds weights to, before it multiplies values by them.
WeightRounding rounding_of(const kernels::AttendCall& call, Isa isa);

}  // namespace polyhead::test
