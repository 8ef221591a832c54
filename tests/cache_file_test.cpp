// Saved caches come back bit for bit; what is not such a file, or for another model, is refused.
#include "polyhead/cache_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "polyhead/paged_cache.h"
#include "support/damage.h"
#include "support/effort.h"
#include "support/failing_allocation.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead::test {
namespace {

constexpr ElementType kTypesHeld[] = {f32,
                                      f16,
                                      bf16,
                                      ElementType::int8,
                                      ElementType::int4,
                                      ElementType::float8_e4m3,
                                      ElementType::float8_e5m2};

/// Two layers' caches of two sequences of lengths 70 and 3.
std::vector<KvCache> caches(ElementType type, bool by_channel, bool filled, std::uint64_t seed,
                            std::int64_t capacity = 0) {
  std::vector<KvCache> list;
  Random random(seed);
  for (int layer = 0; layer < 2; ++layer) {
    Tensor k(f32, {2, 70, 2, 40}), v(f32, {2, 70, 2, 24});
    k.fill_normal(random);
    v.fill_normal(random);
    KvCacheConfig c;
    c.batch = 2;
    c.kv_heads = 2;
    c.head_dim = 40;
    c.value_dim = 24;
    c.type = type;
    c.capacity = capacity;
    c.growing = capacity == 0;
    std::vector<float> scales;
    if (by_channel) {
      scales = key_scales_by_channel(k.const_view(), type);
      c.key_scales = ConstView(scales.data(), {2, 40});
    }
    list.emplace_back(c);
    const std::int32_t counts[] = {70, 3};
    if (filled) list.back().append(k.const_view(), v.const_view(), ConstView(counts, {2}));
  }
  return list;
}

std::vector<std::byte> saved(const std::vector<KvCache>& list) {
  std::vector<std::byte> bytes;
  for (const KvCache& cache : list) cache.save(bytes);
  return bytes;
}

const CacheFingerprint kPrint{1, 2, 3, 4};

class CacheFile : public testing::Test {
 protected:
  ScratchDirectory directory_;
  const std::string path_ = directory_.file("prompt.kv");
  std::string load(std::vector<KvCache>& into, const CacheFingerprint& print = kPrint) {
    const std::vector<std::byte> before = saved(into);
    std::string message = refusal_of([&] { load_caches(path_, print, into); });
    if (message != "accepted") {
      EXPECT_EQ(saved(into), before) << message;
      const std::size_t at = message.find(path_);
      if (at != std::string::npos) message.replace(at, path_.size(), "FILE");
    }
    return message;
  }
  std::string contents() const { return ScratchDirectory::read(path_); }
  void put(const std::string& bytes) const { directory_.write("prompt.kv", bytes); }
};

TEST_F(CacheFile, BringsBackEveryTypeBitForBitAndAttentionTheSame) {
  for (const ElementType type : kTypesHeld) {
    for (const bool by_channel : {false, true}) {
      if (by_channel && type != ElementType::int8 && type != ElementType::int4) continue;
      const std::vector<KvCache> first = caches(type, by_channel, true, 1);
      save_caches(path_, kPrint, first);
      std::vector<KvCache> second = caches(type, by_channel, false, 9);
      ASSERT_EQ(load(second), "accepted") << element_name(type);
      EXPECT_EQ(saved(first), saved(second)) << element_name(type);
      Random random(5);
      Tensor q(f32, {2, 1, 4, 40}), a(f32, {2, 1, 4, 24}), b(f32, {2, 1, 4, 24});
      q.fill_normal(random);
      AttentionArguments call;
      call.q = q.const_view();
      call.kv = first[1].view();
      call.out = a.view();
      attention(call);
      call.kv = second[1].view();
      call.out = b.view();
      attention(call);
      EXPECT_EQ(differing_bits(a, b), 0) << element_name(type);
    }
  }
}

TEST_F(CacheFile, RefusesAnotherModelOrCache) {
  save_caches(path_, kPrint, caches(f16, false, true, 1));
  std::vector<KvCache> into = caches(f16, false, true, 2);
  EXPECT_EQ(load(into, {9, 2, 3, 4}),
            "load_caches: FILE was saved with another fingerprint of the model (1), expected 9");
  EXPECT_EQ(load(into, {1, 9, 3, 4}),
            "load_caches: FILE was saved with another fingerprint of the weights (2), expected 9");
  EXPECT_EQ(load(into, {1, 2, 9, 4}),
            "load_caches: FILE was saved with another fingerprint of the RoPE (3), expected 9");
  EXPECT_EQ(load(into, {1, 2, 3, 9}),
            "load_caches: FILE was saved with another fingerprint of the tokens (4), expected 9");
  std::vector<KvCache> other = caches(bf16, false, true, 2);
  EXPECT_EQ(load(other), "load_caches: FILE, cache 0: its type is float16, expected bfloat16");
  into.pop_back();
  EXPECT_EQ(load(into), "load_caches: FILE holds 2 caches, expected 1");
  std::vector<KvCache> small = caches(f16, false, false, 2, 69);
  EXPECT_EQ(load(small), "load_caches: FILE, cache 0: its lengths[0] is 70, expected 0 .. 69");
  save_caches(path_, kPrint, caches(ElementType::int8, true, true, 1));
  std::vector<KvCache> by_token = caches(ElementType::int8, false, false, 1);
  EXPECT_EQ(load(by_token),
            "load_caches: FILE, cache 0: its key_scales is by channel, expected by token");
}

void append_60(SlidingCache& cache, Random& random, ConstView counts = {}) {
  Tensor k(f32, {2, 60, 2, 40}), v(f32, {2, 60, 2, 32});
  k.fill_normal(random);
  v.fill_normal(random);
  cache.append(k.const_view(), cache.config().values_in_keys ? ConstView() : v.const_view(),
               counts);
}

/// A sliding cache of two sequences: one of 420 tokens, whose ring has come round and from which
/// some were taken back, and one of 7. The empty one that takes a file has other scales by channel.
SlidingCache sliding(ElementType type, bool by_channel, bool filled, std::int64_t window = 70,
                     bool values_in_keys = false) {
  Random random(9);
  SlidingCacheConfig c;
  c.batch = 2;
  c.kv_heads = 2;
  c.head_dim = 40;
  c.value_dim = 32;
  c.type = type;
  c.values_in_keys = values_in_keys;
  c.window = window;
  c.first_tokens = 3;
  c.chunk = 60;
  const std::vector<float> scales(2 * 40, filled ? 0.02f : 0.05f);
  if (by_channel) c.key_scales = ConstView(scales.data(), {2, 40});
  SlidingCache cache(c);
  for (int turn = 0; filled && turn < 7; ++turn) {
    const std::int32_t counts[] = {60, 1};
    append_60(cache, random, ConstView(counts, {2}));
  }
  if (filled) cache.truncate(0, 380);
  return cache;
}

/// What both sequences hold, as float32.
std::vector<float> held(const SlidingCache& cache) {
  std::vector<float> all;
  for (std::int64_t b = 0; b < 2; ++b) {
    Tensor k(f32, {cache.held(b), 2, 40}), v(f32, {cache.held(b), 2, 32});
    cache.read(b, k.view(), v.view());
    for (const Tensor* x : {&k, &v})
      for_each_index(x->extents(),
                     [&](const Index& at) { all.push_back(static_cast<float>(x->get(at))); });
  }
  return all;
}

TEST_F(CacheFile, RefusesNoCacheAndOneTwice) {
  std::vector<KvCache> list = caches(f16, false, true, 1);
  const std::vector<KvCache*> none{&list[0], nullptr}, twice{&list[0], &list[1], &list[0]};
  const std::vector<const KvCache*> none_saved(none.begin(), none.end()),
      twice_saved(twice.begin(), twice.end());
  EXPECT_EQ(refusal_of([&] { save_caches(path_, kPrint, none_saved); }),
            "save_caches: caches[1] is null");
  EXPECT_EQ(refusal_of([&] { save_caches(path_, kPrint, twice_saved); }),
            "save_caches: caches[2] is caches[0] again");
  EXPECT_FALSE(std::filesystem::exists(path_));
  save_caches(path_, kPrint, list);
  EXPECT_EQ(refusal_of([&] { load_caches(path_, kPrint, none); }),
            "load_caches: caches[1] is null");
  EXPECT_EQ(refusal_of([&] { load_caches(path_, kPrint, twice); }),
            "load_caches: caches[2] is caches[0] again");
}

TEST_F(CacheFile, BringsBackSlidingCachesThatGoOnAsBefore) {
  for (const ElementType type : kTypesHeld) {
    for (const auto& [by_channel, values_in_keys] :
         {std::pair{false, false}, {true, false}, {false, true}}) {
      if (by_channel && type != ElementType::int8 && type != ElementType::int4) continue;
      std::vector<SlidingCache> from, into;
      from.push_back(sliding(type, by_channel, true, 70, values_in_keys));
      into.push_back(sliding(type, by_channel, false, 70, values_in_keys));
      save_caches(path_, kPrint, from);
      load_caches(path_, kPrint, into);
      EXPECT_EQ(held(into[0]), held(from[0])) << element_name(type);
      std::vector<std::byte> bytes[2];
      for (SlidingCache* cache : {&from[0], &into[0]}) {
        Random random(3);
        append_60(*cache, random);
        cache->save(bytes[cache == &into[0]]);
      }
      EXPECT_EQ(into[0].length(0), 440);
      EXPECT_EQ(held(into[0]), held(from[0])) << element_name(type);
      EXPECT_EQ(bytes[0], bytes[1]) << element_name(type);
    }
  }
}

TEST_F(CacheFile, RefusesOtherSlidingCaches) {
  std::vector<SlidingCache> from, into;
  from.push_back(sliding(bf16, false, true));
  save_caches(path_, kPrint, from);
  const auto message = [&](SlidingCache cache) {
    into.clear();
    into.push_back(std::move(cache));
    std::string said = refusal_of([&] { load_caches(path_, kPrint, into); });
    EXPECT_EQ(into[0].length(0), 0);
    const std::size_t at = said.find(path_);
    return at == std::string::npos ? said : said.replace(at, path_.size(), "FILE");
  };
  EXPECT_EQ(message(sliding(bf16, false, false, 71)),
            "load_caches: FILE, cache 0: its window is 70, expected 71");
  EXPECT_EQ(message(sliding(f16, false, false)),
            "load_caches: FILE, cache 0: its type is bfloat16, expected float16");
  EXPECT_EQ(message(sliding(bf16, false, false, 70, true)),
            "load_caches: FILE, cache 0: its values_in_keys is 0, expected 1");
  std::string older = contents();
  older[8] = 1;  // from before caches could hold values in keys
  put(older);
  EXPECT_EQ(message(sliding(bf16, false, false)), "load_caches: FILE has version 1, expected 2");
  save_caches(path_, kPrint, from);
  std::vector<KvCache> plain = caches(bf16, false, false, 1);
  EXPECT_EQ(load(plain), "load_caches: FILE is not a file of saved caches");
  // Cut anywhere, or with lengths that cannot be: nothing changes.
  std::vector<std::byte> good;
  from[0].save(good);
  SlidingCache cache = sliding(bf16, false, false);
  const auto refused = [&](std::span<const std::byte> bytes) {
    std::string wrong;
    EXPECT_FALSE(cache.load(bytes, wrong));
    EXPECT_EQ(cache.length(0), 0);
    return wrong;
  };
  for (std::size_t size = 0; size < good.size(); size += 97)
    EXPECT_EQ(refused(std::span(good).first(size)).find("it is cut short: expected "), 0u) << size;
  constexpr std::size_t kLengths = 10 * 8, kLongest = kLengths + 2 * 8;
  EXPECT_EQ(refused(std::span(good).first(9)),
            "it is cut short: expected 80 bytes of sizes, found 9");
  EXPECT_EQ(refused(std::span(good).first(kLongest + 3)),
            "it is cut short: expected 16 bytes of longest, found 3");
  const std::size_t rows = good.size() - kLongest - 2 * 8;
  EXPECT_EQ(refused(std::span(good).first(good.size() - 1)),
            "it is cut short: expected " + std::to_string(rows) + " bytes of rows, found " +
                std::to_string(rows - 1));
  const auto with = [&](std::size_t at, std::int64_t length) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + at, &length, 8);
    return refused(bytes);
  };
  for (const std::int64_t length : {-1, 421, 359}) {
    EXPECT_EQ(with(kLengths, length),
              "its lengths[0] is " + std::to_string(length) + ", expected 360 .. 420");
  }
  EXPECT_EQ(with(kLongest + 8, -7), "its longest[1] is -7, expected 0 .. 68719476736");
}

