// A sliding key-value cache: the last tokens of each sequence in a ring, its first ones kept if
// wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/kv_view.h"
#include "polyhead/mask.h"
#include "polyhead/types.h"

namespace polyhead::inline v0::cache {
struct Ragged;
}

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

struct CacheFingerprint;
class SlidingCache;
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<SlidingCache* const> caches);

/// Sizes of a ring, and the window that it serves.
struct SlidingCacheConfig {
  std::int64_t batch = 1;                    ///< sequences, each with a length of its own
  std::int64_t kv_heads = 1, head_dim = 64;  ///< head_dim and value_dim at most 768
  std::int64_t value_dim = 0;                ///< 0: head_dim
  ElementType type = ElementType::float32;   ///< any that KvView has
  std::int64_t window = 4096;                ///< keys a query sees, its own included; at least 1
  std::int64_t first_tokens = 0;             ///< kept for ever (StreamingLLM's attention sinks)
  std::int64_t chunk = 1;       ///< most tokens appended at once, or taken back; at least 1
  bool values_in_keys = false;  ///< as KvCacheConfig::values_in_keys: a ring of latents
  /// Scales of int8 or int4 keys by channel, float32 [kv_heads, head_dim] (copied; see
  /// key_scales_by_channel in paged_cache.h). Not given: a scale a token and block of 32 dims.
  ConstView key_scales{};
};

/// Keys and values of `batch` sequences of any length, each in the pages of 64 tokens that
/// first_tokens fill, those that window + chunk - 1 tokens do, and one more: a ring of pages, seen
/// as a paged view. Tokens keep the positions they have in the sequence, so that attention over the
/// view with mask() gives the bits of attention over all of the sequence with the same mask. Rows
/// are rounded as KvCache's. Movable; not for concurrent writers. Source: Xiao et al. 2024.
class SlidingCache {
 public:
  /// Throws InvalidArgument for impossible sizes or types, std::bad_alloc without memory for them.
  explicit SlidingCache(const SlidingCacheConfig& config);
  /// What was moved from may be assigned to or destroyed, no more.
  SlidingCache(SlidingCache&&) noexcept;
  SlidingCache& operator=(SlidingCache&&) noexcept;
  ~SlidingCache();

  const SlidingCacheConfig& config() const;  ///< its key_scales view the cache's own copy
  std::int64_t bytes() const;                ///< of keys and values: fixed
  /// Tokens seen, held or not; throws InvalidArgument out of range.
  std::int64_t length(std::int64_t sequence) const;
  /// Tokens still held and of use: the first ones and the window's. Throws as length() does, as
  /// everything below that takes a sequence.
  std::int64_t held(std::int64_t sequence) const;
  /// The first position, after the first tokens, whose token has not been written over. A query at
  /// p has its whole window where p - window + 1 is not before it.
  std::int64_t oldest(std::int64_t sequence) const;

  /// Adds k [batch, tokens, kv_heads, head_dim] and v [.., value_dim] at each sequence's end (no v
  /// with values_in_keys); `counts`, where given (int32/int64 [batch]), says how many of `tokens`
  /// each sequence takes. k and v are no rows of the ring, which may be written over meanwhile.
  /// Throws InvalidArgument for more than `chunk` tokens; nothing is written then.
  void append(ConstView k, ConstView v, ConstView counts = {});

  /// Forgets the tokens of `sequence` from `length` on: `chunk` at most of those ever appended, for
  /// older ones have been written over, or any number as long as none was. Throws InvalidArgument.
  void truncate(std::int64_t sequence, std::int64_t length);
  /// Keeps, of the tokens of `sequence` from `first` on, those at `places`, as KvCache::keep. The
  /// others are taken back, with truncate()'s bound. Throws InvalidArgument; nothing has changed
  /// then.
  void keep(std::int64_t sequence, std::int64_t first, std::span<const std::int64_t> places);
  void clear();

  /// What attention reads; good until the next change. Queries whose windows have been written over
  /// (more than `chunk` of them, or before a truncation) are refused there, as is a mask without
  /// the window.
  KvView view() const;
  /// The mask that the view is for: causal, the window, the first tokens.
  Mask mask() const;

  /// Copies what a sequence holds, in order and next to each other: k float32 [held, kv_heads,
  /// head_dim], v [held, kv_heads, value_dim]; v may be left out with values_in_keys. To look at;
  /// attention needs no copy, not for positions in the cache either (attend_in_cache in
  /// sliding_attention.h).
  void read(std::int64_t sequence, View k, View v) const;

  /// Appends what is held to `to`: sizes, lengths, scales and the pages of the ring (cache_file.h
  /// makes a file of it).
  void save(std::vector<std::byte>& to) const;
  /// The same piece by piece, as KvCache's.
  void save(const std::function<void(std::span<const std::byte>)>& to) const;
  /// Takes what save() wrote from the beginning of `from`, and leaves the rest there. False, with
  /// the reason in `wrong` and nothing changed, where it is not of this cache's sizes, type,
  /// window, first tokens and chunk, or is cut short.
  bool load(std::span<const std::byte>& from, std::string& wrong);

 private:
  friend void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                          std::span<SlidingCache* const> caches);
  friend struct cache::Ragged;
  struct State;
  void take_over(SlidingCache& from) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
