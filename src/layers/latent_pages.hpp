// The latents of a cache's view as rows, for the form that makes keys and values of them.
#pragma once

#include "kernels/contract.hpp"
#include "layers/layer_state.hpp"

namespace polyhead::inline v0::layers {

/// Rows of latents, and how a view of what is made of them finds a sequence's.
struct LatentPages {
  Rows rows;               ///< [pages, page_tokens], or [batch, tokens] of a view without pages
  ConstView page_table{};  ///< over these pages
};

/// Tokens of sequence `b` of a resolved view.
inline std::int64_t tokens_held(const kernels::AttendCall& held, std::int64_t b) {
  return held.kv_lengths.given() ? held.kv_lengths[b] : held.kv_len;
}

/// Copies what `held`, a resolved view of one KV head and a floating type, holds of its sequences:
/// each page once, whoever shares it. Rows past a page's last token are zeros, never read.
LatentPages gather_latents(const Engine& engine, const kernels::AttendCall& held, Scratch& scratch);

}  // namespace polyhead::inline v0::layers
