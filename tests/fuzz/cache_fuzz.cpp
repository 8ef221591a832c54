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
#include <utility>
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

using Tokens = std::vector<std::int32_t>;

/// Rows [tokens, 1, kDim] of some place of the call, as a model has them: they follow from a token
/// and its position, so that equal beginnings have equal rows.
std::vector<float> rows_of(std::span<const std::int32_t> tokens, std::int64_t first, int place) {
  std::vector<float> rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::int64_t d = 0; d < kDim; ++d) {
      const std::int64_t mixed = (first + static_cast<std::int64_t>(t) + 1) * 7919 +
                                 tokens[t] * 104729 + d * 1299709 + place * 15485863;
      rows.push_back(static_cast<float>(mixed % 509 - 254) / 127.0f);
    }
  }
  return rows;
}

/// A paged cache, and the tokens that each of its sequences must hold.
struct Paged {
  explicit Paged(const polyhead::PagedCacheConfig& config) : cache(config) {}
  bool values_in_keys() const { return cache.config().values_in_keys; }

  PagedCache cache;
  std::vector<std::int64_t> sequences;
  std::vector<Tokens> tokens;  ///< of each
};

/// Sequences of these tokens in a cache without pages.
KvCache contiguous(const Paged& paged, std::span<const Tokens> sequences) {
  const polyhead::PagedCacheConfig& from = paged.cache.config();
  auto config = config_of<polyhead::KvCacheConfig>({from.type, from.values_in_keys});
  config.batch = std::ssize(sequences);
  std::vector<std::int64_t> lengths;
  for (const Tokens& tokens : sequences) lengths.push_back(std::ssize(tokens));
  const std::int64_t longest = std::max<std::int64_t>(1, *std::ranges::max_element(lengths));
  config.capacity = longest;
  std::vector<float> k, v;
  for (Tokens padded : sequences) {
    padded.resize(static_cast<std::size_t>(longest));
    for (auto& [to, place] : {std::pair{&k, 1}, {&v, 2}}) {
      const std::vector<float> rows = rows_of(padded, 0, place);
      to->insert(to->end(), rows.begin(), rows.end());
    }
  }
  KvCache cache(config);
  const polyhead::detail::Layout shape{config.batch, longest, std::int64_t{1}, kDim};
  cache.append({k.data(), shape}, from.values_in_keys ? ConstView() : ConstView(v.data(), shape),
               {lengths.data(), {config.batch}});
  return cache;
}

/// The last tokens' queries over what is held, one of each sequence.
std::vector<float> attend_over(const polyhead::KvView& kv, std::int64_t sequences) {
  const Tokens asked(static_cast<std::size_t>(sequences), 3);
  const std::vector<float> q = rows_of(asked, 0, 0);
  std::vector<float> out(q.size());
  polyhead::AttentionArguments call;
  call.q = ConstView(q.data(), {sequences, std::int64_t{1}, std::int64_t{1}, kDim});
  call.kv = kv;
  call.out = polyhead::View(out.data(), {sequences, std::int64_t{1}, std::int64_t{1}, kDim});
  polyhead::attention(call, {.threads = 1});
  return out;
}

/// However its sequences were shared, forked, cut and written, a paged cache gives the bits of one
/// without pages: here a few of them, from number `first`.
void attend(const Paged& paged, std::size_t first) {
  constexpr std::size_t kMost = 3;  // or most of the time goes into this
  const std::size_t count = std::min(kMost, paged.sequences.size() - first);
  const auto sequences = std::span(paged.sequences).subspan(first, count);
  const auto tokens = std::span(paged.tokens).subspan(first, count);
  for (std::size_t i = 0; i < count; ++i)
    if (paged.cache.length(sequences[i]) != std::ssize(tokens[i])) std::abort();
  polyhead::PagedBatch batch;
  paged.cache.batch(sequences, batch);
  const std::vector<float> found = attend_over(paged.cache.view(0, batch), std::ssize(sequences));
  const KvCache plain = contiguous(paged, tokens);
  const std::vector<float> expected = attend_over(plain.view(), std::ssize(sequences));
  if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0) std::abort();
}

