// What a paged cache holds, for the files that it is made of.
#pragma once

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "cache/page_pool.hpp"
#include "cache/store.hpp"
#include "polyhead/paged_cache.h"

namespace polyhead::inline v0 {
namespace cache {

/// The number of a token that none was told for.
inline constexpr std::int32_t kNoToken = std::numeric_limits<std::int32_t>::min();

struct Held {
  std::uint64_t salt = 0;
  std::int64_t length = 0;   // tokens there is room for
  std::int64_t written = 0;  // tokens whose last layer is written, from the first on
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> tokens;  // numbers, kNoToken where none was told
  std::vector<PageStamp> chain;      // remembered pages that spell the first full pages
};

/// One layer of a cache's key_scales, dense.
inline std::vector<float> layer_scales(const ConstView& scales, std::int64_t layer) {
  std::vector<float> copy;
  if (!scales.given()) return copy;
  const auto& layout = scales.layout;
  for (std::int64_t h = 0; h < layout.extents[1]; ++h) {
    for (std::int64_t d = 0; d < layout.extents[2]; ++d) {
      copy.push_back(static_cast<const float*>(
          scales.data)[layer * layout.strides[0] + h * layout.strides[1] + d * layout.strides[2]]);
      check_key_scale("PagedCache", copy.back());
    }
  }
  return copy;
}

}  // namespace cache

struct PagedCache::State {
  explicit State(const PagedCacheConfig& c) : config(c), pool(c.pages, c.page_tokens) {
    if (config.value_dim == 0) config.value_dim = config.head_dim;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      keys.emplace_back("PagedCache",
                        cache::StoreShape{config.type, config.pages, config.kv_heads,
                                          config.page_tokens, config.head_dim},
                        cache::layer_scales(config.key_scales, layer));
      values.emplace_back("PagedCache",
                          cache::StoreShape{config.type, config.pages, config.kv_heads,
                                            config.page_tokens, config.value_dim});
      const std::vector<float>& scales = keys.back().channel_scales();
      key_scales.insert(key_scales.end(), scales.begin(), scales.end());
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
    return (tokens + config.page_tokens - 1) / config.page_tokens;
  }

  /// Makes the page that the next token goes to the sequence's own.
  void own_last_page(cache::Held& sequence) {
    std::int32_t& page = sequence.pages.back();
    if (pool.holders(page) == 1) {
      pool.forget(page);
      return;
    }
    const std::int32_t fresh = pool.take();
    const std::int64_t tokens = sequence.length % config.page_tokens;
    for (std::size_t layer = 0; layer < keys.size(); ++layer) {
      keys[layer].copy(fresh, keys[layer], page, tokens);
      values[layer].copy(fresh, values[layer], page, tokens);
    }
    pool.let_go(page);
    page = fresh;
  }

  /// Remembers the pages that have become full, written and spelled.
  void remember_pages(cache::Held& sequence) {
    const std::int64_t size = config.page_tokens;
    while (static_cast<std::int64_t>(sequence.chain.size() + 1) * size <= sequence.written) {
      const std::size_t page = sequence.chain.size();
      const std::span<const std::int32_t> spelled(
          sequence.tokens.data() + static_cast<std::int64_t>(page) * size,
          static_cast<std::size_t>(size));
      if (std::ranges::find(spelled, cache::kNoToken) != spelled.end()) return;
      const cache::PageStamp parent = page == 0 ? cache::PageStamp{} : sequence.chain.back();
      if (page > 0 && pool.stamp(parent.page) != parent) return;  // evicted since
      sequence.chain.push_back(pool.remember(sequence.pages[page], parent, sequence.salt, spelled));
    }
  }

  PagedCacheConfig config;
  cache::PagePool pool;
  std::vector<cache::Store> keys, values;  // one a layer
  std::vector<float> key_scales;
  std::unordered_map<std::int64_t, cache::Held> held;
  std::int64_t next = 0;
};

}  // namespace polyhead::inline v0
