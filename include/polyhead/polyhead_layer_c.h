/* The C door to the five steps: RoPE, the multi-head attention layer and the latent one, both over
 * the caches of polyhead_cache_c.h. The rules of polyhead_c.h hold here too.
 */
#ifndef POLYHEAD_POLYHEAD_LAYER_C_H
#define POLYHEAD_POLYHEAD_LAYER_C_H

#include "polyhead/polyhead_cache_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rotary positions ---- */

enum { POLYHEAD_ROPE_HALF_SPLIT = 1, POLYHEAD_ROPE_INTERLEAVED = 2 };
enum {
  POLYHEAD_ROPE_SCALING_NONE = 0,
  POLYHEAD_ROPE_SCALING_LINEAR = 1,
  POLYHEAD_ROPE_SCALING_NTK_AWARE = 2,
  POLYHEAD_ROPE_SCALING_YARN = 3,
  POLYHEAD_ROPE_SCALING_LLAMA3 = 4
};

/* See rope.h; zero is each field's default, stated here where it is another number. */
typedef struct polyhead_rope_config {
  size_t struct_bytes;
  int32_t pairing; /* must be stated */
  int32_t scaling;
  double base;         /* 10000 */
  int64_t rotary_dims; /* all of head_dim */
  double factor;       /* 1 */
  int64_t original_length;
  double beta_fast, beta_slow; /* 32, 1 */
  int32_t no_truncate;         /* 1: yarn's ramp ends are not rounded */
  int32_t attention_factor_given;
  double attention_factor;
  double mscale, mscale_all_dim;
  double low_freq_factor, high_freq_factor; /* 1, 4 */
  const polyhead_view* frequency_divisors;  /* float32 [rotary_dims / 2], or NULL; copied */
} polyhead_rope_config;

/* Rotates x [tokens, heads, dim] or [batch, tokens, heads, dim] in place by int32/int64 positions
 * [(batch,) tokens]. */
POLYHEAD_C_API polyhead_status polyhead_apply_rope(const polyhead_view* x,
                                                   const polyhead_view* positions,
                                                   const polyhead_rope_config* config);

/* All but q and out may be NULL. */
typedef struct polyhead_in_cache_arguments {
  size_t struct_bytes;
  const polyhead_view* q;         /* [batch, q_len, q_heads, head_dim], not rotated */
  const polyhead_view* out;       /* [batch, q_len, q_heads, value_dim] */
  const polyhead_view* lse;       /* float32 [batch, q_len, q_heads] */
  const polyhead_view* counts;    /* int32/int64 [batch]: valid queries of each sequence */
  const polyhead_view* q_offsets; /* int32/int64 [batch + 1] of a ragged batch, whose q, out and lse
                                     have tokens in place of [batch, q_len] */
  const polyhead_modifiers* modifiers; /* scale, soft-cap, ALiBi and sink are served */
} polyhead_in_cache_arguments;

/* Attention over a sliding cache with positions counted in the cache, as StreamingLLM has them: see
 * sliding_attention.h. `rope` NULL: keys are as they came, and positions ALiBi's alone. Caches of
 * values_in_keys are served without rope only. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_attend_in_cache(
    const polyhead_sliding_cache* cache, const polyhead_rope_config* rope,
    const polyhead_in_cache_arguments* arguments, const polyhead_options* options);

/* The same prepared once and run often, as polyhead_plan is for polyhead_attention. kv_len of the
 * limits counts all tokens that a sequence has seen, held or not. */
typedef struct polyhead_in_cache_plan polyhead_in_cache_plan;
typedef struct polyhead_in_cache_workspace polyhead_in_cache_workspace;

POLYHEAD_C_API polyhead_status polyhead_in_cache_plan_create(const polyhead_limits* limits,
                                                             const polyhead_rope_config* rope,
                                                             const polyhead_options* options,
                                                             polyhead_in_cache_plan** plan);
POLYHEAD_C_API void polyhead_in_cache_plan_destroy(polyhead_in_cache_plan* plan);
POLYHEAD_C_API polyhead_status polyhead_in_cache_workspace_create(
    const polyhead_in_cache_plan* plan, polyhead_in_cache_workspace** workspace);
