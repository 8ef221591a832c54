/* The C door: attention, plans and exact weights, for C and every language that can call C. Caches
 * are in polyhead_cache_c.h, frames in polyhead_frames_c.h, the layers and RoPE in
 * polyhead_layer_c.h, traces of rows and statistics of heads in polyhead_inspect_c.h.
 *
 * Objects are opaque handles; every call returns a status and says in polyhead_last_error() what
 * was wrong. No C++ exception crosses. This is the interface that stays binary compatible: each
 * struct that is given by itself begins with its size and only grows at its end, and a zero field
 * means its default (or is refused, where it says "needed"), so a program and a library of
 * different ages agree. Start with zeros and the size, then fill fields by name:
 * `polyhead_mask mask = {.struct_bytes = sizeof mask};`.
 *
 * Words, formulas, accuracy and thread rules are those of the C++ headers beside this one
 * (attention.h first).
 */
#ifndef POLYHEAD_POLYHEAD_C_H
#define POLYHEAD_POLYHEAD_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define POLYHEAD_C_API __attribute__((visibility("default")))
#else
#define POLYHEAD_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status, version, instruction sets ---- */

typedef int32_t polyhead_status;
enum {
  POLYHEAD_OK = 0,
  POLYHEAD_INVALID_ARGUMENT = 1, /* refused; nothing has been written */
  POLYHEAD_OUT_OF_MEMORY = 2,
  POLYHEAD_CALLBACK_FAILED = 3, /* a modifier or executor said so; outputs are unspecified */
  POLYHEAD_INTERNAL_ERROR = 4,
  POLYHEAD_EXHAUSTED = 5 /* a paged cache's pool has too few pages; nothing has changed */
};

/* What the last call of this thread that did not return POLYHEAD_OK refused: the call, the
 * argument, what was found and what was expected. "" before the first. Valid until this thread's
 * next failing call; never NULL. */
POLYHEAD_C_API const char* polyhead_last_error(void);

/* "major.minor.patch" of the library that runs. */
POLYHEAD_C_API const char* polyhead_version(void);

enum {
  POLYHEAD_ISA_AUTOMATIC = 0,
  POLYHEAD_ISA_PORTABLE = 1,
  POLYHEAD_ISA_AVX2 = 2,
  POLYHEAD_ISA_AVX512 = 3,
  POLYHEAD_ISA_AVX512_BF16 = 4,
  POLYHEAD_ISA_AMX_BF16 = 5
};

/* "automatic", "portable", "avx2", ...; NULL for a value this library does not know. */
POLYHEAD_C_API const char* polyhead_isa_name(int32_t isa);

/* What `isa` stands for on this machine, never automatic. Refused where this processor or build
 * lacks it. */
POLYHEAD_C_API polyhead_status polyhead_resolve_isa(int32_t isa, int32_t* resolved);

/* ---- Arrays ---- */

enum {
  POLYHEAD_FLOAT32 = 1,
  POLYHEAD_FLOAT16 = 2,
  POLYHEAD_BFLOAT16 = 3,
  POLYHEAD_INT32 = 4,
  POLYHEAD_INT64 = 5,
  POLYHEAD_BOOLEAN = 6, /* one byte, 0 is false */
  POLYHEAD_BIT = 7,     /* packed rows, lowest bit first; strides count bits */
  POLYHEAD_INT8 = 8,    /* codes, which only caches hold: see polyhead_kv_view */
  POLYHEAD_INT4 = 9,
  POLYHEAD_FLOAT8_E4M3 = 10,
  POLYHEAD_FLOAT8_E5M2 = 11
};

enum { POLYHEAD_MAX_AXES = 8 }; /* room for growth: the library takes up to 5 */

/* A strided array: strides in elements, 0 broadcasts. Wherever a struct below has a pointer to a
 * view, NULL is "not given". Views own nothing; the library never writes through the view of an
 * input. */
typedef struct polyhead_view {
  size_t struct_bytes;
  void* data;
  int32_t element_type;
  int32_t axes;
  int64_t extents[POLYHEAD_MAX_AXES];
  int64_t strides[POLYHEAD_MAX_AXES];
} polyhead_view;

