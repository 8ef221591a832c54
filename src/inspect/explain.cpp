// One query row in double, every intermediate number kept.
#include "polyhead/explain.h"

#include <cstddef>
#include <limits>
#include <utility>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/refuse.hpp"
#include "kernels/contract.hpp"
#include "kernels/reference/attend.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::AttendCall;
using kernels::Operand;
using kernels::ScoreSpec;
using kernels::Sequence;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr const char* kCall = "explain";

std::vector<double> row_of(const std::byte* sequence, const Operand& of, std::int64_t token,
                           std::int64_t head, std::int64_t dim) {
  const std::byte* const at = sequence + token * of.token + head * of.head;
  std::vector<double> row(static_cast<std::size_t>(dim));
  for (std::int64_t d = 0; d < dim; ++d) {
    row[static_cast<std::size_t>(d)] = base::load_float32(at + d * of.dim, of.type);
  }
  return row;
}

/// One query of one sequence: what all heads share.
struct Row {
  const AttendCall& call;
  Sequence sequence;
  std::int64_t query;
  kernels::KeyRange gone;  // keys whose place another one has
  bool has(std::int64_t key) const { return key < gone.begin || key >= gone.end; }
};

std::vector<double> key_row_of(const Row& at, const Operand& of, const std::byte* first,
                               std::int64_t key, std::int64_t kv_head, std::int64_t dim) {
  std::vector<double> row(static_cast<std::size_t>(dim), std::numeric_limits<double>::quiet_NaN());
  if (!at.has(key)) return row;
  for (std::int64_t d = 0; d < dim; ++d) {
    row[static_cast<std::size_t>(d)] =
        kernels::reference::key_element(at.call, at.sequence, of, first, kv_head, key, d);
  }
  return row;
}

/// Weights, what dropout leaves of them, and LSE, from the masked scores.
void softmax(const Row& row, HeadTrace& trace) {
  const ScoreSpec& spec = row.call.score;
  if (spec.sink != nullptr) {
    trace.has_sink = true;
    trace.sink = spec.sink[trace.head * spec.sink_stride];
  }
  trace.weights = trace.masked;
  trace.lse = kernels::reference::softmax(spec, trace.head, trace.weights);
  for (std::size_t key = 0; key < trace.weights.size(); ++key) {
    if (!trace.visible[key]) trace.weights[key] = 0.0;  // beside a NaN too
  }
  trace.dropped = trace.weights;
  kernels::reference::drop_out(row.call, row.sequence, trace.head, row.query, trace.dropped);
}

std::vector<double> weighted_values(const AttendCall& call, const HeadTrace& trace) {
  std::vector<double> output(static_cast<std::size_t>(call.value_dim), 0.0);
  if (trace.lse == kMinusInfinity) return output;
  for (std::size_t key = 0; key < trace.v.size(); ++key) {
    if (!trace.visible[key]) continue;
    for (std::size_t d = 0; d < output.size(); ++d) {
      output[d] += trace.dropped[key] * trace.v[key][d];
    }
  }
  return output;
}

HeadTrace trace_head(const Row& row, std::int64_t head) {
  const AttendCall& call = row.call;
  const Sequence& sequence = row.sequence;
  HeadTrace trace;
  trace.head = head;
  trace.kv_head = head / call.group();
  trace.q = row_of(sequence.q, call.q, row.query, head, call.head_dim);
  for (std::int64_t key = 0; key < sequence.kv_len; ++key) {
    trace.k.push_back(key_row_of(row, call.k, sequence.k, key, trace.kv_head, call.head_dim));
    trace.v.push_back(key_row_of(row, call.v, sequence.v, key, trace.kv_head, call.value_dim));
    double product = 0.0;
    for (std::size_t d = 0; d < trace.q.size(); ++d) product += trace.q[d] * trace.k.back()[d];
    const double scaled = static_cast<double>(call.score.scale) * product;
    const double score = kernels::reference::modified(call, sequence, head, row.query, key, scaled);
    const bool seen = kernels::reference::visible(call, sequence, head, row.query, key) &&
                      !kernels::reference::hides(call.score, score);
    trace.products.push_back(product);
    trace.scaled.push_back(scaled);
    trace.modified.push_back(score);
    trace.visible.push_back(seen);
    trace.masked.push_back(seen ? score : kMinusInfinity);
  }
  softmax(row, trace);
  trace.output = weighted_values(call, trace);
  return trace;
}

