// The five steps as one object: project, split into heads, attend, concatenate, project out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "polyhead/attention.h"
#include "polyhead/explain.h"
#include "polyhead/kv_cache.h"
#include "polyhead/kv_view.h"
#include "polyhead/paged_cache.h"
#include "polyhead/rope.h"
#include "polyhead/sliding_cache.h"

namespace polyhead::inline v0::layers {
struct CallScratch;
}

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What a multi-head attention layer is.
struct LayerConfig {
  std::int64_t model_dim = 0;  ///< columns of x and y
  std::int64_t q_heads = 1;
  std::int64_t kv_heads = 0;     ///< 0: q_heads; divides q_heads
  std::int64_t head_dim = 0;     ///< 0: model_dim / q_heads, which must be whole
  std::int64_t value_dim = 0;    ///< 0: head_dim
  std::int64_t context_dim = 0;  ///< columns of the context that k and v come from; 0: model_dim

  /// False: q is x itself, split into heads, and k = v = x (or the context), as textbooks begin.
  /// Then w_q, w_k and w_v are not given, model_dim = q_heads * head_dim and context_dim = kv_heads
  /// * head_dim = kv_heads * value_dim.
  bool use_projections = true;

  /// RMS normalisation of each head of q and k, before RoPE: x / sqrt(mean(x^2) + eps) * weight.
  bool qk_norm = false;
  float norm_eps = 1e-6f;
  std::optional<RopeConfig> rope{};

  /// Of every call; a call's own mask is joined to it by &. What it points to outlives the layer;
  /// numbers that no call can have are refused when the layer is made.
  Mask mask{};
  /// Of every call; what they point to outlives the layer. `bias` may also come with a call.
  Modifiers modifiers{};

  /// What weights are stored and multiplied as; all of them accumulate in float32.
  ///   float32   x is widened to float32; q, k, v and the concatenated heads are float32
  ///   float16   the same, weights widened from float16 as they are read
  ///   bfloat16  x, q, k, v and the concatenated heads are rounded to bfloat16, on every
  ///             instruction set
  ElementType weight_type = ElementType::float32;
};

/// Views are read once, when the layer is made, in any strides and float32, float16 or bfloat16.
/// [out, in] is y = x W^T; weights kept as [in, out] are the same view with its extents and strides
/// swapped.
struct LayerWeights {
  ConstView w_q{};  ///< [q_heads * head_dim, model_dim]
  ConstView w_k{};  ///< [kv_heads * head_dim, context_dim]
  ConstView w_v{};  ///< [kv_heads * value_dim, context_dim]
  /// Instead of the three: their rows in the order q, k, v; context_dim must be model_dim.
  ConstView w_qkv{};
  ConstView w_o{};  ///< [model_dim, q_heads * value_dim]; not given: y is the concatenated heads
  ConstView b_q{}, b_k{}, b_v{}, b_qkv{}, b_o{};  ///< optional, [out]
  ConstView q_norm{}, k_norm{};                   ///< [head_dim], with qk_norm
};

/// Scratch of a layer's calls: grows to the largest call it serves and is kept. Movable; used by
/// one call at a time.
class LayerWorkspace {
 public:
  LayerWorkspace();
  LayerWorkspace(LayerWorkspace&&) noexcept;
  LayerWorkspace& operator=(LayerWorkspace&&) noexcept;
  ~LayerWorkspace();
  std::size_t bytes() const;  ///< held now

 private:
  friend struct layers::CallScratch;
  struct State;
  std::unique_ptr<State> state_;
};

/// What one call may add.
struct LayerCall {
  Mask mask{};       ///< joined to the layer's by &
  ConstView bias{};  ///< as Modifiers::bias, where the layer has none of its own
  /// int32/int64 [batch]: valid tokens of x; the rest are padding (y is b_o there).
  ConstView lengths{};
  ConstView context_lengths{};  ///< int32/int64 [batch]: valid tokens of the context
  /// int32/int64 [sequences + 1]: x is [tokens, model_dim], sequences one after the other. Rows
  /// past the last of them belong to none: there y is b_o, or without w_o left alone, as lse is.
  ConstView offsets{};
  /// The same of a context [tokens, context_dim] that is no cache; with `offsets` alone, which also
  /// go with a padded context [sequences, tokens, context_dim].
  ConstView context_offsets{};
  /// int32/int64 [batch, tokens] ([tokens] for two axes): RoPE's; the mask keeps its own.
  ConstView positions{};
  ConstView context_positions{};        ///< the same of a context that is no cache
  View lse{};                           ///< as AttentionArguments::lse
  RowStatistics statistics{};           ///< as AttentionArguments::statistics
  LayerWorkspace* workspace = nullptr;  ///< null: one is made for the call
};

