// Saved sequences of a paged cache come back bit for bit, into pages of any size; what is not such
// a file, is for another model or does not fit is refused, and nothing is lost.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "polyhead/attention.h"
#include "polyhead/cache_file.h"
#include "polyhead/paged_cache.h"
#include "support/damage.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead::test {
namespace {

using Status = PagedCache::Status;

constexpr ElementType kTypesHeld[] = {f32,
                                      f16,
                                      bf16,
                                      ElementType::int8,
                                      ElementType::int4,
                                      ElementType::float8_e4m3,
                                      ElementType::float8_e5m2};
constexpr std::int64_t kLayers = 2, kHeads = 2, kDim = 40, kValueDim = 32;
const CacheFingerprint kPrint{1, 2, 3, 4};

struct Shape {
  ElementType type = f32;
  bool by_channel = false;
  std::int64_t page_tokens = 16, pages = 40;
  float scale = 0.02f;
  bool values_in_keys = false;
};

PagedCache cache_of(const Shape& shape) {
  PagedCacheConfig c;
  c.pages = shape.pages;
  c.page_tokens = shape.page_tokens;
  c.layers = kLayers;
  c.kv_heads = kHeads;
  c.head_dim = kDim;
  c.value_dim = kValueDim;
  c.type = shape.type;
  c.values_in_keys = shape.values_in_keys;
  const std::vector<float> scales(kLayers * kHeads * kDim, shape.scale);
  if (shape.by_channel) c.key_scales = ConstView(scales.data(), {kLayers, kHeads, kDim});
  return PagedCache(c);
}

std::vector<std::int32_t> counting(std::int64_t count, std::int32_t from = 0) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(from + static_cast<std::int32_t>(i));
  return tokens;
}

void put(PagedCache& cache, std::int64_t sequence, const std::vector<std::int32_t>& tokens,
         std::uint64_t seed) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::int64_t first = cache.length(sequence);
  ASSERT_EQ(cache.extend(sequence, n, tokens), Status::ok);
  Random random(seed);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    Tensor k(f32, {n, kHeads, kDim}), v(f32, {n, kHeads, kValueDim});
    k.fill_normal(random);
    v.fill_normal(random);
    const ConstView values = cache.config().values_in_keys ? ConstView() : v.const_view();
    ASSERT_EQ(cache.write(sequence, layer, first, k.const_view(), values), Status::ok);
  }
}

/// Sequences of 37, 50 (a fork of the first with 13 more) and 0 tokens.
std::vector<std::int64_t> fill(PagedCache& cache) {
  const std::int64_t a = cache.create(7);
  put(cache, a, counting(37), 1);
  const std::int64_t b = cache.fork(a);
  put(cache, b, counting(13, 100), 2);
  return {a, b, cache.create(7)};
}

Tensor attended(const PagedCache& cache, std::span<const std::int64_t> sequences) {
  const auto n = static_cast<std::int64_t>(sequences.size());
  Tensor q(f32, {n, 1, 2 * kHeads, kDim}), out(f32, {n, 1, 2 * kHeads, kValueDim});
  Random random(5);
  q.fill_normal(random);
  PagedBatch batch;
  cache.batch(sequences, batch);
  AttentionArguments call;
  call.q = q.const_view();
  call.kv = cache.view(1, batch);
  call.out = out.view();
  attention(call);
  return out;
}

std::vector<std::byte> saved(const PagedCache& cache, std::span<const std::int64_t> sequences) {
  std::vector<std::byte> bytes;
  for (const std::int64_t sequence : sequences) cache.save(sequence, bytes);
  return bytes;
}

class PagedFile : public testing::Test {
 protected:
  ScratchDirectory directory_;
  const std::string path_ = directory_.file("prompts.kv");

  /// "ok", "exhausted", or what was refused; then nothing has been lost.
  std::string load(PagedCache& cache, std::vector<std::int64_t>& into,
                   const CacheFingerprint& print = kPrint) {
    const std::int64_t free = cache.free_pages(), sequences = cache.sequences();
    std::string message = "exhausted";
    const std::string refused = refusal_of([&] {
      if (load_sequences(path_, print, cache, into, 7) == Status::ok) message = "ok";
    });
    if (refused != "accepted") message = refused;
    if (message != "ok") {
      EXPECT_EQ(cache.free_pages(), free) << message;
      EXPECT_EQ(cache.sequences(), sequences) << message;
      const std::size_t at = message.find(path_);
      if (at != std::string::npos) message.replace(at, path_.size(), "FILE");
    }
    return message;
  }
  void put_bytes(const std::string& bytes) const { directory_.write("prompts.kv", bytes); }
};