// Each length is named with what it could be, and what is cut short with what there is of it.
TEST(CacheLoad, SaysWhichLengthIsWrong) {
  const std::vector<KvCache> from = caches(f16, false, true, 1);
  std::vector<std::byte> good;
  from[0].save(good);
  constexpr std::size_t kLengths = 7 * 8;
  const auto refused = [](KvCache cache, std::span<const std::byte> bytes) {
    std::string wrong;
    EXPECT_FALSE(cache.load(bytes, wrong));
    EXPECT_EQ(cache.max_length(), 0);
    return wrong;
  };
  const auto fixed = [] { return std::move(caches(f16, false, false, 1, 80)[0]); };
  const auto growing = [] { return std::move(caches(f16, false, false, 1)[0]); };
  const auto with = [&](std::size_t b, std::int64_t length) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + kLengths + b * 8, &length, 8);
    return bytes;
  };
  EXPECT_EQ(refused(fixed(), with(1, -2)), "its lengths[1] is -2, expected 0 .. 80");
  EXPECT_EQ(refused(fixed(), with(0, 81)), "its lengths[0] is 81, expected 0 .. 80");
  EXPECT_EQ(refused(growing(), with(1, std::int64_t{1} << 49)),
            "its lengths[1] is 562949953421312, expected 0 .. 281474976710656");
  const std::int64_t there = from[0].length(0) + from[0].length(1);
  EXPECT_EQ(refused(growing(), with(0, 1000)),
            "it is cut short: its lengths[0] is 1000, expected at most the " +
                std::to_string(there) + " tokens whose rows are there");
  EXPECT_EQ(refused(fixed(), std::span(good).first(kLengths + 9)),
            "it is cut short: expected 16 bytes of lengths, found 9");
}

