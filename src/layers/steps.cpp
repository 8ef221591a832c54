// The steps of a layer, one at a time, and the trace of all of them.
#include "base/element.hpp"
#include "base/refuse.hpp"
#include "layers/held.hpp"

namespace polyhead::inline v0 {

using layers::Columns;
using layers::Input;
using layers::Layer;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

namespace {

/// What step 1 writes, and its name in messages.
struct Projected {
  const char* name;
  View view;
  std::int64_t columns;
};

/// Step 1 of the rows of `of`, x or a context, into rows of the caller's.
void project_rows(const Layer& layer, const Input& input, const char* of, bool two_axes,
                  Columns columns, const Projected& projected, const ConstView& positions) {
  layers::check_positions(layer, input, positions, two_axes);
  const Rows to = layers::rows_of(input.name, projected.name, projected.view, projected.columns);
  layers::check_same_rows(input.name, projected.name, to, of, input.rows);
  door::check_writable(input.name, door::footprint_of(input.name, projected.name, projected.view),
                       nullptr, 0);
  Scratch scratch;
  const std::int64_t* const at =
      layers::positions_of(layer, input, positions, nullptr, scratch.positions);
  const Slab slab = layers::project(layer, input.rows, columns, at, scratch);
  layers::copy_rows(layer.engine,
                    layers::dense_rows(slab.data, layer.activation, to, to.columns, slab.pitch), to,
                    to.count());
}

}  // namespace

void MultiHeadAttention::project(ConstView x, View packed, ConstView positions) const {
  constexpr const char* kName = "MultiHeadAttention::project";
  layers::require_self(*state_, kName, {});
  project_rows(*state_, layers::input_of(*state_, kName, x, {}), "x", x.layout.axes == 2,
               Columns::packed, {"packed", packed, packed_dim()}, positions);
}

void MultiHeadAttention::project_q(ConstView x, View q, ConstView positions) const {
  constexpr const char* kName = "MultiHeadAttention::project_q";
  project_rows(*state_, layers::input_of(*state_, kName, x, {}), "x", x.layout.axes == 2,
               Columns::q, {"q", q, state_->q_columns()}, positions);
}

void MultiHeadAttention::project_kv(ConstView context, View kv, ConstView positions) const {
  constexpr const char* kName = "MultiHeadAttention::project_kv";
  const Rows rows = layers::rows_of(kName, "context", context, state_->config.context_dim);
  project_rows(*state_, {kName, rows, false, {}, rows.batch}, "context", context.layout.axes == 2,
               Columns::kv, {"kv", kv, state_->k_columns() + state_->v_columns()}, positions);
}

namespace {

/// Lengths and offsets of x hold for keys that come from it, which keys of another number do not.
void check_whose_lengths(const char* name, const ConstView& q, const ConstView& k,
                         const LayerCall& call) {
  const bool ragged = call.offsets.given();
  if (ragged ? call.context_offsets.given() : call.context_lengths.given() || !call.lengths.given())
    return;
  if (k.layout.axes != q.layout.axes) return;  // attention says what it expects
  const int token = ragged ? 0 : 1;
  const std::int64_t q_len = q.layout.extents[token], kv_len = k.layout.extents[token];
  if (q_len == kv_len) return;
  base::refuse(name,
               ragged ? "offsets are given without context_offsets"
                      : "lengths are given without context_lengths",
               ", but q_len is ", q_len, " and kv_len ", kv_len, "; expected both or neither");
}

/// The rows of sequences one after the other as attention takes them: of a batch of one, as split()
/// gives it, its tokens.
template <class AnyView>
AnyView joined(AnyView view, const LayerCall& call) {
  if (!call.offsets.given() || view.layout.axes != 4 || view.layout.extents[0] != 1) return view;
  detail::Layout& layout = view.layout;
  for (int axis = 0; axis + 1 < layout.axes; ++axis) {
    layout.extents[axis] = layout.extents[axis + 1];
    layout.strides[axis] = layout.strides[axis + 1];
  }
  --layout.axes;
  return view;
}

/// q, k and v have the layer's heads, whose axes come last.
void check_heads(const char* name, const char* of, const ConstView& view, const char* heads_name,
                 std::int64_t heads, const char* dim_name, std::int64_t dim) {
  const detail::Layout& layout = view.layout;
  if (layout.axes < 3) return;  // attention says what it expects
  const std::int64_t found_heads = layout.extents[layout.axes - 2],
                     found_dim = layout.extents[layout.axes - 1];
  if (found_heads != heads)
    base::refuse(name, of, ": ", heads_name, " is ", found_heads, ", expected ", heads);
  if (found_dim != dim)
    base::refuse(name, of, ": ", dim_name, " is ", found_dim, ", expected ", dim);
}

void check_q_heads(const char* name, const LayerConfig& c, const ConstView& q) {
  check_heads(name, "q", q, "q_heads", c.q_heads, "head_dim", c.head_dim);
}

void check_kv_heads(const char* name, const LayerConfig& c, const char* k_name, const ConstView& k,
                    const char* v_name, const ConstView& v) {
  check_heads(name, k_name, k, "kv_heads", c.kv_heads, "head_dim", c.head_dim);
  check_heads(name, v_name, v, "kv_heads", c.kv_heads, "value_dim", c.value_dim);
}

/// Checks the arguments for which attention has other names than this call: its refusals would name
/// what the caller did not give. A wrong number of axes of q is left to attention, which calls it
/// the same.
void check_named(const char* name, const ConstView& q, const LayerCall& call) {
  const bool ragged = call.offsets.given();
  if (q.layout.axes != (ragged ? 3 : 4)) return;
  door::footprint_of(name, "q", q);  // lengths are compared with its extents
  const auto& extents = q.layout.extents;
  if (ragged) {
    if (call.lengths.given())
      base::refuse(name, "lengths and offsets are both given, expected one");
    layers::check_offsets(name, "offsets", call.offsets, extents[0], "q");
    return;
  }
  layers::check_lengths(name, "lengths", call.lengths, extents[0], extents[1]);
}

/// The same of k, whose lengths and offsets are the context's.
void check_named_context(const char* name, const ConstView& k, const LayerCall& call) {
  if (call.offsets.given() && call.context_lengths.given())
    base::refuse(name, "context_lengths and offsets are both given, expected one");
  if (k.layout.axes == (call.context_offsets.given() ? 3 : 4)) door::footprint_of(name, "k", k);
  if (k.layout.axes == 4) {
    layers::check_lengths(name, "context_lengths", call.context_lengths, k.layout.extents[0],
                          k.layout.extents[1]);
  }
  if (!call.context_offsets.given()) return;
  if (!call.offsets.given()) base::refuse(name, "context_offsets are given without offsets");
  if (k.layout.axes != 3) return;
  layers::check_offsets(name, "context_offsets", call.context_offsets, k.layout.extents[0], "k");
  layers::check_as_many(name, call);
}

void refuse_positions(const char* name, const LayerCall& call) {
  for (const auto& [part, view] :
       {std::pair{"positions", call.positions}, {"context_positions", call.context_positions}}) {
    if (view.given()) base::refuse(name, part, " are given, but RoPE belongs to project");
  }
}

}  // namespace

void MultiHeadAttention::attend(ConstView q, ConstView k, ConstView v, View heads,
                                const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::attend";
  refuse_positions(kName, call);
  q = joined(q, call), k = joined(k, call), v = joined(v, call), heads = joined(heads, call);
  check_named(kName, q, call);
  check_named_context(kName, k, call);
  layers::check_outputs(kName, "heads", heads, call, layers::lengths_read(kName, call));
  check_q_heads(kName, state_->config, q);
  check_kv_heads(kName, state_->config, "k", k, "v", v);
  check_whose_lengths(kName, q, k, call);
  AttentionArguments arguments = layers::arguments_of(*state_, kName, call);
  arguments.mask =
      arguments.mask &
      layers::padding(call.context_lengths.given() ? call.context_lengths : call.lengths,
                      call.lengths);
  arguments.q_offsets = call.offsets;
  arguments.kv_offsets = call.context_offsets.given() ? call.context_offsets : call.offsets;
  arguments.q = q;
  arguments.k = k;
  arguments.v = v;
  arguments.out = heads;
  layers::attend(*state_, {kName, "heads"}, arguments, layers::CallScratch(call.workspace).scratch);
}

void MultiHeadAttention::attend(ConstView q, const KvView& kv, View heads,
                                const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::attend";
  refuse_positions(kName, call);
  layers::refuse_context(kName, call, ", but kv has its own");
  q = joined(q, call), heads = joined(heads, call);
  check_named(kName, q, call);
  layers::check_outputs(kName, "heads", heads, call, layers::lengths_read(kName, call));
  check_q_heads(kName, state_->config, q);
  check_kv_heads(kName, state_->config, "kv.k", kv.k, "kv.v", kv.v);
  AttentionArguments arguments = layers::arguments_of(*state_, kName, call);
  layers::refuse_key_lengths(kName, arguments.mask, "kv");
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::end;  // positions are the view's
  arguments.q_offsets = call.offsets;
  arguments.q = q;
  arguments.kv = kv;
  arguments.out = heads;
  layers::attend(*state_, {kName, "heads"}, arguments, layers::CallScratch(call.workspace).scratch);
}

void MultiHeadAttention::output(ConstView concatenated, View y) const {
  constexpr const char* kName = "MultiHeadAttention::output";
  const Layer& layer = *state_;
  if (layer.o.out() == 0) base::refuse(kName, "the layer has no output projection");
  const Rows from = layers::rows_of(kName, "concatenated", concatenated, layer.concat_columns());
  const Rows to = layers::rows_of(kName, "y", y, layer.o.out());
  layers::check_same_rows(kName, "y", to, "concatenated", from);
  const door::Footprint input = door::footprint_of(kName, "concatenated", concatenated);
  door::check_writable(kName, door::footprint_of(kName, "y", y), &input, 1);
  Scratch scratch;
  layers::project_out(layer, from, to, scratch);
}

namespace {

/// A row of a checked array, in double.
std::vector<double> row_of(const Rows& rows, std::int64_t index) {
  std::vector<double> row(static_cast<std::size_t>(rows.columns));
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = base::load_float32(rows.row(index) + static_cast<std::int64_t>(i) * rows.column_stride,
                                rows.type);
  }
  return row;
}

/// The trace of attention's arguments, through the output projection as it was packed.
RowTrace trace(const Layer& layer, const Input& input, const AttentionArguments& arguments,
               const ExplainRow& row) {
  std::vector<float> w, b;
  ConstView w_o, b_o;
  if (layer.o.out() > 0) {
    const std::int64_t out = layer.o.out(), in = layer.o.in();
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        w.push_back(layer.engine.gemm->weight(layer.o.weights(), o, i));
      }
    }
    w_o = {w.data(), {out, in}};
    if (layer.o.bias() != nullptr) b_o = {layer.o.bias(), {out}};
  }
  RowTrace result = polyhead::explain(arguments, row, w_o, b_o);
  const std::int64_t first =
      input.ragged ? input.offsets[row.batch] : row.batch * input.rows.tokens;
  result.input = row_of(input.rows, first + row.query);
  return result;
}

}  // namespace

