#include "layers/calls.hpp"

#include <algorithm>

#include "base/refuse.hpp"

namespace polyhead::inline v0::layers {

using kernels::Integers;

void check_lengths(const char* call, const char* name, const ConstView& lengths, std::int64_t batch,
                   std::int64_t tokens) {
  if (!lengths.given()) return;
  door::check_axes(call, name, lengths, {{"batch", batch}});
  door::check_integer(call, name, lengths);
  door::footprint_of(call, name, lengths);
  const Integers at = door::integers_of(lengths);
  for (std::int64_t b = 0; b < batch; ++b) {
    if (at[b] < 0 || at[b] > tokens) {
      base::refuse(call, name, "[", b, "] (", at[b], ") is not within 0 .. ", tokens);
    }
  }
}

void check_offsets(const char* name, const LayerCall& call, std::int64_t tokens, const char* of) {
  if (call.lengths.given()) base::refuse(name, "lengths and offsets are both given");
  door::check_axes(name, "offsets", call.offsets, {{"sequences + 1", 1, door::Axis::at_least}});
  door::check_integer(name, "offsets", call.offsets);
  door::footprint_of(name, "offsets", call.offsets);
  const Integers offsets = door::integers_of(call.offsets);
  const std::int64_t sequences = call.offsets.layout.extents[0] - 1;
  door::check_ascending(name, "offsets", offsets, sequences);
  door::check_end(name, "offsets", offsets, sequences, tokens, of);
}

namespace {

View slab_view(const Layer& layer, const Slab& slab, const Rows& like, std::int64_t column,
               std::int64_t heads, std::int64_t dim, bool ragged) {
  return heads_view(slab.data + column * float_bytes(layer.activation), layer.activation, like,
                    slab.pitch, heads, dim, ragged);
}

}  // namespace

Input input_of(const Layer& layer, const char* call_name, const ConstView& x,
               const LayerCall& call) {
  Input input{call_name, rows_of(call_name, "x", x, layer.config.model_dim), false, {}, 0};
  input.sequences = input.rows.batch;
  if (call.offsets.given()) {
    if (x.layout.axes != 2) {
      base::refuse(call_name, "x has ", base::Axes{x.layout.axes},
                   ", expected [tokens, model_dim] with offsets");
    }
    check_offsets(call_name, call, input.rows.tokens, "x");
    input.ragged = true;
    input.offsets = door::integers_of(call.offsets);
    input.sequences = call.offsets.layout.extents[0] - 1;
  }
  check_lengths(call_name, "lengths", call.lengths, input.sequences, input.rows.tokens);
  return input;
}

void check_positions(const Layer& layer, const Input& input, const ConstView& positions,
                     bool two_axes) {
  if (!positions.given()) return;
  if (!layer.rotation) {
    base::refuse(input.name, "positions are given, but the layer has no rope");
  }
  if (two_axes) {
    door::check_axes(input.name, "positions", positions, {{"tokens", input.rows.tokens}});
  } else {
    door::check_axes(input.name, "positions", positions,
                     {{"batch", input.rows.batch}, {"tokens", input.rows.tokens}});
  }
  door::check_integer(input.name, "positions", positions);
  door::footprint_of(input.name, "positions", positions);
}

/// One position a row for RoPE: given, or counted from `starts` (none: 0) in each sequence.
const std::int64_t* positions_of(const Layer& layer, const Input& input, const ConstView& given,
                                 const std::int64_t* starts, Buffer& buffer) {
  if (!layer.rotation) return nullptr;
  const std::int64_t tokens = input.rows.tokens;
  auto* const to = reinterpret_cast<std::int64_t*>(buffer.need(input.rows.count(), 8));
  if (given.given()) {
    const int token = given.layout.axes - 1;
    for (std::int64_t b = 0; b < input.rows.batch; ++b) {
      const std::int64_t first = token > 0 ? b * door::kernel_stride(given, 0) : 0;
      const Integers at{static_cast<const std::byte*>(given.data) + first, given.type,
                        door::kernel_stride(given, token)};
      for (std::int64_t t = 0; t < tokens; ++t) to[b * tokens + t] = at[t];
    }
    return to;
  }
  const auto start_of = [&](std::int64_t b) { return starts != nullptr ? starts[b] : 0; };
  if (!input.ragged) {
    for (std::int64_t b = 0; b < input.rows.batch; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) to[b * tokens + t] = start_of(b) + t;
    }
    return to;
  }
  std::fill(to, to + tokens, 0);
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    const std::int64_t first = input.offsets[b];
    for (std::int64_t t = first; t < input.offsets[b + 1]; ++t) to[t] = start_of(b) + t - first;
  }
  return to;
}

