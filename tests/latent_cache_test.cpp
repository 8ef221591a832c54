// Latent attention after a contiguous cache: of every type, ragged calls, and whose lengths its
// keys have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/isa.h"
#include "polyhead/latent.h"
#include "support/half_step.h"
#include "support/latent_definition.h"
#include "support/latent_model.h"
#include "support/refusal.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

/// What attention over `view`, of one sequence, reads as its keys.
Matrix keys_of(const KvView& view, std::int64_t tokens, const LatentConfig& config) {
  const std::int64_t dim = config.kv_rank + config.rope_dim;
  std::vector<float> q(static_cast<std::size_t>(dim)), out(q);
  AttentionArguments call;
  call.q = {q.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, dim}};
  call.kv = view;
  call.out = {out.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, config.kv_rank}};
  const kernels::AttendCall resolved = door::resolve(call);
  const kernels::Sequence s = kernels::sequence_of(resolved, 0);
  EXPECT_EQ(s.kv_len, tokens);
  Matrix keys(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < s.kv_len; ++t) {
    for (std::int64_t d = 0; d < dim; ++d) {
      keys[static_cast<std::size_t>(t)].push_back(
          kernels::reference::key_element(resolved, s, resolved.k, s.k, 0, t, d));
    }
  }
  return keys;
}

/// Each within half a step of `type`; codes share a scale in blocks of 32 dims.
void expect_held(const std::vector<double>& row, const std::vector<double>& exact,
                 ElementType type) {
  ASSERT_EQ(row.size(), exact.size());
  double largest = 0;
  for (std::size_t d = 0; d < row.size(); ++d) {
    if (d % 32 == 0) {
      largest = 0;
      for (std::size_t i = d; i < std::min(d + 32, row.size()); ++i)
        largest = std::max(largest, std::abs(exact[i]));
    }
    EXPECT_LE(std::abs(row[d] - exact[d]), half_step(type, exact[d], largest))
        << element_name(type) << " dim " << d;
  }
}

// What a cache holds is what is read, also in the chunk that wrote it: the bits do not depend on
// the chunks. A narrow type rounds the latents and nothing else: each by at most half a step, and
// the outputs are the definition's over the rounded ones, as exactly as those of a cache of the
// layer's own type.
void expect_reads_any_cache(LatentForm form, ElementType weights, Isa isa) {
  LatentConfig config = small_latent();
  config.weight_type = weights;
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights(), {.isa = isa});
  const double error = weights == bf16 ? kBfloat16Error : kFloat32Error;
  const std::int64_t dim = config.model_dim, tokens = 9;
  const std::vector<float> x = random_floats(tokens * dim, 14);
  Matrix exact;  // latents, as float32 holds them
  for (const ElementType type :
       {ElementType::float32, ElementType::float16, ElementType::bfloat16, ElementType::int8,
        ElementType::int4, ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    const std::string name = std::string(isa_name(isa)) + ", " + element_name(weights) +
                             (form == LatentForm::expanded ? " expanded" : " absorbed") +
                             " holding " + element_name(type);
    std::vector<float> results[2];
    Matrix held;
    for (const std::int64_t chunk : {tokens, std::int64_t{1}}) {
      auto cache_config = layer.cache_config(1, tokens);
      cache_config.type = type;
      KvCache cache(cache_config);
      std::vector<float>& y = results[chunk == 1];
      y.assign(x.size(), NAN);
      for (std::int64_t t = 0; t < tokens; t += chunk) {
        layer.forward({x.data() + t * dim, {chunk, dim}}, cache, {y.data() + t * dim, {chunk, dim}},
                      form);
      }
      held = keys_of(cache.view(), tokens, config);
    }
    expect_same_bits(results[0], results[1], name);
    if (type == ElementType::float32) exact = held;
    for (std::size_t t = 0; t < held.size(); ++t) expect_held(held[t], exact[t], type);
    EXPECT_TRUE(weights == bf16 || (held == exact) == (type == ElementType::float32)) << name;
    expect_near(results[0], Definition(model).over(x, held), error, name);
  }
}

TEST(LatentCache, BothFormsReadAnyType) {
  for (const Isa isa : available_isas()) {
    for (const LatentForm form : kForms) {
      for (const ElementType weights : {f32, bf16}) expect_reads_any_cache(form, weights, isa);
    }
  }
}

// Chunks of two sequences and a step of a third in one call over a cache of three.
TEST(LatentCache, RaggedGivesTheBitsOfEachAlone) {
  const LatentConfig config = small_latent();
  const LatentAttention layer(config, LatentModel(config).weights());
  const std::int64_t dim = config.model_dim;
  const std::int32_t counts[2][3] = {{4, 1, 0}, {3, 5, 1}};
  for (const LatentForm form : kForms) {
    KvCache cache(layer.cache_config(3, 0, true));
    std::vector<float> x[3], y[3];
    unsigned seed = 17;
    for (const auto& step : counts) {
      std::vector<float> rows;
      std::int32_t offsets[4] = {};
      for (int b = 0; b < 3; ++b) {
        const std::vector<float> part = random_floats(step[b] * dim, seed++);
        x[b].insert(x[b].end(), part.begin(), part.end());
        rows.insert(rows.end(), part.begin(), part.end());
        offsets[b + 1] = offsets[b] + step[b];
      }
      std::vector<float> out(rows.size(), NAN);
      const std::int64_t tokens = offsets[3];
      layer.forward({rows.data(), {tokens, dim}}, cache, {out.data(), {tokens, dim}}, form,
                    {.offsets = {offsets, {4}}});
      for (int b = 0; b < 3; ++b)
        y[b].insert(y[b].end(), out.begin() + offsets[b] * dim, out.begin() + offsets[b + 1] * dim);
    }
    for (int b = 0; b < 3; ++b)
      expect_same_bits(y[b], run(layer, x[b], 1, std::ssize(x[b]) / dim, form), "ragged");
  }
}

// Lengths of keys are the cache's or the view's: a mask's would be a second opinion, which the
// absorbed form must not drop.
TEST(LatentCache, KeyLengthsInAMaskAreRefusedInBothForms) {
  const LatentConfig config = small_latent();
  const LatentAttention layer(config, LatentModel(config).weights());
  const std::vector<float> x = random_floats(2 * config.model_dim, 19);
  std::vector<float> y(x.size());
  KvCache cache(layer.cache_config(1, 8));
  KvView kv;
  kv.k = kv.v = {x.data(), {1, 2, 1, 40}};
  kv.v.layout.extents[3] = 32;
  const std::int64_t fewer[] = {1};
  const LayerCall call{.mask = lengths({fewer, {1}})};
  const ConstView input(x.data(), {2, 40});
  for (const LatentForm form : kForms) {
    for (const bool view : {false, true}) {
      std::ranges::fill(y, 7.0f);
      const View output(y.data(), {2, 40});
      const std::string said = refusal_of([&] {
        if (view)
          layer.forward(input, kv, output, form, call);
        else
          layer.forward(input, cache, output, form, call);
      });
      EXPECT_EQ(said, std::string("LatentAttention::forward: mask.kv_lengths are given, but ") +
                          (view ? "kv" : "the cache") + " has lengths of its own");
      EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));
      EXPECT_EQ(cache.length(0), 0);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
