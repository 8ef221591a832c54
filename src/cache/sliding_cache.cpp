// The sliding cache: pages of 64 tokens, the first ones fixed, the others a ring.
#include "polyhead/sliding_cache.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
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

constexpr std::int64_t kPage = 64;  // tokens: a block of the kernels lies on one page
constexpr std::int64_t kMostTokens = std::int64_t{1} << 36;  // of a sequence: its table fits memory
constexpr const char* kAppend = "SlidingCache::append";

std::int64_t pages_of(std::int64_t tokens) { return base::ceil_div(tokens, kPage); }

void check_config(const SlidingCacheConfig& config) {
  const auto check = [](const char* name, std::int64_t size, std::int64_t least,
                        std::int64_t most) {
    base::check_size("SlidingCache", name, size, least, most);
  };
  check("batch", config.batch, 0, kMostTokens);
  check("kv_heads", config.kv_heads, 0, kMostTokens);
  check("head_dim", config.head_dim, 0, base::kMaxDim);
  check("value_dim", config.value_dim, 0, base::kMaxDim);
  check("window", config.window, 1, kMostTokens);
  check("first_tokens", config.first_tokens, 0, kMostTokens);
  check("chunk", config.chunk, 1, kMostTokens);
  cache::check_storable("SlidingCache", config.type);
  cache::check_values_in_keys("SlidingCache", config);
}

}  // namespace

struct SlidingCache::State {
  SlidingCacheConfig config;
  std::int64_t kept = 0, ring = 0;  // pages a sequence
  cache::Store keys, values;
  std::vector<float> key_scales;
  std::vector<std::int64_t> lengths, longest;  // now, and since the last clear
  std::vector<std::int64_t> oldest;            // follows from longest
  std::int64_t columns = 0;
  std::vector<std::int32_t> table;  // [sequence][columns]

  /// The slot of page `page` of a sequence.
  std::int64_t slot(std::int64_t sequence, std::int64_t page) const {
    const std::int64_t in = page < kept ? page : kept + (page - kept) % ring;
    return sequence * (kept + ring) + in;
  }

  void reach(std::int64_t tokens) {
    if (pages_of(tokens) <= columns) return;
    const std::int64_t wider = std::max(pages_of(tokens), 2 * columns);
    std::vector<std::int32_t> wide(static_cast<std::size_t>(config.batch * wider));
    for (std::int64_t b = 0; b < config.batch; ++b) {
      for (std::int64_t page = 0; page < wider; ++page)
        wide[static_cast<std::size_t>(b * wider + page)] = static_cast<std::int32_t>(slot(b, page));
    }
    table = std::move(wide);
    columns = wider;
  }

  std::size_t index(const char* call, std::int64_t sequence) const {
    cache::check_index(call, "sequence", sequence, config.batch);
    return static_cast<std::size_t>(sequence);
  }

  std::int64_t slots() const { return kept + ring; }  // of a sequence

  /// Whether no token of a sequence that had so many was written over.
  bool all_there(std::int64_t tokens) const { return tokens <= kPage * slots(); }

  /// What is wrong with `now` tokens of sequence `b` that has had `most`; empty: nothing.
  std::string impossible(std::size_t b, std::int64_t now, std::int64_t most) const {
    std::string wrong =
        cache::impossible_length(cache::of_sequence("longest", b), most, 0, kMostTokens);
    if (!wrong.empty()) return wrong;
    const std::int64_t least = all_there(most) ? 0 : std::max<std::int64_t>(0, most - config.chunk);
    return cache::impossible_length(cache::of_sequence("lengths", b), now, least, most);
  }

  /// Refuses to take back tokens from `length` on where what they wrote over would be seen.
  void check_taken_back(const char* call, std::int64_t sequence, const char* name,
                        std::int64_t length) const {
    const std::int64_t most = longest[static_cast<std::size_t>(sequence)];
    if (all_there(most) || most - length <= config.chunk) return;
    base::refuse(call, name, " (", length, ") is more than chunk (", config.chunk, ") before the ",
                 most, " tokens of sequence ", sequence, " that were written");
  }

  /// Notes the most tokens that a sequence has had. The ring holds the last pages that were
  /// written, its oldest one's tokens all of them.
  void set_longest(std::size_t b, std::int64_t tokens) {
    longest[b] = tokens;
    oldest[b] = all_there(tokens) ? 0 : (pages_of(tokens) - ring) * kPage;
  }

