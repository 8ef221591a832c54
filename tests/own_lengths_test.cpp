// A cache's own lengths, and what else it shows of each sequence, given to a call that appends to
// it, are those of before the call.
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

/// What a call padded as `oldest` says gives of a ring whose first page was written over.
std::vector<float> after_a_ring(const MultiHeadAttention& layer, bool own) {
  constexpr std::int64_t kPage = 64, kColumns = 64;
  KvCacheConfig like = layer.cache_config(1, 0);
  SlidingCache ring({.kv_heads = like.kv_heads,
                     .head_dim = like.head_dim,
                     .value_dim = like.value_dim,
                     .window = 8,
                     .chunk = 2 * kPage});
  const std::vector<float> x = test::random_floats(2 * kPage * kColumns, 6);
  std::vector<float> y(x.size(), NAN);
  while (ring.oldest(0) < kPage)
    layer.forward({x.data(), {kPage, kColumns}}, ring, {y.data(), {kPage, kColumns}});
  const std::int64_t oldest = ring.oldest(0);
  EXPECT_EQ(oldest, kPage);
  const auto numbers = [&] { return own ? ring.view().oldest : ConstView(&oldest, {1}); };
  const ConstView input(x.data(), {1, 2 * kPage, kColumns});
  const View output(y.data(), {1, 2 * kPage, kColumns});
  layer.forward(input, ring, output, LayerCall{.lengths = numbers()});
  return y;
}

TEST(LayerOwnLengths, AndWhatARingHasWrittenOver) {
  polyhead_test::Model model(polyhead_test::decoder(f32));
  const MultiHeadAttention layer = model.layer(Isa::automatic);
  EXPECT_EQ(after_a_ring(layer, true), after_a_ring(layer, false));
}

// The ids that dropout numbers pairs by.
TEST(LayerOwnLengths, AsIdsOfSequences) {
  std::vector<float> results[2];
  for (const bool own : {false, true}) {
    polyhead_test::Model model(polyhead_test::decoder(f32));
    KvCache cache(MultiHeadAttention(model.config, model.weights()).cache_config(1, 8));
    const std::int64_t three = 3;
    model.config.modifiers.dropout = {.probability = 0.5f, .seed = 1};
    model.config.modifiers.dropout.sequence_ids = own ? cache.lengths() : ConstView(&three, {1});
    const MultiHeadAttention layer = model.layer(Isa::automatic);
    const std::vector<float> x = test::random_floats(3 * 64, 7);
    std::vector<float>& y = results[own];
    y.assign(x.size(), NAN);
    const MultiHeadAttention first(
        polyhead_test::Model(polyhead_test::decoder(f32)).layer(Isa::automatic));
    first.forward({x.data(), {3, 64}}, cache, {y.data(), {3, 64}});
    layer.forward({x.data(), {3, 64}}, cache, {y.data(), {3, 64}});
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace polyhead::test
