// BERT: layer norms after each part, on the residual stream itself; positions, token types and a
// norm in the embedding; every token sees every other of its text. Source: Devlin et al. 2018.
#include "models/architecture.hpp"

namespace polyhead::inline v0::models {
namespace {

Block load(const Loader& from, std::int64_t layer) {
  Block block;
  block.attention = from.attention(layer);
  block.post_attention_norm = from.norm(block_name(layer, "attn_output_norm"));
  block.feed_forward = from.feed_forward(layer);
  block.post_feed_forward_norm = from.norm(block_name(layer, "layer_output_norm"));
  return block;
}

/// x = norm(x + attention(x)); x = norm(x + feed_forward(x)). The step before left x in the input.
void run(const Block& block, std::int64_t layer, Pass& pass) {
  pass.attend(block, layer);
  pass.add_result();
  pass.normalise_residual(block.post_attention_norm);
  pass.feed_forward(block.feed_forward);
  pass.add_result();
  pass.normalise_residual(block.post_feed_forward_norm);
}

}  // namespace

const Rules kBert{load, run};

}  // namespace polyhead::inline v0::models
