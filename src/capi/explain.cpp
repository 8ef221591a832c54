// Traces of rows, behind polyhead_inspect_c.h.
#include "polyhead/explain.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "capi/convert_layer.hpp"
#include "polyhead/polyhead_inspect_c.h"

struct polyhead_trace {
  /// What C reads as one array: rows side by side, and bytes.
  struct Head {
    std::vector<double> k, v;
    std::vector<std::uint8_t> visible;
  };
  polyhead::RowTrace row;
  std::vector<Head> heads;
};

using namespace polyhead::capi;

namespace {

using polyhead::HeadTrace;

std::vector<double> side_by_side(const std::vector<std::vector<double>>& rows) {
  std::vector<double> all;
  for (const std::vector<double>& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

std::unique_ptr<polyhead_trace> trace_of(polyhead::RowTrace row) {
  auto trace = std::make_unique<polyhead_trace>();
  trace->row = std::move(row);
  for (const HeadTrace& head : trace->row.heads) {
    trace->heads.push_back(
        {side_by_side(head.k), side_by_side(head.v), {head.visible.begin(), head.visible.end()}});
  }
  return trace;
}

polyhead::ExplainRow to_row(const char* call, const polyhead_explain_row* row) {
  polyhead::ExplainRow to;
  if (row == nullptr) return to;
  const polyhead_explain_row from = read_struct(call, "row", row);
  check_reserved(call, "row.reserved", from.reserved);
  to.query = from.query;
  to.batch = from.batch;
  const bool one = to_bool(call, "row.one_head", from.one_head);
  if (!one && from.head != 0) {
    refuse("%s: row.head (%lld) is given without row.one_head", call,
           static_cast<long long>(from.head));
  }
  if (one && from.head < 0)
    refuse("%s: row.head (%lld) is negative", call, static_cast<long long>(from.head));
  if (one) to.head = from.head;
  return to;
}

template <class Explain>
polyhead_status traced(const char* call, polyhead_trace** trace, const Explain& explain) {
  return guarded(call, [&] {
    need(call, "trace", trace);
    *trace = trace_of(explain()).release();
  });
}

/// The numbers, or null where there are none.
const double* data_of(const std::vector<double>& numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

}  // namespace

polyhead_status polyhead_explain(const polyhead_attention_arguments* call,
                                 const polyhead_explain_row* row, const polyhead_view* w_o,
                                 const polyhead_view* b_o, polyhead_trace** trace) {
  constexpr const char* kCall = "polyhead_explain";
  return traced(kCall, trace, [&] {
    const AttentionCall forward(kCall, call);
    return polyhead::explain(forward.arguments(), to_row(kCall, row), to_view(kCall, "w_o", w_o),
                             to_view(kCall, "b_o", b_o));
  });
}

polyhead_status polyhead_layer_explain(const polyhead_layer* layer, const polyhead_view* x,
                                       const polyhead_explain_row* row,
                                       const polyhead_layer_call* call, polyhead_trace** trace) {
  constexpr const char* kCall = "polyhead_layer_explain";
  return traced(kCall, trace, [&] {
    return need(kCall, "layer", layer)
        ->layer->explain(to_view(kCall, "x", x), to_row(kCall, row), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_explain_cross(const polyhead_layer* layer, const polyhead_view* x,
                                             const polyhead_view* context,
                                             const polyhead_explain_row* row,
                                             const polyhead_layer_call* call,
                                             polyhead_trace** trace) {
  constexpr const char* kCall = "polyhead_layer_explain_cross";
  return traced(kCall, trace, [&] {
    return need(kCall, "layer", layer)
        ->layer->explain(to_view(kCall, "x", x), to_view(kCall, "context", context),
                         to_row(kCall, row), to_layer_call(kCall, call));
  });
}

polyhead_status polyhead_layer_explain_view(const polyhead_layer* layer, const polyhead_view* x,
                                            const polyhead_kv_view* kv,
                                            const polyhead_explain_row* row,
                                            const polyhead_layer_call* call,
                                            polyhead_trace** trace) {
  constexpr const char* kCall = "polyhead_layer_explain_view";
  return traced(kCall, trace, [&] {
    return need(kCall, "layer", layer)
        ->layer->explain(to_view(kCall, "x", x), to_kv_view(kCall, need(kCall, "kv", kv)),
                         to_row(kCall, row), to_layer_call(kCall, call));
  });
}

void polyhead_trace_destroy(polyhead_trace* trace) { delete trace; }

polyhead_status polyhead_trace_get_row(const polyhead_trace* trace, polyhead_trace_row* row) {
  constexpr const char* kCall = "polyhead_trace_get_row";
  return guarded(kCall, [&] {
    need(kCall, "trace", trace);
    check_written(kCall, "row", need(kCall, "row", row));
    const polyhead::RowTrace& from = trace->row;
    write_struct(row, polyhead_trace_row{
                          .struct_bytes = 0,
                          .batch = from.batch,
                          .query = from.query,
                          .q_pos = from.q_pos,
                          .kv_len = from.kv_len,
                          .heads = static_cast<int64_t>(from.heads.size()),
                          .scale = from.scale,
                          .input = data_of(from.input),
                          .concatenated = data_of(from.concatenated),
                          .projected = data_of(from.projected),
                          .input_count = static_cast<int64_t>(from.input.size()),
                          .concatenated_count = static_cast<int64_t>(from.concatenated.size()),
                          .projected_count = static_cast<int64_t>(from.projected.size())});
  });
}

polyhead_status polyhead_trace_get_head(const polyhead_trace* trace, int64_t index,
                                        polyhead_trace_head* head) {
  constexpr const char* kCall = "polyhead_trace_get_head";
  return guarded(kCall, [&] {
    need(kCall, "trace", trace);
    check_written(kCall, "head", need(kCall, "head", head));
    const auto count = static_cast<int64_t>(trace->heads.size());
    if (index < 0 || index >= count) {
      refuse("%s: index (%lld) is not within 0 .. %lld", kCall, static_cast<long long>(index),
             static_cast<long long>(count - 1));
    }
    const HeadTrace& from = trace->row.heads[static_cast<std::size_t>(index)];
    const polyhead_trace::Head& flat = trace->heads[static_cast<std::size_t>(index)];
    write_struct(head, polyhead_trace_head{.struct_bytes = 0,
                                           .head = from.head,
                                           .kv_head = from.kv_head,
                                           .head_dim = static_cast<int64_t>(from.q.size()),
                                           .value_dim = static_cast<int64_t>(from.output.size()),
                                           .q = from.q.data(),
                                           .k = flat.k.data(),
                                           .v = flat.v.data(),
                                           .products = from.products.data(),
                                           .scaled = from.scaled.data(),
                                           .modified = from.modified.data(),
                                           .visible = flat.visible.data(),
                                           .masked = from.masked.data(),
                                           .weights = from.weights.data(),
                                           .dropped = from.dropped.data(),
                                           .output = from.output.data(),
                                           .lse = from.lse,
                                           .sink = from.sink,
                                           .has_sink = from.has_sink,
                                           .reserved = 0});
  });
}
