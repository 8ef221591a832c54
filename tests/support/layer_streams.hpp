// Sequences that a layer serves piece by piece over caches of every kind, for the tests of caches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/layer_model.hpp"

namespace polyhead_test {

using polyhead::PagedCache;
using polyhead::PagedSequences;
using polyhead::SlidingCache;

inline constexpr std::int64_t kColumns = 64;  // model_dim of decoder()

/// All that a cache holds.
inline constexpr ElementType kHeldTypes[] = {
    ElementType::float32, ElementType::float16,     ElementType::bfloat16,   ElementType::int8,
    ElementType::int4,    ElementType::float8_e4m3, ElementType::float8_e5m2};

/// A sequence and how far it is served.
struct Stream {
  std::vector<float> x, y;
  std::int64_t done = 0;  // tokens

  Stream(std::int64_t tokens, unsigned seed)
      : x(random_floats(tokens * kColumns, seed)), y(x.size(), std::nanf("")) {}
  std::int64_t tokens() const { return std::ssize(x) / kColumns; }
};

/// A cache's configuration with what all caches of a layer have alike.
template <class Config>
Config sized(const MultiHeadAttention& layer, ElementType type) {
  const polyhead::KvCacheConfig like = layer.cache_config(1, 0);
  Config c;
  c.kv_heads = like.kv_heads;
  c.head_dim = like.head_dim;
  c.value_dim = like.value_dim;
  c.type = type;
  return c;
}

/// What a contiguous cache of the type gives for a whole sequence.
inline std::vector<float> contiguous(const MultiHeadAttention& layer, ElementType type,
                                     const std::vector<float>& x) {
  const std::int64_t tokens = std::ssize(x) / kColumns;
  polyhead::KvCacheConfig config = layer.cache_config(1, tokens);
  config.type = type;
  KvCache cache(config);
  std::vector<float> y(x.size(), std::nanf(""));
  layer.forward(ConstView(x.data(), {tokens, kColumns}), cache, View(y.data(), {tokens, kColumns}));
  return y;
}

/// The next counts[i] tokens of streams[i], in one ragged call: forward(x, y, call) makes it.
template <class Forward>
void step(std::span<Stream* const> streams, std::span<const std::int64_t> counts,
          const Forward& forward) {
  std::vector<float> x;
  std::vector<std::int32_t> offsets{0};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const Stream& stream = *streams[i];
    x.insert(x.end(), stream.x.begin() + stream.done * kColumns,
             stream.x.begin() + (stream.done + counts[i]) * kColumns);
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(counts[i]));
  }
  const std::int64_t tokens = offsets.back();
  std::vector<float> y(x.size(), std::nanf(""));
  forward(ConstView(x.data(), {tokens, kColumns}), View(y.data(), {tokens, kColumns}),
          LayerCall{.offsets = ConstView(offsets.data(), {std::ssize(offsets)})});
  for (std::size_t i = 0; i < streams.size(); ++i) {
    std::copy(y.begin() + offsets[i] * kColumns, y.begin() + offsets[i + 1] * kColumns,
              streams[i]->y.begin() + streams[i]->done * kColumns);
    streams[i]->done += counts[i];
  }
}

/// A pool whose pages are NaN where no sequence has rows.
inline PagedCache pool_of(const MultiHeadAttention& layer, ElementType type,
                          std::int64_t page_tokens, std::int64_t pages, std::int64_t layers = 1) {
  auto c = sized<polyhead::PagedCacheConfig>(layer, type);
  c.page_tokens = page_tokens;
  c.pages = pages;
  c.layers = layers;
  PagedCache cache(c);
  const std::int64_t all = cache.create(), tokens = pages * page_tokens;
  const std::vector<float> nothing(static_cast<std::size_t>(tokens * c.kv_heads * c.head_dim),
                                   std::nanf(""));
  EXPECT_EQ(cache.extend(all, tokens), PagedCache::Status::ok);
  const ConstView rows(nothing.data(), {tokens, c.kv_heads, c.head_dim});
  for (std::int64_t l = 0; l < layers; ++l)
    EXPECT_EQ(cache.write(all, l, 0, rows, rows), PagedCache::Status::ok);
  cache.release(all);
  return cache;
}

/// Calls body(layer, type held, what) for weights and types of the cache.
template <class Body>
void for_each_held(Body body) {
  for (const ElementType weights : {ElementType::float32, ElementType::bfloat16}) {
    const Model model(decoder(weights));
    const MultiHeadAttention layer = model.layer(Isa::automatic);
    for (const ElementType held : kHeldTypes) {
      body(layer, held,
           std::string(polyhead::element_name(weights)) + " holding " +
               polyhead::element_name(held));
    }
  }
}

/// Prompts of two sequences in chunks beside the steps of a third, and nothing of a fourth.
template <class Serve>
void serve_mix(std::span<Stream* const> all, const Serve& serve) {
  serve(all, std::vector<std::int64_t>{9, 1, 1, 5});
  for (int i = 0; i < 8; ++i) serve(all, std::vector<std::int64_t>{10, 5, 1, 0});
  serve(all, std::vector<std::int64_t>{1, 0, 1, 0});
}

inline constexpr std::int64_t kMix[] = {90, 41, 10, 5};  // tokens of each

/// Rings of 40 tokens and the first ones, for chunks of 30.
inline SlidingCache ring_of(const MultiHeadAttention& layer, ElementType held,
                            std::int64_t first_tokens, std::int64_t batch = 1) {
  auto c = sized<polyhead::SlidingCacheConfig>(layer, held);
  c.batch = batch;
  c.window = 40;
  c.first_tokens = first_tokens;
  c.chunk = 30;
  return SlidingCache(c);
}

}  // namespace polyhead_test
