// Latent attention after a contiguous cache: ragged calls, and whose lengths its keys have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/latent.h"
#include "support/latent_model.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

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
