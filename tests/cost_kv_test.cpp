// Bytes of key-value caches as the planner has them, against what the caches allocate.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "polyhead/cost.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/cost_models.h"

namespace polyhead::cost {
namespace {

/// A type of the caches, and what a row of `dim` elements takes with its scales: codes are padded
/// to blocks of 32, int8 and int4 have a float32 scale a block where the planner's int8 and int4
/// have ggml's 16-bit one.
struct Type {
  ElementType element;
  StorageType planned;
};
const std::vector<Type>& types() {
  static const std::vector<Type> all{{ElementType::float32, storage_type("f32")},
                                     {ElementType::float16, storage_type("f16")},
                                     {ElementType::bfloat16, storage_type("bf16")},
                                     {ElementType::float8_e4m3, storage_type("cache-fp8")},
                                     {ElementType::float8_e5m2, storage_type("cache-fp8")},
                                     {ElementType::int8, storage_type("cache-int8")},
                                     {ElementType::int4, storage_type("cache-int4")}};
  return all;
}

struct Sizes {
  std::int64_t kv_heads, head_dim, value_dim;
};
constexpr Sizes kSizes[] = {{1, 64, 64}, {3, 64, 32}, {8, 128, 128}, {2, 80, 48}};

Layer layer_of(const Sizes& sizes) {
  Layer layer;
  layer.model_dim = 256;
  layer.q_heads = layer.kv_heads = sizes.kv_heads;
  layer.head_dim = sizes.head_dim;
  layer.value_dim = sizes.value_dim;
  return layer;
}

template <class Config>
Config config_of(const Sizes& sizes, ElementType type) {
  Config config;
  config.kv_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.value_dim = sizes.value_dim;
  config.type = type;
  return config;
}

TEST(CostKv, BytesAreThoseOfTheContiguousCache) {
  for (const Type& type : types()) {
    for (const Sizes& sizes : kSizes) {
      auto config = config_of<KvCacheConfig>(sizes, type.element);
      config.batch = 2;
      config.capacity = 37;
      Workload work = prompt_of(37);
      work.batch = 2;
      work.kv_type = type.planned;
      EXPECT_EQ(kv_cache_bytes(only(layer_of(sizes)), work).value, Count(KvCache(config).bytes()))
          << type.planned.name << ", head_dim " << sizes.head_dim;
    }
  }
}

TEST(CostKv, ScalesByChannelAreTheCaches) {
  for (const auto& [element, name] :
       {std::pair{ElementType::int8, "int8"}, std::pair{ElementType::int4, "int4"}}) {
    for (const Sizes& sizes : kSizes) {
      const std::vector<float> scales(static_cast<std::size_t>(sizes.kv_heads * sizes.head_dim),
                                      1.0f);
      const ConstView view(scales.data(), {sizes.kv_heads, sizes.head_dim});
      auto config = config_of<KvCacheConfig>(sizes, element);
      config.batch = 3;
      config.capacity = 50;
      config.key_scales = view;
      Workload work = prompt_of(50);
      work.batch = 3;
      work.kv_type = storage_type(std::string("cache-") + name);
      work.key_type = storage_type(std::string(name) + "-by-channel");
      EXPECT_EQ(kv_cache_bytes(only(layer_of(sizes)), work).value, Count(KvCache(config).bytes()))
          << name << ", head_dim " << sizes.head_dim;
    }
  }
}

TEST(CostKv, BytesAreThoseOfTheLatentCache) {
  for (const Type& type : types()) {
    Layer layer = mha(256, 4);
    layer.latent = {0, 96, 32, 32};
    layer.head_dim = 64;
    KvCacheConfig config;
    config.head_dim = 96 + 32;
    config.value_dim = 96;
    config.values_in_keys = true;
    config.type = type.element;
    config.capacity = 41;
    Workload work = prompt_of(41);
    work.kv_type = type.planned;
    EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(KvCache(config).bytes()))
        << type.planned.name;
    if (type.element != ElementType::int8 && type.element != ElementType::int4) continue;
    // Latents have scales by token, whatever keys elsewhere have.
    work.key_type = storage_type(std::string(element_name(type.element)) + "-by-channel");
    EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(KvCache(config).bytes()))
        << work.key_type->name;
  }
}

