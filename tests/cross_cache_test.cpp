// Cross attention over keys and values computed once: the same bits as over the context itself.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "polyhead/layer.h"
#include "support/random.h"
#include "support/refusal.h"

namespace {

using polyhead::ElementType;
using polyhead::KvCache;
using polyhead::LayerConfig;
using polyhead::LayerWeights;
using polyhead::MultiHeadAttention;
using polyhead::test::random_floats;

constexpr std::int64_t kModel = 48, kContext = 29, kTokens = 9, kContextTokens = 70, kBatch = 2;

struct Layer {
  std::vector<float> w_q = random_floats(kModel * kModel, 1, 0.2);
  std::vector<float> w_k = random_floats(24 * kContext, 2, 0.2),
                     w_v = random_floats(24 * kContext, 3, 0.2);
  std::vector<float> w_o = random_floats(kModel * kModel, 4, 0.2);

  MultiHeadAttention make(ElementType type, bool rope) const {
    LayerConfig config;
    config.model_dim = kModel;
    config.q_heads = 4;
    config.kv_heads = 2;
    config.context_dim = kContext;
    config.weight_type = type;
    if (rope) config.rope.emplace().pairing = polyhead::RopePairing::half_split;
    LayerWeights weights;
    weights.w_q = {w_q.data(), {kModel, kModel}};
    weights.w_k = {w_k.data(), {std::int64_t{24}, kContext}};
    weights.w_v = {w_v.data(), {std::int64_t{24}, kContext}};
    weights.w_o = {w_o.data(), {kModel, kModel}};
    return {config, weights};
  }
};

TEST(CrossCache, GivesTheBitsOfTheContextItself) {
  const Layer weights;
  const auto x = random_floats(kBatch * kTokens * kModel, 5, 0.2);
  const auto context = random_floats(kBatch * kContextTokens * kContext, 6, 0.2);
  const std::int64_t lengths[] = {kContextTokens, 41};
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    for (const bool rope : {false, true}) {
      const MultiHeadAttention layer = weights.make(type, rope);
      std::vector<float> expected(x.size(), NAN), found(x.size(), NAN);
      layer.forward({x.data(), {kBatch, kTokens, kModel}},
                    {context.data(), {kBatch, kContextTokens, kContext}},
                    polyhead::View(expected.data(), {kBatch, kTokens, kModel}),
                    {.context_lengths = {lengths, {kBatch}}});
      KvCache cache(layer.cache_config(kBatch, kContextTokens));
      layer.project_context({context.data(), {kBatch, kContextTokens, kContext}}, cache,
                            {lengths, {kBatch}});
      EXPECT_EQ(cache.length(1), 41);
      for (int step = 0; step < 2; ++step) {  // it is only read
        layer.cross({x.data(), {kBatch, kTokens, kModel}}, cache,
                    {found.data(), {kBatch, kTokens, kModel}});
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0)
            << polyhead::element_name(type) << " rope " << rope;
      }
    }
  }
}

/// Rows [first[b], first[b] + count) of each of kBatch contexts.
std::vector<float> stretch(const std::vector<float>& context, const std::int64_t (&first)[kBatch],
                           std::int64_t count) {
  std::vector<float> rows;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const auto from = context.begin() + (b * kContextTokens + first[b]) * kContext;
    rows.insert(rows.end(), from, from + count * kContext);
  }
  return rows;
}

// What is projected later stands behind what the cache holds, each sequence at its own length.
TEST(CrossCache, ASecondContextGoesOnAtItsPositions) {
  const MultiHeadAttention layer = Layer().make(ElementType::float32, true);
  const auto context = random_floats(kBatch * kContextTokens * kContext, 6, 0.2);
  const auto project = [&](KvCache& cache, const std::int64_t(&first)[kBatch],
                           const std::int64_t(&lengths)[kBatch], std::int64_t count) {
    layer.project_context({stretch(context, first, count).data(), {kBatch, count, kContext}}, cache,
                          {lengths, {kBatch}});
  };
  KvCache whole(layer.cache_config(kBatch, kContextTokens)), parts(whole.config());
  project(whole, {0, 0}, {60, 35}, 60);
  project(parts, {0, 0}, {41, 5}, 41);
  project(parts, {41, 5}, {19, 29}, 29);
  project(parts, {60, 34}, {0, 1}, 1);
  std::vector<std::byte> expected, found;
  whole.save(expected);
  parts.save(found);
  EXPECT_EQ(found, expected);
}

TEST(CrossCache, RefusesWhatDoesNotFit) {
  const MultiHeadAttention layer = Layer().make(ElementType::float32, false);
  const auto x = random_floats(kTokens * kModel, 5, 0.2);
  const auto context = random_floats(4 * kContext, 6, 0.2);
  std::vector<float> y(x.size());
  KvCache small(layer.cache_config(1, 3)), other({.batch = 1, .kv_heads = 3, .head_dim = 12});
  const std::int64_t lengths[] = {1};
  const polyhead::ConstView in(x.data(), {kTokens, kModel});
  const polyhead::View out(y.data(), {kTokens, kModel});
  polyhead::test::expect_refusal(
      [&] {
        layer.project_context({context.data(), {std::int64_t{4}, kContext}}, small);
      },
      "MultiHeadAttention::project_context: sequence 0 holds 0 tokens; 4 more exceed the capacity "
      "(3)");
  const std::int64_t many[] = {3};
  polyhead::test::expect_refusal(
      [&] {
        layer.project_context({context.data(), {std::int64_t{2}, kContext}}, small,
                              {many, {std::int64_t{1}}});
      },
      "MultiHeadAttention::project_context: lengths[0] (3) is not within 0 .. 2");
  EXPECT_EQ(small.length(0), 0);
  polyhead::test::expect_refusal([&] { layer.project_context(in, small); }, "context");
  polyhead::test::expect_refusal([&] { layer.cross(in, other, out); }, "kv_heads");
  polyhead::test::expect_refusal(
      [&] {
        layer.cross(in, small, out, {.context_lengths = {lengths, {1}}});
      },
      "context_lengths are given");
}

}  // namespace
