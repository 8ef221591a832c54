// The paged cache: sequences as lists of pages of one pool.
#include "polyhead/paged_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "cache/kept.hpp"
#include "cache/key_scales.hpp"
#include "cache/paged_state.hpp"

namespace polyhead::inline v0 {
namespace {

using cache::Equal;
using cache::Held;
using cache::kNoPage;
using cache::PagePool;
using cache::PageStamp;
using cache::Store;
using cache::Stretches;

void check_config(const PagedCacheConfig& config) {
  constexpr const char* kCall = "PagedCache";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  base::check_size(kCall, "pages", config.pages, 0, kMost);
  base::check_size(kCall, "layers", config.layers, 0, kMost);
  base::check_size(kCall, "kv_heads", config.kv_heads, 0, kMost);
  base::check_size(kCall, "head_dim", config.head_dim, 0, base::kMaxDim);
  base::check_size(kCall, "value_dim", config.value_dim, 0, base::kMaxDim);
  if (!base::is_page_size(config.page_tokens)) {
    base::refuse(kCall, "page_tokens (", config.page_tokens, ") is not a power of two from ",
                 base::kLeastPage, " to ", base::kMostPage);
  }
  cache::check_storable(kCall, config.type);
  cache::check_values_in_keys(kCall, config);
}

/// Rows to be written: [tokens, heads, dim].
void check_rows(const char* call, const char* name, const ConstView& rows, std::int64_t tokens,
                std::int64_t heads, std::int64_t dim) {
  const auto& extents = rows.layout.extents;
  if (rows.layout.axes != 3 || rows.layout.too_many_axes) {
    const std::string found = rows.layout.axes == 0 ? "not given" : cache::shown_shape(rows);
    base::refuse(call, name, " is ", found, ", expected [tokens, ", heads, ", ", dim, "]");
  }
  if (extents[0] != tokens || extents[1] != heads || extents[2] != dim) {
    base::refuse(call, name, " is ", cache::shown_shape(rows), ", expected [", tokens, ", ", heads,
                 ", ", dim, "]: tokens, kv_heads, dim");
  }
  if (!base::is_floating(rows.type)) {
    base::refuse(call, name, " is ", element_name(rows.type),
                 ", expected float32, float16 or bfloat16");
  }
  base::footprint_of(call, name, rows);
}

/// k and v of `tokens` tokens, or k alone where the values are in it.
void check_kv(const char* call, const PagedCacheConfig& config, const ConstView& k,
              const ConstView& v, std::int64_t tokens) {
  check_rows(call, "k", k, tokens, config.kv_heads, config.head_dim);
  if (config.values_in_keys) return cache::refuse_values(call, v);
  check_rows(call, "v", v, tokens, config.kv_heads, config.value_dim);
}

/// The tokens of rows [tokens, heads, dim], 0 where they have not three axes (check_kv then refuses
/// them).
std::int64_t tokens_in(const ConstView& rows) {
  return rows.layout.axes == 3 ? rows.layout.extents[0] : 0;
}

void check_extensions(const char* call, std::span<const PagedCache::Extension> parts) {
  std::vector<std::int64_t> sequences;
  for (const auto& [sequence, count, tokens] : parts) {
    if (count < 0) base::refuse(call, "count (", count, ") is negative");
    if (!tokens.empty() && std::ssize(tokens) != count)
      base::refuse(call, "tokens has ", tokens.size(), " numbers, expected ", count);
    sequences.push_back(sequence);
  }
  std::ranges::sort(sequences);
  const auto twice = std::ranges::adjacent_find(sequences);
  if (twice != sequences.end()) base::refuse(call, "sequence ", *twice, " is given twice");
}

/// Room for `size` elements in all, more where that spares later calls from moving them.
void make_room(std::vector<std::int32_t>& list, std::int64_t size) {
  const auto wanted = static_cast<std::size_t>(size);
  if (wanted > list.capacity()) list.reserve(std::max(wanted, 2 * list.capacity()));
}

}  // namespace

PagedCache::PagedCache(const PagedCacheConfig& config) {
  check_config(config);
  state_ = std::make_unique<State>(
      config, cache::take_key_scales("PagedCache", config.key_scales, config.type,
                                     {config.kv_heads, config.head_dim, config.layers}));
}
PagedCache::PagedCache(PagedCache&&) noexcept = default;
PagedCache& PagedCache::operator=(PagedCache&&) noexcept = default;
PagedCache::~PagedCache() = default;

const PagedCacheConfig& PagedCache::config() const { return state_->config; }

std::int64_t PagedCache::bytes() const {
  std::int64_t bytes = 0;
  for (const Store& store : state_->keys) bytes += store.bytes();
  for (const Store& store : state_->values) bytes += store.bytes();
  return bytes;
}

std::int64_t PagedCache::free_pages() const { return state_->pool.available(); }
std::int64_t PagedCache::remembered_pages() const { return state_->pool.idle(); }
std::int64_t PagedCache::sequences() const {
  return static_cast<std::int64_t>(state_->held.size());
}

std::int64_t PagedCache::create(std::uint64_t salt) {
  state_->held.try_emplace(state_->next, salt, state_->config.layers);
  return state_->next++;
}

std::int64_t PagedCache::fork(std::int64_t sequence) {
  State& s = *state_;
  const Held& from = s.at("PagedCache::fork", sequence);
  s.held.emplace(s.next, Held(from));
  for (const std::int32_t page : from.pages) s.pool.hold(page);  // nothing can fail any more
  return s.next++;
}

void PagedCache::release(std::int64_t sequence) {
  Held& held = state_->at("PagedCache::release", sequence);
  state_->remember_pages(held, Equal::share);
  // The last page first: what follows a prefix is evicted before it.
  for (std::size_t i = held.pages.size(); i-- > 0;) state_->pool.let_go(held.pages[i]);
  state_->held.erase(sequence);
}

bool PagedCache::holds(std::int64_t sequence) const { return state_->held.contains(sequence); }

std::int64_t PagedCache::length(std::int64_t sequence) const {
  return state_->at("PagedCache::length", sequence).length;
}

std::int64_t PagedCache::adopt_prefix(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  Held& held = state_->at("PagedCache::adopt_prefix", sequence);
  if (held.length != 0) {
    base::refuse("PagedCache::adopt_prefix", "sequence ", sequence, " holds ", held.length,
                 " tokens, expected none");
  }
  const auto size = static_cast<std::size_t>(state_->config.page_tokens);
  PagePool& pool = state_->pool;
  Held adopted(held.salt, state_->config.layers);
  PageStamp parent;
  for (std::size_t at = 0; at + size < tokens.size(); at += size) {
    const std::int32_t page = pool.find(parent, held.salt, tokens.subspan(at, size));
    if (page == kNoPage) break;
    parent = pool.stamp(page);
    adopted.pages.push_back(page);
  }
  adopted.remembered = std::ssize(adopted.pages);
  adopted.length = adopted.remembered * state_->config.page_tokens;
  if (adopted.length == 0) return 0;
  adopted.tokens.assign(tokens.begin(), tokens.begin() + adopted.length);
  for (Stretches& layer : adopted.written) layer.add(0, adopted.length);
  for (const std::int32_t page : adopted.pages) pool.hold(page);  // nothing can fail any more
  held = std::move(adopted);
  return held.length;
}

PagedCache::Status PagedCache::extend(std::int64_t sequence, std::int64_t count,
                                      std::span<const std::int32_t> tokens) {
  const Extension part{sequence, count, tokens};
  return extend({&part, 1});
}

PagedCache::Status PagedCache::extend(std::span<const Extension> parts) {
  return state_->extend("PagedCache::extend", parts);
}

PagedCache::Status PagedCache::State::extend(const char* call, std::span<const Extension> parts) {
  check_extensions(call, parts);
  bool fits = true;
  for (const Extension& part : parts) {
    at(call, part.sequence);
    // Before any arithmetic that could overflow.
    fits = fits && part.count <= pool.size() * config.page_tokens;
  }
  if (!fits || pages_for(parts) > pool.available()) return Status::exhausted;
  for (const Extension& part : parts) {
    Held& sequence = held.at(part.sequence);
    make_room(sequence.pages, pages_of(sequence.length + part.count));
    make_room(sequence.tokens, sequence.length + part.count);
  }
  // Nothing can fail any more.
  for (const Extension& part : parts) add_tokens(held.at(part.sequence), part);
  for (const Extension& part : parts) {
    if (part.count > 0) remember_pages(held.at(part.sequence), Equal::share);
  }
  return Status::ok;
}

PagedCache::Status PagedCache::write(std::int64_t sequence, std::int64_t layer, std::int64_t first,
                                     ConstView k, ConstView v) {
  constexpr const char* kCall = "PagedCache::write";
  State& s = *state_;
  Held& held = s.at(kCall, sequence);
  cache::check_index(kCall, "layer", layer, s.config.layers);
  const std::int64_t tokens = tokens_in(k);
  if (first < 0 || tokens < 0 || first > held.length || tokens > held.length - first) {
    base::refuse(kCall, "tokens ", first, " to ", first, " + ", tokens, " are not among the ",
                 held.length, " of sequence ", sequence);
  }
  check_kv(kCall, s.config, k, v, tokens);
  return s.write(held, layer, first, k, v);
}

PagedCache::Status PagedCache::State::write(Held& sequence, std::int64_t layer, std::int64_t first,
                                            const ConstView& k, const ConstView& v) {
  const std::int64_t tokens = tokens_in(k), size = config.page_tokens;
  if (tokens == 0) return Status::ok;  // touches no page, not even the one that `first` lies on
  const auto index = static_cast<std::size_t>(layer);
  sequence.written[index].make_room();
  if (!own_pages(sequence, first, first + tokens)) return Status::exhausted;
  const cache::Fresh rows = cache::Ragged::fresh(k, v, {});
  const base::FloatEnvironment environment(base::Subnormals::kept);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int32_t page = sequence.pages[static_cast<std::size_t>((first + i) / size)];
    const std::int64_t in_page = (first + i) % size;
    for (std::int64_t head = 0; head < config.kv_heads; ++head) {
      keys[index].write(page, head, in_page, cache::source_row(rows.k, 0, i, head));
      if (!config.values_in_keys)
        values[index].write(page, head, in_page, cache::source_row(rows.v, 0, i, head));
    }
  }
  mark_written(sequence, layer, first, first + tokens);
  return Status::ok;
}

