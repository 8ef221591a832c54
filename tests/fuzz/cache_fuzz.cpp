// Any bytes as a saved cache of any kind: taken or refused, and then as operations on a paged
// cache, over which attention is run. The first byte says what is held.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"

namespace {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::KvCache;
using polyhead::PagedCache;
using polyhead::SlidingCache;

constexpr ElementType kTypes[] = {ElementType::float32,     ElementType::bfloat16,
                                  ElementType::int8,        ElementType::int4,
                                  ElementType::float8_e4m3, ElementType::float8_e5m2};
constexpr std::int64_t kDim = 5;

struct Kind {
  ElementType type;
  bool values_in_keys;
};

template <class Config>
Config config_of(const Kind& kind) {
  Config config;
  config.head_dim = kDim;
  config.type = kind.type;
  config.values_in_keys = kind.values_in_keys;
  return config;
}

void load(const Kind& kind, std::span<const std::byte> bytes) {
  auto config = config_of<polyhead::KvCacheConfig>(kind);
  config.batch = 2;
  config.growing = true;
  KvCache cache(config);
  std::string wrong;
  if (!cache.load(bytes, wrong) && cache.max_length() != 0) std::abort();
}

/// The same bytes as a saved ring: what is taken is saved again as it came.
void load_ring(const Kind& kind, std::span<const std::byte> bytes) {
  constexpr std::size_t kLength = 10 * 8;                // behind the sizes
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // beyond, the page table is large
  std::int64_t length = 0;
  if (bytes.size() >= kLength + sizeof length) {
    std::memcpy(&length, bytes.data() + kLength, sizeof length);
    if (length > kMost) return;
  }
  auto config = config_of<polyhead::SlidingCacheConfig>(kind);
  config.window = 3;
  config.first_tokens = 1;
  config.chunk = 2;
  SlidingCache cache(config);
  std::span<const std::byte> rest = bytes;
  std::string wrong;
  if (!cache.load(rest, wrong)) {
    if (wrong.empty() || cache.length(0) != 0 || rest.size() != bytes.size()) std::abort();
    return;
  }
  std::vector<std::byte> again;
  cache.save(again);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end() - std::ssize(rest)))
    std::abort();
}

polyhead::PagedCacheConfig paged_config(const Kind& kind) {
  auto config = config_of<polyhead::PagedCacheConfig>(kind);
  config.pages = 12;
  config.page_tokens = 8;
  return config;
}

/// The same bytes as a saved sequence: what is taken can be saved again.
void load_sequence(const Kind& kind, std::span<const std::byte> bytes) {
  PagedCache cache(paged_config(kind));
  std::span<const std::byte> rest = bytes;
  const PagedCache::Loaded loaded = cache.load(rest);
  if (loaded.sequence < 0) {
    if (loaded.wrong.empty() || cache.sequences() != 0 || rest.size() != bytes.size()) std::abort();
    return;
  }
  std::vector<std::byte> again;
  cache.save(loaded.sequence, again);
  if (again.size() != bytes.size() - rest.size()) std::abort();
  cache.release(loaded.sequence);
  if (cache.free_pages() != cache.config().pages) std::abort();
}

void attend(PagedCache& cache, const std::vector<std::int64_t>& sequences) {
  polyhead::PagedBatch batch;
  cache.batch(sequences, batch);
  const auto n = static_cast<std::int64_t>(sequences.size());
  std::vector<float> q(static_cast<std::size_t>(n * kDim), 1.0f), out(q.size());
  polyhead::AttentionArguments call;
  call.q = ConstView(q.data(), {n, std::int64_t{1}, std::int64_t{1}, kDim});
  call.kv = cache.view(0, batch);
  call.out = polyhead::View(out.data(), {n, std::int64_t{1}, std::int64_t{1}, kDim});
  polyhead::attention(call, {.threads = 1});
}

/// One operation: `what` chooses it, `much` says how much.
void operate(PagedCache& cache, std::vector<std::int64_t>& sequences, std::uint8_t what,
             std::uint8_t much) {
  if (sequences.empty() || what % 8 == 0) {
    sequences.push_back(cache.create(what / 128));
    const std::vector<std::int32_t> prompt(much, 1);
    cache.adopt_prefix(sequences.back(), prompt);
    return;
  }
  const std::size_t at = much % sequences.size();
  const std::int64_t sequence = sequences[at];
  if (what % 8 <= 3) {
    const std::int64_t count = what / 8;
    const std::vector<float> rows(static_cast<std::size_t>(count * kDim), 0.5f);
    const ConstView view(rows.data(), {count, std::int64_t{1}, kDim});
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), what % 2);
    (void)cache.append(sequence, view, cache.config().values_in_keys ? ConstView() : view, tokens);
  } else if (what % 8 == 4) {
    sequences.push_back(cache.fork(sequence));
  } else if (what % 8 == 5) {
    cache.truncate(sequence, cache.length(sequence) * (what / 8) / 32);
  } else if (what % 8 == 6) {
    cache.release(sequence);
    sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    attend(cache, sequences);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Kind kind{kTypes[data[0] % 128 % std::size(kTypes)], data[0] >= 128};
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data + 1), size - 1};
  load(kind, bytes);
  load_ring(kind, bytes);
  load_sequence(kind, bytes);
  const polyhead::PagedCacheConfig config = paged_config(kind);
  PagedCache cache(config);
  std::vector<std::int64_t> sequences;
  for (std::size_t i = 1; i + 1 < size; i += 2) operate(cache, sequences, data[i], data[i + 1]);
  for (const std::int64_t sequence : sequences) cache.release(sequence);
  if (cache.sequences() != 0 || cache.free_pages() != config.pages) std::abort();
  return 0;
}