TEST_F(PagedFile, BringsBackEveryTypeIntoPagesOfAnySize) {
  for (const ElementType type : kTypesHeld) {
    for (const auto& [by_channel, values_in_keys] :
         {std::pair{false, false}, {true, false}, {false, true}}) {
      if (by_channel && type != ElementType::int8 && type != ElementType::int4) continue;
      PagedCache first = cache_of({type, by_channel, 16, 40, 0.02f, values_in_keys});
      const auto sequences = fill(first);
      save_sequences(path_, kPrint, first, sequences);
      for (const std::int64_t page_tokens : {8, 16, 64}) {
        PagedCache second = cache_of({type, by_channel, page_tokens, 40, 0.02f, values_in_keys});
        std::vector<std::int64_t> loaded;
        ASSERT_EQ(load(second, loaded), "ok") << element_name(type);
        ASSERT_EQ(loaded.size(), sequences.size());
        for (std::size_t i = 0; i < loaded.size(); ++i)
          EXPECT_EQ(second.length(loaded[i]), first.length(sequences[i]));
        EXPECT_EQ(saved(second, loaded), saved(first, sequences)) << element_name(type);
        EXPECT_EQ(differing_bits(attended(first, sequences), attended(second, loaded)), 0)
            << element_name(type) << ", pages of " << page_tokens;
        // They go on as any other, and their full pages are found by prompts of the salt.
        put(second, loaded[0], counting(9, 50), 3);
        const std::int64_t prompt = second.create(7), stranger = second.create(8);
        EXPECT_EQ(second.adopt_prefix(prompt, counting(38)), 37 / page_tokens * page_tokens);
        EXPECT_EQ(second.adopt_prefix(stranger, counting(38)), 0);
      }
    }
  }
}

TEST_F(PagedFile, TokensWithoutRowsAreNotSaved) {
  PagedCache cache = cache_of({});
  const std::int64_t a = cache.create();
  put(cache, a, counting(20), 1);
  ASSERT_EQ(cache.extend(a, 5), Status::ok);
  save_sequences(path_, kPrint, cache, {{a}});
  std::vector<std::int64_t> loaded;
  ASSERT_EQ(load(cache, loaded), "ok");
  EXPECT_EQ(cache.length(loaded[0]), 20);
}

TEST_F(PagedFile, RefusesAnotherModelOrCache) {
  PagedCache cache = cache_of({ElementType::int8, true});
  const auto sequences = fill(cache);
  save_sequences(path_, kPrint, cache, sequences);
  std::vector<std::int64_t> into = {42};
  EXPECT_EQ(load(cache, into, {9, 2, 3, 4}),
            "load_sequences: FILE was saved with another fingerprint of the model (1), expected 9");
  EXPECT_EQ(load(cache, into, {1, 2, 9, 4}),
            "load_sequences: FILE was saved with another fingerprint of the RoPE (3), expected 9");
  PagedCache by_token = cache_of({ElementType::int8, false});
  EXPECT_EQ(load(by_token, into),
            "load_sequences: FILE, sequence 0: its key_scales is by channel, expected by token");
  PagedCache bytes = cache_of({ElementType::float8_e4m3});
  EXPECT_EQ(load(bytes, into),
            "load_sequences: FILE, sequence 0: its type is int8, expected float8_e4m3");
  PagedCache other = cache_of({ElementType::int8, true, 16, 40, 0.03f});
  EXPECT_EQ(load(other, into),
            "load_sequences: FILE, sequence 0: its key_scales[0, 0, 0] is 0.02, expected 0.03");
  PagedCache latents = cache_of({ElementType::int8, false, 16, 40, 0.02f, true});
  EXPECT_EQ(load(latents, into),
            "load_sequences: FILE, sequence 0: its values_in_keys is 0, expected 1");
  PagedCache small = cache_of({ElementType::int8, true, 16, 6});  // 3 and 4 pages are needed
  EXPECT_EQ(load(small, into), "exhausted");
  EXPECT_EQ(into, std::vector<std::int64_t>{42});
  std::vector<KvCache> none;
  EXPECT_NE(
      refusal_of([&] { load_caches(path_, kPrint, none); }).find("is not a file of saved caches"),
      std::string::npos);
  save_caches(path_, kPrint, none);
  EXPECT_EQ(load(cache, into), "load_sequences: FILE is not a file of saved sequences");
  // A file from before caches could hold values in keys.
  save_sequences(path_, kPrint, cache, sequences);
  std::string older = ScratchDirectory::read(path_);
  older[8] = 1;
  put_bytes(older);
  EXPECT_EQ(load(cache, into), "load_sequences: FILE has version 1, expected 3");
}

