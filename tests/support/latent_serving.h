// A small latent layer and how tests serve it: whole, or piece by piece over a pool of pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "polyhead/latent.h"
#include "polyhead/paged_cache.h"
#include "support/latent_model.h"
#include "support/tensor.h"

namespace polyhead::test {

inline constexpr std::int64_t kModel = 40;  // model_dim of small_latent()

/// A cache's configuration with what all caches of a layer's latents have alike.
template <class Config>
Config sized(const LatentAttention& layer) {
  const KvCacheConfig like = layer.cache_config(1, 0);
  Config c;
  c.kv_heads = like.kv_heads;
  c.head_dim = like.head_dim;
  c.value_dim = like.value_dim;
  c.type = like.type;
  c.values_in_keys = true;
  return c;
}

/// How a case computes and stores.
struct Way {
  LatentForm form;
  ElementType weights, held;

  std::string name() const {
    return std::string(form == LatentForm::expanded ? "expanded " : "absorbed ") +
           element_name(weights) + " holding " + element_name(held);
  }
};
inline constexpr Way kWays[] = {{LatentForm::expanded, f32, f32},
                                {LatentForm::expanded, bf16, bf16},
                                {LatentForm::absorbed, f32, f32},
                                {LatentForm::absorbed, bf16, bf16},
                                {LatentForm::absorbed, f32, ElementType::int8},
                                {LatentForm::absorbed, bf16, ElementType::int8},
                                {LatentForm::expanded, f32, ElementType::int4},
                                {LatentForm::expanded, bf16, ElementType::float8_e4m3}};

inline LatentAttention layer_of(const Way& way, const Mask& mask = causal(Align::end),
                                Isa isa = Isa::automatic) {
  LatentConfig config = small_latent();
  config.weight_type = way.weights;
  config.mask = mask;
  return {config, LatentModel(config).weights(), {.isa = isa}};
}

/// A sequence that is served piece by piece.
struct Stream {
  std::vector<float> x, y;
  std::int64_t done = 0;  // tokens

  explicit Stream(std::int64_t tokens, unsigned seed)
      : x(random_floats(tokens * kModel, seed)), y(x.size(), NAN) {}
  std::int64_t tokens() const { return std::ssize(x) / kModel; }
};

/// What a contiguous cache of the type gives for a whole sequence.
inline std::vector<float> contiguous(const LatentAttention& layer, const Way& way,
                                     const std::vector<float>& x) {
  const std::int64_t tokens = std::ssize(x) / kModel;
  KvCacheConfig config = layer.cache_config(1, tokens);
  config.type = way.held;
  KvCache cache(config);
  std::vector<float> y(x.size(), NAN);
  layer.forward({x.data(), {tokens, kModel}}, cache, {y.data(), {tokens, kModel}}, way.form);
  return y;
}

/// Who appends the latents of a call.
enum class Appends { caller, layer };
inline constexpr Appends kAppends[] = {Appends::caller, Appends::layer};

/// Sequences in one pool, served in ragged batches.
class Pool {
 public:
  Pool(const LatentAttention& layer, const Way& way, std::int64_t page_tokens, std::int64_t pages,
       Appends appends = Appends::caller)
      : layer_(layer), form_(way.form), appends_(appends) {
    auto c = sized<PagedCacheConfig>(layer);
    c.type = way.held;
    c.page_tokens = page_tokens;
    c.pages = pages;
    cache.emplace(c);
    // Rooms that no sequence has are NaN.
    const std::int64_t all = cache->create(), tokens = pages * page_tokens;
    const std::vector<float> nothing(static_cast<std::size_t>(tokens * c.head_dim), NAN);
    EXPECT_EQ(cache->append(all, {nothing.data(), {tokens, std::int64_t{1}, c.head_dim}}, {}),
              PagedCache::Status::ok);
    cache->release(all);
  }

  /// The next counts[i] tokens of streams[i], sequence ids[i], in one call.
  void step(std::span<Stream* const> streams, std::span<const std::int64_t> ids,
            std::span<const std::int64_t> counts) {
    std::vector<float> x;
    std::vector<std::int64_t> positions;
    std::vector<std::int32_t> offsets{0};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Stream& stream = *streams[i];
      x.insert(x.end(), stream.x.begin() + stream.done * kModel,
               stream.x.begin() + (stream.done + counts[i]) * kModel);
      for (std::int64_t t = 0; t < counts[i]; ++t) positions.push_back(stream.done + t);
      offsets.push_back(static_cast<std::int32_t>(positions.size()));
    }
    std::vector<float> y(x.size(), NAN);
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const ConstView input(x.data(), {tokens, kModel});
    const View output(y.data(), {tokens, kModel});
    LayerCall call;
    call.offsets = {offsets.data(), {std::ssize(offsets)}};
    call.workspace = &workspace_;
    if (appends_ == Appends::layer) {
      ASSERT_EQ(layer_.forward(input, {.cache = &*cache, .sequences = ids}, output, form_, call),
                PagedCache::Status::ok);
    } else {
      append(input, ids, offsets, positions);
      PagedBatch batch;
      cache->batch(ids, batch);
      layer_.forward(input, cache->view(0, batch), output, form_, call);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy(y.begin() + offsets[i] * kModel, y.begin() + offsets[i + 1] * kModel,
                streams[i]->y.begin() + streams[i]->done * kModel);
      streams[i]->done += counts[i];
    }
  }

  std::optional<PagedCache> cache;

 private:
  void append(const ConstView& x, std::span<const std::int64_t> ids,
              std::span<const std::int32_t> offsets, std::span<const std::int64_t> positions) {
    const std::int64_t dim = cache->config().head_dim, tokens = std::ssize(positions);
    std::vector<float> rows(static_cast<std::size_t>(tokens * dim), NAN);
    layer_.latents(x, {rows.data(), {tokens, dim}}, {positions.data(), {tokens}}, &workspace_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t count = offsets[i + 1] - offsets[i];
      const ConstView mine(rows.data() + offsets[i] * dim, {count, std::int64_t{1}, dim});
      ASSERT_EQ(cache->append(ids[i], mine, {}), PagedCache::Status::ok);
    }
  }

  const LatentAttention& layer_;
  LatentForm form_;
  Appends appends_;
  LayerWorkspace workspace_;
};

}  // namespace polyhead::test
