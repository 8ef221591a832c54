#include "inspect/validate.hpp"

#include "attention/validate.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {
namespace {

constexpr const char* kCall = "inspect";

std::byte* bytes_of(const View& view) { return static_cast<std::byte*>(view.data); }

// Which rows of weights are wanted: of these alone, so both are refused without them.
void take_heads(const InspectArguments& wanted, kernels::InspectCall& call, Inputs& inputs) {
  call.head_count = call.attend.q_heads;
  if (!wanted.weights.given() && wanted.first_query != 0)
    base::refuse(kCall, "first_query (", wanted.first_query, ") is given without weights");
  if (!wanted.heads.given()) return;
  if (!wanted.weights.given()) base::refuse(kCall, "heads is given without weights");
  check_axes(kCall, "heads", wanted.heads, {{"heads", 0, Axis::at_least}});
  check_integer(kCall, "heads", wanted.heads);
  inputs.add(footprint_of(kCall, "heads", wanted.heads));
  call.heads = integers_of(wanted.heads);
  call.head_count = wanted.heads.layout.extents[0];
  for (std::int64_t i = 0; i < call.head_count; ++i) {
    if (call.heads[i] < 0 || call.heads[i] >= call.attend.q_heads) {
      base::refuse(kCall, "heads[", i, "] (", call.heads[i], ") is not within 0 .. ",
                   call.attend.q_heads - 1);
    }
  }
}

void take_weights(const InspectArguments& wanted, kernels::InspectCall& call) {
  if (!wanted.weights.given()) return;
  check_axes(kCall, "weights", wanted.weights,
             {{"batch", call.attend.batch},
              {"heads", call.head_count},
              {"queries", 0, Axis::at_least},
              {"kv_len", call.attend.kv_len}});
  check_type(kCall, "weights", wanted.weights, ElementType::float32);
  call.first_query = wanted.first_query;
  call.query_count = wanted.weights.layout.extents[2];
  if (call.first_query < 0 || call.first_query > call.attend.q_len) {
    base::refuse(kCall, "first_query (", call.first_query, ") is not within 0 .. q_len (",
                 call.attend.q_len, ")");
  }
  if (call.query_count > call.attend.q_len - call.first_query) {
    base::refuse(kCall, "weights: queries (", call.query_count, ") from first_query (",
                 call.first_query, ") reach beyond q_len (", call.attend.q_len, ")");
  }
  const ConstView view = wanted.weights;
  call.weights = {bytes_of(wanted.weights), kernel_stride(view, 0), kernel_stride(view, 1),
                  kernel_stride(view, 2), kernel_stride(view, 3)};
}

void take_received(const InspectArguments& wanted, kernels::InspectCall& call) {
  if (!wanted.received.given()) return;
  check_axes(kCall, "received", wanted.received,
             {{"batch", call.attend.batch},
              {"q_heads", call.attend.q_heads},
              {"kv_len", call.attend.kv_len}});
  check_type(kCall, "received", wanted.received, ElementType::float32);
  const ConstView view = wanted.received;
  call.received = {bytes_of(wanted.received), kernel_stride(view, 0), kernel_stride(view, 1), 0,
                   kernel_stride(view, 2)};
}

void take_pooled(const InspectArguments& wanted, kernels::InspectCall& call) {
  if (!wanted.pooled.given()) return;
  check_axes(kCall, "pooled", wanted.pooled,
             {{"batch", call.attend.batch},
              {"q_heads", call.attend.q_heads},
              {"q_bins", 0, Axis::at_least},
              {"kv_bins", 0, Axis::at_least}});
  check_type(kCall, "pooled", wanted.pooled, ElementType::float32);
  const ConstView view = wanted.pooled;
  call.q_bins = view.layout.extents[2];
  call.kv_bins = view.layout.extents[3];
  if (call.q_bins == 0 || call.kv_bins == 0) return;  // no cell, and no bin to find for a weight
  call.pooled = {bytes_of(wanted.pooled), kernel_stride(view, 0), kernel_stride(view, 1),
                 kernel_stride(view, 2), kernel_stride(view, 3)};
  std::int64_t product = 0;
  if (__builtin_mul_overflow(call.q_bins, call.attend.q_len, &product) ||
      __builtin_mul_overflow(call.kv_bins, call.attend.kv_len, &product)) {
    base::refuse(kCall, "pooled: bins (", call.q_bins, ", ", call.kv_bins,
                 ") times tokens overflow 64 bits");
  }
}

// No output overlaps itself, another one, or anything that the pass reads.
void check_outputs(const InspectArguments& wanted, const Inputs& inputs) {
  const Footprint outputs[] = {footprint_of(kCall, "weights", wanted.weights),
                               footprint_of(kCall, "received", wanted.received),
                               footprint_of(kCall, "pooled", wanted.pooled)};
  for (int i = 0; i < 3; ++i) {
    check_writable(kCall, outputs[i], inputs.prints, inputs.count);
    check_writable(kCall, outputs[i], outputs, i);
  }
}

}  // namespace

kernels::InspectCall resolve_inspect(const AttentionArguments& call,
                                     const InspectArguments& wanted) {
  if (!call.lse.given())
    base::refuse(kCall, "lse is not given, expected the one attention() wrote");
  kernels::InspectCall resolved;
  Inputs inputs;
  resolved.attend = resolve(call, kCall, Purpose::second_pass, inputs);
  take_heads(wanted, resolved, inputs);
  take_weights(wanted, resolved);
  take_received(wanted, resolved);
  take_pooled(wanted, resolved);
  check_outputs(wanted, inputs);
  return resolved;
}

}  // namespace polyhead::inline v0::door
