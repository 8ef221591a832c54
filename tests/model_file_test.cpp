// GGUF files of models: their configuration and tensors by canonical names, or a refusal with the
// reason.
#include "models/model_file.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using formats::FileError;
using models::Architecture;
using models::ExpectedTensor;
using models::ModelConfig;
using models::ModelFile;
using test::GgufBuilder;
using test::raw;
using test::refusal;
using test::ScratchDirectory;
using test::tiny_gguf;

constexpr Architecture kArchitectures[] = {Architecture::llama, Architecture::gemma3,
                                           Architecture::qwen2, Architecture::qwen3,
                                           Architecture::gpt2,  Architecture::bert};

ModelFile open(const ScratchDirectory& folder, const GgufBuilder& file) {
  return ModelFile(folder.write("m.gguf", file.build()));
}

std::string refusal(const GgufBuilder& file) {
  const ScratchDirectory folder;
  return refusal(folder, folder.write("m.gguf", file.build()));
}

TEST(ModelFile, ReadsEveryArchitectureFromGguf) {
  for (const Architecture architecture : kArchitectures) {
    const ScratchDirectory folder;
    const ModelFile file = open(folder, tiny_gguf(architecture));
    const ModelConfig& config = file.config();
    const ModelConfig expected = test::tiny_config(architecture);
    SCOPED_TRACE(architecture_name(architecture));
    EXPECT_EQ(config.architecture, architecture);
    EXPECT_EQ(config.name, "tiny");
    EXPECT_EQ(config.model_dim, 8);
    EXPECT_EQ(config.ffn_dim, 12);
    EXPECT_EQ(config.vocab_size, 6);
    EXPECT_EQ(config.context_length, 32);
    EXPECT_EQ(config.norm, expected.norm);
    EXPECT_FLOAT_EQ(config.norm_eps, 1e-6f);
    EXPECT_FALSE(config.norm_plus_one) << "GGUF has the 1 in its weights";
    EXPECT_EQ(config.gated_ffn, expected.gated_ffn);
    EXPECT_EQ(config.qk_norm, expected.qk_norm);
    EXPECT_EQ(config.causal, architecture != Architecture::bert);
    EXPECT_EQ(config.token_types, expected.token_types);
    ASSERT_EQ(config.layers.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(config.layers[i].q_heads, 4);
      EXPECT_EQ(config.layers[i].kv_heads, expected.layers[i].kv_heads);
      EXPECT_EQ(config.layers[i].head_dim, expected.layers[i].head_dim);
      EXPECT_EQ(config.layers[i].value_dim, expected.layers[i].value_dim);
      EXPECT_EQ(config.layers[i].rope.has_value(), config.norm == models::Norm::rms);
    }
    EXPECT_FLOAT_EQ(config.attention_scale,
                    1.0f / std::sqrt(static_cast<float>(expected.layers[0].head_dim)));
    EXPECT_EQ(file.weight_format(), "F32");
    EXPECT_TRUE(file.has("blk.1.ffn_down.weight"));
    EXPECT_FALSE(file.has("blk.2.ffn_down.weight"));
    EXPECT_EQ(file.tensor("blk.1.ffn_down.weight").shape, (std::vector<std::int64_t>{8, 12}));
    EXPECT_THROW(file.tensor("blk.2.ffn_down.weight"), FileError);
  }
}

TEST(ModelFile, GgufPairsRotationsByArchitecture) {
  const ScratchDirectory folder;
  const ModelFile llama = open(folder, tiny_gguf(Architecture::llama));
  EXPECT_EQ(llama.config().layers[0].rope->pairing, RopePairing::interleaved);
  EXPECT_EQ(llama.config().layers[0].rope->base, 5e5);
  for (const Architecture other :
       {Architecture::gemma3, Architecture::qwen2, Architecture::qwen3}) {
    const ModelFile file = open(folder, tiny_gguf(other));
    EXPECT_EQ(file.config().layers[0].rope->pairing, RopePairing::half_split);
  }
}

