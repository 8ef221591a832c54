#include "layers/calls.hpp"

#include <algorithm>
#include <utility>

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

void check_offsets(const char* call, const char* name, const ConstView& offsets,
                   std::int64_t tokens, const char* of) {
  door::check_axes(call, name, offsets, {{"sequences + 1", 1, door::Axis::at_least}});
  door::check_integer(call, name, offsets);
  door::footprint_of(call, name, offsets);
  const Integers at = door::integers_of(offsets);
  const std::int64_t sequences = offsets.layout.extents[0] - 1;
  door::check_ascending(call, name, at, sequences);
  door::check_end(call, name, at, sequences, tokens, of);
}

void check_as_many(const char* name, const LayerCall& call) {
  const std::int64_t entries = call.context_offsets.layout.extents[0],
                     expected = call.offsets.layout.extents[0];
  if (entries != expected) {
    base::refuse(name, "context_offsets has ", entries, " entries, expected ", expected,
                 " as offsets");
  }
}

namespace {

View slab_view(const Layer& layer, const Slab& slab, const Rows& like, std::int64_t column,
               std::int64_t heads, std::int64_t dim, bool ragged) {
  return heads_view(slab.data + column * float_bytes(layer.activation), layer.activation, like,
                    slab.pitch, heads, dim, ragged);
}

/// Rows and how they fall into sequences, by names: x, or the context.
struct Names {
  const char *rows, *columns, *lengths, *offsets;
};

Input sequences_of(const char* call, const Names& names, const ConstView& view,
                   std::int64_t columns, const ConstView& lengths, const ConstView& offsets) {
  Input input{call, rows_of(call, names.rows, view, columns), false, {}, 0};
  input.sequences = input.rows.batch;
  if (offsets.given()) {
    if (view.layout.axes != 2) {
      base::refuse(call, names.rows, " has ", base::Axes(view.layout), ", expected [tokens, ",
                   names.columns, "] with ", names.offsets);
    }
    if (lengths.given())
      base::refuse(call, names.lengths, " and ", names.offsets, " are both given, expected one");
    check_offsets(call, names.offsets, offsets, input.rows.tokens, names.rows);
    input.ragged = true;
    input.offsets = door::integers_of(offsets);
    input.sequences = offsets.layout.extents[0] - 1;
  }
  check_lengths(call, names.lengths, lengths, input.sequences, input.rows.tokens);
  return input;
}

}  // namespace

Input input_of(const Layer& layer, const char* call_name, const ConstView& x,
               const LayerCall& call) {
  return sequences_of(call_name, {"x", "model_dim", "lengths", "offsets"}, x,
                      layer.config.model_dim, call.lengths, call.offsets);
}