// Prompts of one model must not find pages of another, under whatever salt.
TEST_F(PagedFile, ACacheServesOneModel) {
  PagedCache from = cache_of({});
  const auto sequences = fill(from);
  PagedCache cache = cache_of({f32, false, 16, 400});
  std::vector<std::int64_t> into;
  constexpr CacheFingerprint kOther = {1, 2, 9, 4}, kOtherTokens = {1, 2, 3, 9};
  save_sequences(path_, kPrint, from, sequences);
  ASSERT_EQ(load(cache, into), "ok");
  save_sequences(path_, kOther, from, sequences);
  const std::int64_t free = cache.free_pages();
  EXPECT_EQ(load(cache, into, kOther),
            "load_sequences: FILE: the fingerprint of the RoPE is 9, expected that of the rows "
            "held, 3");
  EXPECT_EQ(cache.free_pages(), free);
  save_sequences(path_, kOtherTokens, from, sequences);
  EXPECT_EQ(load(cache, into, kOtherTokens), "ok");
  PagedCache own = cache_of({f32, false, 16, 400});
  own.serve({8, 2, 3, 4});
  save_sequences(path_, kPrint, from, sequences);
  const std::string refusal =
      "load_sequences: FILE: the fingerprint of the model is 1, expected that of the rows held, 8";
  EXPECT_EQ(load(own, into), refusal);
  // Also where it would not fit either.
  PagedCache small = cache_of({f32, false, 16, 2});
  EXPECT_EQ(small.served(), nullptr);
  small.serve({8, 2, 3, 4});
  EXPECT_EQ(small.served()->model, 8U);
  EXPECT_EQ(load(small, into), refusal);
  EXPECT_EQ(refusal_of([&] { small.serve(kPrint); }),
            "PagedCache::serve: the fingerprint of the model is 1, expected that of the rows held, "
            "8");
}

// What a call that loads nothing must leave: prefixes to adopt, and none of the file's.
TEST_F(PagedFile, WhatIsNotLoadedTakesNoRememberedPages) {
  PagedCache from = cache_of({});
  std::vector<std::int64_t> sequences;
  for (const std::int32_t first : {1000, 2000, 3000}) {
    sequences.push_back(from.create());
    put(from, sequences.back(), counting(32, first), 1);
  }
  save_sequences(path_, kPrint, from, sequences);
  PagedCache cache = cache_of({f32, false, 16, 5});
  put(cache, cache.create(), counting(16, 5000), 1);
  const std::int64_t prompt = cache.create(7);
  put(cache, prompt, counting(64), 1);
  cache.release(prompt);
  const auto found = [&](std::int32_t first) {
    const std::int64_t probe = cache.create(7);
    const std::int64_t adopted = cache.adopt_prefix(probe, counting(65, first));
    cache.release(probe);
    return adopted;
  };
  std::vector<std::int64_t> into;
  EXPECT_EQ(load(cache, into), "exhausted");  // 6 pages, 4 of which there are
  EXPECT_EQ(found(0), 64);
  EXPECT_EQ(found(1000), 0);
  // Two fit, but the file holds three.
  std::int64_t two[2] = {-1, -1};
  EXPECT_EQ(refusal_of([&] { (void)load_sequences(path_, kPrint, cache, std::span(two), 7); }),
            "load_sequences: " + path_ + " holds 3 sequences, expected 2");
  EXPECT_EQ(found(0), 64);
  EXPECT_EQ(two[0], -1);
  std::int64_t three[3] = {-1, -1, -1};
  PagedCache large = cache_of({});
  EXPECT_EQ(load_sequences(path_, kPrint, large, std::span(three)), Status::ok);
  EXPECT_EQ(saved(large, three), saved(from, sequences));
}