TEST(ModelFile, GgufGemmaAlternatesWindowsAndBases) {
  const ScratchDirectory folder;
  GgufBuilder every_second = tiny_gguf(Architecture::gemma3);
  every_second.set("gemma3.attention.sliding_window_pattern", 2u);
  every_second.set("gemma3.rope.scaling.type", std::string("linear"));
  every_second.set("gemma3.rope.scaling.factor", 8.0f);
  const ModelFile file = open(folder, every_second);
  const auto& layers = file.config().layers;
  EXPECT_EQ(layers[0].window, 16);
  EXPECT_EQ(layers[0].rope->base, 10000.0);
  EXPECT_EQ(layers[0].rope->scaling, RopeScaling::none);
  EXPECT_EQ(layers[1].window, 0);
  EXPECT_EQ(layers[1].rope->base, 5e5);
  EXPECT_EQ(layers[1].rope->scaling, RopeScaling::linear);
  EXPECT_EQ(layers[1].rope->factor, 8.0);
  EXPECT_FLOAT_EQ(file.config().embedding_scale, std::sqrt(8.0f));

  GgufBuilder listed = tiny_gguf(Architecture::gemma3);
  listed.list("gemma3.attention.sliding_window_pattern", GgufBuilder::boolean, 2,
              std::string("\0\1", 2));
  EXPECT_EQ(open(folder, listed).config().layers[0].window, 0);
  EXPECT_EQ(open(folder, listed).config().layers[1].window, 16);
}

// No layer is local then, so all have the base and the scaling of global ones, as in llama.cpp.
TEST(ModelFile, GgufGemmaWithoutAWindowIsGlobal) {
  const std::string window = "gemma3.attention.sliding_window", pattern = window + "_pattern";
  GgufBuilder plain = tiny_gguf(Architecture::gemma3);
  plain.remove(window);
  plain.set("gemma3.rope.scaling.type", std::string("linear"));
  plain.set("gemma3.rope.scaling.factor", 8.0f);
  GgufBuilder none = plain, every_second = plain, listed = plain;
  none.set(window, 0u);
  every_second.set(pattern, 2u);
  listed.list(pattern, GgufBuilder::boolean, 2, std::string("\1\0", 2));
  for (const GgufBuilder& file : {plain, none, every_second, listed}) {
    const ScratchDirectory folder;
    const ModelFile model = open(folder, file);
    for (const models::LayerGeometry& layer : model.config().layers) {
      EXPECT_EQ(layer.window, 0);
      EXPECT_EQ(layer.rope->base, 5e5);
      EXPECT_EQ(layer.rope->scaling, RopeScaling::linear);
    }
  }
}

TEST(ModelFile, GgufIsReadTheWayItsArchitectureLooks) {
  const ScratchDirectory folder;
  for (const Architecture a : {Architecture::llama, Architecture::bert}) {
    const bool causal = a == Architecture::llama;
    const std::string key = std::string(models::architecture_name(a)) + ".attention.causal";
    GgufBuilder said = tiny_gguf(a);
    said.set(key, causal);
    EXPECT_EQ(open(folder, said).config().causal, causal);
    GgufBuilder other = tiny_gguf(a);
    other.set(key, !causal);
    EXPECT_EQ(refusal(other), "m.gguf: metadata '" + key + "' is " + (causal ? "false" : "true") +
                                  " (expected " + (causal ? "true" : "false") + " of " +
                                  models::architecture_name(a) + ")");
  }
  GgufBuilder without = tiny_gguf(Architecture::llama);
  without.remove("llama.attention.layer_norm_rms_epsilon");
  EXPECT_EQ(refusal(without), "m.gguf: has no metadata 'llama.attention.layer_norm_rms_epsilon'");
}

TEST(ModelFile, GgufRotationsAreDividedByRopeFreqs) {
  const ScratchDirectory folder;
  GgufBuilder with = tiny_gguf(Architecture::llama);
  with.tensor("rope_freqs.weight", 0, {2}, raw(1.0f) + raw(8.0f));
  const ModelFile file = open(folder, with);
  EXPECT_EQ(file.config().layers[1].rope->frequency_divisors, (std::vector<float>{1.0f, 8.0f}));
  EXPECT_FALSE(file.has("rope_freqs.weight")) << "part of the configuration";
  GgufBuilder wrong = tiny_gguf(Architecture::llama);
  wrong.tensor("rope_freqs.weight", 0, {3}, std::string(12, '\1'));
  EXPECT_EQ(refusal(wrong),
            "m.gguf: rotary embedding of layer 0: rope_frequencies: rope.frequency_divisors has 3 "
            "elements (expected 2, one a pair)");
}

