// Serving: sequences that begin alike share the pages of a cache, prompts are read in chunks beside
// sequences that decode, in one call, and every sequence gets the bits that it gets alone.
#include <polyhead/attention.h>
#include <polyhead/paged_cache.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace {

constexpr std::int64_t kQHeads = 8, kKvHeads = 2, kDim = 64;
using Ids = std::vector<std::int32_t>;
using Status = polyhead::PagedCache::Status;

/// Rows [tokens, heads, dim] that follow from the tokens, as those of a model's first layer do.
std::vector<float> rows_of(std::span<const std::int32_t> ids, std::int64_t heads, int salt) {
  std::vector<float> rows;
  rows.reserve(ids.size() * static_cast<std::size_t>(heads * kDim));
  for (const std::int32_t id : ids) {
    for (std::int64_t i = 0; i < heads * kDim; ++i)
      rows.push_back(std::sin(static_cast<float>((id + 3) * (i + salt) % 1009)));
  }
  return rows;
}

/// What a step runs of one sequence: its tokens from `first` on.
struct Part {
  std::int64_t sequence = 0, first = 0;
  Ids ids;
};

/// Room for the tokens of a part and their keys and values.
bool append(polyhead::PagedCache& cache, const Part& part) {
  const auto count = static_cast<std::int64_t>(part.ids.size());
  const std::vector<float> k = rows_of(part.ids, kKvHeads, 1), v = rows_of(part.ids, kKvHeads, 2);
  return cache.append(part.sequence, {k.data(), {count, kKvHeads, kDim}},
                      {v.data(), {count, kKvHeads, kDim}}, part.ids) == Status::ok;
}

/// One call for all parts, prompts' chunks and single tokens alike: the outputs, one after the
/// other.
std::vector<float> step(const polyhead::PagedCache& cache, std::span<const Part> parts) {
  Ids ids;
  std::vector<std::int64_t> sequences, offsets{0};
  for (const Part& part : parts) {
    sequences.push_back(part.sequence);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const std::vector<float> q = rows_of(ids, kQHeads, 0);
  std::vector<float> out(q.size());
  polyhead::PagedBatch batch;
  cache.batch(sequences, batch);
  polyhead::AttentionArguments call;
  call.q = {q.data(), {ids.size(), kQHeads, kDim}};
  call.kv = cache.view(0, batch);
  call.out = {out.data(), {ids.size(), kQHeads, kDim}};
  call.q_offsets = {offsets.data(), {offsets.size()}};
  call.mask = polyhead::causal(polyhead::Align::end);
  polyhead::attention(call);
  return out;
}

/// The output of a prompt's last token when nothing else runs.
std::vector<float> alone(const Ids& prompt) {
  polyhead::PagedCache cache({.pages = 16, .kv_heads = kKvHeads, .head_dim = kDim});
  const Part whole{cache.create(), 0, prompt};
  if (!append(cache, whole)) return {};
  const std::vector<float> out = step(cache, {&whole, 1});
  return {out.end() - kQHeads * kDim, out.end()};
}

}  // namespace

int main() {
  // Two questions after the same 130 tokens, as after one system prompt.
  Ids first(130);
  std::iota(first.begin(), first.end(), 0);
  Ids second = first;
  first.insert(first.end(), {500, 501, 502});
  second.insert(second.end(), {700, 701});

  polyhead::PagedCache cache({.pages = 16, .kv_heads = kKvHeads, .head_dim = kDim});
  const Part prefill{cache.create(), 0, first};
  if (!append(cache, prefill)) return 1;
  step(cache, {&prefill, 1});

  // The second sequence finds two full pages of 64 tokens and reads the rest in a step in which the
  // first one decodes its next token.
  const std::int64_t joined = cache.create();
  const std::int64_t shared = cache.adopt_prefix(joined, second);
  const Part parts[] = {{prefill.sequence, cache.length(prefill.sequence), {503}},
                        {joined, shared, Ids(second.begin() + shared, second.end())}};
  for (const Part& part : parts) {
    if (!append(cache, part)) return 1;
  }
  const std::vector<float> out = step(cache, parts);
  std::printf("%d tokens shared, %d of %d pages free\n", static_cast<int>(shared),
              static_cast<int>(cache.free_pages()), static_cast<int>(cache.config().pages));

  const std::vector<float> expected = alone(second);
  const float* const last = out.data() + out.size() - expected.size();
  const bool same =
      !expected.empty() && std::memcmp(last, expected.data(), expected.size() * sizeof(float)) == 0;
  std::printf("the last token's output has %s bits as when its prompt runs alone\n",
              same ? "the same" : "OTHER");
  return same ? 0 : 1;
}
