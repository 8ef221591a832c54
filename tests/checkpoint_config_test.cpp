// Configurations of Hugging Face checkpoints that say two things, or what versions of Transformers
// read in two ways: one meaning, or a refusal that names the fields.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/model_file.hpp"
#include "models/read_config.hpp"
#include "support/refusal.h"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using models::ModelConfig;
using models::ModelFile;
using test::llama_config;
using test::llama_tensors;
using test::StoredTensor;
using Folder = test::CheckpointFolder;

ModelConfig config_of(const std::string& more, const std::string& type = "llama") {
  return models::config_from_json("c.json", llama_config(more, type));
}

RopeConfig rope_of(const std::string& more, const std::string& type = "llama") {
  return config_of(more, type).layers.back().rope.value();
}

std::string refused(const std::string& more, const std::string& type = "llama") {
  return test::refusal_of<formats::FileError>([&] { config_of(more, type); });
}

std::string scaling(const std::string& type, const std::string& more = "") {
  return ",\"rope_scaling\":{\"rope_type\":\"" + type + "\"" + more + "}";
}

TEST(CheckpointConfig, LayersOfMistralHaveAWindowWhereTheListSays) {
  const std::string layers =
      R"({"model_type":"mistral","hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,)"
      R"("num_attention_heads":4,"num_key_value_heads":4,"vocab_size":6,"sliding_window":4,)"
      R"("max_position_embeddings":32)";
  const auto read = [&](const std::string& more) {
    return models::config_from_json("c.json", layers + more + "}").layers;
  };
  EXPECT_EQ(read("")[0].window, 4);
  const auto listed = read(R"(,"layer_types":["full_attention","sliding_attention"])");
  EXPECT_EQ(listed[0].window, 0);
  EXPECT_EQ(listed[1].window, 4);
  EXPECT_EQ(refused(",\"layer_types\":[\"sliding_attention\"]"),
            "c.json: 'layer_types' holds sliding_attention (expected full_attention alone of a "
            "llama)");
}

// As in Transformers' configuration of each type.
TEST(CheckpointConfig, HeadsThatAreLeftOutAreThoseOfTheType) {
  const auto read = [](const std::string& type, int q_heads, const std::string& more) {
    return models::config_from_json(
               "c.json", R"({"hidden_size":128,"intermediate_size":12,"num_hidden_layers":1,)"
                         R"("vocab_size":6,"max_position_embeddings":32,"model_type":")" +
                             type + "\",\"num_attention_heads\":" + std::to_string(q_heads) + more +
                             "}")
        .layers[0];
  };
  const std::string null = R"(,"num_key_value_heads":null)", two = R"(,"num_key_value_heads":2)";
  const auto expect = [&](const char* type, std::int64_t kv_heads, std::int64_t head_dim) {
    SCOPED_TRACE(type);
    EXPECT_EQ(read(type, 64, "").kv_heads, kv_heads);
    EXPECT_EQ(read(type, 64, null).kv_heads, 64);
    EXPECT_EQ(read(type, 64, two).kv_heads, 2);
    EXPECT_EQ(read(type, 64, "").head_dim, head_dim);
    EXPECT_EQ(read(type, 64, R"(,"head_dim":4)").head_dim, 4);
  };
  expect("llama", 64, 2);
  expect("mistral", 8, 2);
  expect("qwen2", 32, 2);
  expect("qwen3", 32, 128);
  EXPECT_EQ(test::refusal_of<formats::FileError>([&] { read("qwen2", 4, ""); }),
            "c.json: 'num_key_value_heads' is missing, which stands for 32, which does not divide "
            "the 4 of 'num_attention_heads'");
}

TEST(CheckpointConfig, LayersWithAWindowNeedOne) {
  EXPECT_EQ(refused(",\"sliding_window\":0", "mistral"),
            "c.json: 'sliding_window' is 0 (expected at least 1, since there are layers that have "
            "it)");
  EXPECT_EQ(refused(",\"sliding_window\":null", "gemma3_text"),
            "c.json: 'sliding_window' is null (expected at least 1, since there are layers that "
            "have it)");
  EXPECT_EQ(refused(",\"sliding_window\":0,\"layer_types\":[\"full_attention\"]", "mistral"),
            "accepted");
}

