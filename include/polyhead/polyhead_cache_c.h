/* The C door to caches: contiguous, sliding and paged, of any type, what attention reads of them,
 * and files of what they hold. The rules of polyhead_c.h hold here too; formulas, edge cases and
 * thread rules are those of kv_cache.h, sliding_cache.h, paged_cache.h and cache_file.h.
 *
 * Attention over a cache: ask it for its view and give that instead of k, v and kv_lengths:
 *
 *   polyhead_kv_view view = {.struct_bytes = sizeof view};
 *   polyhead_kv_cache_view(cache, &view);
 *   polyhead_attention_arguments call = {.struct_bytes = sizeof call};
 *   call.q = &q; call.kv = &view; call.out = &out; call.mask = &mask;
 *   polyhead_attention(&call, NULL);
 *
 * Every function that takes a sequence refuses one that is out of range, released or never created.
 */
#ifndef POLYHEAD_POLYHEAD_CACHE_C_H
#define POLYHEAD_POLYHEAD_CACHE_C_H

#include "polyhead/polyhead_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scales of int8 or int4 keys by channel, calibrated on k [batch, tokens, kv_heads, head_dim]
 * (float32, float16 or bfloat16; finite), into scales, float32 [kv_heads, head_dim], dense: what
 * the key_scales of a cache's configuration take. Under them a NaN that comes later becomes 0, an
 * infinity the largest code on its side. */
POLYHEAD_C_API polyhead_status polyhead_key_scales_by_channel(const polyhead_view* k,
                                                              int32_t element_type,
                                                              const polyhead_view* scales);

/* ---- Contiguous: a batch of sequences, each in one piece ---- */

typedef struct polyhead_kv_cache polyhead_kv_cache;

typedef struct polyhead_kv_cache_config {
  size_t struct_bytes;
  int64_t batch, kv_heads;         /* 1 */
  int64_t head_dim;                /* needed */
  int64_t value_dim;               /* 0: head_dim */
  int64_t capacity;                /* tokens a sequence */
  int32_t element_type;            /* float32, float16, bfloat16 or a code; needed */
  int32_t growing;                 /* 1: doubles when full; 0: a full cache refuses to append */
  const polyhead_view* key_scales; /* int8, int4: float32 [kv_heads, head_dim], copied; NULL: by
                                      token */
  int32_t values_in_keys; /* 1: values are the first value_dim elements of the keys (latents) */
  int32_t reserved;       /* 0 */
} polyhead_kv_cache_config;

POLYHEAD_C_API polyhead_status polyhead_kv_cache_create(const polyhead_kv_cache_config* config,
                                                        polyhead_kv_cache** cache);
POLYHEAD_C_API void polyhead_kv_cache_destroy(polyhead_kv_cache* cache);

/* Tokens that `sequence` holds, and tokens a sequence there is room for. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_length(const polyhead_kv_cache* cache,
                                                        int64_t sequence, int64_t* length);
POLYHEAD_C_API polyhead_status polyhead_kv_cache_capacity(const polyhead_kv_cache* cache,
                                                          int64_t* capacity);
/* Of keys and values, at this capacity. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_bytes(const polyhead_kv_cache* cache,
                                                       int64_t* bytes);

/* Adds k and v [batch, tokens, kv_heads, dim] at each sequence's end; counts: int32/int64 [batch]
 * or NULL, all. With values_in_keys v is NULL. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_append(polyhead_kv_cache* cache,
                                                        const polyhead_view* k,
                                                        const polyhead_view* v,
                                                        const polyhead_view* counts);
/* Forgets the tokens of `sequence` from `length` on. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_truncate(polyhead_kv_cache* cache,
                                                          int64_t sequence, int64_t length);
/* Keeps, of the tokens of `sequence` from `first` on, those at places [count] (places in the
 * sequence, ascending) and forgets the others: the accepted branch of a draft, see kv_cache.h. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_keep(polyhead_kv_cache* cache, int64_t sequence,
                                                      int64_t first, const int64_t* places,
                                                      int64_t count);
/* Forgets everything; the capacity stays. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_clear(polyhead_kv_cache* cache);

/* What attention reads of the cache. Valid until the cache next grows; does not lengthen by
 * itself. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_view(const polyhead_kv_cache* cache,
                                                      polyhead_kv_view* view);

/* Views of what is held: keys and values [batch, longest, kv_heads, dim] and lengths int64 [batch];
 * each may be NULL, else the caller has set its struct_bytes. Keys and values are valid until the
 * cache next grows. Not to be written through. */
POLYHEAD_C_API polyhead_status polyhead_kv_cache_views(const polyhead_kv_cache* cache,
                                                       polyhead_view* keys, polyhead_view* values,
                                                       polyhead_view* lengths);

