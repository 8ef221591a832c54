// The contiguous cache: [sequence][head][capacity][dim], so that a head's keys lie one after the
// other.
#include "polyhead/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "cache/kept.hpp"
#include "cache/key_scales.hpp"
#include "cache/saved_bytes.hpp"
#include "cache/saved_sizes.hpp"
#include "cache/store.hpp"
#include "cache/values_in_keys.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr std::int64_t kMostTokens = base::kMaxExtent;  // of a sequence, and sequences
constexpr std::int64_t kLeastGrowth =
    64;  // tokens: the first allocation of a cache that begins empty
constexpr const char* kAppend = "KvCache::append";

}  // namespace

struct KvCache::State {
  KvCacheConfig config;
  std::int64_t capacity = 0;
  cache::Store keys, values;
  std::vector<float> key_scales;  // [head][dim], or empty
  std::vector<std::int64_t> lengths;

  cache::Store store(std::int64_t tokens, std::int64_t dim, std::vector<float> scales) const {
    return {
        "KvCache", {config.type, config.batch, config.kv_heads, tokens, dim}, std::move(scales)};
  }

  /// Memory of another capacity, with what is held copied into it; gives back what it lay in.
  /// Nothing changes if it cannot be had.
  std::pair<cache::Store, cache::Store> move_to(std::int64_t new_capacity) {
    cache::Store new_keys = store(new_capacity, config.head_dim, key_scales);
    cache::Store new_values = store(new_capacity, cache::stored_value_dim(config), {});
    for (std::int64_t b = 0; b < config.batch; ++b) {
      const std::int64_t held = lengths[static_cast<std::size_t>(b)];
      new_keys.copy(b, keys, b, held);
      new_values.copy(b, values, b, held);
    }
    capacity = new_capacity;
    return {std::exchange(keys, std::move(new_keys)), std::exchange(values, std::move(new_values))};
  }

  /// What a cache of the same sizes holds. Lengths and scales are copied to where they lie, since
  /// views of them last as long as the cache.
  void take_over(State& from) noexcept {
    keys = std::move(from.keys);
    values = std::move(from.values);
    capacity = from.capacity;
    std::ranges::copy(from.lengths, lengths.begin());
    std::ranges::copy(from.key_scales, key_scales.begin());
  }

  void append(const cache::Fresh& rows);
  void write(cache::Store& store, const cache::Fresh& rows, const ConstView& from,
             std::int64_t sequence);
};

namespace {

/// A store's rows or scales, cut to `tokens` where they have a token axis.
ConstView cut(ConstView view, std::int64_t tokens) {
  if (view.layout.axes == 4) view.layout.extents[1] = tokens;
  return view;
}

void check_config(const KvCacheConfig& config) {
  base::check_size("KvCache", "batch", config.batch, 0, kMostTokens);
  base::check_size("KvCache", "kv_heads", config.kv_heads, 0, kMostTokens);
  base::check_size("KvCache", "head_dim", config.head_dim, 0, base::kMaxDim);
  base::check_size("KvCache", "value_dim", config.value_dim, 0, base::kMaxDim);
  base::check_size("KvCache", "capacity", config.capacity, 0, kMostTokens);
  cache::check_storable("KvCache", config.type);
  cache::check_values_in_keys("KvCache", config);
}

}  // namespace

/// The rows of `from`, which is k or v of them.
void KvCache::State::write(cache::Store& store, const cache::Fresh& rows, const ConstView& from,
                           std::int64_t sequence) {
  const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
  const std::int64_t count = rows.count(sequence);
  for (std::int64_t head = 0; head < config.kv_heads; ++head) {
    for (std::int64_t token = 0; token < count; ++token)
      store.write(sequence, head, length + token, rows.row(from, sequence, token, head));
  }
}

