#include "models/architecture.hpp"

namespace polyhead::inline v0::models {

const Rules& rules_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::gemma3:
      return kGemma3;
    case Architecture::qwen2:
    case Architecture::qwen3:
      return kQwen;
    case Architecture::gpt2:
      return kGpt2;
    case Architecture::bert:
      return kBert;
    default:
      return kLlama;
  }
}

Block load_pre_norm(const Loader& from, std::int64_t layer) {
  Block block;
  block.attention_norm = from.norm(block_name(layer, "attn_norm"));
  block.attention = from.attention(layer);
  block.feed_forward_norm = from.norm(block_name(layer, "ffn_norm"));
  block.feed_forward = from.feed_forward(layer);
  return block;
}

void run_pre_norm(const Block& block, std::int64_t layer, Pass& pass) {
  pass.normalise(block.attention_norm);
  pass.attend(block, layer);
  pass.add_result();
  pass.normalise(block.feed_forward_norm);
  pass.feed_forward(block.feed_forward);
  pass.add_result();
}

}  // namespace polyhead::inline v0::models