TEST_F(CacheFile, RefusesDamage) {
  save_caches(path_, kPrint, caches(ElementType::int8, false, true, 1));
  const std::string good = contents();
  std::vector<KvCache> into = caches(ElementType::int8, false, true, 2);
  const std::string damaged =
      "load_caches: FILE is damaged or incomplete: its checksum does not match";
  for_each_damage(good, 300, [&](const std::string& bytes, std::size_t at) {
    put(bytes);
    const std::string message = load(into);
    EXPECT_NE(message, "accepted") << "byte " << at;
    // Behind the magic and the version, while there is a file to speak of.
    if (at >= 12) {
      EXPECT_EQ(message, damaged) << "byte " << at;
    }
  });
  put(good.substr(0, 60));
  EXPECT_EQ(load(into), damaged);
  put(good + "more");
  EXPECT_EQ(load(into), damaged);
  put("");
  EXPECT_EQ(load(into), "load_caches: FILE is not a file of saved caches");
  put("PHKVCACHnothing");
  EXPECT_EQ(load(into), "load_caches: FILE is not a file of saved caches");
  std::string version = good;
  version[8] = 7;
  put(version);
  EXPECT_EQ(load(into), "load_caches: FILE has version 7, expected 1");
}

TEST_F(CacheFile, ReplacesTheFileThatLinksLeadTo) {
  const auto list = caches(f16, false, true, 1);
  const std::string other = directory_.write("prompt.kv.partial", "somebody else's");
  const std::string link = directory_.file("link"), hanging = directory_.file("hanging");
  put("before");
  std::filesystem::permissions(path_, std::filesystem::perms::owner_read);
  std::filesystem::create_symlink("prompt.kv", link);
  std::filesystem::create_symlink(directory_.file("new.kv"), hanging);
  const std::string round = directory_.file("round");
  std::filesystem::create_symlink("round", round);
  EXPECT_NE(refusal_of([&] { save_caches(round, kPrint, list); }).find("symbolic links"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::is_symlink(round));
  std::filesystem::remove(round);
  save_caches(link, kPrint, list);
  save_caches(hanging, kPrint, list);
  EXPECT_TRUE(std::filesystem::is_symlink(link) && std::filesystem::is_symlink(hanging));
  EXPECT_EQ(contents(), ScratchDirectory::read(directory_.file("new.kv")));
  EXPECT_EQ(ScratchDirectory::read(other), "somebody else's");
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms::owner_read);
  EXPECT_EQ(directory_.file_count(), 5u) << "nothing is left behind";
  auto into = caches(f16, false, false, 2);
  load_caches(hanging, kPrint, into);
  EXPECT_EQ(saved(into), saved(list));
}