/* Always inlined, or g++ takes `data`, an array yet to be written, for one that is read. */
#if defined(__GNUC__)
#define POLYHEAD_C_INLINE static inline __attribute__((always_inline))
#else
#define POLYHEAD_C_INLINE static inline
#endif

/* A view of `axes` extents; `strides` NULL is dense, last axis fastest. */
POLYHEAD_C_INLINE polyhead_view polyhead_make_view(const void* data, int32_t element_type,
                                                   int32_t axes, const int64_t* extents,
                                                   const int64_t* strides) {
  polyhead_view view = {sizeof(polyhead_view), NULL, 0, 0, {0}, {0}};
  uint64_t dense = 1; /* unsigned: a product that overflows wraps here and is refused by the call */
  int32_t axis;
  view.data = (void*)(uintptr_t)data;
  view.element_type = element_type;
  view.axes = axes;
  for (axis = axes > POLYHEAD_MAX_AXES ? POLYHEAD_MAX_AXES - 1 : axes - 1; axis >= 0; --axis) {
    view.extents[axis] = extents[axis];
    view.strides[axis] = strides ? strides[axis] : (int64_t)dense;
    dense *= extents[axis] > 0 ? (uint64_t)extents[axis] : 1;
  }
  return view;
}

/* ---- Who runs the work ---- */

typedef struct polyhead_executor polyhead_executor;
typedef void (*polyhead_task)(void* task_context, int32_t index);

/* The caller's own pool. `run` calls task(task_context, i) once for each i in 0 .. count-1, in any
 * order and on any threads, and returns 0 when all are done (nonzero: it failed). count never
 * exceeds `concurrency`, which is >= 1. */
typedef struct polyhead_executor_callbacks {
  size_t struct_bytes;
  void* context;
  int32_t concurrency;
  int32_t (*run)(void* context, int32_t count, polyhead_task task, void* task_context);
} polyhead_executor_callbacks;

/* Adapts the caller's pool; the callbacks are copied. *executor is written on success only, as in
 * every _create. */
POLYHEAD_C_API polyhead_status polyhead_executor_create(
    const polyhead_executor_callbacks* callbacks, polyhead_executor** executor);

/* A pool of `threads` threads, 1 to 4096, the caller's among them; 1 runs everything in the
 * caller's thread. */
POLYHEAD_C_API polyhead_status polyhead_executor_create_pool(int32_t threads,
                                                             polyhead_executor** executor);

/* NULL is allowed here and in every _destroy. */
POLYHEAD_C_API void polyhead_executor_destroy(polyhead_executor* executor);

/* How: NULL wherever options are taken is all defaults. */
typedef struct polyhead_options {
  size_t struct_bytes;
  int32_t isa;
  int32_t threads; /* 0: as many as the executor has; else at most this many */
  /* NULL: a pool of `threads`, or with 0 the shared one (POLYHEAD_THREADS) */
  polyhead_executor* executor;
} polyhead_options;

/* ---- Masks and modifiers ---- */

enum { POLYHEAD_ALIGN_UNSTATED = 0, POLYHEAD_ALIGN_START = 1, POLYHEAD_ALIGN_END = 2 };

/* A pair (query, key) is visible when every part given says so; all zeros hides nothing. See
 * mask.h. */
typedef struct polyhead_mask {
  size_t struct_bytes;
  int32_t causal;      /* 1: kv_pos <= q_pos, or kv_pos < prefix */
  int32_t windowed;    /* 1: q_pos - left <= kv_pos <= q_pos + right; -1 is unbounded */
  int64_t left, right; /* of a window: 0 (or -1) without one */
  int32_t align;    /* needed by whatever uses positions unless lengths agree; end: the last query
                       sees the last key */
  int32_t reserved; /* 0 */
  int64_t prefix_length;
  const polyhead_view* prefix_lengths; /* int32/int64 [batch], instead of prefix_length */
  const polyhead_view* kv_lengths;     /* int32/int64 [batch]: valid tokens of a padded batch */
  const polyhead_view* q_lengths;
  const polyhead_view* q_documents; /* int32/int64 [batch or 1, tokens]: equal ids see each other */
  const polyhead_view* kv_documents;
  /* boolean [batch|1, heads|1, q_len|1, kv_len|1] or bit [.., kv_len]: true may attend */
  const polyhead_view* visible;
  int64_t first_tokens;              /* of a window: keys before it are visible however far back */
  const polyhead_view* hidden;       /* as visible, but true may not attend */
  const polyhead_view* also_visible; /* a second one of each: a pair must pass both */
  const polyhead_view* also_hidden;
} polyhead_mask;