TEST_F(PagedFile, SaysTheScalesThatItsCacheHas) {
  const PagedCache cache = [&] {
    PagedCache filled = cache_of({ElementType::int8, true, 16, 40, 0.03f});
    save_sequences(path_, kPrint, filled, fill(filled));
    return filled;
  }();
  const KeyScales scales = load_key_scales(path_, kPrint);
  EXPECT_EQ(scales.values, std::vector<float>(kLayers * kHeads * kDim, 0.03f));
  EXPECT_EQ(scales.view().layout.extents, detail::Layout(kLayers, kHeads, kDim).extents);
  EXPECT_EQ(refusal_of([&] {
              load_key_scales(path_, {1, 2, 3, 5});
            }),
            "load_key_scales: " + path_ +
                " was saved with another fingerprint of the tokens (4), expected 5");
  save_sequences(path_, kPrint, cache, {});
  EXPECT_FALSE(load_key_scales(path_, kPrint).view().given());
  PagedCache by_token = cache_of({ElementType::int8});
  save_sequences(path_, kPrint, by_token, fill(by_token));
  EXPECT_FALSE(load_key_scales(path_, kPrint).view().given());
}

TEST_F(PagedFile, SaysThatACacheWithoutHeadsHasScalesByChannel) {
  const float none = 0.5f;
  struct Sizes {
    std::int64_t layers, heads, dim;
  };
  for (const auto& [layers, heads, dim] :
       {Sizes{2, 0, 8}, {2, 2, 0}, {2, 0, 0}, {0, 2, 8}, {0, 0, 0}}) {
    const PagedCacheConfig config{.pages = 4,
                                  .layers = layers,
                                  .kv_heads = heads,
                                  .head_dim = dim,
                                  .type = ElementType::int8,
                                  .key_scales = ConstView(&none, {layers, heads, dim})};
    PagedCache from(config);
    save_sequences(path_, kPrint, from, std::vector{from.create()});
    const KeyScales scales = load_key_scales(path_, kPrint);
    EXPECT_TRUE(scales.values.empty());
    PagedCacheConfig same = config;
    same.key_scales = scales.view();
    PagedCache to(same);
    std::vector<std::int64_t> into;
    EXPECT_EQ(load(to, into), "ok") << layers << " " << heads << " " << dim;
  }
}

TEST_F(PagedFile, NotesComeBackAsTheyWereGiven) {
  PagedCache cache = cache_of({});
  const auto sequences = fill(cache);
  std::vector<std::byte> notes(1000);
  for (std::size_t i = 0; i < notes.size(); ++i) notes[i] = static_cast<std::byte>(i * i % 251);
  const std::vector<std::int64_t> none;
  for (const auto& of : {sequences, none}) {
    save_sequences(path_, kPrint, cache, of, notes);
    EXPECT_EQ(load_notes(path_, kPrint), notes);
    EXPECT_EQ(
        refusal_of([&] {
          (void)load_notes(path_, {1, 2, 9, 4});
        }),
        "load_notes: " + path_ + " was saved with another fingerprint of the RoPE (3), expected 9");
  }
  save_sequences(path_, kPrint, cache, sequences, notes);
  std::vector<std::int64_t> into;
  PagedCache other = cache_of({});
  ASSERT_EQ(load(other, into), "ok");
  EXPECT_EQ(saved(other, into), saved(cache, sequences));
  save_sequences(path_, kPrint, cache, sequences);
  EXPECT_TRUE(load_notes(path_, kPrint).empty());
  // More notes than bytes are left, under a right checksum.
  std::string bytes = ScratchDirectory::read(path_);
  bytes.resize(bytes.size() - sizeof(std::uint64_t));
  const std::uint64_t noted = bytes.size();
  std::memcpy(bytes.data() + 48, &noted, sizeof noted);
  const std::uint64_t sum = base::checksum(std::as_bytes(std::span(bytes)));
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  put_bytes(bytes);
  EXPECT_EQ(load(other, into), "load_sequences: FILE promises " + std::to_string(noted) +
                                   " bytes of notes, but has " + std::to_string(noted - 56));
}

