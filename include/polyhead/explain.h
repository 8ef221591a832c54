// Every number of one query row, as a textbook prints them.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/attention.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Which row to explain.
struct ExplainRow {
  std::int64_t head = -1;  ///< -1: all query heads
  std::int64_t query = 0;  ///< index within the sequence
  std::int64_t batch = 0;  ///< sequence
};

/// One head's numbers for one query. Vectors over keys have one entry for each of the sequence's
/// kv_len keys, hidden ones included; padding behind its length has none. What a ring has written
/// over (kv.oldest) is hidden, and NaN in k and v.
struct HeadTrace {
  std::int64_t head = 0, kv_head = 0;
  std::vector<double> q;               ///< [head_dim], as attention reads it (normalised, rotated)
  std::vector<std::vector<double>> k;  ///< [kv_len][head_dim]
  std::vector<std::vector<double>> v;  ///< [kv_len][value_dim]
  std::vector<double> products;        ///< q.k
  std::vector<double> scaled;          ///< scale * q.k
  std::vector<double> modified;        ///< after soft-cap, bias, ALiBi and custom modifiers
  std::vector<bool> visible;           ///< by the mask and by a score that is not -inf
  std::vector<double> masked;          ///< modified, -inf where not visible
  /// Softmax of masked (a sink in the denominator); 0 where not visible.
  std::vector<double> weights;
  std::vector<double> dropped;  ///< weights after dropout; the same as weights without it
  double sink = 0.0;            ///< the sink logit, where has_sink
  bool has_sink = false;
  double lse = 0.0;  ///< natural log of the softmax denominator; -inf when nothing is visible
  std::vector<double> output;  ///< [value_dim]: sum of dropped * v
};

/// One query row through the five steps.
struct RowTrace {
  std::int64_t batch = 0, query = 0;
  std::int64_t q_pos = 0;            ///< where the query stands among the keys
  std::int64_t kv_len = 0;           ///< keys of the sequence, without padding
  double scale = 0.0;                ///< of products: the call's, or float32's 1 / sqrt(head_dim)
  std::vector<double> input;         ///< a layer's: the row of x; else empty
  std::vector<HeadTrace> heads;      ///< the chosen ones, ascending
  std::vector<double> concatenated;  ///< [q_heads * value_dim], all heads whichever were chosen
  std::vector<double> projected;  ///< concatenated through the output projection; empty without one
};

/// Traces one row of a call of attention(): in double, from the very q, k and v (or kv) it reads
/// (and w_o [out, q_heads * value_dim] and b_o [out], where given), so it agrees with the call's
/// output within its error bound. `call.out` is not needed. Custom modifiers see float32 scores, as
/// in the call. What is masked does not reach the outputs: its v is listed and not multiplied.
///
/// Accuracy: that of double on the numbers that attention reads, of which the scale is a float32.
/// Thread-safe; allocates what it returns. Throws InvalidArgument.
///
/// Source: Vaswani et al. 2017, eq. 1.
RowTrace explain(const AttentionArguments& call, const ExplainRow& row = {}, ConstView w_o = {},
                 ConstView b_o = {});

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
