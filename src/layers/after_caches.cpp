// Self attention after caches: contiguous, in pages, in rings.
#include "base/refuse.hpp"
#include "layers/finish.hpp"
#include "layers/held.hpp"
#include "layers/held_pages.hpp"
#include "layers/in_cache.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Columns;
using layers::Growth;
using layers::Held;
using layers::Input;
using layers::Layer;
using layers::Rows;
using layers::Scratch;
using layers::Slab;

constexpr const char* kCall = "MultiHeadAttention::forward";

/// A call after a cache, checked before the cache is touched: what attention reads but for kv, and
/// what the cache is to get.
struct Ready {
  AttentionArguments arguments;
  ConstView k, v;
  Slab slab;
  Rows heads;
};

/// Steps 1 and 2.
Ready ready(const Layer& layer, const Input& input, const LayerCall& call, const Held& held,
            const Growth& growth, const Rows& y, Scratch& scratch,
            Columns columns = Columns::packed) {
  Ready to;
  AttentionArguments& arguments = to.arguments;
  arguments = layers::arguments_after_cache(layer, input, call, held, growth, scratch.apart);
  const std::int64_t* const positions =
      layers::positions_of(layer, input, call.positions, growth.starts, scratch.positions);
  to.slab = layers::project(layer, input.rows, columns, positions, scratch);
  layers::place_q(layer, to.slab, input, arguments);
  layers::place_kv(layer, to.slab, input, arguments);
  to.k = std::exchange(arguments.k, {});
  to.v = std::exchange(arguments.v, {});
  to.heads = layers::open_heads(layer, input, arguments, y, scratch);
  layers::foresee(layer, input, arguments, growth.ends);
  return to;
}

/// Steps 3 to 5 over what the cache now shows.
void finish(const Layer& layer, const Input& input, Ready& call, const KvView& kv, const Rows& y,
            Scratch& scratch) {
  call.arguments.kv = kv;
  layers::attend(layer, {kCall, "y"}, call.arguments, scratch);
  layers::close_heads(layer, input, call.heads, y, scratch);
}

}  // namespace

void MultiHeadAttention::forward(ConstView x, KvCache& cache, View y, const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  const Input input = layers::input_of(layer, kCall, x, call);
  layers::check_batch_held(input, cache, layers::held_sizes(layer));
  const Rows to = layers::check_after_cache(layer, input, x, y, call, layers::room_of(cache));
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  const Growth growth = layers::growth_after(input, call.lengths, scratch.starts,
                                             [&](std::int64_t b) { return cache.length(b); });
  layers::check_room(input, cache, growth);
  Ready prepared = ready(layer, input, call, layers::held_by(cache), growth, to, scratch);
  layers::Appended appended(cache, growth.starts);
  layers::append_rows(cache, call, prepared.k, prepared.v);
  finish(layer, input, prepared, cache.view(), to, scratch);
  appended.keep();
}

PagedCache::Status MultiHeadAttention::forward(ConstView x, const PagedSequences& pages, View y,
                                               const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  const Input input = layers::input_of(layer, kCall, x, call);
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  layers::check_pages(input, pages, layers::held_sizes(layer), scratch.pages);
  const Rows to = layers::check_after_cache(layer, input, x, y, call, layers::room_of(pages));
  const Growth growth = layers::growth_in(input, pages, call.lengths, scratch.starts);
  Ready prepared = ready(layer, input, call, {}, growth, to, scratch);
  layers::PagedRows rows(input, pages, growth, scratch);
  const PagedCache::Status status = rows.make_room();
  if (status != PagedCache::Status::ok) return status;
  rows.write(prepared.k, prepared.v);
  finish(layer, input, prepared, pages.cache->view(pages.layer, rows.batch()), to, scratch);
  rows.keep();
  return PagedCache::Status::ok;
}

void MultiHeadAttention::forward(ConstView x, SlidingCache& cache, View y,
                                 const LayerCall& call) const {
  forward(x, cache, y, SlidingPositions::original, call);
}