POLYHEAD_C_API void polyhead_in_cache_workspace_destroy(polyhead_in_cache_workspace* workspace);
POLYHEAD_C_API polyhead_status
polyhead_in_cache_workspace_bytes(const polyhead_in_cache_workspace* workspace, size_t* bytes);
/* Never allocates. */
POLYHEAD_C_API polyhead_status polyhead_in_cache_plan_run(
    const polyhead_in_cache_plan* plan, const polyhead_sliding_cache* cache,
    const polyhead_in_cache_arguments* arguments, polyhead_in_cache_workspace* workspace);

/* ---- The layer ---- */

typedef struct polyhead_layer polyhead_layer;
typedef struct polyhead_layer_workspace polyhead_layer_workspace;

/* See LayerConfig in layer.h; zero is each field's default. */
typedef struct polyhead_layer_config {
  size_t struct_bytes;
  int64_t model_dim;           /* needed */
  int64_t q_heads;             /* 1 */
  int64_t kv_heads;            /* q_heads */
  int64_t head_dim, value_dim; /* model_dim / q_heads, head_dim */
  int64_t context_dim;         /* model_dim */
  int32_t no_projections;      /* 1: q, k and v are x (or the context) itself, split into heads */
  int32_t qk_norm;             /* 1: RMS normalisation of each head of q and k */
  float norm_eps;              /* 1e-6 */
  int32_t weight_type;         /* float32; or float16, bfloat16 */
  const polyhead_rope_config* rope;
  const polyhead_mask* mask; /* of every call; the arrays of these two outlive the layer */
  const polyhead_modifiers* modifiers; /* structs are copied */
} polyhead_layer_config;

/* Read once, when the layer is made. [out, in] is y = x W^T; see LayerWeights in layer.h. */
typedef struct polyhead_layer_weights {
  size_t struct_bytes;
  const polyhead_view* w_q;   /* [q_heads * head_dim, model_dim] */
  const polyhead_view* w_k;   /* [kv_heads * head_dim, context_dim] */
  const polyhead_view* w_v;   /* [kv_heads * value_dim, context_dim] */
  const polyhead_view* w_qkv; /* instead of the three: their rows in the order q, k, v */
  const polyhead_view* w_o;   /* [model_dim, q_heads * value_dim]; NULL: y is the concatenated
                                 heads */
  const polyhead_view *b_q, *b_k, *b_v, *b_qkv, *b_o; /* optional, [out] */
  const polyhead_view *q_norm, *k_norm;               /* [head_dim], with qk_norm */
} polyhead_layer_weights;

/* What one call may add; see LayerCall in layer.h. NULL wherever a call is taken adds nothing. */
typedef struct polyhead_layer_call {
  size_t struct_bytes;
  const polyhead_mask* mask;
  const polyhead_view* bias;
  const polyhead_view* lengths;
  const polyhead_view* context_lengths;
  const polyhead_view* offsets;
  const polyhead_view* positions;
  const polyhead_view* lse;
  const polyhead_view* entropy;
  const polyhead_view* max_weight;
  const polyhead_view* max_key;
  polyhead_layer_workspace* workspace; /* NULL: one is made for the call */
  const polyhead_view* context_offsets;
  const polyhead_view* context_positions;
} polyhead_layer_call;

/* y = concat(attention(x W_q^T, x W_k^T, x W_v^T)) W_o^T with biases. Thread-safe once made. */
POLYHEAD_C_API polyhead_status polyhead_layer_create(const polyhead_layer_config* config,
                                                     const polyhead_layer_weights* weights,
                                                     const polyhead_options* options,
                                                     polyhead_layer** layer);
POLYHEAD_C_API void polyhead_layer_destroy(polyhead_layer* layer);

/* Scratch of a layer's calls; grows to the largest and is kept; used by one call at a time. */
POLYHEAD_C_API polyhead_status
polyhead_layer_workspace_create(polyhead_layer_workspace** workspace);
POLYHEAD_C_API void polyhead_layer_workspace_destroy(polyhead_layer_workspace* workspace);
POLYHEAD_C_API polyhead_status
polyhead_layer_workspace_bytes(const polyhead_layer_workspace* workspace, size_t* bytes);

/* As polyhead_plan_describe. */
POLYHEAD_C_API polyhead_status polyhead_layer_describe(const polyhead_layer* layer, char* text,
                                                       size_t text_bytes, size_t* needed);

