// Multi-head latent attention (MLA): one small latent a token stands for the keys and values of all
// heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/kv_view.h"
#include "polyhead/layer.h"
#include "polyhead/rope.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Which of two equal computations a call makes; a setting, never chosen by length.
///   expanded    k and v of every head are made from the latents: attention of head_dim nope_dim +
///               rope_dim. Fewest FLOPs for many queries (prefill).
///   absorbed    the key projection is moved to the query and the value projection behind the sum:
///               attention of kv_rank + rope_dim straight over the cached latents, all heads
///               sharing one key. Fewest bytes for few queries (decoding).
///   configured  of a call: the layer's own
/// They differ by rounding only (docs/numerics.md). For the same bits everywhere, use one form.
enum class LatentForm : std::uint8_t { configured, expanded, absorbed };

/// Sizes of a layer of latent attention, its mask and modifiers.
struct LatentConfig {
  std::int64_t model_dim = 0;
  std::int64_t heads = 1;
  std::int64_t q_rank = 0;     ///< columns of the query latent; 0: q comes straight from x
  std::int64_t kv_rank = 0;    ///< columns of the cached latent
  std::int64_t nope_dim = 0;   ///< of each head's q and k without position
  std::int64_t rope_dim = 0;   ///< of each head's q, and of the one key all heads share, turned
  std::int64_t value_dim = 0;  ///< of each head
  float norm_eps = 1e-6f;      ///< of the RMS norms of both latents
  std::optional<RopeConfig> rope{};  ///< over rope_dim columns; needed where rope_dim > 0

  Mask mask{};  ///< of every call; joined to a call's own by &
  /// Of every call; scale defaults to 1 / sqrt(nope_dim + rope_dim), which DeepSeek multiplies by
  /// m^2, m = 0.1 mscale_all_dim ln(factor) + 1, where RoPE is scaled by YaRN.
  Modifiers modifiers{};
  ElementType weight_type = ElementType::float32;  ///< as LayerConfig::weight_type
  LatentForm form = LatentForm::expanded;          ///< of calls that do not say
};

/// Views are read once, when the layer is made; float32, float16 or bfloat16, any strides. Names in
/// brackets are those of DeepSeek's checkpoints.
struct LatentWeights {
  ConstView w_q{};        ///< [heads * (nope_dim + rope_dim), model_dim], with q_rank 0 (q_proj)
  ConstView w_q_down{};   ///< [q_rank, model_dim] (q_a_proj)
  ConstView q_norm{};     ///< [q_rank] (q_a_layernorm)
  ConstView w_q_up{};     ///< [heads * (nope_dim + rope_dim), q_rank] (q_b_proj)
  ConstView w_kv_down{};  ///< [kv_rank + rope_dim, model_dim] (kv_a_proj_with_mqa)
  ConstView kv_norm{};    ///< [kv_rank] (kv_a_layernorm)
  ConstView w_kv_up{};    ///< [heads * (nope_dim + value_dim), kv_rank] (kv_b_proj)
  ConstView w_o{};        ///< [model_dim, heads * value_dim]
};

/// Multi-head latent attention with its projections. For token t and head h
///
///   c_t = norm(x_t W_down^T)[:kv_rank],  r_t = rope((x_t W_down^T)[kv_rank:])     (cached)
///   q_th = [q_nope, rope(q_rope)],  k_th = [W_key_h c_t, r_t],  v_th = W_value_h c_t
///   y = concat_h(softmax(scale * q k^T) v) W_o^T
///
/// x and y are [batch, tokens, model_dim], or [tokens, model_dim] for a batch of one. A token costs
/// kv_rank + rope_dim cached elements, whatever the number of heads. Both kv_rank + rope_dim and
/// nope_dim + rope_dim are at most 768.
///
/// Same bits, within one form: as MultiHeadAttention. Between the forms: equal within the bound of
/// docs/numerics.md. Expanding costs scratch of O(kv_len * heads) a call; the absorbed form none.
/// `lse` and `statistics` of a call are those of either form. Throws InvalidArgument naming the
/// argument; y and the cache are untouched then. Thread-safe: any number of calls at once, each
/// with its own workspace and cache. Source: DeepSeek-V2 (2024), section 2.1 and appendix C.
class LatentAttention {
 public:
  LatentAttention(const LatentConfig& config, const LatentWeights& weights,
                  const Options& options = {});
  /// What was moved from may be assigned to or destroyed, no more.
  LatentAttention(LatentAttention&&) noexcept;
  LatentAttention& operator=(LatentAttention&&) noexcept;
  ~LatentAttention();