TEST(ModelFile, GgufYarnHasItsRampAndNothingThatIsNotRead) {
  const ScratchDirectory folder;
  const auto yarn = [](const std::string& key, float value) {
    GgufBuilder file = tiny_gguf(Architecture::qwen2);
    file.set("qwen2.rope.scaling.type", std::string("yarn"));
    file.set("qwen2.rope.scaling.factor", 4.0f);
    return file.set("qwen2.rope.scaling.yarn_" + key, value);
  };
  EXPECT_EQ(open(folder, yarn("beta_fast", 8.0f)).config().layers[0].rope->beta_fast, 8.0);
  EXPECT_EQ(open(folder, yarn("beta_slow", 2.0f)).config().layers[0].rope->beta_slow, 2.0);
  for (const auto& [key, usual, expected] :
       {std::tuple{"attn_factor", 1.0f, "1 or none"}, std::tuple{"ext_factor", 1.0f, "1 of yarn"},
        std::tuple{"log_multiplier", 0.0f, "none"}}) {
    EXPECT_EQ(refusal(yarn(key, usual)), "accepted");
    EXPECT_EQ(refusal(yarn(key, 0.5f)), std::string("m.gguf: metadata 'qwen2.rope.scaling.yarn_") +
                                            key + "' is 0.5 (expected " + expected + ")");
  }
  EXPECT_EQ(refusal(yarn("ext_factor", -1.0f)), "accepted") << "llama.cpp's word for not given";
}

TEST(ModelFile, GgufSoftCapsAreOfGemma) {
  for (const std::string name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    GgufBuilder llama = tiny_gguf(Architecture::llama);
    llama.set("llama." + name, 30.0f);
    EXPECT_EQ(refusal(llama), "m.gguf: metadata 'llama." + name +
                                  "' is 30 (expected none of a "
                                  "llama)");
    GgufBuilder gemma = tiny_gguf(Architecture::gemma3);
    EXPECT_EQ(refusal(gemma.set("gemma3." + name, 30.0f)), "accepted");
  }
}

TEST(ModelFile, TheOutputIsTiedWhereItIsNotThere) {
  const ScratchDirectory folder;
  EXPECT_TRUE(open(folder, tiny_gguf(Architecture::llama)).config().tied_output);
  GgufBuilder untied = tiny_gguf(Architecture::llama);
  untied.tensor("output.weight", 1, {6, 8}, std::string(96, '\0'));
  EXPECT_FALSE(open(folder, untied).config().tied_output);
  untied = tiny_gguf(Architecture::llama);
  untied.tensor("output.weight", 1, {7, 8}, std::string(112, '\0'));
  EXPECT_EQ(refusal(untied), "m.gguf: tensor 'output.weight' has shape [7, 8] (expected [6, 8])");
}

TEST(ModelFile, RefusesTensorsThatDoNotFit) {
  const auto with = [](const std::string& name, const std::vector<std::int64_t>& shape) {
    return refusal(tiny_gguf(Architecture::llama, [&](ExpectedTensor& tensor) {
      if (tensor.name == name) tensor.shape = shape;
    }));
  };
  EXPECT_EQ(with("blk.1.attn_q.weight", {}),
            "m.gguf: has no tensor 'blk.1.attn_q.weight', which a llama model needs");
  EXPECT_EQ(with("blk.1.attn_q.weight", {8, 16}),
            "m.gguf: tensor 'blk.1.attn_q.weight' has shape [8, 16] (expected [16, 8])");
  EXPECT_EQ(with("blk.0.attn_norm.weight", {8, 1}),
            "m.gguf: tensor 'blk.0.attn_norm.weight' has shape [8, 1] (expected [8])");
  EXPECT_EQ(with("token_embd.weight", {48}), "m.gguf: has no matrix 'token_embd.weight'");
  GgufBuilder more = tiny_gguf(Architecture::llama);
  more.tensor("blk.0.ffn_gate_inp.weight", 0, {1, 8}, std::string(32, '\0'));
  EXPECT_EQ(refusal(more),
            "m.gguf: has a tensor 'blk.0.ffn_gate_inp.weight', which a llama model as supported "
            "here does not have");
}

