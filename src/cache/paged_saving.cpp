// A sequence of a paged cache as bytes: what cache_file.cpp puts into a file. Pages do not show:
// what was saved from pages of one size is taken into pages of another.
//   sizes, the numbers of the tokens, the keys' scales by channel, and for each layer keys and
//   values: of each head the rows of all tokens, then its scales of each block of dims.
#include "cache/paged_saving.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cache/paged_state.hpp"
#include "cache/saved_bytes.hpp"
#include "cache/saved_sizes.hpp"

namespace polyhead::inline v0 {
namespace {

using cache::Equal;
using cache::Held;
using cache::Store;

using Sizes = cache::SavedSizes<cache::kSequenceSizes.size()>;

Sizes sizes_of(const PagedCacheConfig& c) {
  return {static_cast<std::int64_t>(c.type),
          c.layers,
          c.kv_heads,
          c.head_dim,
          c.value_dim,
          c.values_in_keys,
          c.key_scales.given()};
}

/// Calls visit(span) for every piece of memory that the first `tokens` tokens of a sequence lie in.
template <class Visit>
void visit_pieces(Store& store, const std::vector<std::int32_t>& pages, std::int64_t tokens,
                  const Visit& visit) {
  const std::int64_t size = store.shape().tokens;
  const auto by_pages = [&](const auto& piece) {
    for (std::int64_t first = 0; first < tokens; first += size)
      visit(piece(pages[static_cast<std::size_t>(first / size)], std::min(size, tokens - first)));
  };
  for (std::int64_t head = 0; head < store.shape().heads; ++head) {
    by_pages([&](std::int64_t page, std::int64_t n) { return store.head_rows(page, head, n); });
    for (std::int64_t block = 0; block < store.blocks(); ++block) {
      by_pages([&](std::int64_t page, std::int64_t n) {
        return store.head_scales(page, head, block, n);
      });
    }
  }
}

/// Bytes of one token: its number and its rows.
std::int64_t token_bytes(const std::vector<Store>& keys, const std::vector<Store>& values) {
  std::int64_t bytes = 4;
  for (const std::vector<Store>* side : {&keys, &values}) {
    for (const Store& store : *side)
      bytes += store.shape().heads * (store.row_bytes() + 4 * store.blocks());
  }
  return bytes;
}

}  // namespace

std::string cache::read_key_scales(std::span<const std::byte> from, KeyScales& scales) {
  Sizes sizes{};
  std::int64_t length = 0;
  if (!take(from, &sizes, sizeof sizes) || !take(from, &length, sizeof length))
    return too_few_bytes("sizes and length", sizeof sizes + sizeof length, from.size());
  scales = {};
  if (sizes[kScalesAt] == 0) return {};
  constexpr std::size_t kExtents[] = {kManyAt, kHeadsAt, kHeadDimAt};
  bool any = true;
  for (const std::size_t size : kExtents) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // of a PagedCache
    if (std::string wrong = impossible_length(kSequenceSizes[size].name, sizes[size], 0, kMost);
        !wrong.empty())
      return wrong;
    any = any && sizes[size] > 0;
  }
  std::size_t count = any ? 1 : 0;
  for (const std::size_t size : kExtents) {
    const auto of = static_cast<std::size_t>(sizes[size]);
    // Without products that a damaged file could make too large.
    if (any && count > from.size() / 4 / of) {
      return std::string(kCutShort) + ": its key_scales are of [" + std::to_string(sizes[kManyAt]) +
             ", " + std::to_string(sizes[kHeadsAt]) + ", " + std::to_string(sizes[kHeadDimAt]) +
             "] (layers, kv_heads, head_dim), found " + std::to_string(from.size()) + " bytes";
    }
    count *= of;
  }
  scales = {true, sizes[kManyAt], sizes[kHeadsAt], sizes[kHeadDimAt], std::vector<float>(count)};
  take(from, scales.values.data(), count * 4);  // there, as was just checked
  return {};
}

std::string PagedCache::State::take_saved(std::span<const std::byte>& from,
                                          cache::Saved& to) const {
  std::span<const std::byte> rest = from;
  if (std::string differs = cache::take_sizes(rest, cache::kSequenceSizes, sizes_of(config));
      !differs.empty())
    return differs;
  std::vector<float> scales(key_scales.size());
  if (!cache::take(rest, &to.length, sizeof to.length))
    return cache::too_few_bytes("length", sizeof to.length, rest.size());
  if (std::string missing = cache::take_all(rest, "key_scales", scales); !missing.empty())
    return missing;
  if (std::string differs =
          cache::first_difference(scales, key_scales, config.kv_heads, config.head_dim);
      !differs.empty())
    return differs;
  // Before anything is allocated: the rows that the length promises are there.
  const std::int64_t bytes = token_bytes(keys, values);
  if (to.length < 0) return "its length is " + std::to_string(to.length) + ", expected 0 or more";
  if (std::string missing = cache::too_few_rows("length", to.length, std::ssize(rest) / bytes);
      !missing.empty())
    return missing;
  to.tokens = rest.first(static_cast<std::size_t>(to.length) * 4);
  to.rows = rest.subspan(to.tokens.size(), static_cast<std::size_t>(to.length * (bytes - 4)));
  from = rest.subspan(to.tokens.size() + to.rows.size());
  return {};
}

