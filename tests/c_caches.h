/* Caches of the call in c_case.h, for the tests of caches through the C door. */
#ifndef POLYHEAD_TESTS_C_CACHES_H
#define POLYHEAD_TESTS_C_CACHES_H

#include "c_case.h"
#include "polyhead/polyhead_layer_c.h"

static float expected[kOut], expected_lse[kRows];

/* Sequence b's keys [first, first + count), of k or v. */
static inline polyhead_view tokens_of(const float* of, int dim, int b, int first, int count,
                                      int axes) {
  const int64_t extents[4] = {1, count, kKvHeads, dim};
  return polyhead_make_view(of + (b * kKvLen + first) * kKvHeads * dim, POLYHEAD_FLOAT32, axes,
                            extents + 4 - axes, NULL);
}

static inline polyhead_mask causal_mask(void) {
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  mask.causal = 1;
  mask.align = POLYHEAD_ALIGN_END;
  return mask;
}

/* The call without a cache, under `mask`: into `expected` and `expected_lse`. */
static inline void expect_call(polyhead_attention_arguments* call, const polyhead_mask* mask) {
  call->mask = mask;
  call->kv = NULL;
  call->k = &k_view;
  call->v = &v_view;
  CHECK_OK(polyhead_attention(call, NULL));
  memcpy(expected, out, sizeof out);
  memcpy(expected_lse, lse, sizeof lse);
}

/* The same over what a cache holds gives the same bits. */
static inline void check_same(polyhead_attention_arguments* call, const polyhead_kv_view* kv) {
  call->k = call->v = NULL;
  call->kv = kv;
  poison(out, kOut);
  CHECK_OK(polyhead_attention(call, NULL));
  CHECK(memcmp(out, expected, sizeof out) == 0);
}

/* The call whose values are the beginning of its keys, without a cache. */
static inline polyhead_attention_arguments latents_of_call(void) {
  polyhead_attention_arguments call = arguments_of_call();
  v_view.data = k;
  memcpy(v_view.strides, k_view.strides, sizeof v_view.strides);
  expect_call(&call, NULL);
  return call;
}

static inline polyhead_kv_cache_config kv_config(int32_t type) {
  polyhead_kv_cache_config config = {.struct_bytes = sizeof config};
  config.batch = kBatch;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.value_dim = kValueDim;
  config.capacity = kKvLen;
  config.element_type = type;
  return config;
}

/* Its window is not given yet. */
static inline polyhead_sliding_cache_config sliding_config(void) {
  polyhead_sliding_cache_config config = {.struct_bytes = sizeof config};
  config.batch = kBatch;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.value_dim = kValueDim;
  config.element_type = POLYHEAD_FLOAT32;
  return config;
}

static const polyhead_cache_fingerprint kPrint = {sizeof(polyhead_cache_fingerprint), 1, 2, 3, 4};
static const polyhead_cache_fingerprint kOther = {sizeof(polyhead_cache_fingerprint), 1, 9, 3, 4};

/* What is said of a file of caches of these sizes, or of sequences of one layer. */
static inline void check_info(const char* path, int32_t kind, int64_t count, int64_t batch) {
  const int sliding = kind == POLYHEAD_FILE_OF_SLIDING_CACHES;
  polyhead_cache_file_info info = {.struct_bytes = sizeof info};
  CHECK_OK(polyhead_cache_file_load_info(path, &info));
  CHECK(info.struct_bytes == sizeof info && info.kind == kind && info.count == count);
  CHECK(memcmp(&info.print, &kPrint, sizeof kPrint) == 0);
  CHECK(info.layers == 1 && info.batch == batch && info.kv_heads == kKvHeads);
  CHECK(info.head_dim == kDim && info.value_dim == kValueDim && info.tokens == kKvLen);
  CHECK(info.element_type == POLYHEAD_FLOAT32 && !info.values_in_keys && !info.keys_by_channel);
  CHECK((info.window > 0) == sliding && (info.chunk > 0) == sliding && info.notes_bytes == 0);
  CHECK_REFUSED(polyhead_cache_file_load_info(path, NULL), "info is null");
  CHECK_REFUSED(polyhead_cache_file_load_info(NULL, &info), "path is null");
  CHECK_REFUSED(polyhead_cache_file_load_info("nowhere", &info), "nowhere cannot be opened");
  info.struct_bytes = 1;
  CHECK_REFUSED(polyhead_cache_file_load_info(path, &info), "info.struct_bytes (1)");
}

static inline polyhead_paged_cache_config paged_config(int64_t pages) {
  polyhead_paged_cache_config config = {.struct_bytes = sizeof config};
  config.pages = pages;
  config.page_tokens = 8;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.value_dim = kValueDim;
  config.element_type = POLYHEAD_FLOAT32;
  return config;
}

#endif
