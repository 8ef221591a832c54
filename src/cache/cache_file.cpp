// The file of saved caches. Little-endian, as the machines that the library runs on are:
//   "PHKVCACH", u32 version, u32 items (caches), u64 fingerprint [model, weights, rope, tokens],
//   each cache as KvCache::save writes it, u64 checksum of all before.
// Sequences of a paged cache: "PHKVPAGE", the same header, and each as PagedCache::save writes it.
#include "polyhead/cache_file.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "base/refuse.hpp"
#include "cache/saved_bytes.hpp"
#include "cache/saved_file.hpp"

namespace polyhead::inline v0 {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 4 * 8, kChecksumBytes = 8;

/// What a file holds: how it begins, and how messages call that.
struct Kind {
  const char* call;
  char magic[9];
  const char* items;
};
constexpr Kind kCaches{"load_caches", "PHKVCACH", "caches"};
constexpr Kind kSequences{"load_sequences", "PHKVPAGE", "sequences"};

struct Header {
  char magic[8];
  std::uint32_t version, items;
  std::uint64_t fingerprint[4];
};
static_assert(sizeof(Header) == kHeaderBytes);

/// Eight bytes at a time, so that a large cache is not held up by it. Finds damage, not malice.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0x9e3779b97f4a7c15u ^ bytes.size();
  const auto mix = [&](std::uint64_t word) {
    sum = (sum ^ word) * 0x9fb21c651e98df25u;
    sum ^= sum >> 29;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  std::uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  mix(rest);
  return sum;
}

Header header_of(const Kind& kind, const CacheFingerprint& f, std::size_t items) {
  Header header{
      {}, kVersion, static_cast<std::uint32_t>(items), {f.model, f.weights, f.rope, f.tokens}};
  std::memcpy(header.magic, kind.magic, sizeof header.magic);
  return header;
}

/// The items' part of a file, everything else having been checked; how many they are is in `found`.
std::span<const std::byte> checked_body(const Kind& kind, const std::string& path,
                                        std::span<const std::byte> bytes,
                                        const CacheFingerprint& fingerprint, Header& found) {
  const char* const call = kind.call;
  if (bytes.size() < kHeaderBytes + kChecksumBytes || std::memcmp(bytes.data(), kind.magic, 8) != 0)
    base::refuse(call, path, " is not a file of saved ", kind.items);
  std::memcpy(&found, bytes.data(), sizeof found);
  if (found.version != kVersion)
    base::refuse(call, path, " has version ", found.version, ", expected ", kVersion);
  std::uint64_t sum;
  std::memcpy(&sum, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  const std::span<const std::byte> summed = bytes.first(bytes.size() - kChecksumBytes);
  if (sum != checksum(summed))
    base::refuse(call, path, " is damaged or incomplete: its checksum does not match");
  const Header expected = header_of(kind, fingerprint, found.items);
  constexpr const char* kNames[] = {"model", "weights", "RoPE", "tokens"};
  for (std::size_t i = 0; i < 4; ++i) {
    if (found.fingerprint[i] != expected.fingerprint[i])
      base::refuse(call, path, " was saved for other ", kNames[i]);
  }
  return summed.subspan(kHeaderBytes);
}

/// Adds the checksum to a file's bytes and writes them.
void finish(const char* call, const std::string& path, std::vector<std::byte>& bytes) {
  const std::uint64_t sum = checksum(bytes);
  cache::put(bytes, &sum, sizeof sum);
  cache::write_file(call, path, bytes);
}

/// Gives loaded sequences back, unless it is told that all were.
class LoadedSequences {
 public:
  explicit LoadedSequences(PagedCache& cache) : cache_(cache) {}
  LoadedSequences(const LoadedSequences&) = delete;
  LoadedSequences& operator=(const LoadedSequences&) = delete;
  ~LoadedSequences() {
    for (const std::int64_t sequence : loaded_) cache_.release(sequence);
  }
  void add(std::int64_t sequence) { loaded_.push_back(sequence); }
  std::vector<std::int64_t> take() { return std::exchange(loaded_, {}); }

 private:
  PagedCache& cache_;
  std::vector<std::int64_t> loaded_;
};

std::vector<std::byte> begun(const Kind& kind, const CacheFingerprint& fingerprint,
                             std::size_t items) {
  const Header header = header_of(kind, fingerprint, items);
  std::vector<std::byte> bytes(kHeaderBytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

/// Pointers to each.
template <class Cache>
std::vector<Cache*> addresses_of(std::span<Cache> caches) {
  std::vector<Cache*> list;
  for (Cache& cache : caches) list.push_back(&cache);
  return list;
}

}  // namespace

void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache> caches) {
  save_caches(path, fingerprint, addresses_of(caches));
}

void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache> caches) {
  load_caches(path, fingerprint, addresses_of(caches));
}

void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache* const> caches) {
  std::vector<std::byte> bytes = begun(kCaches, fingerprint, caches.size());
  for (const KvCache* cache : caches) cache->save(bytes);
  finish("save_caches", path, bytes);
}

void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache* const> caches) {
  const std::vector<std::byte> bytes = cache::read_file(kCaches.call, path);
  Header header;
  std::span<const std::byte> rest = checked_body(kCaches, path, bytes, fingerprint, header);
  if (header.items != caches.size()) {
    base::refuse("load_caches", path, " holds ", header.items, " caches, expected ", caches.size());
  }
  std::vector<KvCache> loaded;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    KvCacheConfig config = caches[i]->config();
    config.capacity = config.growing ? 0 : caches[i]->capacity();
    loaded.emplace_back(config);
    std::string wrong;
    if (!loaded.back().load(rest, wrong))
      base::refuse("load_caches", path, ", cache ", i, ": ", wrong);
  }
  if (!rest.empty()) base::refuse("load_caches", path, " is ", rest.size(), " bytes too long");
  for (std::size_t i = 0; i < caches.size(); ++i) caches[i]->take_over(loaded[i]);
}

void save_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                    const PagedCache& cache, std::span<const std::int64_t> sequences) {
  std::vector<std::byte> bytes = begun(kSequences, fingerprint, sequences.size());
  for (const std::int64_t sequence : sequences) cache.save(sequence, bytes);
  finish("save_sequences", path, bytes);
}

PagedCache::Status load_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                                  PagedCache& cache, std::vector<std::int64_t>& sequences,
                                  std::uint64_t salt) {
  const std::vector<std::byte> bytes = cache::read_file(kSequences.call, path);
  Header header;
  std::span<const std::byte> rest = checked_body(kSequences, path, bytes, fingerprint, header);
  LoadedSequences loaded(cache);
  for (std::uint32_t i = 0; i < header.items; ++i) {
    const PagedCache::Loaded one = cache.load(rest, salt);
    if (one.exhausted) return PagedCache::Status::exhausted;
    if (one.sequence < 0) base::refuse(kSequences.call, path, ", sequence ", i, ": ", one.wrong);
    loaded.add(one.sequence);
  }
  if (!rest.empty()) base::refuse(kSequences.call, path, " is ", rest.size(), " bytes too long");
  sequences = loaded.take();
  return PagedCache::Status::ok;
}

}  // namespace polyhead::inline v0
