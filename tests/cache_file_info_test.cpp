// What a file of saved caches says of itself: enough to make a cache that takes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "polyhead/cache_file.h"
#include "support/damage.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead::test {
namespace {

using Kind = CacheFileInfo::Kind;

constexpr CacheFingerprint kPrint{5, 6, 7, 8};
constexpr std::int64_t kHeads = 3, kDim = 40;

/// What caches of either kind have in common.
template <class Config>
Config like(const CacheFileInfo& info) {
  Config config;
  config.batch = info.batch;
  config.kv_heads = info.kv_heads;
  config.head_dim = info.head_dim;
  config.value_dim = info.value_dim;
  config.type = info.type;
  config.values_in_keys = info.values_in_keys;
  return config;
}

class CacheFileInfoTest : public testing::Test {
 protected:
  Tensor rows(std::int64_t batch, std::int64_t tokens, std::int64_t dim) const {
    Random random(2);
    Tensor to(f32, {batch, tokens, kHeads, dim});
    to.fill_normal(random);
    return to;
  }
  std::string refusal() const {
    std::string message = refusal_of([&] { load_cache_file_info(path_); });
    const std::size_t at = message.find(path_);
    return at == message.npos ? message : message.replace(at, path_.size(), "FILE");
  }
  /// The file with a checksum that is right.
  void put(std::string bytes) const {
    bytes.resize(bytes.size() - sizeof(std::uint64_t));
    const std::uint64_t sum = base::checksum(std::as_bytes(std::span(bytes)));
    bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    directory_.write("it.kv", bytes);
  }