/* A tree of drafted tokens at the end of one sequence. */
typedef struct polyhead_draft_tree {
  size_t struct_bytes;
  int64_t held;           /* tokens of the sequence before the draft, which drafted ones see */
  const int32_t* parents; /* [count]: the drafted token before it that each one follows, counted
                             within the draft; -1: the last held one */
  int64_t count;
  int64_t window;       /* keys that a drafted token sees, its own included, counted by positions in
                           the text; 0: all */
  int64_t first_tokens; /* of a window: keys before it are visible however far back */
} polyhead_draft_tree;

/* The places in its sequence of drafted token `last` and of those that it follows, ascending, into
 * places [tree->count], and how many they are: what polyhead_kv_cache_keep,
 * polyhead_sliding_cache_keep or polyhead_paged_sequence_keep leaves of the draft where this branch
 * is accepted. -1 accepts nothing. */
POLYHEAD_C_API polyhead_status polyhead_draft_tree_branch(const polyhead_draft_tree* tree,
                                                          int64_t last, int64_t* places,
                                                          int64_t* count);

typedef struct polyhead_tree_mask polyhead_tree_mask;

/* Who sees whom in such trees, as speculative decoding checks them, one tree a sequence of the
 * batch: see tree_mask.h, which says where the keys and queries of a draft lie. Owns its tables;
 * the trees are read here alone. */
POLYHEAD_C_API polyhead_status polyhead_tree_mask_create(const polyhead_draft_tree* const* trees,
                                                         int64_t sequences,
                                                         polyhead_tree_mask** mask);
POLYHEAD_C_API void polyhead_tree_mask_destroy(polyhead_tree_mask* mask);

/* What polyhead_mask.visible is to point to; valid until the tree mask is destroyed. */
POLYHEAD_C_API polyhead_status polyhead_tree_mask_visible(const polyhead_tree_mask* mask,
                                                          polyhead_view* visible);
/* Positions in the text of the drafts one after the other, int64 [tokens drafted], for RoPE; valid
 * as long. */
POLYHEAD_C_API polyhead_status polyhead_tree_mask_positions(const polyhead_tree_mask* mask,
                                                            polyhead_view* positions);

/* A tile of scores: score (key, lane) is scores[key * lane_count + lane], to be changed in place.
 * Lanes are (query, head) pairs; masked pairs and spare lanes are included and what they become is
 * discarded. */
typedef struct polyhead_score_tile {
  size_t struct_bytes;
  float* scores;
  int32_t key_count, lane_count;
  int64_t batch, first_kv_pos;
  const int64_t* head; /* [lane_count], as are the next two */
  const int64_t* query;
  const int64_t* q_pos;
} polyhead_score_tile;

/* A score function of the caller's, a tile at a time; a pure function of score and place, called
 * from any thread. Returns 0; nonzero cancels the call with POLYHEAD_CALLBACK_FAILED. A score of
 * -INFINITY hides the pair. */
typedef struct polyhead_tile_modifier {
  size_t struct_bytes;
  void* context;
  int32_t (*apply)(void* context, const polyhead_score_tile* tile);
} polyhead_tile_modifier;

enum { POLYHEAD_MAX_CUSTOM_MODIFIERS = 4 };

/* In the order in which they apply:
 *   s = scale * q.k;  s = soft_cap * tanh(s / soft_cap);  s += bias;  s -= slope * distance;
 * custom[0], custom[1], ... then the mask, the softmax (with `sink` in its denominator) and
 * dropout. All zeros: the default scale alone. */
