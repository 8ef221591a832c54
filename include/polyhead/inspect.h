// Looking inside: exact weights and what follows from them, by a second pass over q, k and the LSE.
#pragma once

#include <cstdint>

#include "polyhead/attention.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What a second pass may compute; each view is optional. The call's mask, modifiers and positions
/// are those of the forward pass, and so are its q, k and lse (as attention() wrote it). `out` is
/// not needed, and of `v` the type alone, where it is not k's: scores are computed as they were.
struct InspectArguments {
  /// Exact weights of chosen heads and queries: float32 [batch, heads.size, queries, kv_len] where
  /// `heads` lists the query heads (int32/int64 [n]; all of them where not given) and the queries
  /// are first_query .. + extent of axis 2, counted within their sequence. Without weights both are
  /// refused. Ragged: kv_len is the longest sequence's and the queries are at most those of the
  /// longest; over call.kv it is the longest of its lengths, here and below. What lies past a
  /// sequence's own queries or keys is 0.
  View weights{};
  ConstView heads{};
  std::int64_t first_query = 0;

  /// Mass received by each key, summed over all queries: float32 [batch, q_heads, kv_len]. Ragged:
  /// kv_len is the longest sequence's, and past a sequence's own keys stands 0.
  View received{};

  /// Pooled map: float32 [batch, q_heads, q_bins, kv_bins]. Bin (r, c) holds the sum of the weights
  /// of queries [r q_len / q_bins, (r+1) q_len / q_bins) on keys [c kv_len / kv_bins, (c+1) kv_len
  /// / kv_bins); of a side with offsets the length here is that of the sequence.
  View pooled{};
};

/// weights[h, i, j] = exp(score(h, i, j) - lse(h, i)), 0 for hidden pairs and rows without a
/// visible key; dropout, where the call has it, is applied, so that weights times v equal out.
///
/// `call` gives q, k, mask, modifiers, offsets and lse (float32, written by attention() with the
/// same arguments). Received mass and pooled maps sum these weights in float32, in query order.
///
/// Accuracy: docs/numerics.md; rows whose |lse| is beyond 64 have their largest score and sum found
/// anew, since float32 holds such an lse too coarsely. Memory: O(1) a thread beside the outputs,
/// and some 10 bytes a query for sums. Same bits for any thread count, and for a sequence of a
/// ragged batch as for a call of its own. Thread-safe. Throws InvalidArgument, with nothing
/// written.
///
/// Source: weights rebuilt from the LSE as in the backward pass of Dao et al. 2022, alg. 4.
void inspect(const AttentionArguments& call, const InspectArguments& wanted,
             const Options& options = {});

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
