/* The C door to frames, in which keys and values lose least when a cache makes codes of them. The
 * rules of polyhead_c.h hold here too; formulas, edge cases, accuracy and thread rules are those of
 * code_frame.h.
 *
 * Of a prompt:
 *
 *   polyhead_frame_calibration_add(calibration, &q, &k, &v, &positions, NULL);
 *   polyhead_frame_calibration_frames(calibration, POLYHEAD_INT4, length, NULL, 0, &frames);
 *
 * and of each chunk from then on, with attention between the last two:
 *
 *   polyhead_enter_frames(frames, &q, &k, &v, NULL);
 *   polyhead_kv_cache_append(cache, &k, &v, NULL);
 *   polyhead_leave_frames(frames, &out, NULL);
 */
#ifndef POLYHEAD_POLYHEAD_FRAMES_C_H
#define POLYHEAD_POLYHEAD_FRAMES_C_H

#include "polyhead/polyhead_layer_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One frame's arrays, dense float32: centre and stretch [kv_heads * dim] and, for rounding to int4,
 * carry [kv_heads * dim * dim] and cost [kv_heads * dim], or NULL both. All NULL: no frame. */
typedef struct polyhead_code_frame {
  size_t struct_bytes;
  int64_t kv_heads, dim;
  const float *centre, *stretch;
  const float *carry, *cost;
} polyhead_code_frame;

/* The frames of one layer: immutable, shared by any number of threads. */
typedef struct polyhead_layer_frames polyhead_layer_frames;

/* From arrays that were kept, which are copied; NULL: keys or values have no frame. */
POLYHEAD_C_API polyhead_status polyhead_layer_frames_create(const polyhead_code_frame* keys,
                                                            const polyhead_code_frame* values,
                                                            polyhead_layer_frames** frames);
POLYHEAD_C_API void polyhead_layer_frames_destroy(polyhead_layer_frames* frames);

/* The arrays of both, valid as long as the frames are; each may be NULL, else the caller has
 * set its struct_bytes. */
POLYHEAD_C_API polyhead_status polyhead_layer_frames_get(const polyhead_layer_frames* frames,
                                                         polyhead_code_frame* keys,
                                                         polyhead_code_frame* values);

/* Takes q, k and v, [tokens, heads, dim] or [batch, tokens, ..], float32, float16 or bfloat16, into
 * their frames where they lie; each may be NULL. k and v then go to a cache of int8 or int4 by
 * token. */
POLYHEAD_C_API polyhead_status polyhead_enter_frames(const polyhead_layer_frames* frames,
                                                     const polyhead_view* q, const polyhead_view* k,
                                                     const polyhead_view* v,
                                                     const polyhead_options* options);
/* Takes attention's output back out of the values' frame, where it lies. */
POLYHEAD_C_API polyhead_status polyhead_leave_frames(const polyhead_layer_frames* frames,
                                                     const polyhead_view* out,
                                                     const polyhead_options* options);

/* How errors of values count for the output of a layer whose projection is w_o [out, q_heads *
 * value_dim]: into moments [count], count being kv_heads * value_dim * value_dim. */
POLYHEAD_C_API polyhead_status polyhead_value_moments(const polyhead_view* w_o, int64_t kv_heads,
                                                      int64_t value_dim, double* moments,
                                                      int64_t count,
                                                      const polyhead_options* options);

/* ---- Frames found on the rows of some text ---- */

typedef struct polyhead_frame_calibration polyhead_frame_calibration;

typedef struct polyhead_frame_calibration_config {
  size_t struct_bytes;
  int64_t q_heads;                  /* kv_heads */
  int64_t kv_heads;                 /* 1 */
  int64_t head_dim;                 /* needed */
  int64_t value_dim;                /* 0: head_dim */
  const polyhead_rope_config* rope; /* how q and k were rotated; NULL: not at all */
  int32_t not_centred;              /* 1: scores are soft-capped, have a sink or go through a
                                       function that is not linear */
  int32_t reserved;                 /* 0 */
} polyhead_frame_calibration_config;

/* Used by one call at a time. */
POLYHEAD_C_API polyhead_status polyhead_frame_calibration_create(
    const polyhead_frame_calibration_config* config, polyhead_frame_calibration** calibration);
POLYHEAD_C_API void polyhead_frame_calibration_destroy(polyhead_frame_calibration* calibration);

/* One chunk before any frame: q, k and v as polyhead_enter_frames takes them, but read only;
 * positions int32/int64 [(batch,) tokens], NULL without a RoPE. */
POLYHEAD_C_API polyhead_status polyhead_frame_calibration_add(
    polyhead_frame_calibration* calibration, const polyhead_view* q, const polyhead_view* k,
    const polyhead_view* v, const polyhead_view* positions, const polyhead_options* options);

/* Tokens seen so far. */
POLYHEAD_C_API polyhead_status
polyhead_frame_calibration_tokens(const polyhead_frame_calibration* calibration, int64_t* tokens);

/* Frames for a cache of POLYHEAD_INT8 or POLYHEAD_INT4 that serves positions 0 .. length - 1;
 * moments as polyhead_value_moments gives them, or NULL with a count of 0. */
POLYHEAD_C_API polyhead_status polyhead_frame_calibration_frames(
    const polyhead_frame_calibration* calibration, int32_t element_type, int64_t length,
    const double* moments, int64_t count, polyhead_layer_frames** frames);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* POLYHEAD_POLYHEAD_FRAMES_C_H */
