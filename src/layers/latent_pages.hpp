// The latents of a cache's view as rows, for the form that makes keys and values of them.
#pragma once

#include "kernels/contract.hpp"
#include "layers/held.hpp"

namespace polyhead::inline v0::layers {

/// Rows of latents, and how a view of what is made of them finds a sequence's.
struct LatentPages {
  Rows rows;               ///< [pages, page_tokens], or [batch, tokens] of a view without pages
  ConstView page_table{};  ///< over these pages
};

/// What `held`, a resolved view of one KV head, holds of its sequences, as rows of `type`: each
/// page once, whoever shares it. Rows past a page's last token are zeros, never read.
LatentPages gather_latents(const Engine& engine, const kernels::AttendCall& held, ElementType type,
                           Scratch& scratch);

}  // namespace polyhead::inline v0::layers
