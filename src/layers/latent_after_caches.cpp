// Latent attention after caches: contiguous, in pages, in rings.
#include "layers/held_pages.hpp"
#include "layers/latent_held.hpp"
#include "layers/latent_steps.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Growth;
using layers::Held;
using layers::Input;
using layers::Latent;
using layers::LatentHeld;
using layers::LatentStep;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "LatentAttention::forward";

/// A call after a cache, checked before the cache is touched: what attention reads but for the
/// latents held, and what the cache is to get.
struct Ready {
  LatentStep step;
  AttentionArguments arguments;
  Slab q;
  ConstView latents;
};

/// Steps 1 and 2.
Ready ready(const Latent& layer, const Input& input, const LayerCall& call, const Held& held,
            const Growth& growth, Scratch& scratch) {
  const AttentionArguments arguments =
      layers::arguments_after_cache(layer.core, input, call, held, growth, scratch.apart);
  const std::int64_t* const positions =
      layers::positions_of(layer.core, input, call.positions, growth.starts, scratch.positions);
  const LatentStep step{layer, input, positions, scratch};
  const Slab q = layers::queries_of(step);
  const LatentHeld fresh{layers::latents_of(step), input.ragged};
  layers::foresee_latent(step, q, arguments, growth.ends);
  return {step, arguments, q, layers::latent_keys(fresh, step.latent_dim())};
}

/// The latents that attention reads of a cache that has them in no one array.
LatentHeld held_in(const LatentStep& step, const KvView& kv, LatentForm form) {
  door::Inputs read;
  return layers::held_in(step, kv, layers::resolve_latents(step.layer, step.input, kv, read), form);
}

// What a contiguous cache and a ring differ in.
void check_growth(const Input& input, const KvCache& cache, const LayerCall&,
                  const Growth& growth) {
  layers::check_room(input, cache, growth);
}
void check_growth(const Input& input, const SlidingCache& cache, const LayerCall& call,
                  const Growth&) {
  layers::check_chunk(input, cache, call.lengths);
}
LatentHeld held_in(const LatentStep& step, const KvCache& cache, LatentForm form) {
  if (cache.config().type != step.layer.core.activation) return held_in(step, cache.view(), form);
  return layers::held_in(cache, form);  // read where they lie
}
LatentHeld held_in(const LatentStep& step, const SlidingCache& cache, LatentForm form) {
  return held_in(step, cache.view(), form);
}

/// Self attention after a cache of one sequence for each of x.
template <class Cache>
void forward_after(const Latent& layer, const ConstView& x, Cache& cache, const View& y,
                   LatentForm form, const LayerCall& call) {
  form = layers::form_of(layer, form);
  layers::require_self(layer.core, kCall, call);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::check_batch_held(input, cache, layers::held_sizes(layer));
  const Rows to = layers::check_after_cache(layer.core, input, x, y, call, layers::room_of(cache));
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  const Growth growth = layers::growth_after(input, call.lengths, scratch.starts,
                                             [&](std::int64_t b) { return cache.length(b); });
  check_growth(input, cache, call, growth);
  Ready prepared = ready(layer, input, call, layers::held_by(cache), growth, scratch);
  layers::Appended appended(cache, growth.starts);
  layers::append_rows(cache, call, prepared.latents, {});
  layers::finish_latent(prepared.step, form, prepared.q, held_in(prepared.step, cache, form),
                        prepared.arguments, to);
  appended.keep();
}

}  // namespace

void LatentAttention::forward(ConstView x, KvCache& cache, View y, const LayerCall& call) const {
  forward(x, cache, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, KvCache& cache, View y, LatentForm form,
                              const LayerCall& call) const {
  forward_after(*state_, x, cache, y, form, call);
}

PagedCache::Status LatentAttention::forward(ConstView x, const PagedSequences& pages, View y,
                                            const LayerCall& call) const {
  return forward(x, pages, y, LatentForm::configured, call);
}

PagedCache::Status LatentAttention::forward(ConstView x, const PagedSequences& pages, View y,
                                            LatentForm form, const LayerCall& call) const {
  const Latent& layer = *state_;
  form = layers::form_of(layer, form);
  layers::require_self(layer.core, kCall, call);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  layers::check_pages(input, pages, layers::held_sizes(layer), scratch.pages);
  const Rows to = layers::check_after_cache(layer.core, input, x, y, call, layers::room_of(pages));
  const Growth growth = layers::growth_in(input, pages, call.lengths, scratch.starts);
  Ready prepared = ready(layer, input, call, {}, growth, scratch);
  layers::PagedRows rows(input, pages, growth, scratch);
  const PagedCache::Status status = rows.make_room();
  if (status != PagedCache::Status::ok) return status;
  rows.write(prepared.latents, {});
  const KvView kv = pages.cache->view(pages.layer, rows.batch());
  layers::finish_latent(prepared.step, form, prepared.q, held_in(prepared.step, kv, form),
                        prepared.arguments, to);
  rows.keep();
  return PagedCache::Status::ok;
}

void LatentAttention::forward(ConstView x, SlidingCache& cache, View y,
                              const LayerCall& call) const {
  forward(x, cache, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, SlidingCache& cache, View y, LatentForm form,
                              const LayerCall& call) const {
  forward_after(*state_, x, cache, y, form, call);
}

}  // namespace polyhead::inline v0