typedef struct polyhead_modifiers {
  size_t struct_bytes;
  int32_t scale_given;               /* 0: 1 / sqrt(head_dim) */
  float scale;                       /* 0 where scale_given is */
  float soft_cap;                    /* 0 is none; else within 1e-30 .. 1e30 */
  int32_t alibi;                     /* 1: the closed-form slopes */
  const polyhead_view* alibi_slopes; /* float32 [q_heads], instead of the closed form */
  /* [batch|1, q_heads|1, q_len|1, kv_len|1], any float type; -INFINITY hides */
  const polyhead_view* bias;
  const polyhead_tile_modifier* custom[POLYHEAD_MAX_CUSTOM_MODIFIERS];
  const polyhead_view* sink; /* float32 [q_heads]: one more logit a head, in the denominator only;
                                finite, or -INFINITY for none */
  float dropout;             /* probability, in [0, 1) */
  int32_t reserved;          /* 0 */
  uint64_t dropout_seed;
  const polyhead_view* sequence_ids; /* int32/int64 [batch]: keys of the dropout; NULL: the batch
                                        index */
} polyhead_modifiers;

/* ---- Attention ---- */

/* Keys and values as a cache holds them; see kv_view.h, which says how codes and their scales lie.
 * The functions of polyhead_cache_c.h that end in _view fill it; a caller's own cache may too. A
 * zeroed view is not given. Owns nothing. */
typedef struct polyhead_kv_view {
  size_t struct_bytes;
  polyhead_view k, v; /* [batch, tokens, kv_heads, dim]; paged: [pages, page_tokens, ..] */
  polyhead_view k_scales, v_scales; /* float32, of int8 and int4 */
  polyhead_view page_table;         /* int32 [batch, pages a sequence at most] */
  polyhead_view lengths;            /* int32/int64 [batch]: keys of each sequence */
  polyhead_view oldest;             /* int32/int64 [batch]: a ring's keys before it are gone, .. */
  int64_t first_tokens;             /* .. but for so many; queries that see them are refused */
} polyhead_kv_view;

/* out = softmax(modify(scale * q k^T)) v, for every head; see attention.h. Axes below are of a
 * padded batch; a ragged one (q_offsets and kv_offsets given) has tokens in place of [batch, len].
 */
typedef struct polyhead_attention_arguments {
  size_t struct_bytes;
  const polyhead_view* q;   /* [batch, q_len, q_heads, head_dim] */
  const polyhead_view* k;   /* [batch, kv_len, kv_heads, head_dim] */
  const polyhead_view* v;   /* [batch, kv_len, kv_heads, value_dim] */
  const polyhead_view* out; /* [batch, q_len, q_heads, value_dim] */
  const polyhead_mask* mask;
  const polyhead_modifiers* modifiers;
  const polyhead_view* q_offsets; /* int32/int64 [batch + 1], ascending from 0; both or neither */
  const polyhead_view* kv_offsets;
  /* int32/int64 [batch]: position of each first query, instead of align */
  const polyhead_view* q_start;
  /* Optional outputs, [batch, q_len, q_heads]: */
  const polyhead_view* lse;        /* float32, natural logarithm */
  const polyhead_view* entropy;    /* float32, nats */
  const polyhead_view* max_weight; /* float32 */
  const polyhead_view* max_key;    /* int64, -1 for a row without keys */
  const polyhead_kv_view* kv; /* what a cache holds, instead of k, v, kv_offsets, mask.kv_lengths;
                                 q_offsets alone then make a ragged batch */
} polyhead_attention_arguments;

POLYHEAD_C_API polyhead_status polyhead_attention(const polyhead_attention_arguments* arguments,
                                                  const polyhead_options* options);

/* ---- Plans: prepared once, run often ---- */

typedef struct polyhead_plan polyhead_plan;
typedef struct polyhead_workspace polyhead_workspace;

/* The largest sizes a plan will serve (0 is a size: a plan for calls without such a thing), and its
 * element types, of which q_type and kv_type are needed. */