// Sequences of any length take whole pages: what a pool of exactly so many pages allocates.
TEST(CostKv, BytesAreThoseOfThePagesThatSequencesTake) {
  for (const Type& type : types()) {
    for (const Sizes& sizes : kSizes) {
      for (const std::int64_t page : {8, 64}) {
        auto config = config_of<PagedCacheConfig>(sizes, type.element);
        config.layers = 3;
        config.page_tokens = page;
        config.pages = 2 * ((100 + page - 1) / page);
        PagedCache cache(config);
        for (int i = 0; i < 2; ++i)
          ASSERT_EQ(cache.extend(cache.create(), 100), PagedCache::Status::ok);
        EXPECT_EQ(cache.free_pages(), 0) << "the pool is what two sequences of 100 tokens take";
        Layer layer = layer_of(sizes);
        layer.count = 3;
        Workload work = prompt_of(100);
        work.batch = 2;
        work.page_tokens = page;
        work.kv_type = type.planned;
        const Count paged = kv_cache_bytes(only(layer), work).value;
        EXPECT_EQ(paged, Count(cache.bytes())) << type.planned.name << ", pages of " << page;
        work.page_tokens = 0;
        const std::int64_t waste = config.pages * page - 2 * 100;
        EXPECT_EQ(paged - kv_cache_bytes(only(layer), work).value,
                  Count(3 * waste) * kv_bytes_per_token(layer, work.kv_type).value)
            << "the ends of the last pages";
      }
    }
  }
}

// A ring of pages of 64 tokens: the window's, a chunk's and the first ones that stay.
TEST(CostKv, BytesAreThoseOfTheSlidingCache) {
  for (const Type& type : types()) {
    for (const std::int64_t window : {1, 30, 64, 100, 512}) {
      for (const std::int64_t chunk : {1, 64, 200}) {
        for (const std::int64_t first : {0, 4}) {
          auto config = config_of<SlidingCacheConfig>(kSizes[1], type.element);
          config.batch = 2;
          config.window = window;
          config.chunk = chunk;
          config.first_tokens = first;
          Layer layer = layer_of(kSizes[1]);
          layer.window = window;
          Workload work = prompt_of(1 << 20);
          work.batch = 2;
          work.kv_type = type.planned;
          work.ring = RingCache{chunk, first};
          EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(SlidingCache(config).bytes()))
              << type.planned.name << ", window " << window << ", chunk " << chunk << ", first "
              << first;
        }
      }
    }
  }
}

TEST(CostKv, PagesBlocksAndWindows) {
  Layer layer = mha(1024, 8);  // head_dim 128
  Workload work = prompt_of(100);
  work.page_tokens = 64;
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(128 * 2 * 8 * 128 * 2));
  work.page_tokens = 0;
  work.kv_type = storage_type("int8");
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(100 * 2 * 8 * (128 / 32 * 34)));
  work.kv_type = storage_type("int4");
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(100 * 2 * 8 * (128 / 32 * 18)));
  layer.head_dim = 80;  // two and a half blocks take three
  EXPECT_EQ(kv_bytes_per_token(layer, work.kv_type).value, Count(8 * (3 * 18 + 4 * 18)));
  layer = mha(1024, 8);
  layer.window = 30;
  work.kv_type = storage_type("f16");
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(30 * 2 * 8 * 128 * 2));
  work.bounded_windows = false;
  EXPECT_EQ(kv_cache_bytes(only(layer), work).value, Count(100 * 2 * 8 * 128 * 2));
  EXPECT_EQ(kv_cache_bytes(model_preset("bert-base"), prompt_of(100)).value, Count(0));
}

}  // namespace
}  // namespace polyhead::cost