/* ---- Sliding: a window of each sequence in a ring, the first tokens kept if wanted ---- */

typedef struct polyhead_sliding_cache polyhead_sliding_cache;

typedef struct polyhead_sliding_cache_config {
  size_t struct_bytes;
  int64_t batch, kv_heads;         /* 1 */
  int64_t head_dim;                /* needed */
  int64_t value_dim;               /* 0: head_dim */
  int64_t window;                  /* keys a query sees, its own included; needed */
  int64_t first_tokens;            /* kept for ever */
  int64_t chunk;                   /* most tokens appended at once, or taken back; 0: 1 */
  const polyhead_view* key_scales; /* int8, int4: float32 [kv_heads, head_dim], copied; NULL: by
                                      token */
  int32_t element_type;            /* as in polyhead_kv_cache_config */
  int32_t values_in_keys;          /* as in polyhead_kv_cache_config */
} polyhead_sliding_cache_config;

POLYHEAD_C_API polyhead_status polyhead_sliding_cache_create(
    const polyhead_sliding_cache_config* config, polyhead_sliding_cache** cache);
POLYHEAD_C_API void polyhead_sliding_cache_destroy(polyhead_sliding_cache* cache);

/* Tokens seen, held or not; and tokens still held and of use. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_length(const polyhead_sliding_cache* cache,
                                                             int64_t sequence, int64_t* length);
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_held(const polyhead_sliding_cache* cache,
                                                           int64_t sequence, int64_t* held);
/* The first position, after the first tokens, whose token has not been written over. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_oldest(const polyhead_sliding_cache* cache,
                                                             int64_t sequence, int64_t* oldest);
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_bytes(const polyhead_sliding_cache* cache,
                                                            int64_t* bytes);

/* As polyhead_kv_cache_append, v NULL with values_in_keys; at most `chunk` tokens a sequence. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_append(polyhead_sliding_cache* cache,
                                                             const polyhead_view* k,
                                                             const polyhead_view* v,
                                                             const polyhead_view* counts);
/* Forgets the tokens of `sequence` from `length` on: at most `chunk`, or any as long as none was
 * written over. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_truncate(polyhead_sliding_cache* cache,
                                                               int64_t sequence, int64_t length);
/* As polyhead_kv_cache_keep; first as polyhead_sliding_cache_truncate's length. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_keep(polyhead_sliding_cache* cache,
                                                           int64_t sequence, int64_t first,
                                                           const int64_t* places, int64_t count);
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_clear(polyhead_sliding_cache* cache);

/* What attention reads, valid until the next change; and the mask that it is for: causal, the
 * window, the first tokens. `mask` is overwritten; parts may be added to it. Queries whose windows
 * have been written over are refused, as is a mask without the window. */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_view(const polyhead_sliding_cache* cache,
                                                           polyhead_kv_view* view);
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_mask(const polyhead_sliding_cache* cache,
                                                           polyhead_mask* mask);

/* Copies what a sequence holds, in order: k float32 [held, kv_heads, head_dim], v [held, kv_heads,
 * value_dim] (or NULL with values_in_keys). */
POLYHEAD_C_API polyhead_status polyhead_sliding_cache_read(const polyhead_sliding_cache* cache,
                                                           int64_t sequence, const polyhead_view* k,
                                                           const polyhead_view* v);

/* ---- Paged: many sequences over one pool, shared where they are equal ---- */

typedef struct polyhead_paged_cache polyhead_paged_cache;

typedef struct polyhead_paged_cache_config {
  size_t struct_bytes;
  int64_t pages;                   /* of the pool; needed */
  int64_t page_tokens;             /* 64; a power of two from 8 to 256 */
  int64_t layers;                  /* 1 */
  int64_t kv_heads;                /* 1 */
  int64_t head_dim;                /* needed */
  int64_t value_dim;               /* 0: head_dim */
  const polyhead_view* key_scales; /* int8, int4: float32 [layers, kv_heads, head_dim], copied;
                                      NULL: by token */
  int32_t element_type;            /* as in polyhead_kv_cache_config */
  int32_t values_in_keys;          /* as in polyhead_kv_cache_config */
} polyhead_paged_cache_config;

POLYHEAD_C_API polyhead_status polyhead_paged_cache_create(
    const polyhead_paged_cache_config* config, polyhead_paged_cache** cache);
POLYHEAD_C_API void polyhead_paged_cache_destroy(polyhead_paged_cache* cache);

/* Of the pool, in bytes; pages that can still be had; and of these the remembered ones, which later
 * sequences may share. */
POLYHEAD_C_API polyhead_status polyhead_paged_cache_bytes(const polyhead_paged_cache* cache,
                                                          int64_t* bytes);
POLYHEAD_C_API polyhead_status polyhead_paged_cache_free_pages(const polyhead_paged_cache* cache,
                                                               int64_t* pages);