// The longest name that a folder takes: what it is written under before is no longer.
TEST_F(CacheFile, TakesNamesOfAnyLength) {
  const auto list = caches(f32, false, true, 1);
  for (const std::size_t length : {99u, 100u, 101u, 240u, 255u}) {
    const std::string path = directory_.file(std::string(length, 'x'));
    save_caches(path, kPrint, list);
    auto into = caches(f32, false, false, 2);
    load_caches(path, kPrint, into);
    EXPECT_EQ(saved(into), saved(list)) << length;
  }
  EXPECT_EQ(directory_.file_count(), 5u) << "nothing is left behind";
}

// How many tokens a ring has seen cannot be told from its bytes.
TEST_F(CacheFile, RefusesASlidingCacheTooOldForMemory) {
  std::vector<std::byte> bytes;
  sliding(bf16, false, true).save(bytes);
  constexpr std::size_t kLengths = 10 * 8;
  const std::int64_t length = std::int64_t{1} << 36;
  for (const std::size_t at : {kLengths, kLengths + 16})  // the first one's, and its longest
    std::memcpy(bytes.data() + at, &length, 8);
  SlidingCache cache = sliding(bf16, false, false);
  std::span<const std::byte> rest = bytes;
  std::string wrong;
  largest_allocation = std::size_t{1} << 30;
  EXPECT_NO_THROW(EXPECT_FALSE(cache.load(rest, wrong)));
  largest_allocation = SIZE_MAX;
  EXPECT_EQ(wrong, "its 68719476736 tokens need a longer page table than fits memory");
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(rest.size(), bytes.size());
}