TEST(ModelFile, RefusesConfigurationsThatCannotBe) {
  const auto with = [](Architecture architecture, const std::string& key, std::uint32_t value) {
    // The first of two values for a key is a lie of its own, so the tiny file's is taken out.
    GgufBuilder file = tiny_gguf(architecture);
    file.replace(std::string(architecture_name(architecture)) + "." + key, value);
    return refusal(file);
  };
  EXPECT_EQ(with(Architecture::llama, "block_count", 0),
            "m.gguf: metadata 'llama.block_count' is 0 (expected 1 to 4096)");
  EXPECT_EQ(with(Architecture::llama, "block_count", ~0u),
            "m.gguf: metadata 'llama.block_count' is 4294967295 (expected 1 to 4096)");
  EXPECT_EQ(with(Architecture::llama, "block_count", 4096),
            "m.gguf: has no tensor 'blk.2.attn_norm.weight', which a llama model needs");
  EXPECT_EQ(with(Architecture::llama, "attention.head_count_kv", 3),
            "m.gguf: q_heads (4) of layer 0 is not a multiple of kv_heads (3)");
  EXPECT_EQ(with(Architecture::llama, "attention.head_count", 0),
            "m.gguf: q_heads of layer 0 is 0 (expected 1 to 2796202)");
  EXPECT_EQ(with(Architecture::gpt2, "attention.head_count", ~0u),
            "m.gguf: head_dim of layer 0 is 0 (expected 1 to 768)");
  EXPECT_EQ(with(Architecture::llama, "attention.key_length", 5),
            "m.gguf: rotary embedding of layer 0: rope_frequencies: rope.rotary_dims (5) is not an "
            "even number from 0 to head_dim (5)");
  EXPECT_EQ(with(Architecture::llama, "attention.key_length", 1u << 31),
            "m.gguf: head_dim of layer 0 is 2147483648 (expected 1 to 768)");
  EXPECT_EQ(with(Architecture::llama, "embedding_length", 0),
            "m.gguf: model_dim is 0 (expected 1 to 2147483648)");
  EXPECT_EQ(with(Architecture::bert, "pooling_type", 3),
            "m.gguf: metadata 'bert.pooling_type' is 3 (expected 0 none, 1 mean or 2 first)");
  EXPECT_EQ(with(Architecture::llama, "expert_count", 8),
            "m.gguf: is a mixture of experts, which is not supported");
  EXPECT_EQ(refusal(GgufBuilder().set("general.architecture", std::string("mamba"))),
            "m.gguf: has architecture 'mamba' (expected one of llama, gemma3, qwen2, qwen3, gpt2, "
            "bert)");
  EXPECT_EQ(refusal(GgufBuilder()), "m.gguf: has no metadata 'general.architecture'");
}

TEST(ModelFile, RefusesPartsOfASplitModel) {
  GgufBuilder file = tiny_gguf(Architecture::llama);
  file.value("split.count", GgufBuilder::u16, raw<std::uint16_t>(3));
  EXPECT_EQ(refusal(file),
            "m.gguf: is one of the 3 parts of a split model (join them with llama.cpp's "
            "gguf-split)");
}

TEST(ModelFile, FilesBesideWeightsAreNoModel) {
  for (const char* name : {"config.json", "model.safetensors.index.json"}) {
    const ScratchDirectory folder;
    EXPECT_EQ(refusal(folder, folder.write(name, "{}")),
              std::string(name) +
                  ": holds no weights (expected the folder that it is in, a "
                  ".safetensors file or a GGUF file)");
  }
}

TEST(ModelFile, NormsAreNotQuantised) {
  GgufBuilder file = tiny_gguf(Architecture::llama, [](ExpectedTensor& tensor) {
    if (tensor.name == "output_norm.weight") tensor.shape.clear();
  });
  file.tensor("output_norm.weight", 8, {32}, std::string(34, '\0'));
  EXPECT_EQ(refusal(file), "m.gguf: tensor 'output_norm.weight' has shape [32] (expected [8])");
}

TEST(ModelFile, AFingerprintTellsHeadersApart) {
  const ScratchDirectory folder;
  const std::uint64_t llama = open(folder, tiny_gguf(Architecture::llama)).fingerprint();
  EXPECT_EQ(open(folder, tiny_gguf(Architecture::llama)).fingerprint(), llama);
  EXPECT_NE(open(folder, tiny_gguf(Architecture::qwen3)).fingerprint(), llama);
}

}  // namespace
}  // namespace polyhead