/// A new sequence, which begins with what is remembered of a prompt.
void begin(Paged& paged, std::uint64_t salt, std::size_t length) {
  paged.sequences.push_back(paged.cache.create(salt));
  Tokens prompt(length, 1);
  const std::int64_t adopted = paged.cache.adopt_prefix(paged.sequences.back(), prompt);
  prompt.resize(static_cast<std::size_t>(adopted));
  paged.tokens.push_back(prompt);
}

void append(Paged& paged, std::size_t at, const Tokens& more) {
  Tokens& tokens = paged.tokens[at];
  const std::int64_t first = std::ssize(tokens);
  const std::vector<float> k = rows_of(more, first, 1), v = rows_of(more, first, 2);
  const polyhead::detail::Layout shape{std::ssize(more), std::int64_t{1}, kDim};
  const auto status =
      paged.cache.append(paged.sequences[at], {k.data(), shape},
                         paged.values_in_keys() ? ConstView() : ConstView(v.data(), shape), more);
  if (status == PagedCache::Status::ok) tokens.insert(tokens.end(), more.begin(), more.end());
}

/// A draft of two branches of `depth` tokens, in turns, of which one is kept.
void draft(Paged& paged, std::size_t at, std::int64_t depth, std::int32_t branch) {
  const std::int64_t sequence = paged.sequences[at], held = paged.cache.length(sequence);
  std::vector<float> k, v;
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < 2 * depth; ++i) {
    const auto token = static_cast<std::int32_t>(i % 2);
    for (auto& [to, place] : {std::pair{&k, 1}, {&v, 2}}) {
      const std::vector<float> row = rows_of({&token, 1}, held + i / 2, place);
      to->insert(to->end(), row.begin(), row.end());
    }
    if (token == branch) places.push_back(held + i);
  }
  const polyhead::detail::Layout shape{2 * depth, std::int64_t{1}, kDim};
  if (paged.cache.append(sequence, {k.data(), shape},
                         paged.values_in_keys() ? ConstView() : ConstView(v.data(), shape)) !=
      PagedCache::Status::ok)
    return;
  const Tokens kept(places.size(), branch);
  if (paged.cache.keep(sequence, held, places, kept) == PagedCache::Status::ok)
    paged.tokens[at].insert(paged.tokens[at].end(), kept.begin(), kept.end());
  else
    paged.cache.truncate(sequence, held);
}

/// One operation: `what` chooses it, `much` says how much.
void operate(Paged& paged, std::uint8_t what, std::uint8_t much) {
  std::vector<std::int64_t>& sequences = paged.sequences;
  if (sequences.empty() || what % 8 == 0) return begin(paged, what / 128, much);
  const std::size_t at = much % sequences.size();
  const std::int64_t sequence = sequences[at];
  if (what % 8 <= 3) {
    append(paged, at, Tokens(what / 8, what % 2));
  } else if (what % 8 == 4) {
    sequences.push_back(paged.cache.fork(sequence));
    paged.tokens.push_back(Tokens(paged.tokens[at]));
  } else if (what % 8 == 5) {
    const std::int64_t length = paged.cache.length(sequence) * (what / 8) / 32;
    paged.cache.truncate(sequence, length);
    paged.tokens[at].resize(static_cast<std::size_t>(length));
  } else if (what % 8 == 6) {
    paged.cache.release(sequence);
    sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(at));
    paged.tokens.erase(paged.tokens.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (what / 8 % 2 == 0) {
    draft(paged, at, what / 16, what / 16 % 2);
  } else {
    attend(paged, at);
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
  Paged paged(config);
  for (std::size_t i = 1; i + 1 < size; i += 2) operate(paged, data[i], data[i + 1]);
  if (!paged.sequences.empty()) attend(paged, 0);
  for (const std::int64_t sequence : paged.sequences) paged.cache.release(sequence);
  if (paged.cache.sequences() != 0 || paged.cache.free_pages() != config.pages) std::abort();
  return 0;
}
