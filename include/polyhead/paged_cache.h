// A paged key-value cache: many sequences over one pool of pages, shared where they are equal.
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

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

struct CacheFingerprint;

/// Sizes of a pool of pages, and of what they hold.
struct PagedCacheConfig {
  std::int64_t pages = 0;                    ///< of the pool, at most 2^31 - 1
  std::int64_t page_tokens = 64;             ///< a power of two from 8 to 256
  std::int64_t layers = 1;                   ///< a page holds its tokens' rows of all of them
  std::int64_t kv_heads = 1, head_dim = 64;  ///< of a layer; head_dim and value_dim at most 768
  std::int64_t value_dim = 0;                ///< 0: head_dim
  ElementType type = ElementType::float32;   ///< any that KvView has
  /// As KvCacheConfig::values_in_keys: pages of latents. `write` and `append` then take no v.
  bool values_in_keys = false;
  /// Scales of int8 or int4 keys by channel, float32 [layers, kv_heads, head_dim] (copied; see
  /// key_scales_by_channel). Not given: a scale a token and block of 32 dims.
  ConstView key_scales{};
};

/// A batch of sequences as attention takes it: what PagedCache::batch filled in.
struct PagedBatch {
  std::vector<std::int32_t> table;    ///< [sequences, pages a sequence at most]
  std::vector<std::int64_t> lengths;  ///< [sequences]
  std::int64_t pages_a_sequence = 0;
};

/// Keys and values of any number of sequences, in pages of one pool that is allocated once.
///
/// Sequences are known by numbers that are never used again. Tokens enter in two steps, so that
/// all layers of a model share the bookkeeping: `extend` makes room at a sequence's end, `write`
/// fills one layer's rows. Pages carry a count of the sequences that hold them: `fork` copies no
/// rows, and a page that others hold too is copied when it is written (copy on write).
///
/// Equal prefixes are shared: `extend` may be told the tokens' numbers, full pages are then
/// remembered by a hash chain over tokens and salt, and `adopt_prefix` gives a new sequence the
/// pages whose tokens, salt and predecessors all compare equal. The rows of a page must follow
/// from those alone: one cache serves one model, one set of weights and one RoPE (see serve()).
/// Where two sequences computed an equal page, with the same bits, they hold one from the next
/// extend() or truncate() of the later one on. Pages of released sequences stay remembered until
/// the pool needs them, those least recently used going first: one by one, and of 128 pages or more
/// in pieces of up to 64 that follow each other, at most an eighth of the pool ahead of need.
///
/// Rows are rounded as KvCache's. The pool running out is a status, and changes nothing. Movable;
/// not for concurrent use. Sources: Kwon et al. 2023 (pages); Zheng et al. 2024 (prefixes that
/// stay).
class PagedCache {
 public:
  enum class Status : std::uint8_t { ok, exhausted };

  /// Throws InvalidArgument for impossible sizes or types, std::bad_alloc without memory for them.
  explicit PagedCache(const PagedCacheConfig& config);
  /// What was moved from may be assigned to or destroyed, no more.
  PagedCache(PagedCache&&) noexcept;
  PagedCache& operator=(PagedCache&&) noexcept;
  ~PagedCache();

  const PagedCacheConfig& config() const;  ///< its key_scales view the cache's own copy
  std::int64_t bytes() const;              ///< of the pool
  std::int64_t free_pages() const;  ///< pages an extend can have: never used, given back or evicted
  std::int64_t remembered_pages() const;  ///< of these, pages of equal prefixes still to be had

  /// A new, empty sequence; sequences of different salts share nothing.
  std::int64_t create(std::uint64_t salt = 0);
  /// A new sequence that holds what `sequence` does. Throws InvalidArgument, as all below but
  /// holds() do, for a number that is no sequence.
  std::int64_t fork(std::int64_t sequence);
  /// Gives a sequence's pages back. Its number is refused from then on, here as everywhere.
  void release(std::int64_t sequence);

  std::int64_t sequences() const;                    ///< created and not released
  bool holds(std::int64_t sequence) const;           ///< whether it was created and not released
  std::int64_t length(std::int64_t sequence) const;  ///< tokens

  /// Lets an empty sequence begin with as many of the remembered pages as spell `tokens`, at most
  /// all but the last token (whose query has yet to be computed). Returns how many tokens it got,
  /// a multiple of page_tokens. Throws InvalidArgument where the sequence is not empty.
  std::int64_t adopt_prefix(std::int64_t sequence, std::span<const std::int32_t> tokens);

  /// Room for `count` more tokens, whose rows mean nothing until they are written. `tokens`, where
  /// not empty, are their numbers, for sharing (-2^31 stands for none); pages with a token of no
  /// number are not shared.
  /// Throws InvalidArgument for a negative count, and tokens that are not as many.
  [[nodiscard]] Status extend(std::int64_t sequence, std::int64_t count,
                              std::span<const std::int32_t> tokens = {});

