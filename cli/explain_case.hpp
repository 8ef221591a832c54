// The numbers that `polyhead explain` shows: one call of attention, every head, every chosen query
// row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/arrays.hpp"
#include "polyhead/attention.h"

namespace polyhead::cli {

using Matrix = std::vector<std::vector<double>>;

/// Columns first .. last, both included, of q, k and v: what one head sees of rows that hold all
/// heads side by side.
struct Columns {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first + 1; }
  bool operator==(const Columns&) const = default;
};

/// q, k and v as attention reads them, and the names of the tokens.
struct ExplainInput {
  Array q, k, v;  ///< [batch, tokens, heads, dim]
  std::vector<std::string> q_tokens, k_tokens;
  // Of each head, in q and k and in v, where the heads were cut from whole rows; else empty.
  std::vector<Columns> columns, value_columns;
  Array w_o;               ///< [out, heads * value_dim], where given
  std::int64_t batch = 0;  ///< the sequence that is shown
};

/// One head: matrices have a row for each chosen query, q_rows among them; keys and values have one
/// for each key.
struct HeadNumbers {
  std::int64_t head = 0, kv_head = 0;
  Matrix q, k, v, products, scaled, modified, masked, weights, output;
  Matrix dropped;                          ///< weights after dropout, which the output is made of
  std::vector<std::vector<bool>> visible;  ///< of each query, whether it sees each key
  double sink = 0.0;                       ///< the sink's logit, where the case has one
  std::vector<double> sink_weights;        ///< and its share of each row's denominator
  std::vector<double> lse;
};

struct Case {
  std::vector<std::int64_t> queries;  ///< the rows shown
  std::vector<HeadNumbers> heads;
  std::int64_t q_heads = 0, head_dim = 0, value_dim = 0, kv_len = 0;
  std::int64_t q_pos = 0;  ///< of the last row shown
  double scale = 0.0;
  bool causal = false, modified = false, masked = false, sinks = false;
  double dropout = 0.0;           ///< probability
  std::vector<std::string> mask;  ///< in words, a line for each kind
  Matrix mean_weights;            ///< over the heads
  Matrix concatenated;            ///< heads side by side
  Matrix projected;               ///< concatenated through w_o, where given
  Matrix w_o;                     ///< as the textbook writes it: output = concatenated . w_o
  std::string isa;                ///< what attention() ran on for the comparison
  /// Largest |attention() - this| over the rows shown, 0 where both are NaN or the same infinity.
  double difference = 0.0;
};

/// What removing one head does.
struct Pruned {
  std::int64_t head = 0;
  Matrix output;      ///< without that head
  double norm = 0.0;  ///< L2 norm over all rows shown of the change
};

/// Heads cut from rows [tokens, model_dim]: head h takes columns[h] of q and k and value_columns[h]
/// of v (all columns of one width, and all value columns). Throws InvalidArgument where columns lie
/// outside the rows.
ExplainInput cut_heads(const Array& q, const Array& k, const Array& v,
                       const std::vector<Columns>& columns,
                       const std::vector<Columns>& value_columns);

/// Traces the chosen queries (all of them where `query` is none) and runs attention() on the same
/// arrays beside it. `call` brings mask and modifiers. Throws InvalidArgument.
Case explain_case(const ExplainInput& input, AttentionArguments call,
                  std::optional<std::int64_t> query, const Options& options);

/// The output of `of` with one head's columns set to zero before the projection.
Pruned prune(const Case& of, std::int64_t head);

}  // namespace polyhead::cli