PagedCache::Status PagedCache::append(std::int64_t sequence, ConstView k, ConstView v,
                                      std::span<const std::int32_t> tokens) {
  constexpr const char* kCall = "PagedCache::append";
  State& s = *state_;
  if (s.config.layers != 1)
    base::refuse(kCall, "the cache has ", s.config.layers, " layers, expected extend and write");
  Held& held = s.at(kCall, sequence);
  const std::int64_t first = held.length, count = tokens_in(k);
  check_kv(kCall, s.config, k, v, count);
  held.written[0].make_room();
  const Extension part{sequence, count, tokens};
  if (const Status status = s.extend(kCall, {&part, 1}); status != Status::ok) return status;
  return s.write(held, 0, first, k, v);  // the room is the sequence's own: nothing is copied
}

void PagedCache::truncate(std::int64_t sequence, std::int64_t length) {
  constexpr const char* kCall = "PagedCache::truncate";
  State& s = *state_;
  Held& held = s.at(kCall, sequence);
  cache::check_left(kCall, "length", length, held.length, sequence);
  s.remember_pages(held, Equal::share);
  s.cut(held, length);
}

PagedCache::Status PagedCache::keep(std::int64_t sequence, std::int64_t first,
                                    std::span<const std::int64_t> places,
                                    std::span<const std::int32_t> tokens) {
  constexpr const char* kCall = "PagedCache::keep";
  Held& held = state_->at(kCall, sequence);
  cache::check_places(kCall, sequence, held.length, first, places);
  if (!tokens.empty() && tokens.size() != places.size())
    base::refuse(kCall, "tokens has ", tokens.size(), " numbers, expected ", places.size());
  return state_->keep(held, first, places, tokens);
}