std::vector<double> projected(const std::vector<double>& row, const ConstView& w,
                              const ConstView& b) {
  const std::int64_t out_stride = door::kernel_stride(w, 0), in_stride = door::kernel_stride(w, 1);
  std::vector<double> result(static_cast<std::size_t>(w.layout.extents[0]), 0.0);
  for (std::size_t o = 0; o < result.size(); ++o) {
    const std::byte* at =
        static_cast<const std::byte*>(w.data) + static_cast<std::int64_t>(o) * out_stride;
    for (std::size_t i = 0; i < row.size(); ++i, at += in_stride) {
      result[o] += row[i] * static_cast<double>(base::load_float32(at, w.type));
    }
    if (b.given()) {
      result[o] += base::load_float32(static_cast<const std::byte*>(b.data) +
                                          static_cast<std::int64_t>(o) * door::kernel_stride(b, 0),
                                      b.type);
    }
  }
  return result;
}

/// The call as the kernels take it, v included, which a second pass leaves out.
AttendCall resolve(const AttentionArguments& arguments) {
  AttentionArguments inputs = arguments;
  inputs.out = {};
  inputs.lse = {};
  inputs.statistics = {};
  return door::resolve(inputs, kCall, door::Purpose::trace);
}

/// The keys of a sequence that a ring has written over.
kernels::KeyRange written_over(const KvView& view, std::int64_t batch) {
  if (!view.oldest.given()) return {0, 0};
  return {view.first_tokens, door::integers_of(view.oldest)[batch]};
}

void check_projection(const AttendCall& call, const ConstView& w_o, const ConstView& b_o) {
  if (!w_o.given()) {
    if (b_o.given()) base::refuse(kCall, "b_o is given without w_o");
    return;
  }
  door::check_axes(
      kCall, "w_o", w_o,
      {{"out", 0, door::Axis::at_least}, {"q_heads * value_dim", call.q_heads * call.value_dim}});
  door::check_floating(kCall, "w_o", w_o);
  door::footprint_of(kCall, "w_o", w_o);
  if (!b_o.given()) return;
  door::check_axes(kCall, "b_o", b_o, {{"out", w_o.layout.extents[0]}});
  door::check_floating(kCall, "b_o", b_o);
  door::footprint_of(kCall, "b_o", b_o);
}

void check_row(const AttendCall& call, const ExplainRow& row) {
  if (row.batch < 0 || row.batch >= call.batch) {
    base::refuse(kCall, "row.batch (", row.batch, ") is not within 0 .. ", call.batch - 1);
  }
  const std::int64_t rows = kernels::sequence_of(call, row.batch).q_rows;
  if (row.query < 0 || row.query >= rows) {
    base::refuse(kCall, "row.query (", row.query, ") is not within 0 .. ", rows - 1);
  }
  if (row.head < -1 || row.head >= call.q_heads) {
    base::refuse(kCall, "row.head (", row.head, ") is neither -1 nor below q_heads (", call.q_heads,
                 ")");
  }
}

}  // namespace

RowTrace explain(const AttentionArguments& arguments, const ExplainRow& row, ConstView w_o,
                 ConstView b_o) {
  const AttendCall call = resolve(arguments);
  check_projection(call, w_o, b_o);
  check_row(call, row);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  const Row at{call, kernels::sequence_of(call, row.batch), row.query,
               written_over(arguments.kv, row.batch)};

  RowTrace trace;
  trace.batch = row.batch;
  trace.query = row.query;
  trace.q_pos = at.sequence.q_pos0 + at.query;
  trace.kv_len = at.sequence.kv_len;
  trace.scale = static_cast<double>(call.score.scale);
  for (std::int64_t head = 0; head < call.q_heads; ++head) {
    HeadTrace one = trace_head(at, head);
    trace.concatenated.insert(trace.concatenated.end(), one.output.begin(), one.output.end());
    if (row.head == -1 || row.head == head) trace.heads.push_back(std::move(one));
  }
  if (w_o.given()) trace.projected = projected(trace.concatenated, w_o, b_o);
  return trace;
}

}  // namespace polyhead::inline v0
