// Tensor names of Hugging Face checkpoints.
#include <algorithm>
#include <array>
#include <span>

#include "models/read_config.hpp"

namespace polyhead::inline v0::models {
namespace {

struct Name {
  std::string_view theirs, ours;
  bool transposed = false;
};

// Without ".weight" or ".bias", which stay.

constexpr std::array<Name, 3> kDecoder{
    {{"embed_tokens", "token_embd"}, {"norm", "output_norm"}, {"lm_head", "output"}}};
constexpr std::array<Name, 11> kDecoderLayer{{{"input_layernorm", "attn_norm"},
                                              {"self_attn.q_proj", "attn_q"},
                                              {"self_attn.k_proj", "attn_k"},
                                              {"self_attn.v_proj", "attn_v"},
                                              {"self_attn.o_proj", "attn_output"},
                                              {"self_attn.q_norm", "attn_q_norm"},
                                              {"self_attn.k_norm", "attn_k_norm"},
                                              {"post_attention_layernorm", "ffn_norm"},
                                              {"mlp.gate_proj", "ffn_gate"},
                                              {"mlp.up_proj", "ffn_up"},
                                              {"mlp.down_proj", "ffn_down"}}};
constexpr std::array<Name, 3> kGemmaLayer{{{"post_attention_layernorm", "post_attention_norm"},
                                           {"pre_feedforward_layernorm", "ffn_norm"},
                                           {"post_feedforward_layernorm", "post_ffw_norm"}}};
constexpr std::array<Name, 4> kGpt2{{{"wte", "token_embd"},
                                     {"wpe", "position_embd"},
                                     {"ln_f", "output_norm"},
                                     {"lm_head", "output"}}};
constexpr std::array<Name, 6> kGpt2Layer{{{"ln_1", "attn_norm"},
                                          {"attn.c_attn", "attn_qkv", true},
                                          {"attn.c_proj", "attn_output", true},
                                          {"ln_2", "ffn_norm"},
                                          {"mlp.c_fc", "ffn_up", true},
                                          {"mlp.c_proj", "ffn_down", true}}};
constexpr std::array<Name, 4> kBert{{{"embeddings.word_embeddings", "token_embd"},
                                     {"embeddings.position_embeddings", "position_embd"},
                                     {"embeddings.token_type_embeddings", "token_types"},
                                     {"embeddings.LayerNorm", "token_embd_norm"}}};
constexpr std::array<Name, 8> kBertLayer{{{"attention.self.query", "attn_q"},
                                          {"attention.self.key", "attn_k"},
                                          {"attention.self.value", "attn_v"},
                                          {"attention.output.dense", "attn_output"},
                                          {"attention.output.LayerNorm", "attn_output_norm"},
                                          {"intermediate.dense", "ffn_up"},
                                          {"output.dense", "ffn_down"},
                                          {"output.LayerNorm", "layer_output_norm"}}};

bool drop_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

/// "12." off the front; its digits.
std::optional<std::string_view> drop_number(std::string_view& name) {
  const std::size_t dot = name.find('.');
  if (dot == 0 || dot == std::string_view::npos ||
      name.substr(0, dot).find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(0, dot);
  name.remove_prefix(dot + 1);
  return digits;
}

/// "gamma" and "beta" are what old BERT checkpoints call a norm's weight and bias.
std::optional<CanonicalName> look_up(std::span<const Name> names, std::string_view name,
                                     const std::string& prefix) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view stem = name.substr(0, dot);
  std::string_view part = name.substr(dot + 1);
  if (part == "gamma") part = "weight";
  if (part == "beta") part = "bias";
  if (part != "weight" && part != "bias") return std::nullopt;
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const Name& known) { return known.theirs == stem; });
  if (found == names.end()) return std::nullopt;
  std::string ours = prefix;
  ours.append(found->ours).append(".").append(part);
  return CanonicalName{std::move(ours), found->transposed && part == "weight"};
}

std::optional<CanonicalName> in_layer(std::span<const Name> names, std::span<const Name> before,
                                      std::string_view name) {
  const auto number = drop_number(name);
  if (!number) return std::nullopt;
  const std::string prefix = "blk." + std::string(*number) + ".";
  const auto found = look_up(before, name, prefix);
  return found ? found : look_up(names, name, prefix);
}

std::optional<CanonicalName> decoder_name(std::string_view name, bool gemma) {
  if (name.find("vision_tower.") != std::string_view::npos ||
      name.find("multi_modal_projector.") != std::string_view::npos ||
      name.ends_with(".rotary_emb.inv_freq")) {
    return CanonicalName{};
  }
  for (const auto prefix : {"language_model.", "model.", "language_model."}) {
    drop_prefix(name, prefix);
  }
  if (!drop_prefix(name, "layers.")) return look_up(kDecoder, name, "");
  return in_layer(kDecoderLayer,
                  gemma ? std::span<const Name>(kGemmaLayer) : std::span<const Name>(), name);
}

std::optional<CanonicalName> gpt2_name(std::string_view name) {
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return CanonicalName{};
  drop_prefix(name, "transformer.");
  return drop_prefix(name, "h.") ? in_layer(kGpt2Layer, {}, name) : look_up(kGpt2, name, "");
}

std::optional<CanonicalName> bert_name(std::string_view name) {
  drop_prefix(name, "bert.");
  if (name == "embeddings.position_ids" || name.starts_with("pooler.") ||
      name.starts_with("cls.")) {
    return CanonicalName{};
  }
  return drop_prefix(name, "encoder.layer.") ? in_layer(kBertLayer, {}, name)
                                             : look_up(kBert, name, "");
}

}  // namespace

std::optional<CanonicalName> canonical_name(Architecture architecture, std::string_view name) {
  if (architecture == Architecture::gpt2) return gpt2_name(name);
  if (architecture == Architecture::bert) return bert_name(name);
  return decoder_name(name, architecture == Architecture::gemma3);
}

}  // namespace polyhead::inline v0::models
