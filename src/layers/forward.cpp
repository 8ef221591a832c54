// Steps 1 to 5 in one call.
#include <algorithm>

#include "base/refuse.hpp"
#include "layers/calls.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Columns;
using layers::Input;
using layers::Layer;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "MultiHeadAttention::forward";

/// y by heads, for a layer without an output projection: attention writes it where it lies.
View by_heads(const Layer& layer, const Rows& y, bool ragged) {
  const LayerConfig& c = layer.config;
  const std::int64_t bytes = layers::float_bytes(y.type);
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
      layers::row_pitch(layer.concat_columns() * layers::float_bytes(layer.activation));
  Rows heads = y;
  heads.type = layer.activation;
  heads.columns = layer.concat_columns();
  heads.data = scratch.heads.need(y.count(), pitch);
  heads.batch_stride = y.tokens * pitch;
  heads.token_stride = pitch;
  heads.column_stride = layers::float_bytes(layer.activation);
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

void check_cache(const Layer& layer, const char* name, const Input& input, const KvCache& cache) {
  const LayerConfig& c = layer.config;
  const KvCacheConfig& has = cache.config();
  if (input.ragged) base::refuse(name, "offsets are given with a cache");
  const struct {
    const char* name;
    std::int64_t found, expected;
  } sizes[] = {{"batch", has.batch, input.rows.batch},
               {"kv_heads", has.kv_heads, c.kv_heads},
               {"head_dim", has.head_dim, c.head_dim},
               {"value_dim", has.value_dim, c.value_dim}};
  for (const auto& size : sizes) {
    if (size.found != size.expected) {
      base::refuse(name, "cache has ", size.name, " ", size.found, ", expected ", size.expected);
    }
  }
}

}  // namespace

void MultiHeadAttention::forward(ConstView x, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  const Input input = layers::input_of(layer, kCall, x, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::prepare_self(layer, input, call, scratch);
  finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::forward(ConstView x, ConstView context, View y,
                                 const LayerCall& call) const {
  const Layer& layer = *state_;
  const Input input = layers::input_of(layer, kCall, x, call);
  const Rows from = layers::context_of(layer, input, context, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::prepare_cross(layer, input, from, call, scratch);
  finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::project_context(ConstView context, KvCache& cache,
                                         ConstView lengths) const {
  constexpr const char* kName = "MultiHeadAttention::project_context";
  const Layer& layer = *state_;
  const Rows rows = layers::rows_of(kName, "context", context, layer.config.context_dim);
  const Input input{kName, rows, false, {}, rows.batch};
  check_cache(layer, kName, input, cache);
  Scratch scratch;
  const layers::CacheStart start(cache, scratch.starts);
  const std::int64_t* const positions =
      layers::positions_of(layer, input, {}, start.lengths(), scratch.context_positions);
  const Slab slab = layers::project(layer, rows, Columns::kv, positions, scratch, true);
  AttentionArguments arguments;
  layers::place_kv(layer, slab, rows, false, arguments);
  cache.append(arguments.k, arguments.v, lengths);
}

void MultiHeadAttention::cross(ConstView x, const KvCache& context, View y,
                               const LayerCall& call) const {
  constexpr const char* kName = "MultiHeadAttention::cross";
  const Layer& layer = *state_;
  const Input input = layers::input_of(layer, kName, x, call);
  check_cache(layer, kName, input, context);
  if (call.context_lengths.given()) {
    base::refuse(kName, "context_lengths are given, but the cache has its own");
  }
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::arguments_of(layer, kName, call);
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  const std::int64_t* const positions =
      layers::positions_of(layer, input, call.positions, nullptr, scratch.positions);
  layers::place_q(layer, layers::project(layer, input.rows, Columns::q, positions, scratch), input,
                  arguments);
  arguments.kv = context.view();
  finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::forward(ConstView x, KvCache& cache, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  const Input input = layers::input_of(layer, kCall, x, call);
  check_cache(layer, kCall, input, cache);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);

  const layers::CacheStart start(cache, scratch.starts);
  AttentionArguments arguments = layers::arguments_of(layer, kCall, call);
  const std::int64_t* const positions =
      layers::positions_of(layer, input, call.positions, start.lengths(), scratch.positions);
  const Slab slab = layers::project(layer, input.rows, Columns::packed, positions, scratch);
  layers::place_q(layer, slab, input, arguments);
  layers::place_kv(layer, slab, input.rows, false, arguments);

  cache.append(arguments.k, arguments.v, call.lengths);
  layers::Appended appended(cache, start);
  arguments.k = arguments.v = {};
  arguments.kv = cache.view();
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the cache's
  arguments.q_start = ConstView(start.lengths(), {input.rows.batch});
  finish(layer, input, arguments, to, scratch);
  appended.keep();
}

}  // namespace polyhead::inline v0
