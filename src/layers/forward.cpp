// The calls of a layer: what is checked, and the order of the stages.
#include <algorithm>
#include <limits>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"
#include "layers/layer_state.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::Integers;
using layers::Columns;
using layers::Layer;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "MultiHeadAttention::forward";

ConstView dense_integers(const std::int64_t* values, std::int64_t count) {
  return {values, {count}};
}

/// The x of one call: its rows, and how they fall into sequences.
struct Input {
  const char* name;
  Rows rows;
  bool ragged = false;
  Integers offsets;            ///< ragged
  std::int64_t sequences = 0;  ///< batch, or those between the offsets
};

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

Input input_of(const Layer& layer, const char* call_name, const ConstView& x,
               const LayerCall& call) {
  Input input{call_name, layers::rows_of(call_name, "x", x, layer.config.model_dim), false, {}, 0};
  input.sequences = input.rows.batch;
  if (call.offsets.given()) {
    if (x.layout.axes != 2) {
      base::refuse(call_name, "x has ", x.layout.axes,
                   " axes, expected [tokens, model_dim] with offsets");
    }
    if (call.lengths.given()) base::refuse(call_name, "lengths and offsets are both given");
    door::check_axes(call_name, "offsets", call.offsets,
                     {{"sequences + 1", 1, door::Axis::at_least}});
    door::check_integer(call_name, "offsets", call.offsets);
    door::footprint_of(call_name, "offsets", call.offsets);
    input.ragged = true;
    input.offsets = door::integers_of(call.offsets);
    input.sequences = call.offsets.layout.extents[0] - 1;
    const Integers& at = input.offsets;
    for (std::int64_t b = 0; b < input.sequences; ++b) {
      if (at[0] != 0 || at[b + 1] < at[b] || at[b + 1] > input.rows.tokens) {
        base::refuse(call_name, "offsets do not ascend from 0 to at most tokens (",
                     input.rows.tokens, ")");
      }
    }
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
                                 const std::int64_t* starts, layers::Buffer& buffer) {
  if (!layer.rotation) return nullptr;
  const std::int64_t tokens = input.rows.tokens;
  auto* const to = reinterpret_cast<std::int64_t*>(buffer.need(input.rows.count() * 8));
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
  if (!input.ragged) {
    for (std::int64_t b = 0; b < input.rows.batch; ++b) {
      const std::int64_t start = starts != nullptr ? starts[b] : 0;
      for (std::int64_t t = 0; t < tokens; ++t) to[b * tokens + t] = start + t;
    }
    return to;
  }
  std::fill(to, to + tokens, 0);
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    const std::int64_t first = input.offsets[b];
    for (std::int64_t t = first; t < input.offsets[b + 1]; ++t) to[t] = t - first;
  }
  return to;
}

