// Latent attention against its definition in double, in both forms, and the promise of same bits.
#include "polyhead/latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/formats/safetensors.hpp"
#include "polyhead/isa.h"
#include "support/latent_definition.h"
#include "support/latent_model.h"
#include "support/refusal.h"

namespace {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::Isa;
using polyhead::KvCache;
using polyhead::LatentAttention;
using polyhead::LatentConfig;
using polyhead::LatentForm;
using polyhead::LatentWeights;
using polyhead::LayerCall;
using polyhead::test::Definition;
using polyhead::test::expect_near;
using polyhead::test::expect_same_bits;
using polyhead::test::kBfloat16Error;
using polyhead::test::kFloat32Error;
using polyhead::test::kForms;
using polyhead::test::LatentModel;
using polyhead::test::Matrix;
using polyhead::test::random_floats;
using polyhead::test::run;
using polyhead::test::small_latent;

TEST(LatentAttention, EqualsItsDefinitionInBothForms) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type :
         {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
      for (const std::int64_t q_rank : {0, 24}) {
        LatentConfig config = small_latent(q_rank);
        config.weight_type = type;
        const LatentModel model(config);
        const LatentAttention layer(config, model.weights(), {.isa = isa});
        constexpr std::int64_t kTokens = 37;
        const std::vector<float> x = random_floats(kTokens * config.model_dim, 11);
        const Matrix expected = Definition(model)(x, kTokens);
        for (const LatentForm form : kForms) {
          expect_near(run(layer, x, 1, kTokens, form), expected,
                      type == ElementType::bfloat16 ? kBfloat16Error : kFloat32Error,
                      std::string(polyhead::isa_name(isa)) + ' ' + polyhead::element_name(type) +
                          " q_rank " + std::to_string(q_rank) + " form " +
                          std::to_string(static_cast<int>(form)));
        }
      }
    }
  }
}

TEST(LatentAttention, SameBitsWholeChunkedAndTokenByToken) {
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    LatentConfig config = small_latent();
    config.weight_type = type;
    const LatentModel model(config);
    const LatentAttention one(config, model.weights(), {.threads = 1});
    const LatentAttention two(config, model.weights(), {.threads = 2});
    constexpr std::int64_t kTokens = 83;
    const std::int64_t dim = config.model_dim;
    const std::vector<float> x = random_floats(kTokens * dim, 12);
    for (const LatentForm form : kForms) {
      const std::vector<float> whole = run(one, x, 1, kTokens, form);
      expect_same_bits(whole, run(two, x, 1, kTokens, form), "two threads");
      for (const std::int64_t chunk : {1, 7, 64}) {
        KvCache cache(two.cache_config(1, 8, true));
        std::vector<float> y(whole.size(), NAN);
        for (std::int64_t at = 0; at < kTokens; at += chunk) {
          const std::int64_t count = std::min(chunk, kTokens - at);
          two.forward({x.data() + at * dim, {count, dim}}, cache,
                      {y.data() + at * dim, {count, dim}}, form);
        }
        expect_same_bits(whole, y, "chunks of " + std::to_string(chunk));
        EXPECT_EQ(cache.length(0), kTokens);
      }
    }
  }
}

TEST(LatentAttention, BatchEqualsItsMembersAndRaggedEqualsBoth) {
  const LatentConfig config = small_latent();
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  constexpr std::int64_t kTokens = 9;
  const std::int64_t dim = config.model_dim;
  std::vector<float> x = random_floats(2 * kTokens * dim, 13);
  const std::vector<float> first(x.begin(), x.begin() + kTokens * dim);
  const std::vector<float> second(x.begin() + kTokens * dim, x.begin() + (kTokens + 5) * dim);
  // The padding of the second sequence must not matter.
  std::fill(x.begin() + (kTokens + 5) * dim, x.end(), NAN);
  const std::int64_t lengths[] = {kTokens, 5};
  const std::int32_t offsets[] = {0, kTokens, kTokens + 5};
  for (const LatentForm form : kForms) {
    std::vector<float> alone = run(layer, first, 1, kTokens, form);
    const std::vector<float> other = run(layer, second, 1, 5, form);
    std::vector<float> padded = run(layer, x, 2, kTokens, form, {.lengths = {lengths, {2}}});
    padded.resize(static_cast<std::size_t>((kTokens + 5) * dim));
    alone.insert(alone.end(), other.begin(), other.end());
    expect_same_bits(alone, padded, "padded");
    std::vector<float> ragged(static_cast<std::size_t>((kTokens + 5) * dim), NAN);
    layer.forward({x.data(), {kTokens + 5, dim}}, {ragged.data(), {kTokens + 5, dim}}, form,
                  {.offsets = {offsets, {3}}});
    expect_same_bits(alone, ragged, "ragged");
  }
}