RowTrace MultiHeadAttention::explain(ConstView x, const ExplainRow& row,
                                     const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::explain";
  const Layer& layer = *state_;
  layers::require_self(layer, kName, call);
  const Input input = layers::input_of(layer, kName, x, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  Scratch scratch;
  return trace(layer, input, layers::prepare_self(layer, input, call, scratch), row);
}

RowTrace MultiHeadAttention::explain(ConstView x, ConstView context, const ExplainRow& row,
                                     const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::explain";
  const Layer& layer = *state_;
  const Input input = layers::input_of(layer, kName, x, call);
  const Input from = layers::context_of(layer, input, context, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  Scratch scratch;
  return trace(layer, input, layers::prepare_cross(layer, input, from, call, scratch), row);
}

RowTrace MultiHeadAttention::explain(ConstView x, const KvView& kv, const ExplainRow& row,
                                     const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::explain";
  const Layer& layer = *state_;
  layers::require_self(layer, kName, call);
  const Input input = layers::input_of(layer, kName, x, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  door::Inputs read;
  const kernels::AttendCall held = layers::resolve_held(input, kv, layers::held_sizes(layer), read);
  Scratch scratch;
  const std::int64_t* const starts = layers::starts_in(input, held, call.lengths, scratch.starts);
  AttentionArguments arguments = layers::arguments_of(layer, kName, call);
  layers::refuse_key_lengths(kName, arguments.mask, "kv");
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the view's
  arguments.q_offsets = call.offsets;
  arguments.q_start = ConstView(starts, {input.sequences});
  const std::int64_t* const positions =
      layers::positions_of(layer, input, call.positions, starts, scratch.positions);
  layers::place_q(layer, layers::project(layer, input.rows, Columns::q, positions, scratch), input,
                  arguments);
  arguments.kv = kv;
  return trace(layer, input, arguments, row);
}

}  // namespace polyhead::inline v0
