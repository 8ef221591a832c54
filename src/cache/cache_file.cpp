// The file of saved caches. Little-endian, as the machines that the library runs on are:
//   "PHKVCACH", u32 version, u32 items (caches), u64 fingerprint [model, weights, rope, tokens],
//   each cache as KvCache::save writes it, u64 checksum of all before.
// Sliding caches: "PHKVRING", the same header, and each as SlidingCache::save writes it.
// Sequences of a paged cache: "PHKVPAGE", the same header, u64 bytes of notes, the notes, and each
// sequence as PagedCache::save writes it.
// Each kind has a version of its own: from 2 on the last two say whether values are in the keys,
// from 3 on the last one has notes.
#include "polyhead/cache_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "base/refuse.hpp"
#include "cache/first_sizes.hpp"
#include "cache/paged_saving.hpp"
#include "cache/saved_bytes.hpp"
#include "cache/saved_file.hpp"

namespace polyhead::inline v0 {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 4 * 8, kChecksumBytes = 8;

/// What a file holds: how it begins, and how messages call that.
struct Kind {
  const char* call;
  char magic[9];
  std::uint32_t version;
  const char* items;
};
constexpr Kind kCaches{"load_caches", "PHKVCACH", 1, "caches"};
constexpr Kind kSliding{"load_caches", "PHKVRING", 2, "sliding caches"};
constexpr Kind kSequences{"load_sequences", "PHKVPAGE", 3, "sequences"};
constexpr Kind kScales{"load_key_scales", "PHKVPAGE", 3, "sequences"};
constexpr Kind kNotes{"load_notes", "PHKVPAGE", 3, "sequences"};

struct Header {
  char magic[8];
  std::uint32_t version, items;
  std::uint64_t fingerprint[4];
};
static_assert(sizeof(Header) == kHeaderBytes);

Header header_of(const Kind& kind, const CacheFingerprint& f, std::size_t items) {
  Header header{
      {}, kind.version, static_cast<std::uint32_t>(items), {f.model, f.weights, f.rope, f.tokens}};
  std::memcpy(header.magic, kind.magic, sizeof header.magic);
  return header;
}

/// What lies between a file's header, which goes into `found`, and its checksum, which is right.
std::span<const std::byte> checked_body(const Kind& kind, const std::string& path,
                                        std::span<const std::byte> bytes, Header& found) {
  const char* const call = kind.call;
  if (bytes.size() < kHeaderBytes + kChecksumBytes || std::memcmp(bytes.data(), kind.magic, 8) != 0)
    base::refuse(call, path, " is not a file of saved ", kind.items);
  std::memcpy(&found, bytes.data(), sizeof found);
  if (found.version != kind.version)
    base::refuse(call, path, " has version ", found.version, ", expected ", kind.version);
  std::uint64_t sum;
  std::memcpy(&sum, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  const std::span<const std::byte> summed = bytes.first(bytes.size() - kChecksumBytes);
  if (sum != base::checksum(summed))
    base::refuse(call, path, " is damaged or incomplete: its checksum does not match");
  return summed.subspan(kHeaderBytes);
}

/// The same of a file that was saved with `fingerprint`.
std::span<const std::byte> checked_body(const Kind& kind, const std::string& path,
                                        std::span<const std::byte> bytes,
                                        const CacheFingerprint& fingerprint, Header& found) {
  const std::span<const std::byte> body = checked_body(kind, path, bytes, found);
  const Header expected = header_of(kind, fingerprint, found.items);
  constexpr const char* kNames[] = {"model", "weights", "RoPE", "tokens"};
  for (std::size_t i = 0; i < 4; ++i) {
    if (found.fingerprint[i] != expected.fingerprint[i])
      base::refuse(kind.call, path, " was saved with another fingerprint of the ", kNames[i], " (",
                   found.fingerprint[i], "), expected ", expected.fingerprint[i]);
  }
  return body;
}

/// The notes at the front of what sequences' files hold, which `body` is moved past.
std::span<const std::byte> take_notes(const Kind& kind, const std::string& path,
                                      std::span<const std::byte>& body) {
  std::uint64_t noted = 0;
  if (!cache::take(body, &noted, sizeof noted) || noted > body.size())
    base::refuse(kind.call, path, " promises ", noted, " bytes of notes, but has ", body.size());
  const std::span<const std::byte> notes = body.first(noted);
  body = body.subspan(noted);
  return notes;
}

/// Writes what `put_items`, called with a sink, puts behind the header, and a checksum. It is
/// called twice, and puts the same both times: the checksum begins with how much it is, and what
/// cannot be saved is refused before there is a file.
template <class PutItems>
void save_items(const char* call, const Kind& kind, const std::string& path,
                const CacheFingerprint& fingerprint, std::size_t items, const PutItems& put_items) {
  std::size_t bytes = kHeaderBytes;
  put_items([&](std::span<const std::byte> piece) { bytes += piece.size(); });
  base::Checksum sum(bytes);
  cache::FileWriter file(call, path);
  const cache::Sink to = [&](std::span<const std::byte> piece) {
    sum.add(piece);
    file.write(piece);
  };
  const Header header = header_of(kind, fingerprint, items);
  cache::put(to, &header, sizeof header);
  put_items(to);
  const std::uint64_t value = sum.value();
  file.write(std::as_bytes(std::span(&value, 1)));
  file.commit();
}

/// Gives loaded sequences back, unless it is told that all were.
class LoadedSequences {
 public:
  LoadedSequences(PagedCache& cache, std::size_t count) : cache_(cache) {
    loaded_.reserve(count);  // so that add() does not fail
  }
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

/// Pointers to each.
template <class Cache>
std::vector<Cache*> addresses_of(std::span<Cache> caches) {
  std::vector<Cache*> list;
  for (Cache& cache : caches) list.push_back(&cache);
  return list;
}

/// One cache twice would be filled, or saved, twice. `Cache` may be const.
template <class Cache>
void check_each(const char* call, std::span<Cache* const> caches) {
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (caches[i] == nullptr) base::refuse(call, "caches[", i, "] is null");
    const auto first = std::ranges::find(caches, caches[i]) - caches.begin();
    if (first != static_cast<std::ptrdiff_t>(i))
      base::refuse(call, "caches[", i, "] is caches[", first, "] again");
  }
}

/// An empty cache like another one.
KvCache empty_like(const KvCache& cache) {
  KvCacheConfig config = cache.config();
  config.capacity = config.growing ? 0 : cache.capacity();
  return KvCache(config);
}
SlidingCache empty_like(const SlidingCache& cache) { return SlidingCache(cache.config()); }

template <class Cache>
void save_all(const Kind& kind, const std::string& path, const CacheFingerprint& fingerprint,
              std::span<const Cache* const> caches) {
  constexpr const char* kCall = "save_caches";
  check_each(kCall, caches);
  save_items(kCall, kind, path, fingerprint, caches.size(), [&](const cache::Sink& to) {
    for (const Cache* cache : caches) cache->save(to);
  });
}

/// What the file holds for each of `caches`, which stay as they are.
template <class Cache>
std::vector<Cache> load_all(const Kind& kind, const std::string& path,
                            const CacheFingerprint& fingerprint, std::span<Cache* const> caches) {
  check_each(kind.call, caches);
  const std::vector<std::byte> bytes =
      cache::read_file(kind.call, path, {kind.magic, sizeof Header::magic});
  Header header;
  std::span<const std::byte> rest = checked_body(kind, path, bytes, fingerprint, header);
  if (header.items != caches.size()) {
    base::refuse(kind.call, path, " holds ", header.items, " caches, expected ", caches.size());
  }
  std::vector<Cache> loaded;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    loaded.push_back(empty_like(*caches[i]));
    std::string wrong;
    if (!loaded.back().load(rest, wrong)) base::refuse(kind.call, path, ", cache ", i, ": ", wrong);
  }
  if (!rest.empty()) base::refuse(kind.call, path, " is ", rest.size(), " bytes too long");
  return loaded;
}

/// A file of sequences whose checksum and fingerprint are right.
class SequencesFile {
 public:
  SequencesFile(const Kind& kind, const std::string& path, const CacheFingerprint& fingerprint)
      : call_(kind.call),
        path_(path),
        bytes_(cache::read_file(kind.call, path, {kind.magic, sizeof Header::magic})),
        fingerprint_(fingerprint),
        body_(checked_body(kind, path, bytes_, fingerprint, header_)),
        notes_(take_notes(kind, path, body_)) {}