TEST_F(CacheFile, RefusesAFileLongerThanMemory) {
  save_caches(path_, kPrint, caches(ElementType::int8, false, true, 1));
  std::filesystem::resize_file(path_, std::uintmax_t{1} << 31);
  std::vector<KvCache> into = caches(ElementType::int8, false, true, 2);
  largest_allocation = std::size_t{1} << 30;
  const std::string message = load(into);
  largest_allocation = SIZE_MAX;
  EXPECT_EQ(message, "load_caches: FILE is too long: there is no memory for 2147483649 bytes");
}

TEST_F(CacheFile, GoesThroughAPipe) {
  const auto list = caches(f32, false, true, 1);
  const std::string pipe = directory_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { save_caches(pipe, kPrint, list); });
  auto into = caches(f32, false, false, 2);
  load_caches(pipe, kPrint, into);
  writer.join();
  EXPECT_EQ(saved(into), saved(list));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(CacheFile, RefusesWhatIsNoFile) {
  const auto list = caches(f32, false, true, 1);
  auto into = caches(f32, false, false, 2);
  const std::string none = directory_.file("none/prompt.kv");
  std::filesystem::create_directory(path_);
  EXPECT_EQ(load(into), "load_caches: FILE cannot be read: Is a directory");
  EXPECT_EQ(refusal_of([&] { load_caches(none, kPrint, into); }),
            "load_caches: " + none + " cannot be opened: No such file or directory");
  // It has no end, but its beginning shows that it is something else.
  EXPECT_EQ(refusal_of([&] { load_caches("/dev/zero", kPrint, into); }),
            "load_caches: /dev/zero is not a file of saved caches");
  EXPECT_EQ(refusal_of([&] { save_caches(path_, kPrint, list); }),
            "save_caches: " + path_ + " cannot be written: Is a directory");
  EXPECT_EQ(refusal_of([&] { save_caches(none, kPrint, list); }),
            "save_caches: " + none + " cannot be written: No such file or directory");
  EXPECT_EQ(directory_.file_count(), 1u);
}