/* Self attention. x, y [batch, tokens, model_dim] or [tokens, model_dim]. */
POLYHEAD_C_API polyhead_status polyhead_layer_forward(const polyhead_layer* layer,
                                                      const polyhead_view* x,
                                                      const polyhead_view* y,
                                                      const polyhead_layer_call* call);

/* Cross attention: k and v from context [batch, context_tokens, context_dim], or
 * [context_tokens, context_dim] with offsets and context_offsets. */
POLYHEAD_C_API polyhead_status polyhead_layer_forward_cross(const polyhead_layer* layer,
                                                            const polyhead_view* x,
                                                            const polyhead_view* context,
                                                            const polyhead_view* y,
                                                            const polyhead_layer_call* call);

/* Self attention after a cache: appends the tokens of x, padded (lengths) or ragged (offsets), and
 * attends to everything held. */
POLYHEAD_C_API polyhead_status polyhead_layer_forward_cached(const polyhead_layer* layer,
                                                             const polyhead_view* x,
                                                             polyhead_kv_cache* cache,
                                                             const polyhead_view* y,
                                                             const polyhead_layer_call* call);

/* Sequences of a pool that a call goes on with; see PagedSequences in layer.h. */
typedef struct polyhead_paged_sequences {
  size_t struct_bytes;
  polyhead_paged_cache* cache;
  const int64_t* sequences; /* [count], one for each of x's, each once */
  int64_t count;
  int64_t layer; /* of the cache's: whose rows these are */
  /* Numbers of the rows of x, padding included, [token_count], for sharing; or NULL and 0. */
  const int32_t* tokens;
  int64_t token_count;
  int32_t room_made; /* 1: the tokens of x are each sequence's last, as _extend has made room for
                        them; 0: the call makes it */
  int32_t reserved;  /* 0 */
} polyhead_paged_sequences;

/* The same over sequences of a pool. POLYHEAD_EXHAUSTED, with nothing changed, where it has too few
 * pages. */
POLYHEAD_C_API polyhead_status polyhead_layer_forward_paged(const polyhead_layer* layer,
                                                            const polyhead_view* x,
                                                            const polyhead_paged_sequences* pages,
                                                            const polyhead_view* y,
                                                            const polyhead_layer_call* call);

/* What RoPE counts: places in the sequence, or in the cache (see SlidingPositions in layer.h). */
enum { POLYHEAD_POSITIONS_ORIGINAL = 0, POLYHEAD_POSITIONS_IN_CACHE = 1 };

/* The same over rings, under the layer's mask and the cache's; at most `chunk` tokens a sequence.
 */
POLYHEAD_C_API polyhead_status polyhead_layer_forward_sliding(
    const polyhead_layer* layer, const polyhead_view* x, polyhead_sliding_cache* cache,
    const polyhead_view* y, int32_t positions, const polyhead_layer_call* call);

/* Cross attention's k and v, computed once: appends those of context [batch, context_tokens,
 * context_dim] to a cache; lengths: int32/int64 [batch], or NULL, all; positions: RoPE's, as
 * context_positions of a call, or NULL, on from what the cache holds. */
POLYHEAD_C_API polyhead_status polyhead_layer_project_context(const polyhead_layer* layer,
                                                              const polyhead_view* context,
                                                              polyhead_kv_cache* cache,
                                                              const polyhead_view* lengths,
                                                              const polyhead_view* positions);

/* Cross attention to such a cache, or to what any other shows, which it only reads. */
POLYHEAD_C_API polyhead_status polyhead_layer_cross(const polyhead_layer* layer,
                                                    const polyhead_view* x,
                                                    const polyhead_kv_cache* context,
                                                    const polyhead_view* y,
                                                    const polyhead_layer_call* call);
POLYHEAD_C_API polyhead_status polyhead_layer_cross_view(const polyhead_layer* layer,
                                                         const polyhead_view* x,
                                                         const polyhead_kv_view* context,
                                                         const polyhead_view* y,
                                                         const polyhead_layer_call* call);

/* A cache that fits the layer, of its activation type (element_type 0) or of another one. */
POLYHEAD_C_API polyhead_status polyhead_layer_cache_create(const polyhead_layer* layer,
                                                           int64_t batch, int64_t capacity,
                                                           int32_t growing, int32_t element_type,
                                                           polyhead_kv_cache** cache);