TEST(LatentAttention, CacheHoldsOneLatentATokenAndServesBothForms) {
  const LatentConfig config = small_latent();
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  KvCache cache(layer.cache_config(1, 16));
  EXPECT_EQ(cache.bytes(), 16 * (32 + 8) * 4);
  const std::int64_t dim = config.model_dim;
  const std::vector<float> x = random_floats(6 * dim, 14);
  std::vector<float> prompt(static_cast<std::size_t>(5 * dim)), next(static_cast<std::size_t>(dim));
  layer.forward({x.data(), {std::int64_t{5}, dim}}, cache, {prompt.data(), {std::int64_t{5}, dim}},
                LatentForm::expanded);
  layer.forward({x.data() + 5 * dim, {std::int64_t{1}, dim}}, cache,
                {next.data(), {std::int64_t{1}, dim}}, LatentForm::absorbed);
  // The latents are the same bits in either form, so the step equals the absorbed form's own.
  const std::vector<float> whole = run(layer, x, 1, 6, LatentForm::absorbed);
  expect_same_bits(next, {whole.end() - dim, whole.end()}, "absorbed after expanded");
}

// `{}` might be a call or a form.
TEST(LatentAttention, AFormThatIsNotNamedIsTheLayersOwn) {
  LatentConfig config = small_latent();
  for (const LatentForm form : kForms) {
    config.form = form;
    const LatentModel model(config);
    const LatentAttention layer(config, model.weights());
    const std::int64_t dim = config.model_dim;
    const std::vector<float> x = random_floats(70 * dim, 14);
    const std::vector<float> whole = run(layer, x, 1, 70, form);
    std::vector<float> y(whole.size());
    const polyhead::ConstView from(x.data(), {std::int64_t{70}, dim});
    const polyhead::View to(y.data(), {std::int64_t{70}, dim});
    layer.forward(from, to, {});
    expect_same_bits(whole, y, "alone");
    KvCache cache(layer.cache_config(1, 70));
    layer.forward(from, cache, to, {});
    expect_same_bits(whole, y, "cache");
    cache.truncate(0, 0);
    layer.forward(from, cache, to, LatentForm::configured);
    layer.forward(from, cache.view(), to, {});
    expect_same_bits(whole, y, "view");
  }
}

TEST(LatentAttention, DeepSeekShapesRunInBothForms) {
  LatentConfig config;
  config.model_dim = 96;
  config.heads = 4;
  config.q_rank = 48;
  config.kv_rank = 512;
  config.nope_dim = 128;
  config.rope_dim = 64;
  config.value_dim = 128;
  config.rope.emplace().pairing = polyhead::RopePairing::interleaved;
  config.mask = polyhead::causal(polyhead::Align::end);
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  const std::vector<float> x = random_floats(70 * config.model_dim, 15);
  const std::vector<float> a = run(layer, x, 1, 70, LatentForm::expanded);
  const std::vector<float> b = run(layer, x, 1, 70, LatentForm::absorbed);
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Sums of up to 512 products of values of about 1, in float32.
    ASSERT_NEAR(a[i], b[i], 512 * 0x1p-23 * (1 + std::abs(a[i]))) << i;
  }
}

