// A contiguous key-value cache: what attention has seen so far, for a batch of sequences.
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
#include "polyhead/types.h"

namespace polyhead::inline v0::cache {
struct Ragged;
}

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Sizes of a cache that is in one piece for each sequence.
struct KvCacheConfig {
  std::int64_t batch = 1;                    ///< sequences, each with a length of its own
  std::int64_t kv_heads = 1, head_dim = 64;  ///< head_dim and value_dim at most 768
  std::int64_t value_dim = 0;                ///< 0: head_dim
  ElementType type = ElementType::float32;   ///< any that KvView has
  std::int64_t capacity = 0;                 ///< tokens a sequence
  /// Doubles its capacity when full; otherwise a full cache refuses to append.
  bool growing = false;
  /// Values are the first value_dim elements of the keys and not stored again: the cache of latent
  /// attention. `append` then takes no v. Of codes value_dim is a multiple of 32 or head_dim, and
  /// scales are by token.
  bool values_in_keys = false;
  /// Scales of int8 or int4 keys by channel, float32 [kv_heads, head_dim], finite and not 0
  /// (copied; see key_scales_by_channel in paged_cache.h). Not given: a scale a token and block of
  /// 32 dims, which a NaN or an infinity takes along; under a scale by channel a NaN becomes 0,
  /// silently, and an infinity the largest code on its side.
  ConstView key_scales{};
};

struct CacheFingerprint;
class KvCache;
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache* const> caches);

/// Keys and values of `batch` sequences, each [length, kv_heads, dim]. Keys are stored as attention
/// reads them: rotated when the layer uses RoPE. Converting to `type` rounds to nearest even: to
/// half a unit in the last place of float16, bfloat16 and 8-bit floats, to half a scale of int8 and
/// a whole one of int4, of which the largest code is 7 beside -8 (docs/caches.md). Movable; not for
/// concurrent writers.
class KvCache {
 public:
  /// Throws InvalidArgument for impossible sizes or types, std::bad_alloc without memory for them.
  explicit KvCache(const KvCacheConfig& config);
  /// What was moved from may be assigned to or destroyed, no more.
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  const KvCacheConfig& config() const;  ///< its key_scales view the cache's own copy
  std::int64_t capacity() const;        ///< tokens a sequence, now
  std::int64_t bytes() const;           ///< of keys and values, at this capacity
  /// Tokens held; throws InvalidArgument out of range.
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t max_length() const;  ///< of any sequence

  /// Views of what is held: [batch, max_length, kv_heads, dim]; rows past a sequence's own length
  /// are unspecified. They stay valid until the next append that grows, and do not lengthen by
  /// themselves.
  ConstView keys() const;
  ConstView values() const;

  /// What attention reads: keys, values, the scales of codes and the lengths. Valid as keys() is.
  KvView view() const;

  /// int64 [batch]; stays valid, and follows the lengths, as long as the cache lives.
  ConstView lengths() const;

  /// Adds k [batch, tokens, kv_heads, head_dim] and v [.., value_dim] at each sequence's end (no v
  /// with values_in_keys); `counts`, where given (int32/int64 [batch]), says how many of `tokens`
  /// each sequence takes. Lengths advance once, at the end. k and v may be rows that the cache
  /// holds. Throws InvalidArgument, naming the sequence, where a cache of fixed capacity would
  /// overflow; nothing is written then.
  void append(ConstView k, ConstView v, ConstView counts = {});

  /// Forgets the tokens of `sequence` from `length` on. Throws InvalidArgument if it holds fewer.
  void truncate(std::int64_t sequence, std::int64_t length);

  /// Keeps, of the tokens of `sequence` from `first` on, those at `places` (places in the sequence,
  /// ascending) and forgets the others: they come to lie behind the tokens before `first`, with the
  /// rows, codes and scales that they have. For the accepted branch of a tree of drafted tokens
  /// (DraftTree::branch). Throws InvalidArgument; nothing has changed then.
  void keep(std::int64_t sequence, std::int64_t first, std::span<const std::int64_t> places);

  /// Appends what is held to `to`: sizes, lengths, scales and rows (cache_file.h makes a file of
  /// it).
  void save(std::vector<std::byte>& to) const;
  /// The same, piece by piece, in order, where the rows lie: a file needs no memory for all of
  /// them. What `to` throws comes out.
  void save(const std::function<void(std::span<const std::byte>)>& to) const;
  /// Takes what save() wrote from the beginning of `from`, and leaves the rest there. False, with
  /// the reason in `wrong` and nothing changed, where it is not of this cache's sizes and type,
  /// exceeds a fixed capacity or is cut short. As after a growing append, keys() and view() are to
  /// be taken anew.
  bool load(std::span<const std::byte>& from, std::string& wrong);

  /// Forgets everything; the capacity stays.
  void clear();

 private:
  friend void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                          std::span<KvCache* const> caches);
  friend struct cache::Ragged;
  struct State;
  void take_over(KvCache& from) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