namespace {

/// Positions in the cache go with no mask but the cache's: `mask` is the layer's and the call's.
void check_in_cache_mask(const Mask& mask, const SlidingCacheConfig& c) {
  if (mask.conflict != nullptr)
    base::refuse(kCall, "mask joins two masks of one kind that differ: ", mask.conflict);
  const char* const other = mask.prefix_length != 0 || mask.prefix_lengths.given()  ? "prefix"
                            : mask.q_documents.given() || mask.kv_documents.given() ? "documents"
                            : mask.visible.given() || mask.also_visible.given()     ? "visible"
                            : mask.hidden.given() || mask.also_hidden.given()       ? "hidden"
                                                                                    : nullptr;
  if (other != nullptr) {
    base::refuse(kCall, "mask has ", other,
                 ", expected causality and the cache's window alone with positions in the cache");
  }
  if (!mask.windowed) return;
  if (mask.left != c.window - 1 || mask.right > 0 || mask.first_tokens != c.first_tokens) {
    base::refuse(kCall, "mask has a window of (", mask.left, ", ", mask.right, ") and ",
                 mask.first_tokens, " first tokens, expected the cache's (", c.window - 1,
                 ", 0) and ", c.first_tokens, " with positions in the cache");
  }
}

void check_in_cache_call(const Layer& layer, const LayerCall& call, const SlidingCacheConfig& c) {
  if (call.positions.given())
    base::refuse(kCall, "positions are given, but they are those in the cache");
  const RowStatistics& rows = call.statistics;
  if (rows.entropy.given() || rows.max_weight.given() || rows.max_key.given())
    base::refuse(kCall, "statistics are given, expected none with positions in the cache");
  const AttentionArguments arguments = layers::arguments_of(layer, kCall, call);
  if (arguments.mask.q_lengths.given()) {
    base::refuse(kCall,
                 "mask.q_lengths are given, expected the call's lengths with positions in the "
                 "cache");
  }
  layers::check_in_cache_modifiers(kCall, arguments.modifiers);
  check_in_cache_mask(arguments.mask, c);
}

/// q before it was rounded, if it was: it is rounded when it has been turned.
ConstView still_q(const Layer& layer, const Input& input, const Ready& call) {
  const Slab& slab = call.slab;
  if (slab.wide == nullptr) return call.arguments.q;
  return layers::heads_view(slab.wide, ElementType::float32, input.rows, slab.wide_pitch,
                            layer.config.q_heads, layer.config.head_dim, input.ragged);
}

void finish_in_cache(const Layer& layer, const Input& input, const Ready& call,
                     const SlidingCache& cache, const Rows& y, Scratch& scratch) {
  const layers::Engine& engine = layer.engine;
  const AttentionArguments& arguments = call.arguments;
  const layers::InCache attention({.name = kCall,
                                   .cache = cache,
                                   .q = still_q(layer, input, call),
                                   .type = layer.activation,
                                   .out = arguments.out,
                                   .lse = arguments.lse,
                                   .modifiers = arguments.modifiers,
                                   .turned = layer.rotation.has_value(),
                                   .counts = arguments.mask.q_lengths,
                                   .offsets = arguments.q_offsets});
  attention.run(
      layer.rotation ? &*layer.rotation : nullptr, scratch.in_cache,
      [&](const AttentionArguments& part) { layers::attend(layer, kCall, part, scratch); },
      engine.crew);
  layers::close_heads(layer, input, call.heads, y, scratch);
}

}  // namespace

void MultiHeadAttention::forward(ConstView x, SlidingCache& cache, View y,
                                 SlidingPositions positions, const LayerCall& call) const {
  const Layer& layer = *state_;
  layers::require_self(layer, kCall, call);
  if (positions != SlidingPositions::original && positions != SlidingPositions::in_cache)
    base::refuse(kCall, "positions (", static_cast<int>(positions),
                 ") is not original or in_cache");
  const bool in_cache = positions == SlidingPositions::in_cache;
  const Input input = layers::input_of(layer, kCall, x, call);
  layers::check_batch_held(input, cache, layers::held_sizes(layer));
  layers::check_chunk(input, cache, call.lengths);
  const Rows to = layers::check_after_cache(layer, input, x, y, call, layers::room_of(cache));
  if (in_cache) check_in_cache_call(layer, call, cache.config());
  layers::CallScratch room(call.workspace);
  Scratch& scratch = room.scratch;
  const Growth growth = layers::growth_after(input, call.lengths, scratch.starts,
                                             [&](std::int64_t b) { return cache.length(b); });
  Ready prepared = ready(layer, input, call, layers::held_by(cache), growth, to, scratch,
                         in_cache ? Columns::packed_still : Columns::packed);
  layers::Appended appended(cache, growth.starts);
  layers::append_rows(cache, call, prepared.k, prepared.v);
  if (in_cache) {
    finish_in_cache(layer, input, prepared, cache, to, scratch);
  } else {
    finish(layer, input, prepared, cache.view(), to, scratch);
  }
  appended.keep();
}

}  // namespace polyhead::inline v0