TEST(CheckpointConfig, TheTwoPartsOfAGemmaTieAlike) {
  const auto tied = [](const std::string& top, const std::string& part) {
    const std::string text = llama_config(part, "gemma3_text");
    const std::string whole = R"({"model_type":"gemma3","text_config":)" + text + top + "}";
    std::string found;
    const std::string why = test::refusal_of<formats::FileError>(
        [&] { found = models::config_from_json("c.json", whole).tied_output ? "tied" : "apart"; });
    return why == "accepted" ? found : why;
  };
  const std::string yes = ",\"tie_word_embeddings\":true", no = ",\"tie_word_embeddings\":false";
  EXPECT_EQ(tied("", ""), "tied");
  EXPECT_EQ(tied(yes, ""), "tied");
  EXPECT_EQ(tied(yes, yes), "tied");
  EXPECT_EQ(tied("", no), "apart");
  EXPECT_EQ(tied(no, no), "apart");
  EXPECT_EQ(tied(no, yes),
            "c.json: 'tie_word_embeddings' is false, and 'text_config.tie_word_embeddings' is "
            "true");
  EXPECT_EQ(tied(yes, no),
            "c.json: 'tie_word_embeddings' is true, and 'text_config.tie_word_embeddings' is "
            "false");
  EXPECT_EQ(tied(no, ""),
            "c.json: 'tie_word_embeddings' is false, and 'text_config.tie_word_embeddings' is "
            "true where it is missing");
}

TEST(CheckpointConfig, ATiedOutputInTheFileIsTheEmbeddingOrRefused) {
  const std::string config = llama_config(",\"tie_word_embeddings\":true");
  std::vector<StoredTensor> tensors = llama_tensors();
  const Folder folder(config, tensors);
  EXPECT_FALSE(ModelFile(folder.path()).has("output.weight"));
  const std::string refused =
      "model.safetensors: has a tensor 'lm_head.weight' that differs from the token embedding, and "
      "config.json says that they are one ('tie_word_embeddings')";
  tensors[2].data = std::string(95, '\0') + "\1";
  EXPECT_EQ(Folder(config, tensors).refused(), refused);
  tensors[2] = {"lm_head.weight", "F32", {6, 8}, ""};
  EXPECT_EQ(Folder(config, tensors).refused(), refused);
  EXPECT_EQ(Folder(llama_config(), tensors).refused(), "accepted");
  tensors.erase(tensors.begin());
  EXPECT_EQ(Folder(config, tensors).refused(),
            ": has no tensor 'token_embd.weight', which a llama model needs");
}

TEST(CheckpointConfig, AScalingNeedsItsFactor) {
  for (const std::string type : {"linear", "yarn", "dynamic", "llama3"}) {
    for (const char* more : {"", ",\"factor\":null"}) {
      EXPECT_EQ(refused(scaling(type, more)),
                "c.json: 'rope_scaling.factor' is missing (rope_type '" + type + "')");
    }
  }
  const std::string more = ",\"original_max_position_embeddings\":16,\"short_factor\":[1]";
  EXPECT_GT(rope_of(scaling("longrope", more)).attention_factor.value(), 1.1)
      << "of the two lengths";
}

TEST(CheckpointConfig, TheOriginalLengthMayStandAtTheTop) {
  const std::string nested = ",\"original_max_position_embeddings\":16", top = nested;
  const std::string others = ",\"original_max_position_embeddings\":8";
  for (const auto& [type, more] : {std::pair<std::string, std::string>{"yarn", ",\"factor\":4"},
                                   {"llama3",
                                    ",\"factor\":4,\"low_freq_factor\":1,"
                                    "\"high_freq_factor\":4"},
                                   {"longrope", ",\"short_factor\":[1]"}}) {
    SCOPED_TRACE(type);
    EXPECT_EQ(rope_of(scaling(type, more)).original_length, 32);
    EXPECT_EQ(rope_of(scaling(type, more + nested)).original_length, 16);
    EXPECT_EQ(rope_of(scaling(type, more) + top).original_length, 16);
    EXPECT_EQ(rope_of(scaling(type, more + nested) + top).original_length, 16);
    EXPECT_EQ(refused(scaling(type, more + others) + top),
              "c.json: 'rope_scaling.original_max_position_embeddings' is 8, and "
              "'original_max_position_embeddings' is 16 (expected one of them)");
  }
  EXPECT_EQ(config_of(scaling("longrope", ",\"short_factor\":[1]") + top).context_length, 16);
}

