// A cache's own lengths, given to a call that appends to it, are those of before the call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/latent.h"
#include "polyhead/layer.h"
#include "polyhead/sliding_cache.h"
#include "support/latent_serving.h"
#include "support/layer_model.hpp"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 5;

ConstView lengths_of(const KvCache& cache) { return cache.lengths(); }
ConstView lengths_of(const SlidingCache& cache) { return cache.view().lengths; }

KvCache cache_of(KvCacheConfig like) {
  like.batch = kBatch;
  like.capacity = 2 * kTokens;
  return KvCache(like);
}
SlidingCache ring_of(const KvCacheConfig& like) {
  return SlidingCache({.batch = kBatch,
                       .kv_heads = like.kv_heads,
                       .head_dim = like.head_dim,
                       .value_dim = like.value_dim,
                       .type = like.type,
                       .window = 3 * kTokens,
                       .chunk = kTokens,
                       .values_in_keys = like.values_in_keys});
}

/// What a call gives after 2 and 3 tokens, told of these lengths; `what` says as what.
template <class Layer, class Cache>
std::vector<float> second_call(const Layer& layer, Cache cache, std::int64_t columns,
                               const std::string& what, bool own) {
  const std::vector<float> x = test::random_floats(kBatch * kTokens * columns, 5);
  std::vector<float> y(x.size(), NAN);
  const ConstView input(x.data(), {kBatch, kTokens, columns});
  const View output(y.data(), {kBatch, kTokens, columns});
  const std::int64_t held[] = {2, 3};
  layer.forward(input, cache, output, LayerCall{.lengths = {held, {kBatch}}});
  const ConstView lengths = own ? lengths_of(cache) : ConstView(held, {kBatch});
  LayerCall call;
  if (what == "lengths")
    call.lengths = lengths;
  else
    call.mask = prefix(lengths);
  layer.forward(input, cache, output, call);
  return y;
}

template <class Layer>
void expect_alike(const Layer& layer, const KvCacheConfig& like, std::int64_t columns,
                  const std::string& name, const std::string& what) {
  const auto alike = [&](const auto& make, const char* kind) {
    EXPECT_EQ(second_call(layer, make(like), columns, what, true),
              second_call(layer, make(like), columns, what, false))
        << name << ", " << kind << ", " << what;
  };
  alike(cache_of, "contiguous");
  if (what == "lengths") alike(ring_of, "ring");  // a prefix sees what a ring may have left
}

TEST(LayerOwnLengths, AreThoseOfBeforeTheCall) {
  for (const std::string what : {"lengths", "prefix"}) {
    polyhead_test::Model model(polyhead_test::decoder(f32));
    model.config.mask = {};
    const MultiHeadAttention layer = model.layer(Isa::automatic);
    expect_alike(layer, layer.cache_config(1, 0), model.config.model_dim, "layer", what);
    for (const Way& way : kWays) {
      if (way.weights != f32 || way.held != f32) continue;
      const LatentAttention latent = layer_of(way, Mask{});
      const KvCacheConfig like = latent.cache_config(1, 0);
      expect_alike(latent, like, kModel, way.name(), what);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