POLYHEAD_C_API polyhead_status
polyhead_paged_cache_remembered_pages(const polyhead_paged_cache* cache, int64_t* pages);

/* A new, empty sequence, whose number is never used again; sequences of different salts share
 * nothing. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_create(polyhead_paged_cache* cache,
                                                              uint64_t salt, int64_t* sequence);
/* A new sequence that holds what `sequence` does. Copies no rows. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_fork(polyhead_paged_cache* cache,
                                                            int64_t sequence, int64_t* forked);
/* Gives its pages back. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_release(polyhead_paged_cache* cache,
                                                               int64_t sequence);
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_length(const polyhead_paged_cache* cache,
                                                              int64_t sequence, int64_t* length);
/* Forgets the tokens from `length` on. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_truncate(polyhead_paged_cache* cache,
                                                                int64_t sequence, int64_t length);

/* Keeps, of the tokens from `first` on, those at places [count] (places in the sequence, ascending)
 * and forgets the others: the accepted branch of a draft, see paged_cache.h. `tokens` [count],
 * where not NULL, are their numbers. POLYHEAD_EXHAUSTED, with nothing changed, where pages that
 * others hold have to be copied and the pool has too few. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_keep(polyhead_paged_cache* cache,
                                                            int64_t sequence, int64_t first,
                                                            const int64_t* places,
                                                            const int32_t* tokens, int64_t count);

/* Lets an empty sequence begin with the remembered pages that spell `tokens` [count], at most all
 * but the last token; *adopted (or NULL) becomes how many tokens it got. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_adopt_prefix(polyhead_paged_cache* cache,
                                                                    int64_t sequence,
                                                                    const int32_t* tokens,
                                                                    int64_t count,
                                                                    int64_t* adopted);

/* Room for `count` more tokens, whose rows mean nothing until they are written. `tokens` [count],
 * or NULL, are their numbers, for sharing. POLYHEAD_EXHAUSTED, with nothing changed, where the pool
 * has too few pages. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_extend(polyhead_paged_cache* cache,
                                                              int64_t sequence, int64_t count,
                                                              const int32_t* tokens);
/* What one sequence gets of polyhead_paged_sequences_extend. */
typedef struct polyhead_paged_extension {
  size_t struct_bytes;
  int64_t sequence, count;
  const int32_t* tokens; /* [count], or NULL */
} polyhead_paged_extension;

/* The same for several sequences, each given once: all of them get their room, or none does. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequences_extend(
    polyhead_paged_cache* cache, const polyhead_paged_extension* const* parts, int64_t count);

/* The rows of tokens [first, first + n) of one layer: k [n, kv_heads, head_dim], v [n, kv_heads,
 * value_dim] (NULL with values_in_keys), float32, float16 or bfloat16. Pages that other sequences
 * hold are copied first: POLYHEAD_EXHAUSTED, with nothing written, where the pool has too few;
 * never for room that extend has made since the last fork. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_write(polyhead_paged_cache* cache,
                                                             int64_t sequence, int64_t layer,
                                                             int64_t first, const polyhead_view* k,
                                                             const polyhead_view* v);
/* Both of these, for caches of one layer; `tokens` [n] or NULL. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequence_append(polyhead_paged_cache* cache,
                                                              int64_t sequence,
                                                              const polyhead_view* k,
                                                              const polyhead_view* v,
                                                              const int32_t* tokens);

/* Page table and lengths of some sequences, for one call of attention over them, as a ragged batch
 * (q_offsets) or a padded one. Filled by _set as often as one likes; good until a sequence in it
 * is extended, truncated, released or changed by _keep, or a write copies a page of it. */
typedef struct polyhead_paged_batch polyhead_paged_batch;

POLYHEAD_C_API polyhead_status polyhead_paged_batch_create(polyhead_paged_batch** batch);
POLYHEAD_C_API void polyhead_paged_batch_destroy(polyhead_paged_batch* batch);
POLYHEAD_C_API polyhead_status polyhead_paged_batch_set(polyhead_paged_batch* batch,
                                                        const polyhead_paged_cache* cache,
                                                        const int64_t* sequences, int64_t count);

/* What attention reads of these sequences in one layer. Points into the cache and the batch. */
POLYHEAD_C_API polyhead_status polyhead_paged_cache_view(const polyhead_paged_cache* cache,
                                                         int64_t layer,
                                                         const polyhead_paged_batch* batch,
                                                         polyhead_kv_view* view);

/* ---- Files ---- */

/* What keys and values depend on besides the tokens, hashed as the caller likes; a file of another
 * one is refused. */
typedef struct polyhead_cache_fingerprint {
  size_t struct_bytes;
  uint64_t model, weights, rope, tokens;
} polyhead_cache_fingerprint;