  /// Calls visit(span) for every piece of memory that has been written.
  template <class Visit>
  void visit_pieces(const std::vector<std::int64_t>& written, const Visit& visit) {
    for (cache::Store* store : {&keys, &values}) {
      for (std::int64_t b = 0; b < config.batch; ++b) {
        for (std::int64_t in = 0; in < slots(); ++in) {
          const std::int64_t tokens =
              std::clamp<std::int64_t>(written[static_cast<std::size_t>(b)] - in * kPage, 0, kPage);
          for (std::int64_t head = 0; head < config.kv_heads && tokens > 0; ++head) {
            visit(store->head_rows(b * slots() + in, head, tokens));
            for (std::int64_t block = 0; block < store->blocks(); ++block)
              visit(store->head_scales(b * slots() + in, head, block, tokens));
          }
        }
      }
    }
  }

  /// What a cache of the same sizes holds. Scales are copied to where they lie, since views of them
  /// last as long as the cache.
  void take_over(State& from) noexcept {
    keys = std::move(from.keys);
    values = std::move(from.values);
    table = std::move(from.table);
    columns = from.columns;
    std::ranges::copy(from.lengths, lengths.begin());
    for (std::size_t b = 0; b < longest.size(); ++b) set_longest(b, from.longest[b]);
    std::ranges::copy(from.key_scales, key_scales.begin());
  }

  void append(const cache::Fresh& rows);

  /// The first tokens that are kept and seen apart from the window.
  std::int64_t apart(std::int64_t length) const {
    return std::min(config.first_tokens, std::max<std::int64_t>(0, length - config.window));
  }
};

SlidingCache::SlidingCache(const SlidingCacheConfig& config) : state_(std::make_unique<State>()) {
  check_config(config);
  State& s = *state_;
  s.config = config;
  SlidingCacheConfig& c = s.config;
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  s.key_scales =
      cache::take_key_scales("SlidingCache", c.key_scales, c.type, {c.kv_heads, c.head_dim});
  if (!s.key_scales.empty())
    c.key_scales = ConstView(s.key_scales.data(), {c.kv_heads, c.head_dim});
  s.kept = pages_of(c.first_tokens);
  // window + chunk - 1 tokens in a row, wherever they begin on a page.
  s.ring = pages_of(c.window + c.chunk - 1) + 1;
  if (c.batch > 0 && s.kept + s.ring > INT32_MAX / c.batch)
    base::refuse("SlidingCache", "batch (", c.batch, ") times the ", s.kept + s.ring,
                 " pages of window (", c.window, "), first_tokens (", c.first_tokens,
                 ") and chunk (", c.chunk, ") is more than 2^31 - 1 pages");
  const std::int64_t slots = c.batch * (s.kept + s.ring);
  s.keys =
      cache::Store("SlidingCache", {c.type, slots, c.kv_heads, kPage, c.head_dim}, s.key_scales);
  s.values =
      cache::Store("SlidingCache", {c.type, slots, c.kv_heads, kPage, cache::stored_value_dim(c)});
  s.lengths.assign(static_cast<std::size_t>(c.batch), 0);
  s.longest = s.oldest = s.lengths;
  s.reach(kPage * s.slots());
}

SlidingCache::SlidingCache(SlidingCache&&) noexcept = default;
SlidingCache& SlidingCache::operator=(SlidingCache&&) noexcept = default;
SlidingCache::~SlidingCache() = default;

const SlidingCacheConfig& SlidingCache::config() const { return state_->config; }
std::int64_t SlidingCache::bytes() const { return state_->keys.bytes() + state_->values.bytes(); }

std::int64_t SlidingCache::length(std::int64_t sequence) const {
  return state_->lengths[state_->index("SlidingCache::length", sequence)];
}

std::int64_t SlidingCache::held(std::int64_t sequence) const {
  const std::int64_t length = state_->lengths[state_->index("SlidingCache::held", sequence)];
  return state_->apart(length) + std::min(length, state_->config.window);
}

std::int64_t SlidingCache::oldest(std::int64_t sequence) const {
  return state_->oldest[state_->index("SlidingCache::oldest", sequence)];
}

