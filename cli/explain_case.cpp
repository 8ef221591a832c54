#include "cli/explain_case.hpp"

#include <algorithm>
#include <cmath>

#include "cli/mask_text.hpp"
#include "polyhead/error.h"
#include "polyhead/explain.h"

namespace polyhead::cli {
namespace {

Array gather_columns(const Array& rows, const std::vector<Columns>& columns, const char* what) {
  const std::int64_t tokens = rows.view.layout.extents[0], width = rows.view.layout.extents[1];
  const Columns& like = columns.front();  // all are as wide
  for (const Columns& c : columns) {
    if (c.first >= 0 && c.last < width) continue;
    throw InvalidArgument("explain: columns " + std::to_string(c.first) + "-" +
                          std::to_string(c.last) + " of " + what + ", which has " +
                          std::to_string(width) + " columns");
  }
  const auto heads = static_cast<std::int64_t>(columns.size());
  const std::int64_t extents[] = {1, tokens, heads, like.count()};
  const OwnedArray heads_of = allocate(ElementType::float32, extents);
  auto* out = static_cast<float*>(heads_of.view.data);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (const Columns& c : columns) {
      for (std::int64_t i = c.first; i <= c.last; ++i) {
        const std::int64_t index[] = {token, i};
        *out++ = static_cast<float>(element(rows.view, index));
      }
    }
  }
  return heads_of.array;
}

/// rows . w_o, with w_o as the textbook writes it, [in, out].
Matrix project(const Matrix& rows, const Matrix& w_o) {
  Matrix projected;
  for (const std::vector<double>& row : rows) {
    std::vector<double>& out = projected.emplace_back(w_o.empty() ? 0 : w_o.front().size(), 0.0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = 0; j < out.size(); ++j) out[j] += row[i] * w_o[i][j];
    }
  }
  return projected;
}

Matrix transposed(const ConstView& w_o) {
  Matrix matrix(static_cast<std::size_t>(w_o.layout.extents[1]));
  for (std::int64_t in = 0; in < w_o.layout.extents[1]; ++in) {
    for (std::int64_t out = 0; out < w_o.layout.extents[0]; ++out) {
      const std::int64_t index[] = {out, in};
      matrix[static_cast<std::size_t>(in)].push_back(element(w_o, index));
    }
  }
  return matrix;
}

/// Whether the mask changed a score.
bool hides_any(const HeadTrace& trace) {
  for (std::size_t key = 0; key < trace.masked.size(); ++key) {
    if (!trace.visible[key] && trace.modified[key] != -HUGE_VAL) return true;
  }
  return false;
}

void add_row(HeadNumbers& head, HeadTrace& trace) {
  head.head = trace.head;
  head.kv_head = trace.kv_head;
  head.q.push_back(std::move(trace.q));
  head.k = std::move(trace.k);  // the same for every query
  head.v = std::move(trace.v);
  head.products.push_back(std::move(trace.products));
  head.scaled.push_back(std::move(trace.scaled));
  head.modified.push_back(std::move(trace.modified));
  head.masked.push_back(std::move(trace.masked));
  head.visible.push_back(std::move(trace.visible));
  head.weights.push_back(std::move(trace.weights));
  head.dropped.push_back(std::move(trace.dropped));
  head.sink_weights.push_back(trace.has_sink ? std::exp(trace.sink - trace.lse) : 0.0);
  head.output.push_back(std::move(trace.output));
  head.lse.push_back(trace.lse);
}

/// What does not depend on the rows; there may be none.
Case outline(const AttentionArguments& call) {
  const detail::Layout& q = call.q.layout;
  Case result;
  result.q_heads = q.extents[2];
  result.head_dim = q.extents[3];
  result.value_dim = call.v.layout.extents[3];
  result.kv_len = call.k.layout.extents[1];
  const auto usual = static_cast<float>(1.0 / std::sqrt(static_cast<double>(result.head_dim)));
  result.scale = static_cast<double>(call.modifiers.scale.value_or(usual));
  result.causal = call.mask.causal;
  result.sinks = call.modifiers.sink.given();
  result.dropout = static_cast<double>(call.modifiers.dropout.probability);
  return result;
}

double sink_of(const AttentionArguments& call, std::int64_t head) {
  const std::int64_t index[] = {head};
  return element(call.modifiers.sink, index);
}

/// A bias of -inf hides pairs as a mask does.
bool has_hidden_scores(const Case& of) {
  for (const HeadNumbers& head : of.heads) {
    for (const std::vector<double>& row : head.modified) {
      if (std::find(row.begin(), row.end(), -HUGE_VAL) != row.end()) return true;
    }
  }
  return false;
}

Matrix mean_weights(const std::vector<HeadNumbers>& heads) {
  Matrix mean = heads.front().weights;
  for (std::size_t h = 1; h < heads.size(); ++h) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (std::size_t j = 0; j < mean[i].size(); ++j) mean[i][j] += heads[h].weights[i][j];
    }
  }
  for (std::vector<double>& row : mean) {
    for (double& weight : row) weight /= static_cast<double>(heads.size());
  }
  return mean;
}

/// Cuts `view`, where it has a row for each query along `axis`, to that of one.
void keep_row(ConstView& view, int axis, std::int64_t query) {
  if (!view.given() || view.layout.extents[axis] == 1) return;
  const std::int64_t elements = query * view.layout.strides[axis];
  const std::int64_t bytes =
      view.type == ElementType::bit ? elements / 8 : elements * element_bytes(view.type);
  view.data = static_cast<const std::byte*>(view.data) + bytes;
  view.layout.extents[axis] = 1;
}