void KvCache::State::append(const cache::Fresh& rows) {
  std::int64_t needed = 0;
  for (std::int64_t b = 0; b < config.batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)], count = rows.count(b);
    if (count > kMostTokens - length)
      base::refuse(kAppend, "sequence ", b, " grows beyond 2^48 tokens");
    if (!config.growing && length + count > capacity) {
      base::refuse(kAppend, "sequence ", b, " holds ", length, " tokens; ", count,
                   " more exceed the capacity (", capacity, ")");
    }
    needed = std::max(needed, length + count);
  }
  std::pair<cache::Store, cache::Store> outgrown;  // k and v may be rows of it: kept until written
  if (needed > capacity) outgrown = move_to(std::max({needed, 2 * capacity, kLeastGrowth}));
  const base::FloatEnvironment environment(base::Subnormals::kept);
  for (std::int64_t b = 0; b < config.batch; ++b) {
    write(keys, rows, rows.k, b);
    if (!config.values_in_keys) write(values, rows, rows.v, b);
  }
  for (std::int64_t b = 0; b < config.batch; ++b)
    lengths[static_cast<std::size_t>(b)] += rows.count(b);
}

KvCache::KvCache(const KvCacheConfig& config) : state_(std::make_unique<State>()) {
  check_config(config);
  State& s = *state_;
  s.config = config;
  if (s.config.value_dim == 0) s.config.value_dim = config.head_dim;
  s.key_scales = cache::take_key_scales("KvCache", config.key_scales, config.type,
                                        {config.kv_heads, config.head_dim});
  if (!s.key_scales.empty())
    s.config.key_scales = ConstView(s.key_scales.data(), {config.kv_heads, config.head_dim});
  s.lengths.assign(static_cast<std::size_t>(config.batch), 0);
  s.move_to(config.capacity);
}

KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const KvCacheConfig& KvCache::config() const { return state_->config; }
std::int64_t KvCache::capacity() const { return state_->capacity; }

std::int64_t KvCache::bytes() const { return state_->keys.bytes() + state_->values.bytes(); }

std::int64_t KvCache::length(std::int64_t sequence) const {
  cache::check_index("KvCache::length", "sequence", sequence, state_->config.batch);
  return state_->lengths[static_cast<std::size_t>(sequence)];
}

std::int64_t KvCache::max_length() const {
  const auto& lengths = state_->lengths;
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

ConstView KvCache::keys() const { return cut(state_->keys.rows(), max_length()); }
ConstView KvCache::values() const { return view().v; }
KvView KvCache::view() const {
  KvView view;
  cache::show_stores(state_->config, state_->keys, state_->values, view);
  for (ConstView* part : {&view.k, &view.v, &view.k_scales, &view.v_scales})
    *part = cut(*part, max_length());
  view.lengths = lengths();
  return view;
}

ConstView KvCache::lengths() const { return {state_->lengths.data(), {state_->config.batch}}; }

void KvCache::append(ConstView k, ConstView v, ConstView counts) {
  const KvCacheConfig& c = state_->config;
  cache::check_kv(kAppend, c, k, v);
  cache::check_counts(kAppend, counts, c.batch, cache::tokens_of(k));
  std::vector<std::int64_t> own;
  state_->append({k, v, cache::counts_apart(counts, state_->lengths, own), {}});
}

void cache::Ragged::append(KvCache& cache, const ConstView& k, const ConstView& v,
                           const ConstView& offsets) {
  cache.state_->append(fresh(k, v, offsets));
}

void KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  constexpr const char* kCall = "KvCache::truncate";
  cache::check_index(kCall, "sequence", sequence, state_->config.batch);
  cache::check_left(kCall, "length", length, this->length(sequence), sequence);
  state_->lengths[static_cast<std::size_t>(sequence)] = length;
}

void KvCache::keep(std::int64_t sequence, std::int64_t first,
                   std::span<const std::int64_t> places) {
  constexpr const char* kCall = "KvCache::keep";
  State& s = *state_;
  cache::check_index(kCall, "sequence", sequence, s.config.batch);
  cache::check_places(kCall, sequence, length(sequence), first, places);
  s.lengths[static_cast<std::size_t>(sequence)] =
      cache::move_places(first, places, [&](std::int64_t to, std::int64_t from) {
        for (cache::Store* store : {&s.keys, &s.values})
          store->copy_token(sequence, to, sequence, from);
      });
}