/// y, checked against itself and the other outputs of the call. Not against x: x is read before y
/// is written, unless attention itself writes y, which then checks.
Rows output_of(const Layer& layer, const Input& input, const View& y, const LayerCall& call) {
  const Rows rows = rows_of(input.name, "y", y, layer.output_columns());
  if (rows.batch != input.rows.batch || rows.tokens != input.rows.tokens) {
    base::refuse(input.name, "y has batch ", rows.batch, " and tokens ", rows.tokens,
                 ", expected those of x, ", input.rows.batch, " and ", input.rows.tokens);
  }
  door::Footprint others[4];
  int count = 0;
  for (const auto& [name, view] : {std::pair{"lse", call.lse},
                                   {"statistics.entropy", call.statistics.entropy},
                                   {"statistics.max_weight", call.statistics.max_weight},
                                   {"statistics.max_key", call.statistics.max_key}}) {
    if (view.given()) others[count++] = door::footprint_of(input.name, name, view);
  }
  door::check_writable(input.name, door::footprint_of(input.name, "y", y), others, count);
  return rows;
}

Rows context_of(const Layer& layer, const Input& input, const ConstView& context,
                const LayerCall& call) {
  if (input.ragged) base::refuse(input.name, "offsets are given with a context");
  const Rows rows = rows_of(input.name, "context", context, layer.config.context_dim);
  if (rows.batch != input.rows.batch) {
    base::refuse(input.name, "context has batch ", rows.batch, ", expected x's ", input.rows.batch);
  }
  check_lengths(input.name, "context_lengths", call.context_lengths, rows.batch, rows.tokens);
  return rows;
}

void place_q(const Layer& layer, const Slab& slab, const Input& input,
             AttentionArguments& arguments) {
  arguments.q = slab_view(layer, slab, input.rows, 0, layer.config.q_heads, layer.config.head_dim,
                          input.ragged);
}

void place_kv(const Layer& layer, const Slab& slab, const Rows& rows, bool ragged,
              AttentionArguments& arguments) {
  const LayerConfig& c = layer.config;
  arguments.k = slab_view(layer, slab, rows, slab.first_k, c.kv_heads, c.head_dim, ragged);
  arguments.v = slab_view(layer, slab, rows, slab.first_v, c.kv_heads, c.value_dim, ragged);
}

void require_self(const Layer& layer, const char* name, const LayerCall& call) {
  const LayerConfig& c = layer.config;
  if (c.context_dim != c.model_dim) {
    base::refuse(name, "context_dim (", c.context_dim, ") is not model_dim (", c.model_dim,
                 "), so k and v need a context of their own");
  }
  if (call.context_lengths.given()) {
    base::refuse(name, "context_lengths are given without a context");
  }
}

Mask padding(const ConstView& kv_lengths, const ConstView& q_lengths) {
  Mask mask;
  mask.kv_lengths = kv_lengths;
  mask.q_lengths = q_lengths;
  return mask;
}

/// Self attention up to the arguments of attention.
AttentionArguments prepare_self(const Layer& layer, const Input& input, const LayerCall& call,
                                Scratch& scratch) {
  AttentionArguments arguments = arguments_of(layer, input.name, call);
  arguments.mask = arguments.mask & padding(call.lengths, call.lengths);
  arguments.q_offsets = arguments.kv_offsets = call.offsets;
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, nullptr, scratch.positions);
  const Slab slab = project(layer, input.rows, Columns::packed, positions, scratch);
  place_q(layer, slab, input, arguments);
  place_kv(layer, slab, input.rows, input.ragged, arguments);
  return arguments;
}

/// The same for cross attention.
AttentionArguments prepare_cross(const Layer& layer, const Input& input, const Rows& context,
                                 const LayerCall& call, Scratch& scratch) {
  AttentionArguments arguments = arguments_of(layer, input.name, call);
  arguments.mask = arguments.mask & padding(call.context_lengths, call.lengths);
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, nullptr, scratch.positions);
  const Slab q = project(layer, input.rows, Columns::q, positions, scratch);
  place_q(layer, q, input, arguments);
  const Input other{input.name, context, false, {}, context.batch};
  const std::int64_t* const context_positions =
      positions_of(layer, other, {}, nullptr, scratch.context_positions);
  const Slab kv = project(layer, context, Columns::kv, context_positions, scratch, true);
  place_kv(layer, kv, context, false, arguments);
  return arguments;
}

}  // namespace polyhead::inline v0::layers