void PagedCache::save(std::int64_t sequence, std::vector<std::byte>& to) const {
  save(sequence, cache::at_end_of(to));
}

void PagedCache::save(std::int64_t sequence, const cache::Sink& to) const {
  constexpr const char* kCall = "PagedCache::save";
  cache::check_sink(kCall, to);
  State& s = *state_;
  const Held& held = s.at(kCall, sequence);
  const Sizes sizes = sizes_of(s.config);
  const std::int64_t written = held.written_tokens();
  cache::put(to, &sizes, sizeof sizes);
  cache::put(to, &written, sizeof written);
  cache::put(to, s.key_scales.data(), s.key_scales.size() * 4);
  cache::put(to, held.tokens.data(), static_cast<std::size_t>(written) * 4);
  for (std::size_t layer = 0; layer < s.keys.size(); ++layer) {
    for (Store* store : {&s.keys[layer], &s.values[layer]})
      visit_pieces(*store, held.pages, written, to);
  }
}

std::int64_t PagedCache::pages_to_load(std::span<const std::byte>& from, std::string& wrong) const {
  cache::Saved saved;
  wrong = state_->take_saved(from, saved);
  return wrong.empty() ? state_->pages_of(saved.length) : -1;
}

std::string cache::other_model(const CacheFingerprint& found, const CacheFingerprint& expected) {
  // Not the tokens' fingerprint: a hit compares the tokens themselves.
  constexpr std::pair<const char*, std::uint64_t CacheFingerprint::*> kParts[] = {
      {"model", &CacheFingerprint::model},
      {"weights", &CacheFingerprint::weights},
      {"RoPE", &CacheFingerprint::rope}};
  for (const auto& [name, part] : kParts) {
    if (found.*part != expected.*part) {
      return std::string("the fingerprint of the ") + name + " is " + std::to_string(found.*part) +
             ", expected that of the rows held, " + std::to_string(expected.*part);
    }
  }
  return {};
}

void PagedCache::serve(const CacheFingerprint& fingerprint) {
  std::optional<CacheFingerprint>& served = state_->served;
  if (!served) served = fingerprint;
  if (std::string other = cache::other_model(fingerprint, *served); !other.empty())
    base::refuse("PagedCache::serve", other);
}

const CacheFingerprint* PagedCache::served() const {
  return state_->served ? &*state_->served : nullptr;
}

PagedCache::Loaded PagedCache::load(std::span<const std::byte>& from, std::uint64_t salt) {
  State& s = *state_;
  std::span<const std::byte> rest = from;
  cache::Saved saved;
  if (std::string wrong = s.take_saved(rest, saved); !wrong.empty())
    return {-1, false, std::move(wrong)};
  const std::int64_t size = s.config.page_tokens;
  if (saved.length > s.pool.size() * size || s.pages_of(saved.length) > s.pool.available())
    return {-1, true, "the pool has too few pages left"};
  Held held(salt, s.config.layers);
  held.length = saved.length;
  held.tokens.resize(static_cast<std::size_t>(saved.length));
  cache::take(saved.tokens, held.tokens.data(), saved.tokens.size());
  for (cache::Stretches& layer : held.written) layer.add(0, saved.length);
  held.pages.resize(static_cast<std::size_t>(s.pages_of(saved.length)));
  Held& loaded = s.held.emplace(s.next, std::move(held)).first->second;
  // Nothing can fail any more.
  std::int32_t before = cache::kNoPage;
  for (std::int32_t& page : loaded.pages) page = before = s.pool.take(before);
  for (std::size_t layer = 0; layer < s.keys.size(); ++layer) {
    for (Store* store : {&s.keys[layer], &s.values[layer]}) {
      visit_pieces(*store, loaded.pages, saved.length, [&](std::span<std::byte> piece) {
        cache::take(saved.rows, piece.data(), piece.size());
      });
    }
  }
  s.remember_pages(loaded, Equal::share);
  from = rest;
  return {s.next++, false, {}};
}

}  // namespace polyhead::inline v0
