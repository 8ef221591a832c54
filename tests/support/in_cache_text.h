// A text's q, k and v for a sliding cache with positions in the cache, and caches of it.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/sliding_attention.h"
#include "support/problem.h"
#include "support/random.h"

namespace polyhead::test::in_cache {

inline constexpr std::int64_t kBatch = 2, kHeads = 2, kQHeads = 4, kDim = 24, kValueDim = 16;

inline RopeConfig rope() {
  RopeConfig config;
  config.pairing = RopePairing::half_split;
  config.rotary_dims = 20;
  return config;
}

inline SlidingCacheConfig config(std::int64_t window, std::int64_t first_tokens, std::int64_t chunk,
                                 ElementType type = f32) {
  SlidingCacheConfig c;
  c.batch = kBatch;
  c.kv_heads = kHeads;
  c.head_dim = kDim;
  c.value_dim = kValueDim;
  c.window = window;
  c.first_tokens = first_tokens;
  c.chunk = chunk;
  c.type = type;
  return c;
}

/// Unrotated q, k and v of a whole text.
struct Text {
  Text(std::int64_t tokens, std::uint64_t seed)
      : q(f32, {kBatch, tokens, kQHeads, kDim}),
        k(f32, {kBatch, tokens, kHeads, kDim}),
        v(f32, {kBatch, tokens, kHeads, kValueDim}) {
    Random random(seed);
    q.fill_normal(random);
    k.fill_normal(random);
    v.fill_normal(random);
  }
  Tensor q, k, v;
};

inline ConstView part(const Tensor& from, std::int64_t first, std::int64_t count) {
  ConstView view = from.const_view();
  view.data = from.address({0, first, 0, 0});
  view.layout.extents[1] = count;
  return view;
}

/// Appends tokens [first, first + count) of both sequences, keys rotated at their positions.
inline void append(SlidingCache& cache, const Text& text, std::int64_t first, std::int64_t count) {
  Tensor k(f32, {kBatch, count, kHeads, kDim});
  for_each_index(k.extents(), [&](const Index& at) {
    k.set(at, text.k.get({at[0], first + at[1], at[2], at[3]}));
  });
  std::vector<std::int64_t> positions;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t i = 0; i < count; ++i) positions.push_back(first + i);
  }
  apply_rope(k.view(), ConstView(positions.data(), {kBatch, count}), rope());
  cache.append(k.const_view(), part(text.v, first, count));
}

inline Limits limits(std::int64_t q_len, std::int64_t kv_len, ElementType type = f32) {
  return {.batch = kBatch,
          .q_len = q_len,
          .kv_len = kv_len,
          .q_heads = kQHeads,
          .kv_heads = kHeads,
          .head_dim = kDim,
          .value_dim = kValueDim,
          .kv_type = type};
}

/// A chunk of sequence 0 and fewer tokens of sequence 1, one after the other, from q of a batch.
inline Tensor ragged(const Tensor& padded, std::int64_t of_first, std::int64_t of_second) {
  Index extents = {of_first + of_second, kQHeads};
  if (padded.extents().size() == 4) extents = joined(extents, {padded.extents()[3]});
  Tensor rows(f32, extents);
  for_each_index(extents, [&](const Index& at) {
    const bool first = at[0] < of_first;
    Index from = {first ? 0 : 1, first ? at[0] : at[0] - of_first, at[1]};
    if (at.size() == 3) from = joined(from, {at[2]});
    rows.set(at, padded.get(from));
  });
  return rows;
}

}  // namespace polyhead::test::in_cache
