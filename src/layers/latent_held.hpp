// What LatentAttention::forward asks of a cache or a view before anything is written.
#pragma once

#include "attention/validate.hpp"
#include "layers/calls.hpp"
#include "layers/latent_state.hpp"

namespace polyhead::inline v0::layers {

/// The form of a call, which may leave it to the layer.
LatentForm form_of(const Latent& layer, LatentForm form);

void check_cache(const Latent& layer, const Input& input, const KvCache& cache, LatentForm form);

/// A view of latents, as attention's door checks it and as those who make latents need it. What it
/// points to is added to `read`.
kernels::AttendCall resolve_latents(const Latent& layer, const Input& input, const KvView& kv,
                                    LatentForm form, door::Inputs& read);

/// No output of a call touches what it reads of a view, in either form.
void check_outputs(const View& y, const LayerCall& call, const door::Inputs& read);

/// Where the tokens of x begin in each sequence of a view: they are its last ones.
const std::int64_t* starts_in(const Input& input, const kernels::AttendCall& held,
                              const ConstView& lengths, Buffer& memory);

}  // namespace polyhead::inline v0::layers
