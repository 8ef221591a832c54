// The steps of latent attention, one call's: queries and latents from x, then attention over
// latents in either form and the output projection.
#pragma once

#include <optional>

#include "layers/held.hpp"
#include "layers/latent_state.hpp"

namespace polyhead::inline v0::layers {

/// What every step of one call needs.
struct LatentStep {
  const Latent& layer;
  const Input& input;
  const std::int64_t* positions;
  Scratch& scratch;

  const LatentConfig& config() const { return layer.config; }
  const Engine& engine() const { return layer.core.engine; }
  std::int64_t bytes() const { return float_bytes(layer.core.activation); }
  std::int64_t query_dim() const { return config().nope_dim + config().rope_dim; }
  std::int64_t latent_dim() const { return config().kv_rank + config().rope_dim; }
};

/// Step 1: q of every head, [q_nope, rope(q_rope)].
Slab queries_of(const LatentStep& step);

/// [norm(c), rope(r)] of every token of x: what a cache holds.
Rows latents_of(const LatentStep& step);

/// The latents that attention reads: this call's, or a cache's.
struct LatentHeld {
  Rows rows;  ///< [batch, kv_len] of kv_rank + rope_dim columns, of the activation type
  bool ragged = false;
  /// A cache's: what the absorbed form reads, of any type and without `rows`; in the expanded form
  /// the table and lengths of what is made of `rows`.
  std::optional<KvView> view{};
};

/// Those of this call as keys of one head, [batch, tokens, 1, columns] or ragged.
ConstView latent_keys(const LatentHeld& held, std::int64_t columns);

/// What attention reads of a cache in a form.
LatentHeld held_in(const KvCache& cache, LatentForm form);
/// Of a resolved view.
LatentHeld held_in(const LatentStep& step, const KvView& kv, const kernels::AttendCall& resolved,
                   LatentForm form);

/// Checks what attention would refuse of a call before a cache is changed: everything of
/// `arguments` but what it reads, with sequences as long as they will be.
void foresee_latent(const LatentStep& step, const Slab& q, AttentionArguments arguments,
                    const std::int64_t* ends);

/// Steps 3 to 5.
void finish_latent(const LatentStep& step, LatentForm form, const Slab& q, const LatentHeld& held,
                   AttentionArguments& arguments, const Rows& y);

}  // namespace polyhead::inline v0::layers