void PagedCache::batch(std::span<const std::int64_t> sequences, PagedBatch& to) const {
  const char* const call = "PagedCache::batch";
  std::size_t most = 0;
  for (const std::int64_t sequence : sequences)
    most = std::max(most, state_->at(call, sequence).pages.size());
  to.pages_a_sequence = static_cast<std::int64_t>(most);
  to.table.assign(sequences.size() * most, 0);
  to.lengths.resize(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Held& held = state_->at(call, sequences[i]);
    std::ranges::copy(held.pages, to.table.begin() + static_cast<std::ptrdiff_t>(i * most));
    to.lengths[i] = held.length;
  }
}

KvView PagedCache::view(std::int64_t layer, const PagedBatch& batch) const {
  constexpr const char* kCall = "PagedCache::view";
  cache::check_index(kCall, "layer", layer, state_->config.layers);
  const auto index = static_cast<std::size_t>(layer);
  const std::int64_t sequences = std::ssize(batch.lengths);
  std::int64_t entries = 0;
  if (__builtin_mul_overflow(sequences, batch.pages_a_sequence, &entries) ||
      entries != std::ssize(batch.table)) {
    base::refuse(kCall, "batch.table has ", batch.table.size(), " entries, expected ", sequences,
                 " lengths times pages_a_sequence (", batch.pages_a_sequence, ")");
  }
  KvView view;
  cache::show_stores(state_->config, state_->keys[index], state_->values[index], view);
  view.page_table = ConstView(batch.table.data(), {sequences, batch.pages_a_sequence});
  view.lengths = ConstView(batch.lengths.data(), {sequences});
  return view;
}

std::int64_t PagedCache::holders(std::int64_t page) const {
  cache::check_index("PagedCache::holders", "page", page, state_->config.pages);
  return state_->pool.holders(static_cast<std::int32_t>(page));
}

std::vector<float> key_scales_by_channel(ConstView k, ElementType type) {
  constexpr const char* kCall = "key_scales_by_channel";
  if (!base::is_scaled(type))
    base::refuse(kCall, "type is ", element_name(type), ", expected int8 or int4");
  if (k.layout.axes != 4 || k.layout.too_many_axes || !base::is_floating(k.type)) {
    base::refuse(kCall, "k is ", element_name(k.type), " ", cache::shown_shape(k),
                 ", expected float32, float16 or bfloat16 [batch, tokens, kv_heads, head_dim]");
  }
  base::footprint_of(kCall, "k", k);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  return cache::scales_by_channel(kCall, k, type);
}

}  // namespace polyhead::inline v0
