// A sequence of a paged cache as bytes: what cache_file.cpp puts into a file. Pages do not show:
// what was saved from pages of one size is taken into pages of another.
//   sizes, the numbers of the tokens, the keys' scales by channel, and for each layer keys and
//   values: of each head the rows of all tokens, then its scales of each block of dims.
#include <algorithm>
#include <cstring>

#include "cache/paged_state.hpp"
#include "cache/saved_bytes.hpp"

namespace polyhead::inline v0 {
namespace {

using cache::Held;
using cache::Store;

/// What must agree before rows can be taken over, and how many of them there are.
struct SavedSizes {
  std::int64_t type, layers, kv_heads, head_dim, value_dim, by_channel;
  bool operator==(const SavedSizes&) const = default;
};

SavedSizes sizes_of(const PagedCacheConfig& c) {
  return {static_cast<std::int64_t>(c.type),
          c.layers,
          c.kv_heads,
          c.head_dim,
          c.value_dim,
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

void PagedCache::save(std::int64_t sequence, std::vector<std::byte>& to) const {
  State& s = *state_;
  const Held& held = s.at("PagedCache::save", sequence);
  const SavedSizes sizes = sizes_of(s.config);
  cache::put(to, &sizes, sizeof sizes);
  cache::put(to, &held.written, sizeof held.written);
  cache::put(to, s.key_scales.data(), s.key_scales.size() * 4);
  cache::put(to, held.tokens.data(), static_cast<std::size_t>(held.written) * 4);
  for (std::size_t layer = 0; layer < s.keys.size(); ++layer) {
    for (Store* store : {&s.keys[layer], &s.values[layer]}) {
      visit_pieces(*store, held.pages, held.written,
                   [&](std::span<std::byte> piece) { cache::put(to, piece.data(), piece.size()); });
    }
  }
}

PagedCache::Loaded PagedCache::load(std::span<const std::byte>& from, std::uint64_t salt) {
  State& s = *state_;
  const auto fail = [](const char* reason) { return Loaded{-1, false, reason}; };
  const char* const cut_short = "it is cut short";
  std::span<const std::byte> rest = from;
  SavedSizes sizes{};
  std::int64_t length = 0;
  if (!cache::take(rest, &sizes, sizeof sizes)) return fail(cut_short);
  if (sizes != sizes_of(s.config))
    return fail("its type, sizes or kind of scales are not this cache's");
  std::vector<float> scales(s.key_scales.size());
  if (!cache::take(rest, &length, sizeof length) ||
      !cache::take(rest, scales.data(), scales.size() * 4))
    return fail(cut_short);
  if (!scales.empty() && std::memcmp(scales.data(), s.key_scales.data(), scales.size() * 4) != 0)
    return fail("its keys' scales by channel are not this cache's");
  if (length < 0) return fail("its length is impossible");
  // Before anything is allocated: the rows that the length promises are there.
  const std::int64_t bytes = token_bytes(s.keys, s.values);
  if (length > static_cast<std::int64_t>(rest.size()) / bytes) return fail(cut_short);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  cache::take(rest, tokens.data(), tokens.size() * 4);
  const std::int64_t sequence = create(salt);
  if (extend(sequence, length, tokens) != Status::ok) {
    release(sequence);
    return {-1, true, "the pool has too few pages left"};
  }
  Held& held = s.at("PagedCache::load", sequence);
  for (std::size_t layer = 0; layer < s.keys.size(); ++layer) {
    for (Store* store : {&s.keys[layer], &s.values[layer]}) {
      visit_pieces(*store, held.pages, length, [&](std::span<std::byte> piece) {
        cache::take(rest, piece.data(), piece.size());  // there, as was just checked
      });
    }
  }
  held.written = length;
  s.remember_pages(held);
  from = rest;
  return {sequence, false, {}};
}

}  // namespace polyhead::inline v0
