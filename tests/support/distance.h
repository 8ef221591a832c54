// How far a float32 problem's outputs lie from the reference, and how far they may.
#pragma once

#include <cstdint>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "support/difference.h"
#include "support/problem.h"
#include "support/small_case.h"

namespace polyhead::test {

/// Largest difference of out from the reference, and of the LSE, in a float32 problem.
struct Distance {
  double out = 0.0, lse = 0.0;
};
inline Distance from_reference(Problem& p) {
  const Case& c = p.description();
  const kernels::reference::Result exact = kernels::reference::attend(door::resolve(p.arguments()));
  LargestDifference out, lse;
  for_each_index(p.lse.extents(), [&](const Index& at) {
    const std::size_t row = static_cast<std::size_t>((at[0] * c.q_len + at[1]) * c.q_heads + at[2]);
    lse.add(p.lse.get(at), exact.lse[row]);
    for (std::int64_t d = 0; d < c.value_dim; ++d) {
      out.add(p.out.get({at[0], at[1], at[2], d}),
              exact.out[row * static_cast<std::size_t>(c.value_dim) + static_cast<std::size_t>(d)]);
    }
  });
  return {out.value(), lse.value()};
}

/// Worst-case roundings of a float32 case whose scores are of order 1: head_dim in a score, kv_len
/// in the sums, values up to 3.5.
inline double bound(const Case& c) {
  return 3.5 * kEpsilon * static_cast<double>(c.head_dim + c.kv_len);
}

}  // namespace polyhead::test