  std::size_t count() const { return header_.items; }
  std::span<const std::byte> notes() const { return notes_; }

  PagedCache::Status load(PagedCache& cache, std::uint64_t salt,
                          std::vector<std::int64_t>& sequences) const {
    if (const CacheFingerprint* const served = cache.served()) {
      const std::string other = cache::other_model(fingerprint_, *served);
      if (!other.empty()) base::refuse(call_, path_, ": ", other);
    }
    // Whatever is wrong, or does not fit, is found before a page is taken from those remembered.
    if (pages(cache) > cache.free_pages()) return PagedCache::Status::exhausted;
    cache.serve(fingerprint_);
    LoadedSequences loaded(cache, count());
    std::span<const std::byte> rest = body_;
    while (!rest.empty()) loaded.add(cache.load(rest, salt).sequence);
    sequences = loaded.take();
    return PagedCache::Status::ok;
  }

  KeyScales key_scales() const {
    KeyScales scales;
    if (count() == 0) return scales;
    const std::string wrong = cache::read_key_scales(body_, scales);
    if (!wrong.empty()) base::refuse(call_, path_, ", sequence 0: ", wrong);
    return scales;
  }

 private:
  /// That all sequences take together.
  std::int64_t pages(const PagedCache& cache) const {
    std::span<const std::byte> rest = body_;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < count(); ++i) {
      std::string wrong;
      const std::int64_t pages = cache.pages_to_load(rest, wrong);
      if (pages < 0) base::refuse(call_, path_, ", sequence ", i, ": ", wrong);
      sum += pages;
    }
    if (!rest.empty()) base::refuse(call_, path_, " is ", rest.size(), " bytes too long");
    return sum;
  }