void check_positions(const Layer& layer, const Input& input, const ConstView& positions,
                     bool two_axes, const char* name) {
  if (!positions.given()) return;
  if (!layer.rotation) base::refuse(input.name, name, " are given, but the layer has no rope");
  if (two_axes) {
    door::check_axes(input.name, name, positions, {{"tokens", input.rows.tokens}});
  } else {
    door::check_axes(input.name, name, positions,
                     {{"batch", input.rows.batch}, {"tokens", input.rows.tokens}});
  }
  door::check_integer(input.name, name, positions);
  door::footprint_of(input.name, name, positions);
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

void check_outputs(const char* name, const char* output, const View& to, const LayerCall& call,
                   const door::Inputs& read) {
  const RowStatistics& rows = call.statistics;
  for (const auto& [of, view] : {std::pair{output, to},
                                 {"lse", call.lse},
                                 {"statistics.entropy", rows.entropy},
                                 {"statistics.max_weight", rows.max_weight},
                                 {"statistics.max_key", rows.max_key}}) {
    if (!view.given()) continue;
    door::check_writable(name, door::footprint_of(name, of, view), read.prints, read.count);
  }
}

door::Inputs lengths_read(const char* name, const LayerCall& call) {
  door::Inputs read;
  for (const auto& [of, view] : {std::pair{"lengths", call.lengths},
                                 {"offsets", call.offsets},
                                 {"context_lengths", call.context_lengths},
                                 {"context_offsets", call.context_offsets}}) {
    if (view.given()) read.add(door::footprint_of(name, of, view));
  }
  return read;
}

Rows output_of(const Layer& layer, const Input& input, const View& y, const LayerCall& call) {
  const Rows rows = rows_of(input.name, "y", y, layer.output_columns());
  check_same_rows(input.name, "y", rows, "x", input.rows);
  door::Footprint others[4];
  int count = 0;
  for (const auto& [name, view] : {std::pair{"lse", call.lse},
                                   {"statistics.entropy", call.statistics.entropy},
                                   {"statistics.max_weight", call.statistics.max_weight},
                                   {"statistics.max_key", call.statistics.max_key}}) {
    if (view.given()) others[count++] = door::footprint_of(input.name, name, view);
  }
  door::check_writable(input.name, door::footprint_of(input.name, "y", y), others, count);
  check_outputs(input.name, "y", y, call, lengths_read(input.name, call));
  return rows;
}

Input context_of(const Layer& layer, const Input& input, const ConstView& context,
                 const LayerCall& call) {
  if (!input.ragged && call.context_offsets.given())
    base::refuse(input.name, "context_offsets are given without offsets");
  const Input from =
      sequences_of(input.name, {"context", "context_dim", "context_lengths", "context_offsets"},
                   context, layer.config.context_dim, call.context_lengths, call.context_offsets);
  if (from.ragged) {
    check_as_many(input.name, call);
  } else if (from.sequences != input.sequences) {
    base::refuse(input.name, "context has batch ", from.sequences, ", expected x's ",
                 input.sequences, input.ragged ? " sequences (or context_offsets)" : "");
  }
  check_positions(layer, from, call.context_positions, context.layout.axes == 2,
                  "context_positions");
  return from;
}

void place_q(const Layer& layer, const Slab& slab, const Input& input,
             AttentionArguments& arguments) {
  arguments.q = slab_view(layer, slab, input.rows, 0, layer.config.q_heads, layer.config.head_dim,
                          input.ragged);
}

void place_kv(const Layer& layer, const Slab& slab, const Input& from,
              AttentionArguments& arguments) {
  const LayerConfig& c = layer.config;
  arguments.k =
      slab_view(layer, slab, from.rows, slab.first_k, c.kv_heads, c.head_dim, from.ragged);
  arguments.v =
      slab_view(layer, slab, from.rows, slab.first_v, c.kv_heads, c.value_dim, from.ragged);
}

void require_self(const Layer& layer, const char* name, const LayerCall& call) {
  const LayerConfig& c = layer.config;
  if (c.context_dim != c.model_dim) {
    base::refuse(name, "context_dim (", c.context_dim, ") is not model_dim (", c.model_dim,
                 "), so k and v need a context of their own");
  }
  refuse_context(name, call, " without a context");
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
  place_kv(layer, slab, input, arguments);
  return arguments;
}

namespace {

/// The projected rows of a padded context as what a cache shows, which is what sequences of x that
/// lie one after the other can see.
void show_padded(const Input& context, const ConstView& lengths, Buffer& memory,
                 AttentionArguments& arguments) {
  KvView& kv = arguments.kv;
  kv.k = std::exchange(arguments.k, {});
  kv.v = std::exchange(arguments.v, {});
  kv.lengths = lengths;
  if (lengths.given()) return;
  auto* const all = reinterpret_cast<std::int64_t*>(memory.need(context.sequences, 8));
  std::fill_n(all, context.sequences, context.rows.tokens);
  kv.lengths = ConstView(all, {context.sequences});
}

}  // namespace

/// The same for cross attention.
AttentionArguments prepare_cross(const Layer& layer, const Input& input, const Input& context,
                                 const LayerCall& call, Scratch& scratch) {
  AttentionArguments arguments = arguments_of(layer, input.name, call);
  const bool shown = input.ragged && !context.ragged;
  arguments.mask =
      arguments.mask & padding(shown ? ConstView() : call.context_lengths, call.lengths);
  arguments.q_offsets = call.offsets;
  arguments.kv_offsets = call.context_offsets;
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, nullptr, scratch.positions);
  const Slab q = project(layer, input.rows, Columns::q, positions, scratch);
  place_q(layer, q, input, arguments);
  const std::int64_t* const context_positions =
      positions_of(layer, context, call.context_positions, nullptr, scratch.context_positions);
  const Slab kv = project(layer, context.rows, Columns::kv, context_positions, scratch, true);
  place_kv(layer, kv, context, arguments);
  if (shown) show_padded(context, call.context_lengths, scratch.starts, arguments);
  return arguments;
}

}  // namespace polyhead::inline v0::layers
