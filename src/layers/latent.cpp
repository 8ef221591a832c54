// LatentAttention over x alone or a view; after caches: latent_after_caches.cpp.
#include "polyhead/latent.h"

#include "base/element.hpp"
#include "base/refuse.hpp"
#include "layers/latent_held.hpp"
#include "layers/latent_steps.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Input;
using layers::LatentHeld;
using layers::LatentStep;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "LatentAttention::forward";

/// Copies rows of the activation type to rows of any.
void copy_latents(const LatentStep& step, const Rows& from, const Rows& to) {
  const std::int64_t bytes = step.bytes();
  layers::share_out_rows(step.engine().crew, from.count(), [&](std::int64_t row, int) {
    for (std::int64_t i = 0; i < from.columns; ++i) {
      base::store_float32(to.row(row) + i * to.column_stride, to.type,
                          base::load_float32(from.row(row) + i * bytes, from.type));
    }
  });
}

}  // namespace

LatentAttention::LatentAttention(LatentAttention&&) noexcept = default;
LatentAttention& LatentAttention::operator=(LatentAttention&&) noexcept = default;
LatentAttention::~LatentAttention() = default;

const LatentConfig& LatentAttention::config() const { return state_->config; }
ElementType LatentAttention::activation_type() const { return state_->core.activation; }

KvCacheConfig LatentAttention::cache_config(std::int64_t batch, std::int64_t capacity,
                                            bool growing) const {
  const LatentConfig& c = state_->config;
  return {batch,   1,   c.kv_rank + c.rope_dim, c.kv_rank, state_->core.activation, capacity,
          growing, true};
}

void LatentAttention::forward(ConstView x, View y, const LayerCall& call) const {
  forward(x, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, View y, LatentForm form, const LayerCall& call) const {
  const State& layer = *state_;
  form = layers::form_of(layer, form);
  layers::require_self(layer.core, kCall, call);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::check_positions(layer.core, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer.core, input, y, call);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  AttentionArguments arguments = layers::arguments_of(layer.core, kCall, call);
  arguments.mask = arguments.mask & layers::padding(call.lengths, call.lengths);
  arguments.q_offsets = arguments.kv_offsets = call.offsets;
  const LatentStep step{
      layer, input,
      layers::positions_of(layer.core, input, call.positions, nullptr, scratch.positions), scratch};
  const Slab q = layers::queries_of(step);
  const LatentHeld held{layers::latents_of(step), input.ragged};
  layers::finish_latent(step, form, q, held, arguments, to);
}

void LatentAttention::latents(ConstView x, View rows, ConstView positions,
                              LayerWorkspace* workspace) const {
  constexpr const char* kName = "LatentAttention::latents";
  const State& layer = *state_;
  const Input input = layers::input_of(layer.core, kName, x, {});
  if (layer.core.rotation && !positions.given()) {
    base::refuse(kName,
                 "positions are not given, expected those of x in its sequences: the layer "
                 "has rope");
  }
  layers::check_positions(layer.core, input, positions, x.layout.axes == 2);
  const Rows to =
      layers::rows_of(kName, "rows", rows, layer.config.kv_rank + layer.config.rope_dim);
  layers::check_same_rows(kName, "rows", to, "x", input.rows);
  door::check_writable(kName, door::footprint_of(kName, "rows", rows), nullptr, 0);
  layers::CallScratch room(workspace);
  Scratch& scratch = room.scratch;
  const LatentStep step{
      layer, input, layers::positions_of(layer.core, input, positions, nullptr, scratch.positions),
      scratch};
  copy_latents(step, layers::latents_of(step), to);
}

void LatentAttention::forward(ConstView x, const KvView& kv, View y, const LayerCall& call) const {
  forward(x, kv, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, const KvView& kv, View y, LatentForm form,
                              const LayerCall& call) const {
  const State& layer = *state_;
  form = layers::form_of(layer, form);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::refuse_context(kCall, call, ", but kv has its own");
  door::Inputs read;
  const kernels::AttendCall resolved = layers::resolve_latents(layer, input, kv, read);
  layers::check_positions(layer.core, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer.core, input, y, call);
  layers::check_outputs(kCall, "y", y, call, read);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  AttentionArguments arguments = layers::arguments_of(layer.core, kCall, call);
  layers::refuse_key_lengths(kCall, arguments.mask, "kv");
  const std::int64_t* const starts =
      layers::starts_in(input, resolved, call.lengths, scratch.starts);
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the view's
  arguments.q_offsets = call.offsets;
  arguments.q_start = ConstView(starts, {input.sequences});
  const LatentStep step{
      layer, input,
      layers::positions_of(layer.core, input, call.positions, starts, scratch.positions), scratch};
  const Slab q = layers::queries_of(step);
  layers::finish_latent(step, form, q, layers::held_in(step, kv, resolved, form), arguments, to);
}

}  // namespace polyhead::inline v0
