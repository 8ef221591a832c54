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

/// Throws unless a form can read elements of what messages call `what`.
void check_held_type(const Latent& layer, const char* what, ElementType type, LatentForm form);

/// A view of latents, as attention's door checks it and as those who make latents need it. What it
/// points to is added to `read`.
kernels::AttendCall resolve_latents(const Latent& layer, const Input& input, const KvView& kv,
                                    LatentForm form, door::Inputs& read);

}  // namespace polyhead::inline v0::layers