TEST(CheckpointConfig, OldAndNewFieldsOfRotationsSayTheSame) {
  const auto both = [](const std::string& parameters, const std::string& older) {
    return ",\"rope_parameters\":{" + parameters + "},\"rope_scaling\":{" + older + "}";
  };
  const std::string linear = R"("type":"linear","factor":4.0)";
  const std::string differ =
      "c.json: 'rope_scaling' and 'rope_parameters' are given and differ (expected one of them)";
  EXPECT_EQ(rope_of(both(linear, linear)).factor, 4.0);
  EXPECT_EQ(rope_of(both(R"("rope_theta":50,)" + linear, linear) + ",\"rope_theta\":50").base, 50);
  EXPECT_EQ(refused(both(R"("rope_theta":50,)" + linear, linear)), differ);
  EXPECT_EQ(refused(both(R"("rope_theta":50)", linear)), differ);
  EXPECT_EQ(refused(both(linear, R"("type":"linear","factor":8.0)")), differ);
  EXPECT_EQ(rope_of(",\"rope_scaling\":null,\"rope_parameters\":{" + linear + "}").factor, 4.0);
  const std::string longrope = R"("rope_type":"longrope","short_factor":[1],)"
                               R"("original_max_position_embeddings":16)";
  EXPECT_EQ(config_of(both(longrope, longrope)).context_length, 16);
  // gemma3 adds the older field to the newer one.
  const std::string full = ",\"layer_types\":[\"full_attention\"]";
  const auto of_gemma = [&](const std::string& all) {
    return both("\"full_attention\":{\"rope_theta\":50" + all + "}",
                R"("rope_type":"linear","factor":4)") +
           full;
  };
  const RopeConfig added = rope_of(of_gemma(""), "gemma3_text");
  EXPECT_EQ(added.base, 50);
  EXPECT_EQ(added.factor, 4.0);
  EXPECT_EQ(refused(of_gemma(R"(,"rope_type":"linear","factor":8)"), "gemma3_text"), differ);
  EXPECT_EQ(refused(",\"rope_scaling\":{" + linear + "}", "gemma3_text"),
            "c.json: 'rope_scaling.type' is given without 'rope_scaling.rope_type' (expected both: "
            "versions of Transformers differ in what it is)");
}

TEST(CheckpointConfig, OnlyGemmaHasRotationsByLayerType) {
  for (const std::string type : {"full_attention", "sliding_attention"}) {
    EXPECT_EQ(refused(",\"rope_parameters\":{\"" + type + "\":{\"rope_theta\":50}}"),
              "c.json: 'rope_parameters." + type + "' is given (by layer type only in gemma3)");
  }
}

TEST(CheckpointConfig, OnlyLogitsOfGemmaHaveASoftCap) {
  for (const std::string name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_EQ(refused(",\"" + name + "\":30.0"),
              "c.json: '" + name + "' is 30.0 (expected null or 0 of a llama)");
    EXPECT_EQ(refused(",\"" + name + "\":null"), "accepted");
    EXPECT_EQ(refused(",\"" + name + "\":0"), "accepted");
  }
  EXPECT_EQ(config_of(",\"final_logit_softcapping\":30.0", "gemma3_text").logit_soft_cap, 30.0f);
  EXPECT_EQ(config_of(",\"final_logit_softcapping\":null", "gemma3_text").logit_soft_cap, 0.0f);
  EXPECT_EQ(refused(",\"final_logit_softcapping\":0", "gemma3_text"),
            "c.json: 'final_logit_softcapping' is 0 (expected a positive number)");
  EXPECT_EQ(refused(",\"attn_logit_softcapping\":50", "gemma3_text"),
            "c.json: 'attn_logit_softcapping' is 50 (expected null or 0 of a gemma3)");
}

TEST(CheckpointConfig, RefusalsNameTheFieldOfTheFile) {
  EXPECT_EQ(refused(",\"rope_theta\":0"), "c.json: 'rope_theta' is 0 (expected a positive number)");
  EXPECT_EQ(refused(",\"query_pre_attn_scalar\":-4", "gemma3_text"),
            "c.json: 'query_pre_attn_scalar' is -4 (expected a positive number)");
  const std::string gpt2 =
      R"({"model_type":"gpt2","n_embd":8,"n_layer":1,"n_head":2,"n_positions":8)";
  const auto refused_text = [](const std::string& text) {
    return test::refusal_of<formats::FileError>([&] { models::config_from_json("c.json", text); });
  };
  EXPECT_EQ(refused_text(gpt2 + "}"), "c.json: 'vocab_size' is missing");
  EXPECT_EQ(refused_text(gpt2 + R"(,"vocab_size":6,"num_attention_heads":2})"), "accepted");
  EXPECT_EQ(refused_text(gpt2 + R"(,"vocab_size":6,"num_attention_heads":4})"),
            "c.json: 'num_attention_heads' is 4, and 'n_head' is 2 (expected one of them)");
}

}  // namespace
}  // namespace polyhead
