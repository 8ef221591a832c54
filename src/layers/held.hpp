// What the layers ask of the caches and views that a call goes on with, and how they add to them.
#pragma once

#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "layers/calls.hpp"
#include "polyhead/kv_cache.h"
#include "polyhead/sliding_cache.h"

namespace polyhead::inline v0::layers {

/// What the rows of a layer in a cache are.
struct HeldSizes {
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  bool values_in_keys = false;
};
HeldSizes held_sizes(const Layer& layer);

/// Throws unless a cache, whose configuration begins messages as `what`, holds rows of these sizes.
template <class Config>
void check_held(const char* name, const char* what, const Config& has, const HeldSizes& sizes) {
  if (has.values_in_keys != sizes.values_in_keys) {
    base::refuse(name, what,
                 sizes.values_in_keys
                     ? " stores values apart, expected values_in_keys (cache_config)"
                     : " has values_in_keys, expected values of their own");
  }
  const struct {
    const char* name;
    std::int64_t found, expected;
  } each[] = {{"kv_heads", has.kv_heads, sizes.kv_heads},
              {"head_dim", has.head_dim, sizes.head_dim},
              {"value_dim", has.value_dim, sizes.value_dim}};
  for (const auto& size : each) {
    if (size.found != size.expected) {
      base::refuse(name, what, " has ", size.name, " ", size.found, ", expected ", size.expected);
    }
  }
}

/// The same of a cache of one sequence for each of the input's.
template <class Cache>
void check_batch_held(const Input& input, const Cache& cache, const HeldSizes& sizes) {
  if (cache.config().batch != input.sequences) {
    base::refuse(input.name, "cache has batch ", cache.config().batch, ", expected ",
                 input.sequences);
  }
  check_held(input.name, "cache", cache.config(), sizes);
}

/// Refuses lengths of keys in a mask beside `what`, which has its own.
void refuse_key_lengths(const char* name, const Mask& mask, const char* what);

/// A view of rows of these sizes, as attention's door checks it. What it points to is added to
/// `read`.
kernels::AttendCall resolve_held(const Input& input, const KvView& kv, const HeldSizes& sizes,
                                 door::Inputs& read);

/// Tokens of sequence `b` of a resolved view.
inline std::int64_t tokens_held(const kernels::AttendCall& held, std::int64_t b) {
  return held.kv_lengths.given() ? held.kv_lengths[b] : held.kv_len;
}

/// Tokens of x in sequence `b`.
inline std::int64_t tokens_of(const Input& input, const ConstView& lengths, std::int64_t b) {
  if (input.ragged) return input.offsets[b + 1] - input.offsets[b];
  return lengths.given() ? door::integers_of(lengths)[b] : input.rows.tokens;
}

/// Where the tokens of x begin in each sequence of a view: they are its last ones.
const std::int64_t* starts_in(const Input& input, const kernels::AttendCall& held,
                              const ConstView& lengths, Buffer& memory);

/// Where the tokens of x begin in each sequence of a cache, and where they will end.
struct Growth {
  std::int64_t* starts = nullptr;  ///< [sequences]
  std::int64_t* ends = nullptr;
};

/// `length(b)`: tokens that sequence b holds now.
template <class Length>
Growth growth_after(const Input& input, const ConstView& lengths, Buffer& memory,
                    const Length& length) {
  auto* const starts = reinterpret_cast<std::int64_t*>(memory.need(input.sequences, 16));
  const Growth growth{starts, starts + input.sequences};
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    starts[b] = length(b);
    growth.ends[b] = starts[b] + tokens_of(input, lengths, b);
  }
  return growth;
}

/// All rows that a cache has, those not yet filled included.
KvView room_of(const KvCache& cache);
inline KvView room_of(const SlidingCache& cache) { return cache.view(); }

/// Checks what every call after a cache, whose rows are `room`, has beside it: no output touches
/// them. Returns where y goes.
Rows check_after_cache(const Layer& layer, const Input& input, const ConstView& x, const View& y,
                       const LayerCall& call, const KvView& room);

/// What a cache says of itself: its mask, and the numbers of each sequence that callers can see,
/// who may give them to a call that changes them.
struct Held {
  Mask mask{};
  ConstView lengths{}, oldest{};
};
inline Held held_by(const KvCache& cache) { return {{}, cache.lengths(), {}}; }
Held held_by(const SlidingCache& cache);

/// What attention is told of such a call but for q, k and v: positions are the cache's. Lengths and
/// ids that lie where the cache has numbers of its own are copied to `memory`, as they are now.
AttentionArguments arguments_after_cache(const Layer& layer, const Input& input,
                                         const LayerCall& call, const Held& held,
                                         const Growth& growth, Buffer& memory);

/// Checks what attention would refuse of a call before its cache is changed: everything of
/// `arguments` but kv, with sequences as long as they will be.
void foresee(const Layer& layer, const Input& input, AttentionArguments arguments,
             const std::int64_t* ends);

/// Takes back what a call appended to a batch of sequences, unless it is told that it succeeded.
template <class Cache>
class Appended {
 public:
  Appended(Cache& cache, const std::int64_t* starts) : cache_(cache), starts_(starts) {}
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  ~Appended() {
    if (kept_) return;
    for (std::int64_t b = 0; b < cache_.config().batch; ++b) cache_.truncate(b, starts_[b]);
  }
  void keep() { kept_ = true; }

 private:
  Cache& cache_;
  const std::int64_t* starts_;
  bool kept_ = false;
};

/// Rows [first, first + count) of a ragged [tokens, heads, dim], or none of no view.
ConstView token_rows(const ConstView& rows, std::int64_t first, std::int64_t count);

/// Appends the rows of a call, [batch, tokens, heads, dim] or ragged; no v where keys have it.
template <class Cache>
void append_rows(Cache& cache, const LayerCall& call, const ConstView& k, const ConstView& v) {
  if (call.offsets.given())
    cache::Ragged::append(cache, k, v, call.offsets);
  else
    cache.append(k, v, call.lengths);
}

/// Refuses more tokens than a cache of fixed capacity has room for.
void check_room(const Input& input, const KvCache& cache, const Growth& growth);

/// Refuses more tokens than a ring takes at once.
void check_chunk(const Input& input, const SlidingCache& cache, const ConstView& lengths);

}  // namespace polyhead::inline v0::layers
