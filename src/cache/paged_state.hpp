// What a paged cache holds, for the files that it is made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "cache/key_scales.hpp"
#include "cache/page_pool.hpp"
#include "cache/store.hpp"
#include "cache/stretches.hpp"
#include "cache/values_in_keys.hpp"
#include "polyhead/cache_file.h"
#include "polyhead/paged_cache.h"

namespace polyhead::inline v0 {
namespace cache {

/// The number of a token that none was told for.
inline constexpr std::int32_t kNoToken = std::numeric_limits<std::int32_t>::min();

struct Held {
  Held(std::uint64_t salted, std::int64_t layers)
      : salt(salted), written(static_cast<std::size_t>(layers)) {}

  /// Tokens whose rows are written in all layers, from the first on.
  std::int64_t written_tokens() const {
    std::int64_t least = length;
    for (const Stretches& layer : written) least = std::min(least, layer.from_zero());
    return least;
  }

  /// The page that lies before the one at `index`, kNoPage where that is the first.
  std::int32_t before(std::int64_t index) const {
    return index > 0 ? pages[static_cast<std::size_t>(index - 1)] : kNoPage;
  }

  std::uint64_t salt;
  std::int64_t length = 0;         // tokens there is room for
  std::vector<Stretches> written;  // of each layer: which of them
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> tokens;  // numbers, kNoToken where none was told
  std::int64_t remembered = 0;       // of the first pages; each spells its tokens after the others
};

/// A saved sequence whose sizes, scales and length have been found to be a cache's.
struct Saved {
  std::int64_t length = 0;
  std::span<const std::byte> tokens, rows;
};

/// What a sequence does with a full page where the pool remembers an equal one.
enum class Equal : std::uint8_t { keep_own, share };

}  // namespace cache

struct PagedCache::State {
  /// `scales`: those of the configuration, dense.
  State(const PagedCacheConfig& c, std::vector<float> scales)
      : config(c), pool(c.pages, c.page_tokens), key_scales(std::move(scales)) {
    if (config.value_dim == 0) config.value_dim = config.head_dim;
    const std::int64_t of_layer = key_scales.empty() ? 0 : config.kv_heads * config.head_dim;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const auto own = key_scales.begin() + layer * of_layer;
      keys.emplace_back("PagedCache",
                        cache::StoreShape{config.type, config.pages, config.kv_heads,
                                          config.page_tokens, config.head_dim},
                        std::vector<float>(own, own + of_layer));
      values.emplace_back("PagedCache",
                          cache::StoreShape{config.type, config.pages, config.kv_heads,
                                            config.page_tokens, cache::stored_value_dim(config)});
    }
    if (config.key_scales.given()) {
      config.key_scales =
          ConstView(key_scales.data(), {config.layers, config.kv_heads, config.head_dim});
    }
  }

  cache::Held& at(const char* call, std::int64_t sequence) {
    const auto found = held.find(sequence);
    if (found == held.end())
      base::refuse(call, "sequence ", sequence, " was released or never created");
    return found->second;
  }

  std::int64_t pages_of(std::int64_t tokens) const {
    return base::ceil_div(tokens, config.page_tokens);
  }

  /// Makes a page of a sequence its own before it is written: a copy where others hold it (so that
  /// a page must be available), and no longer remembered.
  void own_page(cache::Held& sequence, std::int64_t page);

  /// own_page() of all pages that tokens [first, end) lie on; false, with nothing changed, where
  /// the pool has too few to copy to.
  bool own_pages(cache::Held& sequence, std::int64_t first, std::int64_t end);

  /// Notes that the rows of tokens [first, end) are written. Rows that replace others are the
  /// sequence's own affair: their tokens lose their numbers, and their pages are not shared.
  void mark_written(cache::Held& sequence, std::int64_t layer, std::int64_t first,
                    std::int64_t end);

  /// Remembers the pages that have become full, written and spelled, up to the first that equals a
  /// remembered one. Equal::share goes on with that one instead, if it has the same rows: the
  /// sequence's table changes then, so that it is for calls after which no table is good. Cannot
  /// fail.
  void remember_pages(cache::Held& sequence, cache::Equal equal) noexcept;

  /// Whether all rows of two full, written pages are the same, bit for bit.
  bool same_rows(std::int32_t a, std::int32_t b);

  /// Forgets the tokens from `length` on.
  void cut(cache::Held& sequence, std::int64_t length);

  /// What PagedCache::keep does, of checked places.
  Status keep(cache::Held& sequence, std::int64_t first, std::span<const std::int64_t> places,
              std::span<const std::int32_t> tokens);

  /// What PagedCache::extend does, and what append() does first: `call` is who refuses.
  Status extend(const char* call, std::span<const Extension> parts);

  /// What PagedCache::write does, of checked rows.
  Status write(cache::Held& sequence, std::int64_t layer, std::int64_t first, const ConstView& k,
               const ConstView& v);

  /// The pages and numbers of one sequence's part of an extension, for which the pool has pages and
  /// its vectors have room. Remembers nothing yet: that may hold an idle page, which the parts that
  /// come after were told they can take.
  void add_tokens(cache::Held& sequence, const Extension& part) noexcept;

  /// Pages that extend() of these, which give each sequence once, takes.
  std::int64_t pages_for(std::span<const Extension> parts);

  /// Moves `from` past the saved sequence that it begins with, or says why it cannot be loaded.
  std::string take_saved(std::span<const std::byte>& from, cache::Saved& to) const;

  PagedCacheConfig config;
  std::optional<CacheFingerprint> served;  // whose rows these are, once somebody has said so
  cache::PagePool pool;
  std::vector<cache::Store> keys, values;  // one a layer
  std::vector<float> key_scales;
  std::unordered_map<std::int64_t, cache::Held> held;
  std::int64_t next = 0;
};

}  // namespace polyhead::inline v0
