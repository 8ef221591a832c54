// Saving what caches hold, so that a prompt's keys and values can be used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What keys and values depend on besides the tokens. The caller hashes each as it likes; a file
/// of another one is refused.
struct CacheFingerprint {
  std::uint64_t model = 0, weights = 0, rope = 0, tokens = 0;
  bool operator==(const CacheFingerprint&) const = default;
};

/// What a file of saved caches is: how to make caches that take what it holds. Sizes are those of
/// the first cache or sequence of the file (sequences of one file have the same, but for their
/// tokens), and 0 where it holds none.
struct CacheFileInfo {
  enum class Kind : std::uint8_t { caches, sliding_caches, sequences };
  Kind kind = Kind::caches;
  CacheFingerprint fingerprint{};  ///< that it was saved with
  std::int64_t count = 0;          ///< caches, or sequences
  std::int64_t notes_bytes = 0;    ///< beside sequences
  ElementType type = ElementType::float32;
  std::int64_t layers = 0;  ///< of a sequence, else 1
  std::int64_t batch = 0;   ///< of a cache, else 1
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  bool values_in_keys = false;
  bool keys_by_channel = false;                          ///< how their codes are scaled
  std::int64_t window = 0, first_tokens = 0, chunk = 0;  ///< of sliding caches
  std::int64_t tokens = 0;                               ///< of the batch's longest
};

/// What a file is, whatever its fingerprint: so that caches can be made for it, and told of what
/// model or run it is. Reads all of it. Throws InvalidArgument naming the path: not such a file,
/// another version, a wrong checksum, or a first cache of sizes that none has. Whether rows and all
/// the others are there is for loading to find.
CacheFileInfo load_cache_file_info(const std::string& path);

/// Writes the caches (one a layer, say) to one file: version, fingerprint, each cache's sizes,
/// lengths, scales and rows, and a checksum of it all. The file appears, or replaces another, at
/// once, when it is complete; links at `path` are followed, and what is no regular file there (a
/// pipe, a device) is written to. Throws InvalidArgument naming the path where it cannot be
/// written.
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache> caches);

/// Fills caches with what a file holds. They must be as many as were saved, with the same batch,
/// heads, dims, type, values_in_keys and kind of scales; fixed capacities must suffice. What they
/// held is gone then. Throws InvalidArgument naming the path and what is wrong: not such a file,
/// another version, another fingerprint, a wrong checksum, a file too short or too long; nothing
/// has changed then.
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache> caches);

/// The same for caches that do not lie in one array. A null pointer is refused, and one given
/// twice.
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache* const> caches);
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache* const> caches);

/// The same for sliding caches; window, first tokens and chunk must be those that were saved, too.
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const SlidingCache> caches);
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<SlidingCache> caches);
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const SlidingCache* const> caches);
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<SlidingCache* const> caches);

/// The same for sequences of a paged cache: one file of all of them. Throws InvalidArgument, also
/// for a sequence that was released. `notes` are bytes of the caller's own that belong beside the
/// rows, as the frames of their codes do (code_frame.h); load_notes() gives them back.
void save_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                    const PagedCache& cache, std::span<const std::int64_t> sequences,
                    std::span<const std::byte> notes = {});

/// The sequences of a file as new ones of `cache`, in the order in which they were saved; their
/// full pages are shared with later prompts of the same salt. Exhausted where they do not fit into
/// the pool's free pages together. Throws InvalidArgument as load_caches does, and where the cache
/// serves another model, weights or RoPE (PagedCache::serve). Where they are not loaded nothing has
/// changed, and remembered pages are still remembered.
[[nodiscard]] PagedCache::Status load_sequences(const std::string& path,
                                                const CacheFingerprint& fingerprint,
                                                PagedCache& cache,
                                                std::vector<std::int64_t>& sequences,
                                                std::uint64_t salt = 0);
/// The same for as many as `sequences` has entries: a file of more or fewer is refused.
[[nodiscard]] PagedCache::Status load_sequences(const std::string& path,
                                                const CacheFingerprint& fingerprint,
                                                PagedCache& cache,
                                                std::span<std::int64_t> sequences,
                                                std::uint64_t salt = 0);

/// Scales of keys by channel.
struct KeyScales {
  bool by_channel = false;  ///< whether there are any
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  std::vector<float> values{};  ///< [layers][kv_heads][head_dim]

  /// As PagedCacheConfig::key_scales takes them: not given where there are none. (Of a cache of no
  /// heads they are given, and no value.)
  ConstView view() const {
    if (!by_channel) return {};
    return {values.data(), {layers, kv_heads, head_dim}};
  }
};

/// The scales by channel that a file's sequences were saved with: only a cache made with these
/// loads the file. None where keys have no scales or some for each token, and in a file of no
/// sequence. Throws InvalidArgument as load_sequences does.
KeyScales load_key_scales(const std::string& path, const CacheFingerprint& fingerprint);

/// The notes that a file's sequences were saved with. Throws InvalidArgument as load_sequences
/// does.
std::vector<std::byte> load_notes(const std::string& path, const CacheFingerprint& fingerprint);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