  ScratchDirectory directory_;
  const std::string path_ = directory_.file("it.kv");
};

TEST_F(CacheFileInfoTest, ACacheMadeByItTakesTheFile) {
  for (const bool in_keys : {false, true}) {
    KvCacheConfig config;
    config.batch = 2;
    config.kv_heads = kHeads;
    config.head_dim = kDim;
    config.value_dim = in_keys ? 24 : 16;
    config.type = bf16;
    config.values_in_keys = in_keys;
    config.growing = true;
    std::vector<KvCache> caches;
    for (int i = 0; i < 3; ++i) caches.emplace_back(config);
    const Tensor k = rows(2, 9, kDim), v = rows(2, 9, config.value_dim);
    const std::int32_t counts[] = {4, 9};
    caches[0].append(k.const_view(), in_keys ? ConstView() : v.const_view(),
                     ConstView(counts, {2}));
    save_caches(path_, kPrint, caches);
    const CacheFileInfo info = load_cache_file_info(path_);
    EXPECT_EQ(info.kind, Kind::caches);
    EXPECT_EQ(info.fingerprint, kPrint);
    EXPECT_EQ(info.count, 3);
    EXPECT_EQ(info.layers, 1);
    EXPECT_EQ(info.tokens, 9);
    EXPECT_EQ(info.window, 0);
    EXPECT_FALSE(info.keys_by_channel);
    auto same = like<KvCacheConfig>(info);
    same.growing = true;
    std::vector<KvCache> loaded;
    for (std::int64_t i = 0; i < info.count; ++i) loaded.emplace_back(same);
    load_caches(path_, info.fingerprint, loaded);
    EXPECT_EQ(loaded[0].length(0), 4);
    EXPECT_EQ(loaded[0].length(1), 9);
  }
}

TEST_F(CacheFileInfoTest, ASlidingCacheMadeByItTakesTheFile) {
  const std::vector<float> scales(kHeads * kDim, 0.5f);
  SlidingCacheConfig config;
  config.batch = 1;
  config.kv_heads = kHeads;
  config.head_dim = kDim;
  config.value_dim = 24;
  config.type = ElementType::int4;
  config.window = 100;
  config.first_tokens = 4;
  config.chunk = 50;
  config.key_scales = ConstView(scales.data(), {kHeads, kDim});
  SlidingCache cache(config);
  for (int i = 0; i < 7; ++i)
    cache.append(rows(1, 50, kDim).const_view(), rows(1, 50, 24).const_view());
  save_caches(path_, kPrint, std::span<const SlidingCache>(&cache, 1));
  const CacheFileInfo info = load_cache_file_info(path_);
  EXPECT_EQ(info.kind, Kind::sliding_caches);
  EXPECT_EQ(info.count, 1);
  EXPECT_EQ(info.tokens, 350);
  EXPECT_TRUE(info.keys_by_channel);
  auto same = like<SlidingCacheConfig>(info);
  same.window = info.window;
  same.first_tokens = info.first_tokens;
  same.chunk = info.chunk;
  const std::vector<float> others(scales.size(), 1.0f);  // the file brings its own
  same.key_scales = ConstView(others.data(), {kHeads, kDim});
  SlidingCache loaded(same);
  load_caches(path_, info.fingerprint, std::span(&loaded, 1));
  EXPECT_EQ(loaded.length(0), 350);
}

TEST_F(CacheFileInfoTest, APoolMadeByItTakesTheFile) {
  const std::vector<float> scales(2 * kHeads * kDim, 0.5f);
  PagedCache from({.pages = 8,
                   .layers = 2,
                   .kv_heads = kHeads,
                   .head_dim = kDim,
                   .value_dim = 16,
                   .type = ElementType::int8,
                   .key_scales = ConstView(scales.data(), {2, kHeads, kDim})});
  const std::vector<std::int64_t> sequences = {from.create(), from.create()};
  const Tensor k = rows(1, 20, kDim), v = rows(1, 20, 16);
  const auto tokens = [](const Tensor& of, std::int64_t dim) {
    return ConstView(of.const_view().data, f32, {20, kHeads, dim});
  };
  ASSERT_EQ(from.extend(sequences[0], 20), PagedCache::Status::ok);
  for (std::int64_t layer = 0; layer < 2; ++layer)
    ASSERT_EQ(from.write(sequences[0], layer, 0, tokens(k, kDim), tokens(v, 16)),
              PagedCache::Status::ok);
  save_sequences(path_, kPrint, from, sequences, std::vector<std::byte>(77));
  const CacheFileInfo info = load_cache_file_info(path_);
  EXPECT_EQ(info.kind, Kind::sequences);
  EXPECT_EQ(info.fingerprint, kPrint);
  EXPECT_EQ(info.count, 2);
  EXPECT_EQ(info.notes_bytes, 77);
  EXPECT_EQ(info.batch, 1);
  EXPECT_EQ(info.tokens, 20);
  EXPECT_TRUE(info.keys_by_channel);
  const KeyScales held = load_key_scales(path_, info.fingerprint);
  PagedCache to({.pages = 8,
                 .layers = info.layers,
                 .kv_heads = info.kv_heads,
                 .head_dim = info.head_dim,
                 .value_dim = info.value_dim,
                 .type = info.type,
                 .key_scales = held.view()});
  std::vector<std::int64_t> loaded(static_cast<std::size_t>(info.count));
  ASSERT_EQ(load_sequences(path_, info.fingerprint, to, std::span(loaded)), PagedCache::Status::ok);
  EXPECT_EQ(to.length(loaded[0]), 20);
  save_sequences(path_, kPrint, from, {});
  EXPECT_EQ(load_cache_file_info(path_).count, 0);
  EXPECT_EQ(load_cache_file_info(path_).layers, 0);
}

TEST_F(CacheFileInfoTest, WhatIsNoSuchFileIsRefused) {
  EXPECT_EQ(refusal(), "load_cache_file_info: FILE cannot be opened: No such file or directory");
  KvCacheConfig config;
  config.kv_heads = kHeads;
  config.head_dim = config.value_dim = kDim;
  std::vector<KvCache> caches;
  caches.emplace_back(config);
  save_caches(path_, kPrint, caches);
  const std::string good = ScratchDirectory::read(path_);
  directory_.write("it.kv", "PHKVCACHE is not all");
  EXPECT_EQ(refusal(), "load_cache_file_info: FILE is not a file of saved caches");
  for (const char* const other : {"", "PHKV", "PHKVOTHER", "GGUF and more"}) {
    directory_.write("it.kv", other);
    EXPECT_EQ(refusal(), "load_cache_file_info: FILE is not a file of saved caches or sequences");
  }
  std::string later = good;
  later[8] = 9;
  directory_.write("it.kv", later);
  EXPECT_EQ(refusal(), "load_cache_file_info: FILE has version 9, expected 1");
  for_each_damage(good, 100, [&](const std::string& bytes, std::size_t at) {
    directory_.write("it.kv", bytes);
    EXPECT_NE(refusal(), "accepted") << "byte " << at;
  });
}

// With a checksum of what it says, as only a program that writes such files wrongly makes it.
TEST_F(CacheFileInfoTest, SizesThatNothingHasAreRefusedByName) {
  KvCacheConfig config;
  config.batch = 2;
  config.kv_heads = kHeads;
  config.head_dim = config.value_dim = kDim;
  std::vector<KvCache> caches;
  caches.emplace_back(config);
  save_caches(path_, kPrint, caches);
  const std::string good = ScratchDirectory::read(path_);
  constexpr std::size_t kHeader = 48;
  const auto with = [&](std::size_t number, std::int64_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + kHeader + number * 8, &value, 8);
    put(bytes);
    std::string message = refusal();
    const std::string begin = "load_cache_file_info: FILE, the first of its caches: ";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  };
  const std::string types = "float32, float16, bfloat16, int8, int4, float8_e4m3 or float8_e5m2";
  EXPECT_EQ(with(0, 0), "accepted");
  EXPECT_EQ(with(0, static_cast<int>(ElementType::boolean)),
            "its type is boolean, expected " + types);
  EXPECT_EQ(with(0, 256), "its type is 256, expected " + types);
  EXPECT_EQ(with(0, -1), "its type is -1, expected " + types);
  EXPECT_EQ(with(1, -2), "its batch is -2, expected 0 .. 281474976710656");
  EXPECT_EQ(with(1, 1000), "it is cut short: expected 8 bytes of length, found 0");
  EXPECT_EQ(with(2, std::int64_t{1} << 60),
            "its kv_heads is 1152921504606846976, expected 0 .. 281474976710656");
  EXPECT_EQ(with(3, 769), "its head_dim is 769, expected 0 .. 768");
  EXPECT_EQ(with(4, -1), "its value_dim is -1, expected 0 .. 768");
  EXPECT_EQ(with(5, 2), "its values_in_keys is 2, expected 0 .. 1");
  EXPECT_EQ(with(6, 2), "its key_scales is 2, expected 0 .. 1");
  EXPECT_EQ(with(6, 1),
            "its key_scales are by channel, expected a type of int8 or int4, found float32");
  EXPECT_EQ(with(8, -1), "its length is -1, expected 0 .. 281474976710656");
  SlidingCacheConfig sliding;
  sliding.kv_heads = 1;
  sliding.head_dim = sliding.value_dim = 8;
  sliding.window = sliding.chunk = 4;
  const SlidingCache ring(sliding);
  save_caches(path_, kPrint, std::span<const SlidingCache>(&ring, 1));
  const std::string of_ring = ScratchDirectory::read(path_);
  for (const auto& [number, name] : {std::pair{7, "window"}, {9, "chunk"}}) {
    std::string bytes = of_ring;
    std::fill_n(bytes.begin() + kHeader + number * 8, 8, '\0');
    put(bytes);
    EXPECT_EQ(refusal(), std::string("load_cache_file_info: FILE, the first of its sliding caches: "
                                     "its ") +
                             name + " is 0, expected 1 .. 281474976710656");
  }
  save_caches(path_, kPrint, std::span<const KvCache>());
  put(ScratchDirectory::read(path_) + "more");
  EXPECT_EQ(refusal(), "load_cache_file_info: FILE is 4 bytes too long");
  put(good.substr(0, kHeader + 8 + 3));
  EXPECT_NE(refusal().find("it is cut short: expected 56 bytes of sizes, found 3"),
            std::string::npos)
      << refusal();
}

}  // namespace
}  // namespace polyhead::test
