// Gemma 3 (text): RMS norms before and after each part, norms on each head of q and k, window
// layers between global ones, each kind with its own RoPE base. Source: Gemma Team 2025.
#include "models/architecture.hpp"

namespace polyhead::inline v0::models {
namespace {

Block load(const Loader& from, std::int64_t layer) {
  Block block = load_pre_norm(from, layer);
  block.post_attention_norm = from.norm(block_name(layer, "post_attention_norm"));
  block.post_feed_forward_norm = from.norm(block_name(layer, "post_ffw_norm"));
  return block;
}

/// x += norm(attention(norm(x))); x += norm(feed_forward(norm(x))).
void run(const Block& block, std::int64_t layer, Pass& pass) {
  pass.normalise(block.attention_norm);
  pass.attend(block, layer);
  pass.normalise_result(block.post_attention_norm);
  pass.add_result();
  pass.normalise(block.feed_forward_norm);
  pass.feed_forward(block.feed_forward);
  pass.normalise_result(block.post_feed_forward_norm);
  pass.add_result();
}

}  // namespace

const Rules kGemma3{load, run};

}  // namespace polyhead::inline v0::models
