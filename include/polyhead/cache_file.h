// Saving what caches hold, so that a prompt's keys and values can be used again.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "polyhead/error.h"
#include "polyhead/kv_cache.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What keys and values depend on besides the tokens. The caller hashes each as it likes; a file
/// of another one is refused.
struct CacheFingerprint {
  std::uint64_t model = 0, weights = 0, rope = 0, tokens = 0;
  bool operator==(const CacheFingerprint&) const = default;
};

/// Writes the caches (one a layer, say) to one file: version, fingerprint, each cache's sizes,
/// lengths, scales and rows, and a checksum of it all. The file appears at once, when it is
/// complete. Throws InvalidArgument naming the path where it cannot be
/// written.
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache> caches);

/// Fills caches with what a file holds. They must be as many as were saved, with the same batch,
/// heads, dims, type and kind of scales; fixed capacities must suffice. What they held is gone
/// then. Throws InvalidArgument naming the path and what is wrong: not such a file, another
/// version, another fingerprint, a wrong checksum, a file too short or too long; nothing has
/// changed then.
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache> caches);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