TEST(LatentAttention, EqualsDeepSeekV3OfTransformers) {
  const polyhead::formats::Safetensors file(POLYHEAD_TEST_DATA "/latent.safetensors");
  const auto view = [&](const char* name) { return file.tensor(name).view; };
  LatentConfig config;
  config.model_dim = 32;
  config.heads = 3;
  config.q_rank = 20;
  config.kv_rank = 16;
  config.nope_dim = 12;
  config.rope_dim = 8;
  config.value_dim = 10;
  polyhead::RopeConfig& rope = config.rope.emplace();
  rope.pairing = polyhead::RopePairing::interleaved;
  rope.scaling = polyhead::RopeScaling::yarn;
  rope.factor = 4;
  rope.original_length = 16;
  rope.mscale = rope.mscale_all_dim = 1;
  config.mask = polyhead::causal(polyhead::Align::end);
  const auto numbers = [&](const char* name) { return static_cast<const float*>(view(name).data); };
  config.modifiers.scale = numbers("scale")[0];
  LatentWeights weights;
  weights.w_q_down = view("q_a_proj.weight");
  weights.q_norm = view("q_a_layernorm.weight");
  weights.w_q_up = view("q_b_proj.weight");
  weights.w_kv_down = view("kv_a_proj_with_mqa.weight");
  weights.kv_norm = view("kv_a_layernorm.weight");
  weights.w_kv_up = view("kv_b_proj.weight");
  weights.w_o = view("o_proj.weight");
  const LatentAttention layer(config, weights);
  constexpr std::int64_t kTokens = 23;
  const std::vector<float> x(numbers("x"), numbers("x") + kTokens * 32);
  for (const LatentForm form : kForms) {
    const std::vector<float> y = run(layer, x, 1, kTokens, form);
    for (std::size_t i = 0; i < y.size(); ++i) {
      // Both sides round float32 sums of up to 32 products of values of about 1.
      ASSERT_NEAR(y[i], numbers("y")[i], 2 * 32 * 0x1p-23) << i;
    }
  }
}

TEST(LatentAttention, RefusesWhatDoesNotFit) {
  const LatentConfig good = small_latent();
  const LatentModel model(good);
  const auto with = [&](auto change, const std::string& part) {
    LatentConfig config = good;
    LatentWeights weights = model.weights();
    change(config, weights);
    polyhead::test::expect_refusal([&] { LatentAttention layer(config, weights); }, part);
  };
  with([](auto& c, auto&) { c.kv_rank = 0; }, "kv_rank (0)");
  with([](auto& c, auto&) { c.kv_rank = 765; }, "kv_rank + rope_dim (773)");
  with([](auto& c, auto&) { c.rope.reset(); }, "rope is not given with rope_dim 8");
  with([](auto&, auto& w) { w.w_kv_up = {}; }, "w_kv_up");
  with([](auto&, auto& w) { w.w_q = w.w_q_up; }, "w_q is given, but q_rank is not 0");
  with([](auto& c, auto&) { c.q_rank = 0; }, "w_q_down is given, but q_rank is 0");
  with([](auto& c, auto&) { c.heads = 5; }, "w_q_up");
  with([](auto& c, auto&) { c.form = LatentForm::configured; },
       "form (0) is not expanded or absorbed");
  with([](auto& c, auto&) { c.modifiers.soft_cap = 1e31f; }, "modifiers.soft_cap (1e+31)");

  const LatentAttention layer(good, model.weights());
  std::vector<float> x(static_cast<std::size_t>(2 * good.model_dim)), y = x;
  KvCache wrong({.batch = 1, .kv_heads = 1, .head_dim = 40, .value_dim = 32, .capacity = 4});
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, wrong, {y.data(), {2, 40}});
      },
      "values_in_keys");
  KvCache full(layer.cache_config(1, 1));
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, full, {y.data(), {2, 40}});
      },
      "exceed the capacity (1)");
  EXPECT_EQ(full.length(0), 0);
  KvCache cache(layer.cache_config(1, 8));
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, cache, {y.data(), {2, 40}},
                      {.bias = {x.data(), {1, 1, 7, 1}}});
      },
      "bias");
  EXPECT_EQ(cache.length(0), 0) << "what was appended is taken back";

  const std::int32_t lengths[] = {1};
  const polyhead::LayerCall of_context{.context_lengths = {lengths, {1}}};
  const std::string message =
      "LatentAttention::forward: context_lengths are given without a context";
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, {y.data(), {2, 40}}, of_context);
      },
      message);
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, cache, {y.data(), {2, 40}}, of_context);
      },
      message);
  EXPECT_EQ(cache.length(0), 0);
}

}  // namespace