/// The call of one query of each sequence, which stands at q_starts: as long as one row, however
/// many there are. Its bits are those of the whole call.
AttentionArguments only_query(AttentionArguments call, std::int64_t query,
                              const std::vector<std::int64_t>& q_starts) {
  keep_row(call.q, 1, query);
  keep_row(call.modifiers.bias, 2, query);
  keep_row(call.mask.visible, 2, query);
  keep_row(call.mask.hidden, 2, query);
  keep_row(call.mask.q_documents, 1, query);
  call.mask.align = Align::unstated;
  call.q_start = ConstView(q_starts.data(), {q_starts.size()});
  return call;
}

/// Whether the two are the same number, infinity or NaN.
bool alike(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

/// The largest difference of the traced rows from `out`, whose rows begin with first_query.
double distance_from(const ConstView& out, std::int64_t first_query, const Case& traced,
                     std::int64_t batch) {
  double difference = 0.0;
  const std::int64_t heads = out.layout.extents[2], dims = out.layout.extents[3];
  for (std::size_t row = 0; row < traced.queries.size(); ++row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < dims; ++i) {
        const std::int64_t index[] = {batch, traced.queries[row] - first_query, h, i};
        const double exact = traced.concatenated[row][static_cast<std::size_t>(h * dims + i)];
        const double fast = element(out, index);
        if (alike(fast, exact)) continue;
        const double distance = std::abs(fast - exact);
        if (!(distance <= difference)) difference = distance;  // a NaN shows
      }
    }
  }
  return difference;
}

/// How far what attention() itself makes of the same call is from the trace.
double compare_with_attention(AttentionArguments call, const Case& traced, std::int64_t batch,
                              std::optional<std::int64_t> query, const Options& options) {
  const std::vector<std::int64_t> q_starts(static_cast<std::size_t>(call.q.layout.extents[0]),
                                           traced.q_pos);
  // Where queries have lengths theirs may be padding.
  const bool alone = query && !call.mask.q_lengths.given();
  if (alone) call = only_query(call, *query, q_starts);
  const detail::Layout& q = call.q.layout;
  const std::int64_t extents[] = {q.extents[0], q.extents[1], q.extents[2],
                                  call.v.layout.extents[3]};
  const OwnedArray out = allocate(ElementType::float32, extents);
  call.out = out.view;
  attention(call, options);
  return distance_from(out.array.view, alone ? *query : 0, traced, batch);
}

}  // namespace

ExplainInput cut_heads(const Array& q, const Array& k, const Array& v,
                       const std::vector<Columns>& columns,
                       const std::vector<Columns>& value_columns) {
  ExplainInput input;
  input.q = gather_columns(q, columns, "q");
  input.k = gather_columns(k, columns, "k");
  input.v = gather_columns(v, value_columns, "v");
  input.columns = columns;
  input.value_columns = value_columns;
  return input;
}

Case explain_case(const ExplainInput& input, AttentionArguments call,
                  std::optional<std::int64_t> query, const Options& options) {
  call.q = input.q.view;
  call.k = input.k.view;
  call.v = input.v.view;
  const detail::Layout& q = call.q.layout;
  Case result = outline(call);
  const std::int64_t first = query.value_or(0), end = query ? *query + 1 : q.extents[1];
  for (std::int64_t i = first; i < end; ++i) {
    RowTrace trace = explain(call, {.head = -1, .query = i, .batch = input.batch}, input.w_o.view);
    result.heads.resize(trace.heads.size());
    result.queries.push_back(i);
    result.scale = trace.scale;
    result.kv_len = trace.kv_len;
    result.q_pos = trace.q_pos;
    for (std::size_t h = 0; h < trace.heads.size(); ++h) {
      result.masked = result.masked || hides_any(trace.heads[h]);
      add_row(result.heads[h], trace.heads[h]);
      if (result.sinks) result.heads[h].sink = sink_of(call, result.heads[h].head);
    }
    result.concatenated.push_back(std::move(trace.concatenated));
    if (input.w_o.view.given()) result.projected.push_back(std::move(trace.projected));
  }
  if (input.w_o.view.given()) result.w_o = transposed(input.w_o.view);
  if (!result.heads.empty()) result.mean_weights = mean_weights(result.heads);
  result.isa = isa_name(resolve_isa(options.isa));
  result.difference = compare_with_attention(call, result, input.batch, query, options);
  // After both calls: what the mask points to has been checked by now.
  MaskOf of{input.batch, q.extents[1], call.k.layout.extents[1]};
  if (call.q_start.given() && !result.queries.empty())
    of.q_start = result.q_pos - result.queries.back();
  result.mask = mask_lines(call.mask, of);
  if (has_hidden_scores(result))
    result.mask.emplace_back("scores: a pair whose score is -inf is hidden");
  return result;
}

Pruned prune(const Case& of, std::int64_t head) {
  if (head < 0 || head >= of.q_heads) {
    throw InvalidArgument("explain: --prune " + std::to_string(head) + " (heads are 0 to " +
                          std::to_string(of.q_heads - 1) + ")");
  }
  Pruned pruned;
  pruned.head = head;
  Matrix kept = of.concatenated;
  for (std::vector<double>& row : kept) {
    std::fill_n(row.begin() + head * of.value_dim, of.value_dim, 0.0);
  }
  const bool projects = !of.w_o.empty();
  pruned.output = projects ? project(kept, of.w_o) : kept;
  const Matrix& whole = projects ? of.projected : of.concatenated;
  double squares = 0.0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (std::size_t j = 0; j < whole[i].size(); ++j) {
      const double change = whole[i][j] - pruned.output[i][j];
      squares += change * change;
    }
  }
  pruned.norm = std::sqrt(squares);
  return pruned;
}

}  // namespace polyhead::cli
