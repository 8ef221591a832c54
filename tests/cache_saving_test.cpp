// What a cache saves piece by piece: the bytes that it saves at once, and no memory for them.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "polyhead/cache_file.h"
#include "support/failing_allocation.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead::test {
namespace {

using Sink = std::function<void(std::span<const std::byte>)>;

/// A cache of each kind that holds the same tokens.
struct Three {
  std::vector<KvCache> contiguous;
  std::vector<SlidingCache> ring;
  PagedCache paged;
  std::int64_t sequence;

  Three(ElementType type, std::int64_t tokens, std::int64_t kv_heads, std::int64_t dim)
      : paged(
            {.pages = 16, .page_tokens = 16, .kv_heads = kv_heads, .head_dim = dim, .type = type}),
        sequence(paged.create()) {
    contiguous.emplace_back(
        KvCacheConfig{.kv_heads = kv_heads, .head_dim = dim, .type = type, .growing = true});
    ring.emplace_back(SlidingCacheConfig{
        .kv_heads = kv_heads, .head_dim = dim, .type = type, .window = tokens, .chunk = tokens});
    Tensor rows(f32, {tokens, kv_heads, dim});
    Random random(3);
    rows.fill_normal(random);
    const ConstView batch(reinterpret_cast<const float*>(rows.bytes().data()),
                          {1, tokens, kv_heads, dim});
    contiguous[0].append(batch, batch);
    ring[0].append(batch, batch);
    EXPECT_EQ(paged.append(sequence, rows.const_view(), rows.const_view()), PagedCache::Status::ok);
  }
};

TEST(CacheSaving, AFileNeedsNoMemoryForTheRows) {
  const Three caches(f32, 64, 32, 256);  // 2 MiB of keys, and as many of values
  const ScratchDirectory directory;
  const std::string files[] = {directory.file("contiguous"), directory.file("ring"),
                               directory.file("paged")};
  const std::byte notes[5] = {};
  std::string wrong;
  largest_allocation = std::size_t{1} << 19;
  try {
    save_caches(files[0], {}, std::span(caches.contiguous));
    save_caches(files[1], {}, std::span(caches.ring));
    save_sequences(files[2], {}, caches.paged, {{caches.sequence}}, notes);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  largest_allocation = SIZE_MAX;
  EXPECT_EQ(wrong, "");
  for (const std::string& file : files)
    EXPECT_GT(std::filesystem::file_size(file), std::uintmax_t{1} << 22) << file;
}

template <class Save>
void expect_same_by_pieces(const std::string& name, const Save& save) {
  std::vector<std::byte> whole, pieces;
  int count = 0;
  save(whole);
  save(Sink([&](std::span<const std::byte> piece) {
    ++count;
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }));
  EXPECT_EQ(pieces, whole) << name;
  EXPECT_GT(count, 4) << name;
  const Sink full = [left = 2](std::span<const std::byte>) mutable {
    if (--left == 0) throw std::runtime_error("full");
  };
  EXPECT_THROW(save(full), std::runtime_error) << name;
  EXPECT_EQ(refusal_of([&] { save(Sink()); }),
            name + "::save: to is no function, expected one that takes the bytes");
}

TEST(CacheSaving, ByPiecesIsTheSame) {
  for (const ElementType type : {f32, ElementType::int4}) {
    const Three caches(type, 70, 2, 40);
    expect_same_by_pieces("KvCache", [&](auto&& to) { caches.contiguous[0].save(to); });
    expect_same_by_pieces("SlidingCache", [&](auto&& to) { caches.ring[0].save(to); });
    expect_same_by_pieces("PagedCache", [&](auto&& to) { caches.paged.save(caches.sequence, to); });
  }
}

TEST(CacheSaving, ASequenceThatIsNoneIsRefusedBeforeThereIsAFile) {
  const Three caches(f32, 8, 1, 8);
  const ScratchDirectory directory;
  const std::string file = directory.file("paged");
  EXPECT_EQ(refusal_of([&] {
              save_sequences(file, {}, caches.paged, {{caches.sequence, 77}});
            }),
            "save_sequences: sequences[1] (77) was released or never created");
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace polyhead::test