TEST_F(PagedFile, RefusesDamage) {
  PagedCache cache = cache_of({ElementType::int4});
  save_sequences(path_, kPrint, cache, fill(cache));
  const std::string good = ScratchDirectory::read(path_);
  std::vector<std::int64_t> into;
  for_each_damage(good, 200, [&](const std::string& bytes, std::size_t at) {
    put_bytes(bytes);
    const std::string message = load(cache, into);
    EXPECT_NE(message, "ok") << "byte " << at;
    EXPECT_NE(message, "exhausted") << "byte " << at;
  });
}

// With the checksum of all its bytes, as only a program that writes such files wrongly makes them.
TEST_F(PagedFile, RefusesBytesBehindTheLastSequence) {
  PagedCache cache = cache_of({});
  const auto sequences = fill(cache);
  save_sequences(path_, kPrint, cache, sequences);
  const std::string good = ScratchDirectory::read(path_);
  std::vector<std::byte> one_more;
  cache.save(sequences[1], one_more);
  std::vector<std::int64_t> into = {42};
  for (const auto& extra : {one_more, std::vector(1, std::byte{7}), std::vector<std::byte>()}) {
    std::string bytes = good.substr(0, good.size() - sizeof(std::uint64_t));
    bytes.append(reinterpret_cast<const char*>(extra.data()), extra.size());
    const std::uint64_t sum = base::checksum(std::as_bytes(std::span(bytes)));
    bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    put_bytes(bytes);
    const std::string expected =
        extra.empty()
            ? "ok"
            : "load_sequences: FILE is " + std::to_string(extra.size()) + " bytes too long";
    ASSERT_EQ(load(cache, into), expected);
    EXPECT_EQ(into == std::vector<std::int64_t>{42}, !extra.empty());
  }
}

TEST(PagedCacheLoad, SaysWhichLengthIsWrong) {
  PagedCache cache = cache_of({ElementType::int4, false, 16, 40, 0.02f, true});
  std::vector<std::byte> good;
  cache.save(fill(cache)[1], good);
  constexpr std::size_t kLength = 7 * 8;
  std::int64_t held = 0;
  std::memcpy(&held, good.data() + kLength, 8);
  const auto refused = [&](std::span<const std::byte> bytes) { return cache.load(bytes).wrong; };
  const auto with = [&](std::int64_t length) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + kLength, &length, 8);
    return refused(bytes);
  };
  EXPECT_EQ(with(-1), "its length is -1, expected 0 or more");
  EXPECT_EQ(with(held + 1), "it is cut short: its length is " + std::to_string(held + 1) +
                                ", expected at most the " + std::to_string(held) +
                                " tokens whose rows are there");
  EXPECT_EQ(refused(std::span(good).first(kLength + 5)),
            "it is cut short: expected 8 bytes of length, found 5");
}

// A file whose checksum is right may still lie; what the cache reads is bounds-checked by itself.
TEST(PagedCacheLoad, BelievesNothing) {
  for (const bool values_in_keys : {false, true}) {
    PagedCache cache =
        cache_of({ElementType::int4, !values_in_keys, 16, 40, 0.02f, values_in_keys});
    const auto sequences = fill(cache);
    std::vector<std::byte> good;
    cache.save(sequences[1], good);
    Random random(2);
    for (int i = 0; i < 3000; ++i) {
      const std::vector<std::byte> bytes = with_lies(good, 64, 2, random);
      std::span<const std::byte> rest = bytes;
      const std::int64_t free = cache.free_pages();
      const PagedCache::Loaded loaded = cache.load(rest);
      if (loaded.sequence >= 0) {
        cache.release(loaded.sequence);
      } else {
        EXPECT_FALSE(loaded.wrong.empty());
        EXPECT_EQ(rest.size(), bytes.size());
      }
      EXPECT_EQ(cache.free_pages(), free);
      EXPECT_EQ(cache.sequences(), 3);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