// Scales that no cache is made with are no scales of a file's either.
TEST(KvCacheLoad, RefusesScalesThatAreNone) {
  std::vector<KvCache> into = caches(ElementType::int8, true, true, 1);
  SlidingCache ring = sliding(ElementType::int8, true, true);
  std::vector<std::byte> of_cache, of_ring;
  into[0].save(of_cache);
  ring.save(of_ring);
  constexpr std::size_t kScales = 7 * 8 + 2 * 8, kScalesOfRing = 10 * 8 + 4 * 8;
  for (const auto& [scale, text] : {std::pair{0.0f, "0"}, {NAN, "nan"}, {-INFINITY, "-inf"}}) {
    const std::string expected =
        std::string("its key_scales has ") + text + ", expected finite numbers other than 0";
    std::memcpy(of_cache.data() + kScales + 4, &scale, 4);
    std::memcpy(of_ring.data() + kScalesOfRing + 4, &scale, 4);
    std::span<const std::byte> rest = of_cache, rest_of_ring = of_ring;
    std::string wrong;
    EXPECT_FALSE(into[0].load(rest, wrong));
    EXPECT_EQ(wrong, expected);
    EXPECT_FALSE(ring.load(rest_of_ring, wrong));
    EXPECT_EQ(wrong, expected);
    EXPECT_EQ(rest.size(), of_cache.size());
    EXPECT_EQ(rest_of_ring.size(), of_ring.size());
    EXPECT_EQ(ring.length(0), 380);
  }
}

// A file whose checksum is right may still lie; what the cache reads is bounds-checked by itself.
TEST(KvCacheLoad, BelievesNothing) {
  const std::vector<KvCache> list = caches(ElementType::int4, true, true, 1);
  std::vector<std::byte> good;
  list[0].save(good);
  Random random(2);
  const int times = effort() == Effort::smoke ? 600 : 3000;
  for (int i = 0; i < times; ++i) {
    const std::vector<std::byte> bytes = with_lies(good, 72, 3, random);
    std::vector<KvCache> into = caches(ElementType::int4, true, false, 1);
    std::span<const std::byte> rest = bytes;
    std::string wrong;
    if (!into[0].load(rest, wrong)) {
      EXPECT_FALSE(wrong.empty());
      EXPECT_EQ(into[0].length(0), 0);
      EXPECT_EQ(rest.size(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace polyhead::test