void SlidingCache::State::append(const cache::Fresh& rows) {
  const SlidingCacheConfig& c = config;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t count = rows.count(b);
    if (count > c.chunk) {
      base::refuse(kAppend, "sequence ", b, " gets ", count, " tokens, expected at most chunk (",
                   c.chunk, ")");
    }
    most = std::max(most, lengths[static_cast<std::size_t>(b)] + count);
  }
  if (most > kMostTokens) base::refuse(kAppend, "a sequence grows beyond 2^36 tokens");
  reach(most);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto at = static_cast<std::size_t>(b);
    std::int64_t& length = lengths[at];
    const std::int64_t count = rows.count(b);
    for (std::int64_t i = 0; i < count; ++i, ++length) {
      const std::int64_t page = slot(b, length / kPage);
      for (std::int64_t head = 0; head < c.kv_heads; ++head) {
        keys.write(page, head, length % kPage, rows.row(rows.k, b, i, head));
        if (!c.values_in_keys)
          values.write(page, head, length % kPage, rows.row(rows.v, b, i, head));
      }
    }
    set_longest(at, std::max(longest[at], length));
  }
}

void SlidingCache::append(ConstView k, ConstView v, ConstView counts) {
  const SlidingCacheConfig& c = state_->config;
  cache::check_kv(kAppend, c, k, v);
  cache::check_counts(kAppend, counts, c.batch, cache::tokens_of(k));
  std::vector<std::int64_t> own;
  for (const auto* changing : {&state_->lengths, &state_->oldest})
    counts = cache::counts_apart(counts, *changing, own);
  state_->append({k, v, counts, {}});
}

void cache::Ragged::append(SlidingCache& cache, const ConstView& k, const ConstView& v,
                           const ConstView& offsets) {
  cache.state_->append(fresh(k, v, offsets));
}

void SlidingCache::truncate(std::int64_t sequence, std::int64_t length) {
  constexpr const char* kCall = "SlidingCache::truncate";
  State& s = *state_;
  const std::size_t b = s.index(kCall, sequence);
  cache::check_left(kCall, "length", length, s.lengths[b], sequence);
  s.check_taken_back(kCall, sequence, "length", length);
  s.lengths[b] = length;
}

void SlidingCache::keep(std::int64_t sequence, std::int64_t first,
                        std::span<const std::int64_t> places) {
  constexpr const char* kCall = "SlidingCache::keep";
  State& s = *state_;
  const std::size_t b = s.index(kCall, sequence);
  cache::check_places(kCall, sequence, s.lengths[b], first, places);
  s.check_taken_back(kCall, sequence, "first", first);
  s.lengths[b] = cache::move_places(first, places, [&](std::int64_t to, std::int64_t from) {
    for (cache::Store* store : {&s.keys, &s.values}) {
      store->copy_token(s.slot(sequence, to / kPage), to % kPage, s.slot(sequence, from / kPage),
                        from % kPage);
    }
  });
}

void SlidingCache::clear() {
  std::ranges::fill(state_->lengths, 0);
  for (std::size_t b = 0; b < state_->longest.size(); ++b) state_->set_longest(b, 0);
}

KvView SlidingCache::view() const {
  const State& s = *state_;
  KvView view;
  cache::show_stores(s.config, s.keys, s.values, view);
  view.page_table = ConstView(s.table.data(), {s.config.batch, s.columns});
  view.lengths = ConstView(s.lengths.data(), {s.config.batch});
  view.oldest = ConstView(s.oldest.data(), {s.config.batch});
  view.first_tokens = s.config.first_tokens;
  return view;
}

Mask SlidingCache::mask() const {
  Mask mask;
  mask.causal = mask.windowed = true;
  mask.align = Align::end;
  mask.left = state_->config.window - 1;
  mask.first_tokens = state_->config.first_tokens;
  return mask;
}

void SlidingCache::read(std::int64_t sequence, View k, View v) const {
  constexpr const char* kCall = "SlidingCache::read";
  const State& s = *state_;
  const std::int64_t length = s.lengths[s.index(kCall, sequence)], held = this->held(sequence);
  const std::int64_t first = s.apart(length);
  const SlidingCacheConfig& c = s.config;
  struct Side {
    const char* name;
    View to;
    const cache::Store& from;
    std::int64_t dim;
  };
  const Side sides[] = {{"k", k, s.keys, c.head_dim},
                        {"v", v, c.values_in_keys ? s.keys : s.values, c.value_dim}};
  const int count = c.values_in_keys && !v.given() ? 1 : 2;
  base::Footprint prints[2];
  for (int i = 0; i < count; ++i) {
    const Side& side = sides[i];
    const detail::Layout& layout = side.to.layout;
    if (side.to.type != ElementType::float32 || layout.axes != 3 || layout.too_many_axes ||
        layout.extents[0] != held || layout.extents[1] != c.kv_heads ||
        layout.extents[2] != side.dim) {
      base::refuse(kCall, side.name, " is ", element_name(side.to.type), " ",
                   cache::shown_shape(side.to), ", expected float32 [", held, ", ", c.kv_heads,
                   ", ", side.dim, "]: held, kv_heads, dim");
    }
    prints[i] = base::footprint_of(kCall, side.name, side.to);
    base::check_writable(kCall, prints[i], prints, i);
  }
  const base::FloatEnvironment environment(base::Subnormals::kept);
  for (const Side& side : std::span(sides, static_cast<std::size_t>(count))) {
    const auto& strides = side.to.layout.strides;
    for (std::int64_t i = 0; i < held; ++i) {
      const std::int64_t token = i < first ? i : length - held + i;
      for (std::int64_t head = 0; head < c.kv_heads; ++head) {
        float* const to = static_cast<float*>(side.to.data) + i * strides[0] + head * strides[1];
        for (std::int64_t d = 0; d < side.dim; ++d)
          to[d * strides[2]] =
              side.from.value(s.slot(sequence, token / kPage), head, token % kPage, d);
      }
    }
  }
}

