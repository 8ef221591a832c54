// Steps 1 to 5 in one call, of self and cross attention.
#include "base/refuse.hpp"
#include "layers/finish.hpp"
#include "layers/held.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Columns;
using layers::Input;
using layers::Layer;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "MultiHeadAttention::forward";

}  // namespace

void MultiHeadAttention::forward(ConstView x, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  const Input input = layers::input_of(layer, kCall, x, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  AttentionArguments arguments = layers::prepare_self(layer, input, call, scratch);
  layers::finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::forward(ConstView x, ConstView context, View y,
                                 const LayerCall& call) const {
  const Layer& layer = *state_;
  const Input input = layers::input_of(layer, kCall, x, call);
  const Input from = layers::context_of(layer, input, context, call);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  AttentionArguments arguments = layers::prepare_cross(layer, input, from, call, scratch);
  layers::finish(layer, input, arguments, to, scratch);
}

void MultiHeadAttention::project_context(ConstView context, KvCache& cache, ConstView lengths,
                                         ConstView given_positions) const {
  constexpr const char* kName = "MultiHeadAttention::project_context";
  const Layer& layer = *state_;
  const Rows rows = layers::rows_of(kName, "context", context, layer.config.context_dim);
  const Input input{kName, rows, false, {}, rows.batch};
  layers::check_batch_held(input, cache, layers::held_sizes(layer));
  layers::check_lengths(kName, "lengths", lengths, rows.batch, rows.tokens);
  layers::check_positions(layer, input, given_positions, context.layout.axes == 2);
  Scratch scratch;
  const layers::Growth growth = layers::growth_after(
      input, lengths, scratch.starts, [&](std::int64_t b) { return cache.length(b); });
  layers::check_room(input, cache, growth);
  const std::int64_t* const positions =
      layers::positions_of(layer, input, given_positions, growth.starts, scratch.context_positions);
  const Slab slab = layers::project(layer, rows, Columns::kv, positions, scratch, true);
  AttentionArguments arguments;
  layers::place_kv(layer, slab, input, arguments);
  cache.append(arguments.k, arguments.v, lengths);
}

namespace {

constexpr const char* kCross = "MultiHeadAttention::cross";

/// Cross attention to the keys and values that `context` shows, which `what` names.
void cross_to(const Layer& layer, const ConstView& x, const KvView& context, const char* what,
              const View& y, const LayerCall& call, Scratch& scratch) {
  const Input input = layers::input_of(layer, kCross, x, call);
  layers::refuse_context(kCross, call, ", but ", what, " has its own");
  door::Inputs read;
  layers::resolve_held(input, context, layers::held_sizes(layer), read);
  layers::check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer, input, y, call);
  layers::check_outputs(kCross, "y", y, call, read);
  AttentionArguments arguments = layers::arguments_of(layer, kCross, call);
  layers::refuse_key_lengths(kCross, arguments.mask, what);
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.q_offsets = call.offsets;
  const std::int64_t* const positions =
      layers::positions_of(layer, input, call.positions, nullptr, scratch.positions);
  layers::place_q(layer, layers::project(layer, input.rows, Columns::q, positions, scratch), input,
                  arguments);
  arguments.kv = context;
  layers::finish(layer, input, arguments, to, scratch);
}

}  // namespace

void MultiHeadAttention::cross(ConstView x, const KvCache& context, View y,
                               const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::check_batch_held(layers::input_of(layer, kCross, x, call), context,
                           layers::held_sizes(layer));
  cross_to(layer, x, context.view(), "the cache", y, call,
           layers::CallScratch(call.workspace).scratch);
}

void MultiHeadAttention::cross(ConstView x, const KvView& context, View y,
                               const LayerCall& call) const {
  cross_to(*state_, x, context, "context", y, call, layers::CallScratch(call.workspace).scratch);
}

}  // namespace polyhead::inline v0