/// y, checked against itself and the other outputs of the call. Not against x: x is read before y
/// is written, unless attention itself writes y, which then checks.
Rows output_of(const Layer& layer, const Input& input, const View& y, const LayerCall& call) {
  const Rows rows = layers::rows_of(input.name, "y", y, layer.output_columns());
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

/// y by heads, for a layer without an output projection: attention writes it where it lies.
View by_heads(const Layer& layer, const Rows& y, bool ragged) {
  const LayerConfig& c = layer.config;
  const std::int64_t bytes = element_bytes(y.type);
  const std::int64_t step = y.columns <= 1 ? 1 : y.column_stride / bytes;
  const std::int64_t token = y.token_stride / bytes;
  if (ragged) {
    return {
        y.data, y.type, {{y.tokens, c.q_heads, c.value_dim}, {token, c.value_dim * step, step}}};
  }
  return {y.data,
          y.type,
          {{y.batch, y.tokens, c.q_heads, c.value_dim},
           {y.batch_stride / bytes, token, c.value_dim * step, step}}};
}

/// Steps 3 to 5, with q, k and v in `arguments`.
void finish(const Layer& layer, const Input& input, AttentionArguments& arguments, const Rows& y,
            Scratch& scratch) {
  if (layer.o.out() == 0) {
    arguments.out = by_heads(layer, y, input.ragged);
    return layers::attend(layer, input.name, arguments, scratch);
  }
  const std::int64_t pitch =
      layers::row_pitch(layer.concat_columns() * element_bytes(layer.activation));
  Rows heads = y;
  heads.type = layer.activation;
  heads.columns = layer.concat_columns();
  heads.data = scratch.heads.need(y.count() * pitch);
  heads.batch_stride = y.tokens * pitch;
  heads.token_stride = pitch;
  heads.column_stride = element_bytes(layer.activation);
  arguments.out = layers::heads_view(heads.data, heads.type, heads, pitch, layer.config.q_heads,
                                     layer.config.value_dim, input.ragged);
  layers::attend(layer, input.name, arguments, scratch);
  // Rows after the last sequence belong to none: their heads are zeros.
  if (input.ragged) {
    const std::int64_t end = input.offsets[input.sequences] * pitch;
    std::fill(heads.data + end, heads.data + y.count() * pitch, std::byte{0});
  }
  layers::project_out(layer, heads, y, scratch);
}

View slab_view(const Layer& layer, const Slab& slab, const Rows& like, std::int64_t column,
               std::int64_t heads, std::int64_t dim, bool ragged) {
  return layers::heads_view(slab.data + column * element_bytes(layer.activation), layer.activation,
                            like, slab.pitch, heads, dim, ragged);
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

void require_self(const Layer& layer, const char* name) {
  const LayerConfig& c = layer.config;
  if (c.context_dim != c.model_dim) {
    base::refuse(name, "context_dim (", c.context_dim, ") is not model_dim (", c.model_dim,
                 "), so k and v need a context of their own");
  }
}

void no_context_lengths(const char* name, const LayerCall& call) {
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
  AttentionArguments arguments = layers::arguments_of(layer, input.name, call);
  arguments.mask = arguments.mask & padding(call.lengths, call.lengths);
  arguments.q_offsets = arguments.kv_offsets = call.offsets;
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, nullptr, scratch.positions);
  const Slab slab = layers::project(layer, input.rows, Columns::packed, positions, scratch);
  place_q(layer, slab, input, arguments);
  place_kv(layer, slab, input.rows, input.ragged, arguments);
  return arguments;
}

/// The same for cross attention.
AttentionArguments prepare_cross(const Layer& layer, const Input& input, const Rows& context,
                                 const LayerCall& call, Scratch& scratch) {
  AttentionArguments arguments = layers::arguments_of(layer, input.name, call);
  arguments.mask = arguments.mask & padding(call.context_lengths, call.lengths);
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, nullptr, scratch.positions);
  const Slab q = layers::project(layer, input.rows, Columns::q, positions, scratch);
  place_q(layer, q, input, arguments);
  const Input other{input.name, context, false, {}, context.batch};
  const std::int64_t* const context_positions =
      positions_of(layer, other, {}, nullptr, scratch.context_positions);
  const Slab kv = layers::project(layer, context, Columns::kv, context_positions, scratch, true);
  place_kv(layer, kv, context, false, arguments);
  return arguments;
}

Rows context_of(const Layer& layer, const Input& input, const ConstView& context,
                const LayerCall& call) {
  if (input.ragged) base::refuse(input.name, "offsets are given with a context");
  const Rows rows = layers::rows_of(input.name, "context", context, layer.config.context_dim);
  if (rows.batch != input.rows.batch) {
    base::refuse(input.name, "context has batch ", rows.batch, ", expected x's ", input.rows.batch);
  }
  check_lengths(input.name, "context_lengths", call.context_lengths, rows.batch, rows.tokens);
  return rows;
}

/// Scratch of the call: the caller's workspace, or one for this call.
template <class State>
Scratch& scratch_of(State* state, std::optional<Scratch>& own) {
  return state != nullptr ? *state : own.emplace();
}

}  // namespace