  const char* call_;
  const std::string& path_;
  Header header_{};
  std::vector<std::byte> bytes_;
  const CacheFingerprint& fingerprint_;
  std::span<const std::byte> body_, notes_;
};

/// The kind of what begins like a file of saved caches.
const Kind& kind_of(const char* call, const std::string& path, std::span<const std::byte> bytes,
                    CacheFileInfo::Kind& kind) {
  using enum CacheFileInfo::Kind;
  constexpr std::pair<CacheFileInfo::Kind, const Kind*> kKinds[] = {
      {caches, &kCaches}, {sliding_caches, &kSliding}, {sequences, &kSequences}};
  for (const auto& [name, of] : kKinds) {
    if (bytes.size() < sizeof Header::magic || std::memcmp(bytes.data(), of->magic, 8) != 0)
      continue;
    kind = name;
    return *of;
  }
  base::refuse(call, path, " is not a file of saved caches or sequences");
}

}  // namespace

CacheFileInfo load_cache_file_info(const std::string& path) {
  constexpr const char* kCall = "load_cache_file_info";
  constexpr std::string_view kAllKinds = "PHKV";
  const std::vector<std::byte> bytes = cache::read_file(kCall, path, kAllKinds);
  CacheFileInfo info;
  Kind kind = kind_of(kCall, path, bytes, info.kind);
  kind.call = kCall;
  Header header;
  std::span<const std::byte> body = checked_body(kind, path, bytes, header);
  const auto& print = header.fingerprint;
  info.fingerprint = {print[0], print[1], print[2], print[3]};
  info.count = header.items;
  if (info.kind == CacheFileInfo::Kind::sequences)
    info.notes_bytes = std::ssize(take_notes(kind, path, body));
  if (info.count == 0 && !body.empty())
    base::refuse(kCall, path, " is ", body.size(), " bytes too long");
  if (info.count == 0) return info;
  if (const std::string wrong = cache::read_first_sizes(body, info); !wrong.empty())
    base::refuse(kCall, path, ", the first of its ", kind.items, ": ", wrong);
  return info;
}

void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache> caches) {
  save_caches(path, fingerprint, addresses_of(caches));
}
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const SlidingCache> caches) {
  save_caches(path, fingerprint, addresses_of(caches));
}

void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache> caches) {
  load_caches(path, fingerprint, addresses_of(caches));
}
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<SlidingCache> caches) {
  load_caches(path, fingerprint, addresses_of(caches));
}

void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const KvCache* const> caches) {
  save_all(kCaches, path, fingerprint, caches);
}
void save_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<const SlidingCache* const> caches) {
  save_all(kSliding, path, fingerprint, caches);
}

void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<KvCache* const> caches) {
  std::vector<KvCache> loaded = load_all(kCaches, path, fingerprint, caches);
  for (std::size_t i = 0; i < caches.size(); ++i) caches[i]->take_over(loaded[i]);
}
void load_caches(const std::string& path, const CacheFingerprint& fingerprint,
                 std::span<SlidingCache* const> caches) {
  std::vector<SlidingCache> loaded = load_all(kSliding, path, fingerprint, caches);
  for (std::size_t i = 0; i < caches.size(); ++i) caches[i]->take_over(loaded[i]);
}

void save_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                    const PagedCache& cache, std::span<const std::int64_t> sequences,
                    std::span<const std::byte> notes) {
  constexpr const char* kCall = "save_sequences";
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (!cache.holds(sequences[i]))
      base::refuse(kCall, "sequences[", i, "] (", sequences[i], ") was released or never created");
  }
  const std::uint64_t noted = notes.size();
  save_items(kCall, kSequences, path, fingerprint, sequences.size(), [&](const cache::Sink& to) {
    cache::put(to, &noted, sizeof noted);
    to(notes);
    for (const std::int64_t sequence : sequences) cache.save(sequence, to);
  });
}

PagedCache::Status load_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                                  PagedCache& cache, std::vector<std::int64_t>& sequences,
                                  std::uint64_t salt) {
  const SequencesFile file(kSequences, path, fingerprint);
  return file.load(cache, salt, sequences);
}

PagedCache::Status load_sequences(const std::string& path, const CacheFingerprint& fingerprint,
                                  PagedCache& cache, std::span<std::int64_t> sequences,
                                  std::uint64_t salt) {
  const SequencesFile file(kSequences, path, fingerprint);
  if (file.count() != sequences.size()) {
    base::refuse(kSequences.call, path, " holds ", file.count(), " sequences, expected ",
                 sequences.size());
  }
  std::vector<std::int64_t> loaded;
  const PagedCache::Status status = file.load(cache, salt, loaded);
  std::ranges::copy(loaded, sequences.begin());
  return status;
}

KeyScales load_key_scales(const std::string& path, const CacheFingerprint& fingerprint) {
  return SequencesFile(kScales, path, fingerprint).key_scales();
}

std::vector<std::byte> load_notes(const std::string& path, const CacheFingerprint& fingerprint) {
  const SequencesFile file(kNotes, path, fingerprint);
  return {file.notes().begin(), file.notes().end()};
}

}  // namespace polyhead::inline v0