  /// What one sequence gets of an extend() of several.
  struct Extension {
    std::int64_t sequence = -1, count = 0;
    std::span<const std::int32_t> tokens{};
  };
  /// The same for several sequences: all of them get their room, or none does. Throws
  /// InvalidArgument, also for a sequence given twice.
  [[nodiscard]] Status extend(std::span<const Extension> parts);

  /// The rows of tokens [first, first + n) of one layer: k [n, kv_heads, head_dim], v [n, kv_heads,
  /// value_dim] (no v with values_in_keys), float32, float16 or bfloat16, in any order. Once a full
  /// page's rows are written in all layers, the page may be shared. Pages that others hold are
  /// copied first, and the others keep theirs: exhausted, with nothing written, where the pool has
  /// too few; never for room that extend has made since the last fork. k and v may be rows of the
  /// pool, of other tokens than those that are written. Rows written anew have tokens of no number
  /// from then on. Throws InvalidArgument.
  [[nodiscard]] Status write(std::int64_t sequence, std::int64_t layer, std::int64_t first,
                             ConstView k, ConstView v);

  /// extend, and write of the one layer: for caches without layers. Throws InvalidArgument where
  /// there are several, and as both do.
  [[nodiscard]] Status append(std::int64_t sequence, ConstView k, ConstView v,
                              std::span<const std::int32_t> tokens = {});

  /// Forgets the tokens from `length` on. Throws InvalidArgument if there are fewer.
  void truncate(std::int64_t sequence, std::int64_t length);

  /// Keeps, of the tokens from `first` on, those at `places` (places in the sequence, ascending)
  /// and forgets the others, in all layers: they come to lie behind the tokens before `first`, with
  /// the rows, codes and scales that they have. For the accepted branch of a tree of drafted tokens
  /// (DraftTree::branch). `tokens`, where not empty, are their numbers; else they keep those
  /// that they have. A draft of several branches is to be extended without numbers: its pages
  /// spell no text. Pages that others hold are copied first, and the others keep theirs: exhausted,
  /// with nothing changed, where the pool has too few. Throws InvalidArgument.
  [[nodiscard]] Status keep(std::int64_t sequence, std::int64_t first,
                            std::span<const std::int64_t> places,
                            std::span<const std::int32_t> tokens = {});

  /// The page table and lengths of these sequences; good until one of them is extended, truncated,
  /// released or changed by keep(), or a write copies a page of it. Throws InvalidArgument.
  void batch(std::span<const std::int64_t> sequences, PagedBatch& to) const;
  /// What attention reads of `batch` in one layer; points into both. Throws InvalidArgument, also
  /// where the batch's table is not [lengths, pages_a_sequence].
  KvView view(std::int64_t layer, const PagedBatch& batch) const;

  /// Appends what `sequence` holds to `to`: sizes, tokens' numbers, scales and rows, of the tokens
  /// whose rows are written in all layers (cache_file.h makes a file of it). Throws
  /// InvalidArgument.
  void save(std::int64_t sequence, std::vector<std::byte>& to) const;
  /// The same piece by piece, as KvCache's.
  void save(std::int64_t sequence, const std::function<void(std::span<const std::byte>)>& to) const;

  /// What came of load().
  struct Loaded {
    std::int64_t sequence = -1;  ///< the new one; -1: nothing was loaded
    bool exhausted = false;      ///< because the pool has too few pages
    std::string wrong;           ///< why nothing was
  };
  /// Takes what save() wrote from the beginning of `from` as a new sequence, and leaves the rest
  /// there. Refused, with nothing changed, where it is not of this cache's type, sizes and scales
  /// by channel, is cut short or does not fit; pages may be of another size. Its full pages are
  /// remembered under `salt` as if they had been written here.
  Loaded load(std::span<const std::byte>& from, std::uint64_t salt = 0);

  /// The pages that load() takes for what `from` begins with, and leaves the rest there: so that
  /// several are loaded or none. -1, and why in `wrong`, where load() would refuse it.
  std::int64_t pages_to_load(std::span<const std::byte>& from, std::string& wrong) const;

  /// Says what model, weights and RoPE (cache_file.h) its rows are of, as load_sequences does for
  /// those of a file. Throws InvalidArgument where others were named before: prompts of one model
  /// would find pages of another.
  void serve(const CacheFingerprint& fingerprint);
  /// Whose rows it holds, as far as somebody has said so; null where nobody has.
  const CacheFingerprint* served() const;

  /// Sequences that hold page `page`; for tests and displays. Throws InvalidArgument for a page
  /// that the pool has not.
  std::int64_t holders(std::int64_t page) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The scales of int8 or int4 keys by channel, calibrated on k [batch, tokens, kv_heads, head_dim]
/// (float32, float16 or bfloat16): [kv_heads][head_dim], the value of largest magnitude over the
/// largest code. Larger values that come later are clamped, infinities too, and a NaN becomes 0: no
/// code under a fixed scale is either. A channel that is 0 throughout gets the least of the other
/// scales of its head. Throws InvalidArgument, also for a k that is not finite, naming head and
/// dim. Source: Liu et al. 2024 (KIVI: keys by channel).
std::vector<float> key_scales_by_channel(ConstView k, ElementType type);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
