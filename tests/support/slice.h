// Parts of a problem as calls of their own: some sequences, queries and heads, on fewer keys.
#pragma once

#include <cstdint>

#include "polyhead/attention.h"
#include "support/problem.h"

namespace polyhead::test {

/// Which part; ends of -1 mean "to the last".
struct Part {
  std::int64_t first_batch = 0, end_batch = -1;
  std::int64_t first_query = 0, end_query = -1;
  std::int64_t end_key = -1;  ///< keys beyond are left out of the call
};

/// Entries [begin, end) of one axis; an axis of extent 1 broadcasts and stays.
ConstView slice(ConstView view, int axis, std::int64_t begin, std::int64_t end);
View slice(View view, int axis, std::int64_t begin, std::int64_t end);

/// A [1, ...] view without its first axis: one sequence as a ragged batch's concatenated tokens.
ConstView drop_first_axis(ConstView view);
View drop_first_axis(View view);

/// The call that computes this part alone, with the positions, the masks and the random numbers
/// that its rows have in the whole. It writes into the same rows of the problem's outputs. What it
/// points to lives as long as the problem.
AttentionArguments part_of(Problem& problem, const Part& part);

/// Copies of a problem's outputs.
struct Outputs {
  Tensor out, lse, entropy, max_weight, max_key;
  explicit Outputs(const Problem& p)
      : out(p.out), lse(p.lse), entropy(p.entropy), max_weight(p.max_weight), max_key(p.max_key) {}
};

/// How many output elements differ in a bit.
std::int64_t differing_bits(const Outputs& a, const Outputs& b);

}  // namespace polyhead::test
