// What things cost: golden figures, published sizes, identities between variants, limits.
#include "polyhead/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "support/cost_models.h"
#include "support/json.hpp"
#include "support/refusal.h"

namespace polyhead::cost {
namespace {

using nlohmann::json;

json golden() { return test::json_file(POLYHEAD_TEST_DATA "/cost_cases.json"); }

std::uint64_t number(const Count& count) {
  EXPECT_LE(count, Count(~std::uint64_t{0}));
  return static_cast<std::uint64_t>(count.wide());
}

TEST(CostGolden, LayerParameters) {
  const nlohmann::json shapes = golden()["mha_layer_parameters"];
  for (const auto& [name, shape] : shapes.items()) {
    const Layer layer = mha(shape["d_model"], shape["heads"]);
    EXPECT_EQ(layer.head_dim, shape["head_dim"].get<std::int64_t>());
    const Term made = attention_parameters(layer);
    EXPECT_EQ(number(made.value), shape["parameters"].get<std::uint64_t>()) << name;
  }
}

TEST(CostGolden, Llama70B) {
  const json of = golden()["llama3_70b_as_mha"];
  const ModelDescription model = with_kv_heads(model_preset("llama-3-70b"), 64);
  const Layer& layer = model.layers[0];
  EXPECT_EQ(layer.model_dim, of["d_model"].get<std::int64_t>());
  EXPECT_EQ(layer.count, of["layers"].get<std::int64_t>());
  EXPECT_EQ(layer.q_heads, of["heads"].get<std::int64_t>());
  EXPECT_EQ(layer.head_dim, of["head_dim"].get<std::int64_t>());
  for (const auto& [length, steps] : of["layer_flops"].items()) {
    const Workload work = prompt_of(std::stoll(length));
    const Term made = attention_flops(layer, work, Phase::prefill);
    EXPECT_EQ(number(made.at("q_projection") + made.at("k_projection") + made.at("v_projection")),
              steps["qkv_projection"].get<std::uint64_t>());
    for (const char* step : {"scores", "weighted_sum", "output_projection"})
      EXPECT_EQ(number(made.at(step)), steps[step].get<std::uint64_t>()) << step;
    EXPECT_EQ(number(attention_only(model_flops(model, work, Phase::prefill))),
              of["model_flops"][length].get<std::uint64_t>());
    EXPECT_EQ(number(score_bytes(layer, work).value),
              of["score_bytes_one_layer"][length].get<std::uint64_t>());
  }
  for (const auto& [length, bytes] : of["kv_cache_bytes"].items()) {
    EXPECT_EQ(number(kv_cache_bytes(model, prompt_of(std::stoll(length))).value),
              bytes.get<std::uint64_t>());
  }
  const Machine& b200 = machine_preset("b200");
  const json device = golden()["device_b200"];
  EXPECT_EQ(b200.f16_flops, device["fp16_dense_flops"].get<double>());
  EXPECT_EQ(static_cast<double>(b200.memory_bytes), device["memory_bytes"].get<double>());
  EXPECT_EQ(b200.memory_bandwidth, device["memory_bandwidth"].get<double>());
  for (const auto& [length, seconds] : device["seconds_at_peak"].items()) {
    const PhaseTime time =
        phase_time(model, prompt_of(std::stoll(length)), Phase::prefill, b200, Compute::f16);
    EXPECT_NEAR(time.attention_seconds / seconds.get<double>(), 1, 1e-12);
  }
  const std::map<std::string, std::int64_t> variants{{"mha_64", 64}, {"gqa_8", 8}, {"mqa_1", 1}};
  for (const auto& [name, kv_heads] : variants) {
    const ModelDescription variant = with_kv_heads(model, kv_heads);
    EXPECT_EQ(number(kv_cache_bytes(variant, prompt_of(100000)).value),
              of["kv_cache_bytes_at_100000"][name].get<std::uint64_t>());
    // Both readings agree here: the cache alone, and with weights and scratch.
    EXPECT_EQ(memory_bytes(variant, prompt_of(100000)).value.fits(b200.memory_bytes),
              device["fits_at_100000"][name].get<bool>());
    EXPECT_EQ(kv_cache_bytes(variant, prompt_of(100000)).value.fits(b200.memory_bytes),
              device["fits_at_100000"][name].get<bool>());
  }
}

TEST(CostGolden, CrossoverAndOthers) {
  for (const std::int64_t dim : {4096, 8192}) {
    const ModelDescription model = only(mha(dim, 32));
    EXPECT_EQ(crossover(model, Counting::full).projections,
              golden()["crossover_tokens"][std::to_string(dim)].get<std::int64_t>());
    EXPECT_EQ(crossover(model, Counting::triangle).projections, 4 * dim);
  }
  EXPECT_EQ(number(kv_cache_bytes(model_preset("gpt-3-175b"), prompt_of(2048)).value),
            golden()["gpt3_kv_cache_fp16_2048_tokens"].get<std::uint64_t>());
  EXPECT_EQ(number(score_bytes(model_preset("gpt-3-175b").layers[0], prompt_of(8192)).value),
            golden()["score_bytes_96_heads_8192_tokens_fp16"].get<std::uint64_t>());
  const json latent = golden()["deepseek_v3_mla"];
  std::int64_t layers = 0;
  for (const Layer& layer : model_preset("deepseek-v3").layers) {
    layers += layer.count;
    EXPECT_EQ(layer.latent.kv_rank, latent["kv_lora_rank"].get<std::int64_t>());
    EXPECT_EQ(layer.latent.rope_dim, latent["rope_dim"].get<std::int64_t>());
  }
  EXPECT_EQ(layers, latent["layers"].get<std::int64_t>());
  EXPECT_EQ(storage_type("f16").block_bytes, latent["bytes"].get<std::int64_t>());
  EXPECT_EQ(number(kv_cache_bytes(model_preset("deepseek-v3"), prompt_of(1)).value),
            golden()["deepseek_v3_mla"]["kv_cache_bytes_per_token"].get<std::uint64_t>());
}

// The tensors of the checkpoints, as their publishers' files add up (safetensors metadata); for
// BERT and GPT-2 the sums of transformers' models.
TEST(CostPresets, SumsAreThoseOfTheCheckpoints) {
  const std::map<std::string, std::uint64_t> published{
      {"bert-base", 109482240},       {"gpt-2-small", 124439808},
      {"llama-2-70b", 68976648192},   {"llama-3-8b", 8030261248},
      {"llama-3-70b", 70553706496},   {"llama-3-405b", 405853388800},
      {"mistral-7b", 7241732096},     {"gemma-3-270m", 268098176},
      {"gemma-3-1b", 999885952},      {"qwen3-0.6b", 596049920},
      {"qwen3-4b", 4022468096},       {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},     {"qwen3-32b", 32762123264},
      {"qwen3-30b-a3b", 30532122624}, {"qwen3-235b-a22b", 235093634560},
      {"smollm2-135m", 134515008},    {"gpt-oss-20b", 20914757184},
      {"gpt-oss-120b", 116829156672}};
  for (const auto& [id, count] : published)
    EXPECT_EQ(number(parameters(model_preset(id)).value), count) << id;
  // "671B" without the layer that predicts two tokens ahead; the paper's Transformer has "65M" and
  // "213M", GPT-3 "175B".
  EXPECT_NEAR(parameters(model_preset("deepseek-v3")).value.to_double(), 671.03e9, 0.01e9);
  EXPECT_NEAR(parameters(model_preset("gpt-3-175b")).value.to_double(), 174.6e9, 0.1e9);
  EXPECT_NEAR(parameters(model_preset("transformer-big")).value.to_double(), 213e6, 4e6);
}

TEST(CostPresets, Fp8LeavesTheVocabularyAsItWasTrained) {
  const ModelDescription& model = model_preset("deepseek-v3");
  const std::uint64_t vocabulary = 2 * std::uint64_t{129280} * 7168,
                      all = number(parameters(model).value);
  EXPECT_EQ(number(weight_bytes(model, prompt_of(1)).value), all + vocabulary);
  Workload fp8 = prompt_of(1);
  fp8.weight_type = storage_type("fp8");
  EXPECT_EQ(number(weight_bytes(model, fp8).value), all)
      << "a type that is asked for is all weights'";
  const ModelDescription tied = with_vocabulary_as(model_preset("qwen3-0.6b"), "f32");
  const Count more = Count(2) * 151936 * 1024;
  EXPECT_EQ(weight_bytes(tied, prompt_of(1)).value,
            weight_bytes(model_preset("qwen3-0.6b"), prompt_of(1)).value + more);
}

TEST(CostPresets, NamesAndNearest) {
  EXPECT_EQ(&model_preset("llama-3.1-70b"), &model_preset("LLAMA-3-70B"));
  for (const ModelDescription& model : model_presets()) {
    EXPECT_NO_THROW(check(model)) << model.id;
    EXPECT_FALSE(model.source.empty()) << model.id;
    EXPECT_EQ(&model_preset(model.id), &model);
  }
  for (const Machine& machine : machine_presets()) EXPECT_NO_THROW(check(machine)) << machine.id;
  const auto refused = [](auto call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([] { model_preset("lama-3-70b"); }),
            "cost: model 'lama-3-70b' is not known; did you mean 'llama-3-70b'?");
  EXPECT_EQ(refused([] { machine_preset("h10"); }),
            "cost: machine 'h10' is not known; did you mean 'h100'?");
  EXPECT_NE(refused([] { storage_type("in8"); }).find("'int8'"), std::string::npos);
  EXPECT_NE(refused([] { model_preset(std::string(100000, 'x')); }), "");
}

TEST(CostProperties, MoreHeadsAtTheSameModelDimCostTheSame) {
  for (const std::int64_t heads : {1, 2, 8, 64, 1024}) {
    const Layer one = mha(8192, heads), two = mha(8192, 2 * heads);
    EXPECT_EQ(attention_parameters(one).value, attention_parameters(two).value);
    for (const Phase phase : {Phase::prefill, Phase::decode_step, Phase::training_recompute}) {
      for (const Counting counting : {Counting::full, Counting::triangle}) {
        const Workload work = prompt_of(1000, counting);
        EXPECT_EQ(attention_flops(one, work, phase).value, attention_flops(two, work, phase).value);
      }
    }
    EXPECT_EQ(kv_cache_bytes(only(one), prompt_of(100)).value,
              kv_cache_bytes(only(two), prompt_of(100)).value);
  }
}

TEST(CostProperties, IdentitiesOfVariants) {
  const Workload work = prompt_of(777, Counting::triangle);
  const ModelDescription model = model_preset("llama-3-8b");
  const ModelDescription full = with_kv_heads(model, 32);
  EXPECT_EQ(attention_parameters(full.layers[0]).value, Count(4) * 4096 * 4096);
  EXPECT_EQ(attention_flops(full.layers[0], work, Phase::prefill).value,
            attention_flops(mha(4096, 32), work, Phase::prefill).value);
  Layer window = mha(4096, 32);
  for (const std::int64_t size : {777, 778, 1000000}) {
    window.window = size;
    for (const Phase phase : {Phase::prefill, Phase::decode_step, Phase::generation}) {
      EXPECT_EQ(attention_flops(window, work, phase).value,
                attention_flops(mha(4096, 32), work, phase).value);
    }
    EXPECT_EQ(kv_cache_bytes(only(window), work).value,
              kv_cache_bytes(only(mha(4096, 32)), work).value);
  }
  // The products do not depend on kv_heads.
  EXPECT_EQ(attention_flops(model.layers[0], work, Phase::prefill).at("scores"),
            attention_flops(full.layers[0], work, Phase::prefill).at("scores"));
}

TEST(CostProperties, LatentFormsDifferInCostAlone) {
  const Layer& layer = model_preset("deepseek-v3").layers[0];
  Workload expanded = prompt_of(4096), absorbed = prompt_of(4096);
  absorbed.prefill_form = LatentForm::absorbed;
  expanded.decode_form = LatentForm::expanded;
  EXPECT_LT(attention_flops(layer, expanded, Phase::prefill).value,
            attention_flops(layer, absorbed, Phase::prefill).value);
  EXPECT_GT(attention_flops(layer, expanded, Phase::decode_step).value,
            attention_flops(layer, absorbed, Phase::decode_step).value);
  EXPECT_EQ(attention_parameters(layer).value, Count(187107328));  // 7168·1536 + ... of the paper
}

TEST(CostProperties, TrainingIsThreeAndThreeAndAHalfForwards) {
  const Layer layer = mha(1024, 16);
  const Workload work = prompt_of(512);
  const Term forward = attention_flops(layer, work, Phase::prefill);
  const Term stored = attention_flops(layer, work, Phase::training);
  const Term again = attention_flops(layer, work, Phase::training_recompute);
  EXPECT_EQ(stored.value, Count(3) * forward.value);
  EXPECT_EQ(Count(2) * (again.at("scores") + again.at("weighted_sum")),
            Count(7) * (forward.at("scores") + forward.at("weighted_sum")));
  EXPECT_EQ(again.at("q_projection"), Count(3) * forward.at("q_projection"));
}

TEST(CostProperties, TermsAddUp) {
  const std::function<void(const Term&)> add_up = [&](const Term& term) {
    Count value = 1;
    for (const Factor& factor : term.factors) value = value * factor.value;
    if (!term.parts.empty()) {
      Count total = 0;
      for (const Term& part : term.parts) total = total + part.value;
      value = value * total;
    }
    EXPECT_EQ(value, term.value) << term.id;
    for (const Term& part : term.parts) add_up(part);
  };
  for (const ModelDescription& model : model_presets()) {
    Workload work = prompt_of(5000);
    work.generated = 100;
    work.chunk = 512;
    add_up(parameters(model));
    add_up(memory_bytes(model, work));
    for (const Phase phase : {Phase::prefill, Phase::generation, Phase::training}) {
      add_up(model_flops(model, work, phase));
      add_up(traffic_bytes(model, work, phase));
    }
  }
}

TEST(CostSearch, LargestIsTheLastThatFits) {
  const ModelDescription& model = model_preset("llama-3-70b");
  const std::int64_t memory = machine_preset("b200").memory_bytes;
  const std::int64_t context = largest_context(model, prompt_of(1), memory);
  EXPECT_TRUE(memory_bytes(model, prompt_of(context)).value.fits(memory));
  EXPECT_FALSE(memory_bytes(model, prompt_of(context + 1)).value.fits(memory));
  Workload work = prompt_of(8192);
  work.batch = largest_batch(model, work, memory);
  EXPECT_TRUE(memory_bytes(model, work).value.fits(memory));
  ++work.batch;
  EXPECT_FALSE(memory_bytes(model, work).value.fits(memory));
  EXPECT_EQ(largest_context(model, prompt_of(1), machine_preset("h100").memory_bytes), 0);
  EXPECT_EQ(largest_context(model_preset("gpt-oss-20b"), prompt_of(1), 1), 0);
}

TEST(CostSearch, WindowsMayNeverOvertake) {
  Layer layer = mha(4096, 32);
  layer.window = 4096;  // per token 4·4096·4096 against 8·4096²
  EXPECT_FALSE(crossover(only(layer), Counting::full).projections.has_value());
  layer.window = 8192;
  EXPECT_EQ(crossover(only(layer), Counting::full).projections, 8192);
  const Crossover gqa = crossover(model_preset("llama-3-70b"), Counting::full);
  EXPECT_EQ(gqa.projections, 9216);  // 2·d·(2·H + 2·kv)·dim / (4·H·dim) = d · (1 + 8/64)
  EXPECT_GT(gqa.everything, gqa.projections);
}

// The search begins at the longest context, where attention of such sizes is beyond any Count.
TEST(Cost, CrossoversOfHugeModelsAreFound) {
  Layer layer = mha(1, 100000);
  layer.kv_heads = 100000;
  layer.head_dim = layer.value_dim = 1000;
  layer.count = 1000000;
  const auto found = crossover(only(layer), Counting::full);
  EXPECT_EQ(found.projections, 2);  // 4 n^2 of 10^8 against 8 n of them
}

TEST(CostStored, EachPartByItsOwnTypes) {
  ModelDescription model = only(mha(256, 4));
  model.vocab_size = 1000;
  model.layers[0].count = 2;
  model.weight_type = "q4_k";
  const StorageType q4 = storage_type("q4_k"), q6 = storage_type("q6_k"), q8 = storage_type("q8_0");
  model.stored = {{"attention", q4, 6 * 256 * 256},
                  {"attention", q6, 2 * 256 * 256},
                  {"embedding", q8, 1000 * 256}};
  const Term bytes = weight_bytes(model, prompt_of(1));
  EXPECT_EQ(bytes.at("attention"), Count(256 * (6 * 144 + 2 * 210)));
  EXPECT_EQ(bytes.at("embedding"), Count(1000 * 8 * 34));
  const Term read = traffic_bytes(model, prompt_of(1), Phase::decode_step);
  EXPECT_EQ(read.find("projections")->at("weights"), Count(256 * (6 * 144 + 2 * 210)));
  EXPECT_EQ(read.find("logits")->at("weights"), Count(1000 * 8 * 34)) << "tied";
  Workload asked = prompt_of(1);
  asked.weight_type = storage_type("f16");
  EXPECT_EQ(weight_bytes(model, asked).at("attention"), Count(8 * 256 * 256 * 2));
  const Devices two{2, Split::tensor};
  EXPECT_EQ(Count(2) * weight_bytes(model, prompt_of(1), two).at("attention"),
            bytes.at("attention"));
  model.stored[0].weights = -1;
  EXPECT_THROW(weight_bytes(model, prompt_of(1)), InvalidArgument);
}

TEST(CostTime, RowWiseWorkWhereItsRateIsKnown) {
  const ModelDescription& model = model_preset("smollm2-135m");
  const Workload work = prompt_of(100);
  // Two norms, two sums, q, k and v, one feed-forward column each.
  const Count elements = Count(30 * 100) * Count(2 * 576 + 2 * 576 + 576 + 2 * 192 + 1536);
  EXPECT_EQ(row_wise_elements(model, work, Phase::prefill).value, elements);
  const Machine& machine = machine_preset("desktop-cpu");
  const double without = phase_time(model, work, Phase::prefill, machine, Compute::f32).seconds;
  const double with =
      phase_time(model, work, Phase::prefill, machine, Compute::f32, {.row_wise = 1e9}).seconds;
  EXPECT_NEAR(with - without, elements.to_double() / 1e9, 1e-9);
  const double slow_cache =
      phase_time(model, work, Phase::decode_step, machine, Compute::f32, {.cache_bandwidth = 0.5})
          .kernels[1]
          .memory_seconds;
  const double cache =
      phase_time(model, work, Phase::decode_step, machine, Compute::f32).kernels[1].memory_seconds;
  EXPECT_NEAR(slow_cache, 2 * cache, 1e-12);
}

TEST(CostSplit, HeadsOverDevices) {
  const ModelDescription& model = model_preset("llama-3-70b");
  const Workload work = prompt_of(4096);
  const Devices eight{8, Split::tensor}, sixteen{16, Split::tensor}, ring{8, Split::ring};
  const Count whole = kv_cache_bytes(model, work).value;
  EXPECT_EQ(Count(8) * kv_cache_bytes(model, work, eight).value, whole);
  EXPECT_EQ(kv_cache_bytes(model, work, sixteen).value, kv_cache_bytes(model, work, eight).value)
      << "8 KV heads on 16 devices are there twice";
  EXPECT_EQ(Count(8) * kv_cache_bytes(model, work, ring).value, whole);
  EXPECT_EQ(weight_bytes(model, work, ring).value, weight_bytes(model, work).value);
  // 80 layers, two all-reduces, each 2 · 7/8 of 4096 · 8192 · 2 bytes.
  EXPECT_EQ(sent_bytes(model, work, Phase::prefill, eight).value,
            Count(80) * 2 * 14 * (4096 * 8192 * 2 / 8));
  // Seven times the 512 tokens of a device, 4,096 bytes each in 80 layers.
  EXPECT_EQ(sent_bytes(model, work, Phase::prefill, ring).value, Count(80) * 7 * 512 * 4096);
  EXPECT_EQ(sent_bytes(model, work, Phase::prefill, {}).value, Count(0));
  EXPECT_THROW(check(Devices{3, Split::tensor}, model), InvalidArgument);
  EXPECT_THROW(check(Devices{2, Split::none}, model), InvalidArgument);
  const ModelDescription& latent = model_preset("deepseek-v3");
  EXPECT_EQ(kv_cache_bytes(latent, work, eight).value, kv_cache_bytes(latent, work).value)
      << "every device needs the whole latent";
}

TEST(CostTime, RooflineTakesTheLargerSide) {
  const ModelDescription& model = model_preset("llama-3-8b");
  const Machine& h100 = machine_preset("h100");
  const PhaseTime decode =
      phase_time(model, prompt_of(8192), Phase::decode_step, h100, Compute::f16);
  EXPECT_EQ(decode.bound, Bound::bandwidth);
  const double bytes = traffic_bytes(model, prompt_of(8192), Phase::decode_step).value.to_double();
  EXPECT_NEAR(decode.seconds, bytes / h100.memory_bandwidth, 1e-12);
  const PhaseTime prefill = phase_time(model, prompt_of(8192), Phase::prefill, h100, Compute::f16);
  EXPECT_EQ(prefill.bound, Bound::compute);
  EXPECT_GE(prefill.seconds, prefill.peak_seconds);
  const PhaseTime half =
      phase_time(model, prompt_of(8192), Phase::prefill, h100, Compute::f16, {0.5, 0.5, 0.5});
  EXPECT_NEAR(half.seconds, 2 * prefill.seconds, 1e-9);
  EXPECT_THROW(
      phase_time(model, prompt_of(1), Phase::prefill, machine_preset("a100"), Compute::fp8),
      InvalidArgument);
}

TEST(CostLimits, HugeButPossible) {
  Layer layer = mha(12'800'000, 100'000);  // head_dim 128
  layer.count = 1000;
  Workload work = prompt_of(10'000'000);
  work.batch = 1000;
  const Term flops = model_flops(only(layer), work, Phase::training_recompute);
  EXPECT_EQ(attention_flops(layer, prompt_of(10'000'000), Phase::prefill).at("scores").str(),
            "2560000000000000000000");
  EXPECT_GT(flops.value.to_double(), 1e27);
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value.str(), "512000000000000000000");
  EXPECT_EQ(Count(1234567).grouped(), "1,234,567");
  EXPECT_EQ(Count(0).str(), "0");
}

TEST(CostLimits, RefusedByName) {
  Layer layer = mha(1024, 8);
  const auto of = [](Layer l) { return test::refusal_of([&] { parameters(only(l)); }); };
  layer.kv_heads = 3;
  EXPECT_EQ(of(layer), "cost: q_heads (8) is not a multiple of kv_heads (3)");
  layer = mha(1024, 8);
  layer.q_heads = 0;
  EXPECT_EQ(of(layer), "cost: q_heads (0) is not from 1 to 1000000000");
  layer = mha(1024, 8);
  layer.ffn.experts = 4;
  layer.ffn.experts_used = 5;
  EXPECT_EQ(of(layer), "cost: experts_used (5) is not from 1 to 4");
  layer = mha(1024, 8);
  layer.window = -1;
  EXPECT_NE(of(layer).find("window (-1)"), std::string::npos);
  layer = mha(1024, 8);
  layer.window = 5;
  layer.attends = Attends::all;
  EXPECT_NE(of(layer).find("window (5)"), std::string::npos);
  test::expect_refusal([] { parameters({}); }, "layers (0)");
  test::expect_refusal([] { kv_cache_bytes(only(mha(8, 1)), prompt_of(-1)); }, "prompt (-1)");
  test::expect_refusal([] { with_kv_heads(model_preset("llama-3-70b"), 7); }, "kv_heads (7)");
  Layer huge = mha(1'000'000'000, 1'000'000'000);
  huge.count = 1'000'000'000;
  huge.head_dim = huge.value_dim = 1'000'000'000;
  Workload work = prompt_of(kUnlimited);
  test::expect_refusal([&] { model_flops(only(huge), work, Phase::prefill); }, "beyond 2^128");
  Machine machine = machine_preset("b200");
  machine.memory_bandwidth = 0;
  test::expect_refusal([&] { check(machine); }, "memory_bandwidth (0)");
  const ModelDescription model = only(mha(1024, 8));
  test::expect_refusal([&] { of_one_device(model, {0, Split::tensor}); }, "devices (0)");
  test::expect_refusal([&] { of_one_device(model, {3, Split::tensor}); }, "q_heads (8)");
  const auto at = [&](const Utilisation& shares) {
    phase_time(model, prompt_of(8), Phase::prefill, machine_preset("b200"), Compute::f16, shares);
  };
  test::expect_refusal([&] { at({.gemm = 0}); }, "cost: utilisation.gemm (0) is not a positive");
  test::expect_refusal([&] { at({.attention = std::nan("")}); }, "utilisation.attention (nan)");
  test::expect_refusal([&] { at({.row_wise = -1}); }, "utilisation.row_wise (-1)");
}

}  // namespace
}  // namespace polyhead::cost