/* The steps, one at a time. Step 1: each row of x as q, k and v side by side, [.., packed_dim],
 * with biases, normalisation and RoPE at `positions` (NULL: 0, 1, 2, ...). */
POLYHEAD_C_API polyhead_status polyhead_layer_packed_dim(const polyhead_layer* layer,
                                                         int64_t* packed_dim);
POLYHEAD_C_API polyhead_status polyhead_layer_project(const polyhead_layer* layer,
                                                      const polyhead_view* x,
                                                      const polyhead_view* packed,
                                                      const polyhead_view* positions);

/* Step 1 of cross attention: each row of x as q, [.., q_heads * head_dim], and each row of a
 * context as k and v side by side, [.., kv_heads * (head_dim + value_dim)]. */
POLYHEAD_C_API polyhead_status polyhead_layer_project_q(const polyhead_layer* layer,
                                                        const polyhead_view* x,
                                                        const polyhead_view* q,
                                                        const polyhead_view* positions);
POLYHEAD_C_API polyhead_status polyhead_layer_project_kv(const polyhead_layer* layer,
                                                         const polyhead_view* context,
                                                         const polyhead_view* kv,
                                                         const polyhead_view* positions);

/* Step 2: the heads of a packed projection, or of those of cross attention: a change of view. The
 * caller has set the struct_bytes of q, k and v. */
POLYHEAD_C_API polyhead_status polyhead_layer_split(const polyhead_layer* layer,
                                                    const polyhead_view* packed, polyhead_view* q,
                                                    polyhead_view* k, polyhead_view* v);
POLYHEAD_C_API polyhead_status polyhead_layer_split_cross(const polyhead_layer* layer,
                                                          const polyhead_view* packed_q,
                                                          const polyhead_view* packed_kv,
                                                          polyhead_view* q, polyhead_view* k,
                                                          polyhead_view* v);

/* Step 3: attention under the layer's mask and modifiers; heads [batch, q_len, q_heads, value_dim].
 */
POLYHEAD_C_API polyhead_status polyhead_layer_attend(const polyhead_layer* layer,
                                                     const polyhead_view* q, const polyhead_view* k,
                                                     const polyhead_view* v,
                                                     const polyhead_view* heads,
                                                     const polyhead_layer_call* call);

/* The same over what a cache shows: the tokens of q are each sequence's last. */
POLYHEAD_C_API polyhead_status polyhead_layer_attend_view(const polyhead_layer* layer,
                                                          const polyhead_view* q,
                                                          const polyhead_kv_view* kv,
                                                          const polyhead_view* heads,
                                                          const polyhead_layer_call* call);

/* Steps 4 and 5: heads side by side, [.., q_heads * value_dim] (the memory of `heads` above), times
 * w_o. */
POLYHEAD_C_API polyhead_status polyhead_layer_output(const polyhead_layer* layer,
                                                     const polyhead_view* concatenated,
                                                     const polyhead_view* y);

/* ---- Latent attention (MLA) ---- */

typedef struct polyhead_latent polyhead_latent;

/* Two equal computations; see LatentForm in latent.h. */
enum { POLYHEAD_LATENT_EXPANDED = 1, POLYHEAD_LATENT_ABSORBED = 2 };

/* See LatentConfig in latent.h; zero is each field's default. */
typedef struct polyhead_latent_config {
  size_t struct_bytes;
  int64_t model_dim;          /* needed */
  int64_t heads;              /* 1 */
  int64_t q_rank;             /* q comes straight from x */
  int64_t kv_rank;            /* needed */
  int64_t nope_dim, rope_dim; /* of each head's q and k; rope_dim needs rope */
  int64_t value_dim;          /* needed */
  float norm_eps;             /* 1e-6 */
  int32_t weight_type;        /* float32; or float16, bfloat16 */
  int32_t form;               /* expanded */
  const polyhead_rope_config* rope;
  const polyhead_mask* mask; /* of every call; the arrays of these two outlive the layer */
  const polyhead_modifiers* modifiers; /* structs are copied */
} polyhead_latent_config;