void MultiHeadAttention::forward(ConstView x, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  require_self(layer, kCall);
  no_context_lengths(kCall, call);
  const Input input = input_of(layer, kCall, x, call);
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch = scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = prepare_self(layer, input, call, scratch);
  finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::forward(ConstView x, ConstView context, View y,
                                 const LayerCall& call) const {
  const Layer& layer = *state_;
  const Input input = input_of(layer, kCall, x, call);
  const Rows from = context_of(layer, input, context, call);
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch = scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = prepare_cross(layer, input, from, call, scratch);
  finish(layer, input, arguments, to, scratch);
}

namespace {

void check_cache(const Layer& layer, const Input& input, const KvCache& cache) {
  const LayerConfig& c = layer.config;
  const KvCacheConfig& has = cache.config();
  if (input.ragged) base::refuse(kCall, "offsets are given with a cache");
  const struct {
    const char* name;
    std::int64_t found, expected;
  } sizes[] = {{"batch", has.batch, input.rows.batch},
               {"kv_heads", has.kv_heads, c.kv_heads},
               {"head_dim", has.head_dim, c.head_dim},
               {"value_dim", has.value_dim, c.value_dim}};
  for (const auto& size : sizes) {
    if (size.found != size.expected) {
      base::refuse(kCall, "cache has ", size.name, " ", size.found, ", expected ", size.expected);
    }
  }
}

/// Takes back what a call appended, unless it is told that the call succeeded.
class Appended {
 public:
  Appended(KvCache& cache, const std::int64_t* lengths) : cache_(cache), lengths_(lengths) {}
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  ~Appended() {
    if (kept_) return;
    for (std::int64_t b = 0; b < cache_.config().batch; ++b) cache_.truncate(b, lengths_[b]);
  }
  void keep() { kept_ = true; }

 private:
  KvCache& cache_;
  const std::int64_t* lengths_;
  bool kept_ = false;
};

}  // namespace

void MultiHeadAttention::forward(ConstView x, KvCache& cache, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  require_self(layer, kCall);
  no_context_lengths(kCall, call);
  const Input input = input_of(layer, kCall, x, call);
  check_cache(layer, input, cache);
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch = scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);

  const std::int64_t batch = input.rows.batch;
  auto* const starts = reinterpret_cast<std::int64_t*>(scratch.starts.need(batch * 8));
  for (std::int64_t b = 0; b < batch; ++b) starts[b] = cache.length(b);
  AttentionArguments arguments = layers::arguments_of(layer, kCall, call);
  const std::int64_t* const positions =
      positions_of(layer, input, call.positions, starts, scratch.positions);
  const Slab slab = layers::project(layer, input.rows, Columns::packed, positions, scratch);
  place_q(layer, slab, input, arguments);
  place_kv(layer, slab, input.rows, false, arguments);

  cache.append(arguments.k, arguments.v, call.lengths);
  Appended appended(cache, starts);
  arguments.k = cache.keys();
  arguments.v = cache.values();
  arguments.mask = arguments.mask & padding(cache.lengths(), call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the cache's
  arguments.q_start = dense_integers(starts, batch);
  finish(layer, input, arguments, to, scratch);
  appended.keep();
}

void MultiHeadAttention::project(ConstView x, View packed, ConstView positions) const {
  constexpr const char* kName = "MultiHeadAttention::project";
  const Layer& layer = *state_;
  require_self(layer, kName);
  const Input input = input_of(layer, kName, x, {});
  check_positions(layer, input, positions, x.layout.axes == 2);
  const Rows to = layers::rows_of(kName, "packed", packed, packed_dim());
  if (to.batch != input.rows.batch || to.tokens != input.rows.tokens) {
    base::refuse(kName, "packed has batch ", to.batch, " and tokens ", to.tokens,
                 ", expected those of x, ", input.rows.batch, " and ", input.rows.tokens);
  }
  door::check_writable(kName, door::footprint_of(kName, "packed", packed), nullptr, 0);
  Scratch scratch;
  const std::int64_t* const at = positions_of(layer, input, positions, nullptr, scratch.positions);
  const Slab slab = layers::project(layer, input.rows, Columns::packed, at, scratch);
  const std::int64_t bytes = element_bytes(layer.activation);
  for (std::int64_t row = 0; row < to.count(); ++row) {
    const std::byte* const from = slab.data + row * slab.pitch;
    for (std::int64_t i = 0; i < to.columns; ++i) {
      base::store_float32(to.row(row) + i * to.column_stride, to.type,
                          base::load_float32(from + i * bytes, layer.activation));
    }
  }
}

void MultiHeadAttention::attend(ConstView q, ConstView k, ConstView v, View heads,
                                const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::attend";
  if (call.positions.given()) {
    base::refuse(kName, "positions are given, but RoPE belongs to project");
  }
  AttentionArguments arguments = layers::arguments_of(*state_, kName, call);
  arguments.mask =
      arguments.mask &
      padding(call.context_lengths.given() ? call.context_lengths : call.lengths, call.lengths);
  arguments.q_offsets = arguments.kv_offsets = call.offsets;
  arguments.q = q;
  arguments.k = k;
  arguments.v = v;
  arguments.out = heads;
  std::optional<Scratch> own;
  Scratch& scratch = scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  layers::attend(*state_, kName, arguments, scratch);
}

void MultiHeadAttention::output(ConstView concatenated, View y) const {
  constexpr const char* kName = "MultiHeadAttention::output";
  const Layer& layer = *state_;
  if (layer.o.out() == 0) base::refuse(kName, "the layer has no output projection");
  const Rows from = layers::rows_of(kName, "concatenated", concatenated, layer.concat_columns());
  const Rows to = layers::rows_of(kName, "y", y, layer.o.out());
  if (to.batch != from.batch || to.tokens != from.tokens) {
    base::refuse(kName, "y has batch ", to.batch, " and tokens ", to.tokens,
                 ", expected those of concatenated, ", from.batch, " and ", from.tokens);
  }
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
  require_self(layer, kName);
  no_context_lengths(kName, call);
  const Input input = input_of(layer, kName, x, call);
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  Scratch scratch;
  return trace(layer, input, prepare_self(layer, input, call, scratch), row);
}

RowTrace MultiHeadAttention::explain(ConstView x, ConstView context, const ExplainRow& row,
                                     const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::explain";
  const Layer& layer = *state_;
  const Input input = input_of(layer, kName, x, call);
  const Rows from = context_of(layer, input, context, call);
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  Scratch scratch;
  return trace(layer, input, prepare_cross(layer, input, from, call, scratch), row);
}

}  // namespace polyhead::inline v0