// --- saving: what cache_file.cpp puts into a file ---

namespace {

using SavedSizes = cache::SavedSizes<cache::kSlidingSizes.size()>;

SavedSizes sizes_of(const SlidingCacheConfig& c) {
  return {static_cast<std::int64_t>(c.type),
          c.batch,
          c.kv_heads,
          c.head_dim,
          c.value_dim,
          c.values_in_keys,
          c.key_scales.given(),
          c.window,
          c.first_tokens,
          c.chunk};
}

}  // namespace

void SlidingCache::save(std::vector<std::byte>& to) const { save(cache::at_end_of(to)); }

void SlidingCache::save(const cache::Sink& to) const {
  cache::check_sink("SlidingCache::save", to);
  State& s = *state_;
  const SavedSizes sizes = sizes_of(s.config);
  cache::put(to, &sizes, sizeof sizes);
  cache::put(to, s.lengths.data(), s.lengths.size() * 8);
  cache::put(to, s.longest.data(), s.longest.size() * 8);
  cache::put(to, s.key_scales.data(), s.key_scales.size() * 4);
  s.visit_pieces(s.longest, to);
}

bool SlidingCache::load(std::span<const std::byte>& from, std::string& wrong) {
  const auto fail = [&](std::string reason) {
    wrong = std::move(reason);
    return false;
  };
  State& s = *state_;
  std::span<const std::byte> rest = from;
  wrong = cache::take_sizes(rest, cache::kSlidingSizes, sizes_of(s.config));
  if (!wrong.empty()) return false;
  std::vector<std::int64_t> lengths(s.lengths.size()), longest(s.longest.size());
  std::vector<float> scales(s.key_scales.size());
  wrong = cache::take_all(rest, "lengths", lengths);
  if (wrong.empty()) wrong = cache::take_all(rest, "longest", longest);
  if (wrong.empty()) wrong = cache::take_all(rest, "key_scales", scales);
  if (wrong.empty()) wrong = cache::impossible_scale(scales);
  if (!wrong.empty()) return false;
  std::int64_t most = 0;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    wrong = s.impossible(b, lengths[b], longest[b]);
    if (!wrong.empty()) return false;
    most = std::max(most, lengths[b]);
  }
  // Codes go with the scales that they were made with, so the ring is made with those of the file.
  SlidingCacheConfig config = s.config;
  if (!scales.empty())
    config.key_scales = ConstView(scales.data(), {config.kv_heads, config.head_dim});
  SlidingCache loaded(config);
  State& to = *loaded.state_;
  to.lengths = std::move(lengths);
  to.longest = std::move(longest);
  std::size_t bytes = 0;
  to.visit_pieces(to.longest, [&](std::span<std::byte> piece) { bytes += piece.size(); });
  if (bytes > rest.size()) return fail(cache::too_few_bytes("rows", bytes, rest.size()));
  to.visit_pieces(to.longest, [&](std::span<std::byte> piece) {
    cache::take(rest, piece.data(), piece.size());  // there, as was just checked
  });
  try {
    to.reach(most);
  } catch (const std::bad_alloc&) {
    // Nothing in the file is as long as its age, which alone decides how long the table is.
    return fail("its " + std::to_string(most) +
                " tokens need a longer page table than fits memory");
  }
  take_over(loaded);
  from = rest;
  return true;
}

void SlidingCache::take_over(SlidingCache& from) noexcept { state_->take_over(*from.state_); }

}  // namespace polyhead::inline v0