/* Read once, when the layer is made; see LatentWeights in latent.h. */
typedef struct polyhead_latent_weights {
  size_t struct_bytes;
  const polyhead_view* w_q;       /* [heads * (nope_dim + rope_dim), model_dim], with q_rank 0 */
  const polyhead_view* w_q_down;  /* [q_rank, model_dim] */
  const polyhead_view* q_norm;    /* [q_rank] */
  const polyhead_view* w_q_up;    /* [heads * (nope_dim + rope_dim), q_rank] */
  const polyhead_view* w_kv_down; /* [kv_rank + rope_dim, model_dim] */
  const polyhead_view* kv_norm;   /* [kv_rank] */
  const polyhead_view* w_kv_up;   /* [heads * (nope_dim + value_dim), kv_rank] */
  const polyhead_view* w_o;       /* [model_dim, heads * value_dim] */
} polyhead_latent_weights;

POLYHEAD_C_API polyhead_status polyhead_latent_create(const polyhead_latent_config* config,
                                                      const polyhead_latent_weights* weights,
                                                      const polyhead_options* options,
                                                      polyhead_latent** latent);
POLYHEAD_C_API void polyhead_latent_destroy(polyhead_latent* latent);

/* As polyhead_plan_describe. */
POLYHEAD_C_API polyhead_status polyhead_latent_describe(const polyhead_latent* latent, char* text,
                                                        size_t text_bytes, size_t* needed);

/* A cache of latents: kv_rank + rope_dim elements a token, of the layer's activation type
 * (element_type 0) or of another one. */
POLYHEAD_C_API polyhead_status polyhead_latent_cache_create(const polyhead_latent* latent,
                                                            int64_t batch, int64_t capacity,
                                                            int32_t growing, int32_t element_type,
                                                            polyhead_kv_cache** cache);

/* Self attention in a form (0: the configuration's). x, y [batch, tokens, model_dim] or [tokens,
 * model_dim]. */
POLYHEAD_C_API polyhead_status polyhead_latent_forward(const polyhead_latent* latent,
                                                       const polyhead_view* x,
                                                       const polyhead_view* y, int32_t form,
                                                       const polyhead_layer_call* call);

/* The same after a cache: appends the latents of x and attends to everything held. */
POLYHEAD_C_API polyhead_status polyhead_latent_forward_cached(const polyhead_latent* latent,
                                                              const polyhead_view* x,
                                                              polyhead_kv_cache* cache,
                                                              const polyhead_view* y, int32_t form,
                                                              const polyhead_layer_call* call);

/* The same over sequences of a pool (POLYHEAD_EXHAUSTED, with y and the pool untouched, where that
 * has too few pages) and over rings, under the layer's mask and the cache's; both of
 * values_in_keys, one KV head, head_dim kv_rank + rope_dim and value_dim kv_rank. */
POLYHEAD_C_API polyhead_status polyhead_latent_forward_paged(const polyhead_latent* latent,
                                                             const polyhead_view* x,
                                                             const polyhead_paged_sequences* pages,
                                                             const polyhead_view* y, int32_t form,
                                                             const polyhead_layer_call* call);
POLYHEAD_C_API polyhead_status polyhead_latent_forward_sliding(const polyhead_latent* latent,
                                                               const polyhead_view* x,
                                                               polyhead_sliding_cache* cache,
                                                               const polyhead_view* y, int32_t form,
                                                               const polyhead_layer_call* call);

/* For what the caller appends itself, in two steps. The latents of x, into rows [batch, tokens,
 * kv_rank + rope_dim] or [tokens, ..] as x has axes, turned by int32/int64 positions [(batch,)
 * tokens] (needed where rope_dim is not 0). workspace: NULL, one is made for the call. */
POLYHEAD_C_API polyhead_status polyhead_latent_rows(const polyhead_latent* latent,
                                                    const polyhead_view* x,
                                                    const polyhead_view* rows,
                                                    const polyhead_view* positions,
                                                    polyhead_layer_workspace* workspace);
/* Then attention of x, the last tokens of each sequence in `kv`, to everything in it; see
 * LatentAttention::forward over a view in latent.h. */
POLYHEAD_C_API polyhead_status polyhead_latent_forward_view(const polyhead_latent* latent,
                                                            const polyhead_view* x,
                                                            const polyhead_kv_view* kv,
                                                            const polyhead_view* y, int32_t form,
                                                            const polyhead_layer_call* call);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* POLYHEAD_POLYHEAD_LAYER_C_H */