  const LatentConfig& config() const;
  ElementType activation_type() const;  ///< of everything between the projections
  std::size_t weight_bytes() const;     ///< packed; the key projection for both forms
  std::string describe() const;

  /// A cache of latents: one KV head, keys [c, r], values the first kv_rank elements of the keys.
  KvCacheConfig cache_config(std::int64_t batch, std::int64_t capacity, bool growing = false) const;

  /// Self attention; in the configured form, or the one given.
  void forward(ConstView x, View y, const LayerCall& call = {}) const;
  void forward(ConstView x, View y, LatentForm form, const LayerCall& call = {}) const;

  /// Self attention after a cache, as MultiHeadAttention::forward with one. A cache may be filled
  /// in one form and read in the other, and has any type that KvView has (set `type` in what
  /// cache_config gives). The expanded form makes keys and values of what other types hold, rounded
  /// to the activation type.
  void forward(ConstView x, KvCache& cache, View y, const LayerCall& call = {}) const;
  void forward(ConstView x, KvCache& cache, View y, LatentForm form,
               const LayerCall& call = {}) const;

  /// The same over sequences of a pool, and over rings under the layer's mask and the cache's, each
  /// of values_in_keys: as MultiHeadAttention::forward with those, positions a token's place in its
  /// sequence. Same bits as with a KvCache of that type, whatever the pages.
  [[nodiscard]] PagedCache::Status forward(ConstView x, const PagedSequences& pages, View y,
                                           const LayerCall& call = {}) const;
  [[nodiscard]] PagedCache::Status forward(ConstView x, const PagedSequences& pages, View y,
                                           LatentForm form, const LayerCall& call = {}) const;
  void forward(ConstView x, SlidingCache& cache, View y, const LayerCall& call = {}) const;
  void forward(ConstView x, SlidingCache& cache, View y, LatentForm form,
               const LayerCall& call = {}) const;

  /// The rows that a cache holds of the tokens of x, [c, r]: for what the caller appends itself
  /// before forward(x, kv, y).
  ///
  /// rows       [batch, tokens, kv_rank + rope_dim], or [tokens, ..] as x; float32, float16 or
  ///            bfloat16, any strides
  /// positions  RoPE's, as LayerCall::positions; needed where rope_dim > 0, since this step does
  ///            not know how many tokens came before
  void latents(ConstView x, View rows, ConstView positions = {},
               LayerWorkspace* workspace = nullptr) const;

  /// Attention of x to everything in `kv`, in which the latents of x are each sequence's last: one
  /// KV head, k of kv_rank + rope_dim columns, v the first kv_rank of them, as any cache of
  /// values_in_keys shows them (a SlidingCache with its mask() in `call`). That is where tokens of
  /// x stand for the mask, and for RoPE unless `call` has positions. x may be ragged
  /// (LayerCall::offsets): chunks of some prompts and decoding steps of other sequences in one
  /// call.
  ///
  /// Types as with a KvCache. The expanded form makes keys and values of each page in use once,
  /// whoever shares it. Same bits as with a KvCache of that type, whatever the pages.
  void forward(ConstView x, const KvView& kv, View y, const LayerCall& call = {}) const;
  void forward(ConstView x, const KvView& kv, View y, LatentForm form,
               const LayerCall& call = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