/* Says what model, weights and RoPE the pool's rows are of, as a file that is loaded does: others
 * are refused from then on. */
POLYHEAD_C_API polyhead_status polyhead_paged_cache_serve(polyhead_paged_cache* cache,
                                                          const polyhead_cache_fingerprint* print);

enum {
  POLYHEAD_FILE_OF_CACHES = 0,
  POLYHEAD_FILE_OF_SLIDING_CACHES = 1,
  POLYHEAD_FILE_OF_SEQUENCES = 2
};

/* What a file of saved caches is: how to make caches that take what it holds. Sizes are those of
 * the first cache or sequence of the file (sequences of one file have the same, but for their
 * tokens), and 0 where it holds none. */
typedef struct polyhead_cache_file_info {
  size_t struct_bytes;
  polyhead_cache_fingerprint print; /* that it was saved with */
  int64_t count;                    /* caches, or sequences */
  int64_t notes_bytes;              /* beside sequences */
  int64_t layers;                   /* of a sequence, else 1 */
  int64_t batch;                    /* of a cache, else 1 */
  int64_t kv_heads, head_dim, value_dim;
  int64_t window, first_tokens, chunk; /* of sliding caches */
  int64_t tokens;                      /* of the batch's longest */
  int32_t kind;
  int32_t element_type; /* 0 where the file holds none */
  int32_t values_in_keys;
  int32_t keys_by_channel; /* how their codes are scaled */
} polyhead_cache_file_info;

/* Fills `info`, whatever fingerprint the file was saved with; the caller has set its struct_bytes.
 * Reads all of the file. Refuses what is no such file, another version, and a damaged one. */
POLYHEAD_C_API polyhead_status polyhead_cache_file_load_info(const char* path,
                                                             polyhead_cache_file_info* info);

/* Writes `count` caches (one a layer, say) to one file, which appears at once, when it is complete.
 */
POLYHEAD_C_API polyhead_status polyhead_kv_caches_save(const char* path,
                                                       const polyhead_cache_fingerprint* print,
                                                       const polyhead_kv_cache* const* caches,
                                                       int64_t count);
/* Fills caches with what a file holds: as many as were saved, of the same sizes, type and kind of
 * scales. Whatever is wrong with the file is refused, and nothing has changed then. */
POLYHEAD_C_API polyhead_status polyhead_kv_caches_load(const char* path,
                                                       const polyhead_cache_fingerprint* print,
                                                       polyhead_kv_cache* const* caches,
                                                       int64_t count);

/* The same for sliding caches; window, first tokens and chunk must be those that were saved, too.
 */
POLYHEAD_C_API polyhead_status
polyhead_sliding_caches_save(const char* path, const polyhead_cache_fingerprint* print,
                             const polyhead_sliding_cache* const* caches, int64_t count);
POLYHEAD_C_API polyhead_status polyhead_sliding_caches_load(const char* path,
                                                            const polyhead_cache_fingerprint* print,
                                                            polyhead_sliding_cache* const* caches,
                                                            int64_t count);

/* The same for sequences of a paged cache. Notes are bytes of the caller's own that belong beside
 * the rows, as the frames of their codes do; none: NULL, 0. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequences_save(
    const char* path, const polyhead_cache_fingerprint* print, const polyhead_paged_cache* cache,
    const int64_t* sequences, int64_t count, const void* notes, size_t notes_bytes);
/* The sequences of a file as new ones, into `sequences` [count], as many as were saved; pages may
 * be of another size. Their full pages are shared with later prompts of the same salt.
 * POLYHEAD_EXHAUSTED where they do not fit into the pool's free pages. Refused where another file
 * was loaded before, of another model, weights or RoPE. Where they are not loaded nothing has
 * changed, and remembered pages are still remembered. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequences_load(
    const char* path, const polyhead_cache_fingerprint* print, polyhead_paged_cache* cache,
    uint64_t salt, int64_t* sequences, int64_t count);
/* The scales by channel that a file's sequences were saved with, into scales, float32 [layers,
 * kv_heads, head_dim], dense: only a paged cache made with these as key_scales loads the file.
 * Refuses a file without, and scales of other extents. */
POLYHEAD_C_API polyhead_status polyhead_paged_sequences_key_scales(
    const char* path, const polyhead_cache_fingerprint* print, const polyhead_view* scales);
/* The notes that a file's sequences were saved with. Writes at most `notes_bytes` bytes; *needed
 * (or NULL) becomes how many there are. `notes` may be NULL with notes_bytes 0. */
POLYHEAD_C_API polyhead_status
polyhead_paged_sequences_notes(const char* path, const polyhead_cache_fingerprint* print,
                               void* notes, size_t notes_bytes, size_t* needed);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* POLYHEAD_POLYHEAD_CACHE_C_H */