typedef struct polyhead_limits {
  size_t struct_bytes;
  int64_t batch, q_len, kv_len, q_heads, kv_heads, head_dim, value_dim;
  int32_t q_type, kv_type;
  int32_t v_type; /* of values that are not of kv_type, or 0 */
} polyhead_limits;

/* Immutable, shared by any number of threads. An executor named in the options must outlive the
 * plan. */
POLYHEAD_C_API polyhead_status polyhead_plan_create(const polyhead_limits* limits,
                                                    const polyhead_options* options,
                                                    polyhead_plan** plan);
POLYHEAD_C_API void polyhead_plan_destroy(polyhead_plan* plan);

/* Scratch of one caller of a plan; used by one run at a time. The plan must outlive it. */
POLYHEAD_C_API polyhead_status polyhead_workspace_create(const polyhead_plan* plan,
                                                         polyhead_workspace** workspace);
POLYHEAD_C_API void polyhead_workspace_destroy(polyhead_workspace* workspace);
POLYHEAD_C_API polyhead_status polyhead_workspace_bytes(const polyhead_workspace* workspace,
                                                        size_t* bytes);

/* Validates as polyhead_attention does, and that batch, lengths and heads are within the limits,
 * dims and types those of the limits. Never allocates. */
POLYHEAD_C_API polyhead_status polyhead_plan_run(const polyhead_plan* plan,
                                                 const polyhead_attention_arguments* arguments,
                                                 polyhead_workspace* workspace);

/* One paragraph: kernels, instruction set, tiles, workers, scratch; with `arguments` (or NULL) also
 * how that call would be cut. Writes at most `text_bytes` bytes, zero-terminated where there is
 * room for one; *needed (or NULL) becomes the bytes the whole text takes, its zero included. `text`
 * may be NULL with text_bytes 0. */
POLYHEAD_C_API polyhead_status polyhead_plan_describe(const polyhead_plan* plan,
                                                      const polyhead_attention_arguments* arguments,
                                                      char* text, size_t text_bytes,
                                                      size_t* needed);

/* ---- Merging and looking inside ---- */

/* lse = ln sum_p exp(lse_p) (+ exp(sink)),  out = sum_p exp(lse_p - lse) out_p, over disjoint key
 * sets. */
typedef struct polyhead_merge_arguments {
  size_t struct_bytes;
  const polyhead_view* outs; /* [parts, batch, tokens, heads, dim] */
  const polyhead_view* lses; /* float32 [parts, batch, tokens, heads] */
  const polyhead_view* out;  /* [batch, tokens, heads, dim] */
  const polyhead_view* lse;  /* optional float32 [batch, tokens, heads] */
  const polyhead_view* sink; /* optional float32 [heads], counted once */
} polyhead_merge_arguments;

POLYHEAD_C_API polyhead_status polyhead_merge_partials(const polyhead_merge_arguments* arguments,
                                                       const polyhead_options* options);

/* LSEs to the base of 2, in which FlashInfer has them, and back, in place: float32 of any axes. */
POLYHEAD_C_API polyhead_status polyhead_lse_to_base2(const polyhead_view* lse);
POLYHEAD_C_API polyhead_status polyhead_lse_from_base2(const polyhead_view* lse);

/* What a second pass may compute; each view is optional. See inspect.h. */
typedef struct polyhead_inspect_arguments {
  size_t struct_bytes;
  const polyhead_view* weights; /* float32 [batch, heads, queries, kv_len] */
  const polyhead_view* heads;   /* int32/int64 [n]: which query heads; NULL: all */
  int64_t first_query;
  const polyhead_view* received; /* float32 [batch, q_heads, kv_len] */
  const polyhead_view* pooled;   /* float32 [batch, q_heads, q_bins, kv_bins] */
} polyhead_inspect_arguments;

/* `call` is the forward call: its q, k, mask, modifiers, offsets and the lse it wrote. v and out
 * are not needed. */
POLYHEAD_C_API polyhead_status polyhead_inspect(const polyhead_attention_arguments* call,
                                                const polyhead_inspect_arguments* wanted,
                                                const polyhead_options* options);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* POLYHEAD_POLYHEAD_C_H */