// --- saving: what cache_file.cpp puts into a file ---

namespace {

using SavedSizes = cache::SavedSizes<cache::kCacheSizes.size()>;

SavedSizes sizes_of(const KvCacheConfig& c) {
  return {static_cast<std::int64_t>(c.type),
          c.batch,
          c.kv_heads,
          c.head_dim,
          c.value_dim,
          c.values_in_keys,
          c.key_scales.given()};
}

/// Calls visit(span) for every piece of memory that `lengths` tokens of each sequence lie in.
template <class Visit>
void visit_pieces(cache::Store& store, const std::vector<std::int64_t>& lengths,
                  const Visit& visit) {
  for (std::int64_t b = 0; b < store.shape().slots; ++b) {
    const std::int64_t tokens = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t head = 0; head < store.shape().heads; ++head) {
      visit(store.head_rows(b, head, tokens));
      for (std::int64_t block = 0; block < store.blocks(); ++block)
        visit(store.head_scales(b, head, block, tokens));
    }
  }
}

}  // namespace

void KvCache::save(std::vector<std::byte>& to) const { save(cache::at_end_of(to)); }

void KvCache::save(const cache::Sink& to) const {
  cache::check_sink("KvCache::save", to);
  State& s = *state_;
  const SavedSizes sizes = sizes_of(s.config);
  cache::put(to, &sizes, sizeof sizes);
  cache::put(to, s.lengths.data(), s.lengths.size() * 8);
  cache::put(to, s.key_scales.data(), s.key_scales.size() * 4);
  for (cache::Store* store : {&s.keys, &s.values}) visit_pieces(*store, s.lengths, to);
}

bool KvCache::load(std::span<const std::byte>& from, std::string& wrong) {
  const State& s = *state_;
  std::span<const std::byte> rest = from;
  wrong = cache::take_sizes(rest, cache::kCacheSizes, sizes_of(s.config));
  if (!wrong.empty()) return false;
  std::vector<std::int64_t> lengths(s.lengths.size());
  std::vector<float> scales(s.key_scales.size());
  wrong = cache::take_all(rest, "lengths", lengths);
  if (wrong.empty()) wrong = cache::take_all(rest, "key_scales", scales);
  if (wrong.empty()) wrong = cache::impossible_scale(scales);
  if (!wrong.empty()) return false;
  // Before anything is allocated: the rows that the lengths promise are there.
  const std::int64_t row = s.config.kv_heads * (s.keys.row_bytes() + s.values.row_bytes() +
                                                4 * (s.keys.blocks() + s.values.blocks()));
  std::int64_t left = static_cast<std::int64_t>(rest.size()), longest = 0;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t length = lengths[b], most = s.config.growing ? kMostTokens : s.capacity;
    const std::string field = cache::of_sequence("lengths", b);
    wrong = cache::impossible_length(field, length, 0, most);
    if (wrong.empty() && row > 0) wrong = cache::too_few_rows(field, length, left / row);
    if (!wrong.empty()) return false;
    left -= length * row;
    longest = std::max(longest, length);
  }
  State loaded;
  loaded.config = s.config;
  loaded.key_scales = scales;
  loaded.lengths.assign(lengths.size(), 0);
  loaded.move_to(std::max(longest, s.capacity));
  for (cache::Store* store : {&loaded.keys, &loaded.values}) {
    visit_pieces(*store, lengths, [&](std::span<std::byte> piece) {
      cache::take(rest, piece.data(), piece.size());  // there, as was just checked
    });
  }
  loaded.lengths = std::move(lengths);
  state_->take_over(loaded);
  from = rest;
  return true;
}

void KvCache::take_over(KvCache& from) noexcept { state_->take_over(*from.state_); }

void KvCache::clear() { std::fill(state_->lengths.begin(), state_->lengths.end(), 0); }

}  // namespace polyhead::inline v0
