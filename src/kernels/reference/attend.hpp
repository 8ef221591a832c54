// The definition: the five steps in double precision, one row at a time. Everything else is tested
// against it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/contract.hpp"

namespace polyhead::inline v0::kernels::reference {

/// Element `dim` of key `key` of k (`first` is Sequence::k) or v (Sequence::v), from whatever page
/// and code it lies in.
double key_element(const AttendCall& call, const Sequence& s, const Operand& x,
                   const std::byte* first, std::int64_t kv_head, std::int64_t key,
                   std::int64_t dim);

/// Whether a query may see a key, both counted within their sequence: every part of the mask says
/// so. Written from the meaning of the words (include/polyhead/mask.h), one comparison a word.
bool visible(const AttendCall& call, const Sequence& sequence, std::int64_t head,
             std::int64_t query, std::int64_t key);

/// What follows a scaled product: soft-cap, bias, ALiBi and custom modifiers, in that order.
/// A score that they take below float32 is -inf.
double modified(const AttendCall& call, const Sequence& sequence, std::int64_t head,
                std::int64_t query, std::int64_t key, double score);

/// Whether a final score hides its pair.
bool hides(const ScoreSpec& spec, double score);

/// Turns the final scores of a row (-inf: hidden) into its weights, a head's sink in the
/// denominator only, and returns their LSE. A row without a visible key has zeros and -inf, sink or
/// not; of one that holds a NaN all weights are NaN, those of hidden keys too.
double softmax(const ScoreSpec& spec, std::int64_t head, std::vector<double>& scores);

/// Drops weights of a row, 0, and makes up for it in the others. A NaN stays one: its row has no
/// weights to drop.
void drop_out(const AttendCall& call, const Sequence& sequence, std::int64_t head,
              std::int64_t query, std::vector<double>& weights);

/// Every result of a call, dense. Rows are the query tokens: batch * q_len, or all of q when
/// ragged.
struct Result {
  std::vector<double> out;            ///< [rows, q_heads, value_dim]
  std::vector<double> lse;            ///< [rows, q_heads]
  std::vector<double> entropy;        ///< [rows, q_heads]
  std::vector<double> max_weight;     ///< [rows, q_heads]
  std::vector<std::int64_t> max_key;  ///< [rows, q_heads]

  /// [batch, q_heads, q_len, kv_len] where asked for: what multiplies v, so dropout is applied.
  /// Zero where a sequence has no such query or key.
  std::vector<double> weights;
};

/// out = dropout(softmax(modify(scale * q k^T))) v for every row of every head. Relies on the
/// contract as kernels do; allocates its results. `q_tokens` is the number of rows of a ragged
/// call's q, which the contract does not hold. Without v (a second pass) out is empty.
Result attend(const AttendCall& call, bool want_weights = false, std::int64_t q_tokens = 0);

/// Mass received by each key from all queries: [batch, q_heads, kv_len] of weights [batch, q_heads,
/// q_len, kv_len].
std::vector<double> received(const AttendCall& call, const std::vector<double>& weights);

/// The weights summed in bins: [batch, q_heads, q_bins, kv_bins]; bin (r, c) holds queries [r q_len
/// / q_bins, (r + 1) q_len / q_bins) on keys [c kv_len / kv_bins, (c + 1) kv_len / kv_bins).
std::vector<double> pooled(const AttendCall& call, const std::vector<double>& weights,
                           std::int64_t q_bins, std::int64_t kv_bins);

}  // namespace polyhead::inline v0::kernels::reference