/// Who makes room in a pool for the tokens of a call.
///   to_make  the call: it extends each sequence by its tokens of x
///   made     extend() has: the tokens of x are each sequence's last. Of a model with several
///            layers all but the first find it so.
enum class PagedRoom : std::uint8_t { to_make, made };

/// Sequences of a pool that a layer's call goes on with.
struct PagedSequences {
  PagedCache* cache = nullptr;
  std::span<const std::int64_t> sequences{};  ///< one for each of x's, each once
  std::int64_t layer = 0;                     ///< of the cache's: whose rows these are
  PagedRoom room = PagedRoom::to_make;
  /// Numbers of the rows of x, padding included, as extend() takes them for sharing; or none.
  std::span<const std::int32_t> tokens{};
};

/// What RoPE and ALiBi count over a SlidingCache.
///   original  a token's place in its sequence
///   in_cache  its place among what the cache holds: the first tokens, then the window without a
///             gap (sliding_attention.h)
enum class SlidingPositions : std::uint8_t { original, in_cache };

/// q, k and v of a packed projection, by heads: the split is a change of view, no number moves.
struct LayerHeads {
  View q{};  ///< [batch, tokens, q_heads, head_dim]
  View k{};  ///< [batch, tokens, kv_heads, head_dim]
  View v{};  ///< [batch, tokens, kv_heads, value_dim]
};

/// Multi-head attention with its projections: y = concat(attention(x W_q^T, x W_k^T, x W_v^T))
/// W_o^T, biases added.
///
/// x and y are [batch, tokens, model_dim], or [tokens, model_dim] for a batch of one; float32,
/// float16 or bfloat16 each of its own, any strides; y may lie over x, and no output over another
/// or over a cache. Weights are packed once, when the layer is made, and not referred to
/// afterwards. Positions (for masks and RoPE) are a token's index in its sequence: after the cached
/// ones where there is a cache.
///
/// Same bits: a token's y does not depend on the batch it came in, the chunks its sequence was cut
/// into, a cache of the activation type instead of one call, strides, or threads (finite inputs,
/// one instruction set, one weight type). Accuracy: docs/numerics.md. Throws InvalidArgument naming
/// the argument; y and the cache are untouched then. Thread-safe: any number of calls at once, each
/// with its own workspace and cache. Source: Vaswani et al. 2017, section 3.2.2.
class MultiHeadAttention {
 public:
  /// `options` serve every call; its executor outlives the layer.
  MultiHeadAttention(const LayerConfig& config, const LayerWeights& weights,
                     const Options& options = {});
  /// What was moved from may be assigned to or destroyed, no more.
  MultiHeadAttention(MultiHeadAttention&&) noexcept;
  MultiHeadAttention& operator=(MultiHeadAttention&&) noexcept;
  ~MultiHeadAttention();

  const LayerConfig& config() const;  ///< with its zeros filled in
  /// Of q, k, v and the concatenated heads: bfloat16 or float32.
  ElementType activation_type() const;
  std::size_t weight_bytes() const;  ///< packed
  std::string describe() const;      ///< one paragraph: sizes, weight type, instruction set

  /// A cache that fits this layer, of its activation type.
  KvCacheConfig cache_config(std::int64_t batch, std::int64_t capacity, bool growing = false) const;

  /// Self attention.
  void forward(ConstView x, View y, const LayerCall& call = {}) const;

  /// Cross attention: q from x, k and v from context [batch, context_tokens, context_dim], or
  /// [context_tokens, context_dim] with offsets and context_offsets. RoPE rotates context tokens by
  /// their own index, or by context_positions.
  void forward(ConstView x, ConstView context, View y, const LayerCall& call = {}) const;

  /// Cross attention's k and v, computed once: appends those of the context (all of it, or
  /// `lengths` of each sequence) to a cache. RoPE counts on from the tokens held, or takes
  /// `positions` as LayerCall::context_positions.
  void project_context(ConstView context, KvCache& cache, ConstView lengths = {},
                       ConstView positions = {}) const;

  /// Cross attention to such a cache, or to what any other shows, which it only reads: the same
  /// bits as with the context itself.
  void cross(ConstView x, const KvCache& context, View y, const LayerCall& call = {}) const;
  void cross(ConstView x, const KvView& context, View y, const LayerCall& call = {}) const;

