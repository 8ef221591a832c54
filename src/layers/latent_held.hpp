// What LatentAttention::forward asks of a cache or a view before anything is written.
#pragma once

#include "attention/validate.hpp"
#include "layers/held.hpp"
#include "layers/latent_state.hpp"

namespace polyhead::inline v0::layers {

/// The form of a call, which may leave it to the layer.
LatentForm form_of(const Latent& layer, LatentForm form);

/// What a cache holds of a token.
HeldSizes held_sizes(const Latent& layer);

/// A view of latents, as attention's door checks it and as those who make latents need it. What it
/// points to is added to `read`.
kernels::AttendCall resolve_latents(const Latent& layer, const Input& input, const KvView& kv,
                                    door::Inputs& read);

}  // namespace polyhead::inline v0::layers