  /// Self attention after a cache: appends the tokens of x (all, `lengths` of each sequence, or
  /// those between `offsets`) and attends to everything held. Prefill, chunked prefill and decoding
  /// are this one call; with offsets, chunks of some sequences and steps of others. The layer's
  /// mask should be causal, as a token sees what the cache holds when it arrives. The cache has
  /// lengths of its own, so a mask has none of keys. Without a workspace in `call`, scratch is
  /// allocated each time.
  void forward(ConstView x, KvCache& cache, View y, const LayerCall& call = {}) const;

  /// The same over sequences of a pool: the bits of a contiguous cache of its type, whatever the
  /// pages. Exhausted, with y and the cache untouched, where the pool has too few of them.
  [[nodiscard]] PagedCache::Status forward(ConstView x, const PagedSequences& pages, View y,
                                           const LayerCall& call = {}) const;

  /// The same over rings, under the layer's mask and the cache's: the bits of everything under that
  /// mask, however the tokens came, `chunk` of a sequence at most in a call. Keys are held turned
  /// by their place in the sequence for either kind of positions, so that calls may mix them. With
  /// positions in the cache, as attend_in_cache: `call` has no positions; masks are causal, or the
  /// cache's own, and nothing else; of the modifiers scale, soft-cap, ALiBi and sink are served;
  /// row statistics and a mask's q_lengths (say `lengths`) are refused. A call that fails takes its
  /// tokens back, but what they wrote over is gone: oldest() may have moved on, and they count
  /// among what truncate() can take back.
  void forward(ConstView x, SlidingCache& cache, View y, const LayerCall& call = {}) const;
  void forward(ConstView x, SlidingCache& cache, View y, SlidingPositions positions,
               const LayerCall& call = {}) const;

  /// The steps, one at a time: forward(x, y) is project, split, attend, concat and output, and
  /// forward(x, context, y) project_q and project_kv, then the same.

  /// Columns of a packed projection: q_heads * head_dim + kv_heads * (head_dim + value_dim).
  std::int64_t packed_dim() const;

  /// Step 1: each row of x as q, k and v side by side, with biases, normalisation and RoPE at
  /// `positions` (of x; 0, 1, 2, ... where not given). packed: [batch, tokens, packed_dim] or
  /// [tokens, packed_dim]. Needs context_dim = model_dim.
  void project(ConstView x, View packed, ConstView positions = {}) const;

  /// Step 1 of cross attention: each row of x as q, [.., q_heads * head_dim], and each row of a
  /// context as k and v side by side, [.., kv_heads * (head_dim + value_dim)]. `positions` as
  /// project() takes them, each of its own rows.
  void project_q(ConstView x, View q, ConstView positions = {}) const;
  void project_kv(ConstView context, View kv, ConstView positions = {}) const;

  /// Step 2: the heads of a packed projection, or of those of cross attention.
  LayerHeads split(View packed) const;
  LayerHeads split(View q, View kv) const;

  /// Step 3: attention under the layer's mask and modifiers. `heads` [batch, q_len, q_heads,
  /// value_dim]; with `offsets` all are [tokens, ..], or [1, tokens, ..] as split() gives them.
  /// `lengths` and `offsets` of the call are those of q, and of k and v too unless
  /// `context_lengths` or `context_offsets` are given, which those of another number of tokens
  /// need.
  void attend(ConstView q, ConstView k, ConstView v, View heads, const LayerCall& call = {}) const;

  /// The same over what any cache shows. There the tokens of q are each sequence's last, whatever
  /// alignment the mask states.
  void attend(ConstView q, const KvView& kv, View heads, const LayerCall& call = {}) const;

  /// Step 4: heads [batch, tokens, ..] or [tokens, ..] side by side, [.., q_heads * value_dim]: a
  /// change of view, so they must lie so in memory.
  ConstView concat(ConstView heads) const;

  /// Step 5: the output projection. Throws InvalidArgument where the layer has none.
  void output(ConstView concatenated, View y) const;

  /// Every number of one query row, from the projected rows that attention reads. Outputs that
  /// `call` names (lse, statistics) are not written.
  RowTrace explain(ConstView x, const ExplainRow& row = {}, const LayerCall& call = {}) const;
  RowTrace explain(ConstView x, ConstView context, const ExplainRow& row,
                   const LayerCall& call = {}) const;

  /// After a cache: the keys and values of x are each sequence's last in what it shows, as forward
  /// over the cache leaves them. Of a SlidingCache with its mask() in `call`.
  RowTrace explain(ConstView x, const KvView& kv, const ExplainRow& row,
                   const LayerCall& call = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
