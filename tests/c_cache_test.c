/* Caches through the C door: what they hold gives the bits of the plain call, files bring it back,
 * exhaustion is a status, and whatever is wrong is refused. */
#include "c_case.h"
#include "polyhead/polyhead_layer_c.h"

enum { kWindow = 5, kTenth = 10 };

static float expected[kOut], rows_out[kOut];
static float expected_lse[kRows], rows_lse[kRows];

/* Sequence b's keys [first, first + count), of k or v. */
static polyhead_view tokens_of(const float* of, int dim, int b, int first, int count, int axes) {
  const int64_t extents[4] = {1, count, kKvHeads, dim};
  return polyhead_make_view(of + (b * kKvLen + first) * kKvHeads * dim, POLYHEAD_FLOAT32, axes,
                            extents + 4 - axes, NULL);
}

static polyhead_mask causal_mask(void) {
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  mask.causal = 1;
  mask.align = POLYHEAD_ALIGN_END;
  return mask;
}

/* The call without a cache, under `mask`: into `expected` and `expected_lse`. */
static void expect_call(polyhead_attention_arguments* call, const polyhead_mask* mask) {
  call->mask = mask;
  call->kv = NULL;
  call->k = &k_view;
  call->v = &v_view;
  CHECK_OK(polyhead_attention(call, NULL));
  memcpy(expected, out, sizeof out);
  memcpy(expected_lse, lse, sizeof lse);
}

/* The same over what a cache holds gives the same bits. */
static void check_same(polyhead_attention_arguments* call, const polyhead_kv_view* kv) {
  call->k = call->v = NULL;
  call->kv = kv;
  poison(out, kOut);
  CHECK_OK(polyhead_attention(call, NULL));
  CHECK(memcmp(out, expected, sizeof out) == 0);
}

static polyhead_kv_cache_config kv_config(int32_t type) {
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
static polyhead_sliding_cache_config sliding_config(void) {
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
#define FILE_NAME "c_cache_test.kv"

static void test_contiguous(void) {
  polyhead_attention_arguments call = arguments_of_call();
  const polyhead_mask mask = causal_mask();
  polyhead_kv_cache_config config = kv_config(POLYHEAD_FLOAT32);
  polyhead_kv_cache *cache = NULL, *loaded = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  int64_t number = -1;
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_kv_cache_append(cache, &k_view, NULL, NULL), "v is null");
  CHECK_OK(polyhead_kv_cache_append(cache, &k_view, &v_view, NULL));
  CHECK_OK(polyhead_kv_cache_view(cache, &view));
  CHECK_OK(polyhead_kv_cache_bytes(cache, &number));
  CHECK(number == kBatch * kKvLen * kKvHeads * (kDim + kValueDim) * 4);
  CHECK(view.page_table.axes == 0 && view.k_scales.axes == 0);
  expect_call(&call, &mask);
  check_same(&call, &view);

  CHECK_OK(polyhead_kv_cache_create(&config, &loaded));
  CHECK_OK(polyhead_kv_caches_save(FILE_NAME, &kPrint, (const polyhead_kv_cache* const*)&cache, 1));
  CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, &kOther, &loaded, 1),
                "another fingerprint of the weights");
  CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, &kPrint, &loaded, 0), "holds 1 caches");
  CHECK_REFUSED(polyhead_kv_caches_load("nowhere/" FILE_NAME, &kPrint, &loaded, 1), "nowhere");
  CHECK_REFUSED(polyhead_kv_caches_load(NULL, &kPrint, &loaded, 1), "path is null");
  CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, NULL, &loaded, 1), "print is null");
  CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, &kPrint, &loaded, -1), "count of caches (-1)");
  CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, &kPrint, NULL, 1), "caches is null");
  CHECK_OK(polyhead_kv_cache_length(loaded, 0, &number));
  CHECK(number == 0);
  CHECK_OK(polyhead_kv_caches_load(FILE_NAME, &kPrint, &loaded, 1));
  CHECK_OK(polyhead_kv_cache_view(loaded, &view));
  check_same(&call, &view);
  {
    polyhead_kv_cache* twice[2];
    twice[0] = twice[1] = loaded;
    CHECK_REFUSED(polyhead_kv_caches_load(FILE_NAME, &kPrint, twice, 2),
                  "caches[1] is caches[0] again");
  }
  CHECK_OK(polyhead_kv_cache_clear(loaded));
  CHECK_OK(polyhead_kv_cache_length(loaded, 1, &number));
  CHECK(number == 0);
  polyhead_kv_cache_destroy(loaded);
  polyhead_kv_cache_destroy(cache);
  remove(FILE_NAME);
}

/* Codes: int8 moves an output by at most what half a step, 1/254 of values below 1, moves a value
 * (itself) and a score (kDim products of queries below 1, over sqrt(kDim)), which moves weights by
 * twice as much. */
static void test_codes(void) {
  const double step = 1.0 / 254, most = step + 2 * step * kDim / sqrt(kDim);
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_kv_cache_config config = kv_config(POLYHEAD_INT8);
  float scales[kKvHeads * kDim];
  const int64_t extents[2] = {kKvHeads, kDim};
  const polyhead_view scales_view = polyhead_make_view(scales, POLYHEAD_FLOAT32, 2, extents, NULL);
  const polyhead_view short_view =
      polyhead_make_view(scales, POLYHEAD_FLOAT32, 1, extents + 1, NULL);
  int by_channel;
  poison(scales, kKvHeads * kDim);
  CHECK_REFUSED(polyhead_key_scales_by_channel(&k_view, POLYHEAD_INT8, &short_view), "scales");
  CHECK_REFUSED(polyhead_key_scales_by_channel(&k_view, POLYHEAD_FLOAT16, &scales_view), "float16");
  CHECK(all_poisoned(scales, kKvHeads * kDim));
  CHECK_OK(polyhead_key_scales_by_channel(&k_view, POLYHEAD_INT8, &scales_view));
  expect_call(&call, NULL);
  for (by_channel = 0; by_channel < 2; ++by_channel) {
    polyhead_kv_cache* cache = NULL;
    polyhead_kv_view view = {.struct_bytes = sizeof view};
    config.key_scales = by_channel ? &scales_view : NULL;
    CHECK_OK(polyhead_kv_cache_create(&config, &cache));
    CHECK_OK(polyhead_kv_cache_append(cache, &k_view, &v_view, NULL));
    CHECK_OK(polyhead_kv_cache_view(cache, &view));
    CHECK(view.k.element_type == POLYHEAD_INT8 && view.k_scales.axes == (by_channel ? 2 : 4));
    call.k = call.v = NULL;
    call.kv = &view;
    poison(out, kOut);
    CHECK_OK(polyhead_attention(&call, NULL));
    CHECK(largest_difference(out, expected, kOut) <= most);
    CHECK(memcmp(out, expected, sizeof out) != 0);
    polyhead_kv_cache_destroy(cache);
  }
}

static void test_sliding(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache *cache = NULL, *loaded = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  polyhead_view queries;
  int64_t number = -1;
  int first;
  CHECK_REFUSED(polyhead_sliding_cache_create(&config, &cache), "window (0)");
  config.window = kWindow;
  config.first_tokens = 2;
  config.chunk = kTenth;
  CHECK_REFUSED((config.values_in_keys = 2, polyhead_sliding_cache_create(&config, &cache)),
                "values_in_keys (2)");
  config.values_in_keys = 0;
  CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_sliding_cache_append(cache, &k_view, &v_view, NULL), "chunk (10)");
  CHECK_REFUSED(polyhead_sliding_cache_append(cache, &k_view, NULL, NULL), "v is null");
  for (first = 0; first < kKvLen; first += kTenth) {
    polyhead_view some_k = k_view, some_v = v_view;
    const int count = kKvLen - first < kTenth ? kKvLen - first : kTenth;
    some_k.data = k + first * kKvHeads * kDim;
    some_v.data = v + first * kKvHeads * kValueDim;
    some_k.extents[1] = some_v.extents[1] = count;
    CHECK_OK(polyhead_sliding_cache_append(cache, &some_k, &some_v, NULL));
  }
  CHECK_OK(polyhead_sliding_cache_length(cache, 1, &number));
  CHECK(number == kKvLen);
  CHECK_OK(polyhead_sliding_cache_held(cache, 1, &number));
  CHECK(number == 2 + kWindow);
  CHECK_REFUSED(polyhead_sliding_cache_held(cache, kBatch, &number), "sequence (2)");
  CHECK_OK(polyhead_sliding_cache_create(&config, &loaded));
  CHECK_OK(polyhead_sliding_caches_save(FILE_NAME, &kPrint,
                                        (const polyhead_sliding_cache* const*)&cache, 1));
  CHECK_REFUSED(polyhead_sliding_caches_load(FILE_NAME, &kOther, &loaded, 1),
                "another fingerprint of the weights");
  CHECK_REFUSED(polyhead_sliding_caches_load(FILE_NAME, &kPrint, NULL, 1), "caches is null");
  CHECK_OK(polyhead_sliding_caches_load(FILE_NAME, &kPrint, &loaded, 1));
  CHECK_OK(polyhead_sliding_cache_length(loaded, 1, &number));
  CHECK(number == kKvLen);
  polyhead_sliding_cache_destroy(loaded);
  CHECK_OK(polyhead_sliding_cache_view(cache, &view));
  CHECK_OK(polyhead_sliding_cache_mask(cache, &mask));
  CHECK(mask.causal && mask.windowed && mask.left == kWindow - 1 && mask.first_tokens == 2);
  expect_call(&call, &mask);
  check_same(&call, &view);
  /* The first tokens are seen: the mask without them gives another result. */
  mask.first_tokens = 0;
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK(memcmp(out, expected, sizeof out) != 0);
  mask.windowed = 0;
  mask.first_tokens = 2;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "first_tokens (2)");
  {
    float keys[(2 + kWindow) * kKvHeads * kDim], values[(2 + kWindow) * kKvHeads * kValueDim];
    const int64_t extents[3] = {2 + kWindow, kKvHeads, kDim};
    const int64_t value_extents[3] = {2 + kWindow, kKvHeads, kValueDim};
    polyhead_view to_k = polyhead_make_view(keys, POLYHEAD_FLOAT32, 3, extents, NULL);
    polyhead_view to_v = polyhead_make_view(values, POLYHEAD_FLOAT32, 3, value_extents, NULL);
    CHECK_OK(polyhead_sliding_cache_read(cache, 0, &to_k, &to_v));
    CHECK(memcmp(keys, k, 2 * kKvHeads * kDim * sizeof *k) == 0);
    CHECK(memcmp(keys + 2 * kKvHeads * kDim, k + (kKvLen - kWindow) * kKvHeads * kDim,
                 kWindow * kKvHeads * kDim * sizeof *k) == 0);
    CHECK(memcmp(values, v, 2 * kKvHeads * kValueDim * sizeof *v) == 0);
  }
  queries = q_view;
  CHECK_REFUSED(polyhead_sliding_cache_read(cache, 0, &queries, &queries), "held");
  CHECK_OK(polyhead_sliding_cache_truncate(cache, 0, kKvLen - 3));
  CHECK_REFUSED(polyhead_sliding_cache_truncate(cache, 0, kKvLen), "length (37)");
  CHECK_OK(polyhead_sliding_cache_clear(cache));
  CHECK_OK(polyhead_sliding_cache_length(cache, 0, &number));
  CHECK(number == 0);
  CHECK_OK(polyhead_sliding_cache_bytes(cache, &number));
  CHECK(number > 0);
  CHECK_REFUSED((view.struct_bytes = 3, polyhead_sliding_cache_view(cache, &view)),
                "view.struct_bytes (3)");
  CHECK_REFUSED(polyhead_sliding_cache_mask(cache, NULL), "mask is null");
  CHECK_REFUSED(polyhead_sliding_cache_clear(NULL), "cache is null");
  polyhead_sliding_cache_destroy(cache);
  polyhead_sliding_cache_destroy(NULL);
}

/* Queries whose windows the ring has written over, and masks without the window, are refused; a
 * program from before `oldest` reads what it asks for. */
static void test_written_over(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  polyhead_view few_k, few_v;
  int i;
  config.window = kWindow;
  config.first_tokens = 1;
  config.chunk = 60; /* two pages of 64 tokens, when 5 * kKvLen + 8 = 193 begin a fourth one */
  CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
  for (i = 0; i < 5; ++i) CHECK_OK(polyhead_sliding_cache_append(cache, &k_view, &v_view, NULL));
  few_k = k_view;
  few_v = v_view;
  few_k.extents[1] = few_v.extents[1] = 8;
  CHECK_OK(polyhead_sliding_cache_append(cache, &few_k, &few_v, NULL));
  CHECK_OK(polyhead_sliding_cache_view(cache, &view));
  CHECK_OK(polyhead_sliding_cache_mask(cache, &mask));
  CHECK(view.first_tokens == 1);
  call.k = call.v = NULL;
  call.kv = &view;
  call.mask = &mask;
  CHECK_OK(polyhead_attention(&call, NULL));
  poison(out, kOut);
  mask.left = -1;
  mask.first_tokens = 0;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "query 0 of sequence 0 sees key 1");
  CHECK(all_poisoned(out, kOut));
  CHECK_OK(polyhead_sliding_cache_truncate(cache, 0, 193 - 60));
  CHECK_OK(polyhead_sliding_cache_mask(cache, &mask));
  CHECK_REFUSED(polyhead_attention(&call, NULL), "sees key 122");
  view.struct_bytes = offsetof(polyhead_kv_view, oldest);
  view.first_tokens = 99; /* not such a program's */
  CHECK_OK(polyhead_sliding_cache_view(cache, &view));
  CHECK(view.first_tokens == 99);
  CHECK_OK(polyhead_attention(&call, NULL));
  polyhead_sliding_cache_destroy(cache);
}

/* A plan gives the bits that are in `rows_out` and `rows_lse`, ragged too. */
static void check_plan(const polyhead_sliding_cache* cache, const polyhead_rope_config* rope) {
  const int64_t q_extents[3] = {kBatch * kQLen, kQHeads, kDim}, ends[1] = {kBatch + 1};
  const int64_t out_extents[3] = {kBatch * kQLen, kQHeads, kValueDim};
  const polyhead_view ragged_q = polyhead_make_view(q, POLYHEAD_FLOAT32, 3, q_extents, NULL);
  const polyhead_view ragged_out = polyhead_make_view(out, POLYHEAD_FLOAT32, 3, out_extents, NULL);
  const polyhead_view ragged_lse = polyhead_make_view(lse, POLYHEAD_FLOAT32, 2, out_extents, NULL);
  int64_t offsets[kBatch + 1] = {0}, b;
  const polyhead_view offsets_view = polyhead_make_view(offsets, POLYHEAD_INT64, 1, ends, NULL);
  polyhead_limits limits = limits_of_call();
  polyhead_in_cache_plan *plan = NULL, *small = NULL;
  polyhead_in_cache_workspace *workspace = NULL, *little = NULL;
  CHECK_REFUSED(polyhead_in_cache_plan_create(&limits, NULL, NULL, &plan), "rope is null");
  CHECK_REFUSED(polyhead_in_cache_plan_create(&limits, rope, NULL, NULL), "plan is null");
  CHECK_OK(polyhead_in_cache_plan_create(&limits, rope, NULL, &plan));
  CHECK_REFUSED(polyhead_in_cache_workspace_create(NULL, &workspace), "plan is null");
  CHECK_OK(polyhead_in_cache_workspace_create(plan, &workspace));
  poison(out, kOut);
  poison(lse, kRows);
  CHECK_REFUSED(
      polyhead_in_cache_plan_run(plan, cache, &q_view, &out_view, NULL, NULL, NULL, NULL, NULL),
      "workspace is null");
  limits.q_len = kQLen - 1;
  CHECK_OK(polyhead_in_cache_plan_create(&limits, rope, NULL, &small));
  CHECK_OK(polyhead_in_cache_workspace_create(small, &little));
  CHECK_REFUSED(polyhead_in_cache_plan_run(small, cache, &q_view, &out_view, &lse_view, NULL, NULL,
                                           NULL, little),
                "q_len (7) exceeds the plan's limit of 6");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
  CHECK_OK(polyhead_in_cache_plan_run(plan, cache, &q_view, &out_view, &lse_view, NULL, NULL, NULL,
                                      workspace));
  CHECK(memcmp(rows_out, out, sizeof out) == 0);
  CHECK(memcmp(rows_lse, lse, sizeof lse) == 0);
  poison(out, kOut);
  poison(lse, kRows);
  offsets[kBatch] -= 1;
  offsets[1] = kBatch * kQLen;
  CHECK_REFUSED(polyhead_in_cache_plan_run(plan, cache, &ragged_q, &ragged_out, &ragged_lse, NULL,
                                           NULL, &offsets_view, workspace),
                "expected ascending offsets");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
  for (b = 0; b <= kBatch; ++b) offsets[b] = b * kQLen;
  CHECK_OK(polyhead_in_cache_plan_run(plan, cache, &ragged_q, &ragged_out, &ragged_lse, NULL, NULL,
                                      &offsets_view, workspace));
  CHECK(memcmp(rows_out, out, sizeof out) == 0);
  CHECK(memcmp(rows_lse, lse, sizeof lse) == 0);
  polyhead_in_cache_workspace_destroy(workspace);
  polyhead_in_cache_workspace_destroy(little);
  polyhead_in_cache_plan_destroy(plan);
  polyhead_in_cache_plan_destroy(small);
}

/* A window that holds everything: positions in the cache are those in the sequence, so that the
 * call gives the bits of attention with q rotated. */
static void test_positions_in_the_cache(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache* cache = NULL;
  polyhead_rope_config rope = {.struct_bytes = sizeof rope};
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  int64_t positions[kBatch * kQLen];
  const int64_t extents[2] = {kBatch, kQLen};
  const polyhead_view positions_view =
      polyhead_make_view(positions, POLYHEAD_INT64, 2, extents, NULL);
  int i;
  for (i = 0; i < kBatch * kQLen; ++i) positions[i] = kKvLen - kQLen + i % kQLen;
  config.window = config.chunk = kKvLen;
  CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
  CHECK_OK(polyhead_sliding_cache_append(cache, &k_view, &v_view, NULL));
  CHECK_REFUSED(polyhead_sliding_cache_attend_in_cache(cache, &q_view, &rope, &out_view, &lse_view,
                                                       NULL, NULL, NULL, NULL),
                "pairing");
  CHECK_REFUSED(polyhead_sliding_cache_attend_in_cache(cache, &q_view, NULL, &out_view, NULL, NULL,
                                                       NULL, NULL, NULL),
                "rope is null");
  CHECK(all_poisoned(out, kOut));
  rope.pairing = POLYHEAD_ROPE_HALF_SPLIT;
  CHECK_OK(polyhead_sliding_cache_attend_in_cache(cache, &q_view, &rope, &out_view, &lse_view, NULL,
                                                  NULL, NULL, NULL));
  memcpy(rows_out, out, sizeof out);
  memcpy(rows_lse, lse, sizeof lse);
  check_plan(cache, &rope);
  CHECK_OK(polyhead_apply_rope(&q_view, &positions_view, &rope));
  CHECK_OK(polyhead_sliding_cache_mask(cache, &mask));
  expect_call(&call, &mask);
  CHECK(memcmp(rows_out, expected, sizeof expected) == 0);
  CHECK(memcmp(rows_lse, expected_lse, sizeof expected_lse) == 0);
  polyhead_sliding_cache_destroy(cache);
}

static polyhead_paged_cache_config paged_config(int64_t pages) {
  polyhead_paged_cache_config config = {.struct_bytes = sizeof config};
  config.pages = pages;
  config.page_tokens = 8;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.value_dim = kValueDim;
  config.element_type = POLYHEAD_FLOAT32;
  return config;
}

/* A ragged batch over two sequences of a pool: queries of both in one call. */
static void check_ragged(const polyhead_paged_cache* cache, const int64_t* sequences) {
  static const int32_t offsets[3] = {0, kQLen, 2 * kQLen};
  const int64_t three[1] = {3}, q_extents[3] = {2 * kQLen, kQHeads, kDim};
  const int64_t out_extents[3] = {2 * kQLen, kQHeads, kValueDim};
  const polyhead_view offsets_view = polyhead_make_view(offsets, POLYHEAD_INT32, 1, three, NULL);
  const polyhead_view ragged_q = polyhead_make_view(q, POLYHEAD_FLOAT32, 3, q_extents, NULL);
  const polyhead_view ragged_out =
      polyhead_make_view(rows_out, POLYHEAD_FLOAT32, 3, out_extents, NULL);
  const polyhead_mask mask = causal_mask();
  polyhead_attention_arguments ragged = {.struct_bytes = sizeof ragged};
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  polyhead_paged_batch* batch = NULL;
  CHECK_REFUSED(polyhead_paged_batch_create(NULL), "batch is null");
  CHECK_OK(polyhead_paged_batch_create(&batch));
  CHECK_OK(polyhead_paged_batch_set(batch, cache, sequences, kBatch));
  CHECK_OK(polyhead_paged_cache_view(cache, 0, batch, &view));
  CHECK_REFUSED(polyhead_paged_cache_view(cache, 1, batch, &view), "layer (1)");
  ragged.q = &ragged_q;
  ragged.out = &ragged_out;
  ragged.q_offsets = &offsets_view;
  ragged.mask = &mask;
  ragged.kv = &view;
  poison(rows_out, kOut);
  CHECK_OK(polyhead_attention(&ragged, NULL));
  CHECK(memcmp(rows_out, expected, sizeof expected) == 0);
  CHECK_REFUSED((ragged.k = &k_view, polyhead_attention(&ragged, NULL)), "k and kv");
  polyhead_paged_batch_destroy(batch);
}

static void test_paged(void) {
  polyhead_attention_arguments call = arguments_of_call();
  const polyhead_mask mask = causal_mask();
  polyhead_paged_cache_config config = paged_config(12);
  polyhead_paged_cache *cache = NULL, *other = NULL;
  int64_t sequences[kBatch] = {-1, -1}, loaded[kBatch] = {-1, -1}, fork = -1, number = -1;
  int32_t tokens[kKvLen];
  int b;
  for (b = 0; b < kKvLen; ++b) tokens[b] = b;
  expect_call(&call, &mask);
  CHECK_REFUSED((config.page_tokens = 7, polyhead_paged_cache_create(&config, &cache)), "7");
  config.page_tokens = 8;
  CHECK_OK(polyhead_paged_cache_create(&config, &cache));
  for (b = 0; b < kBatch; ++b) {
    const polyhead_view keys = tokens_of(k, kDim, b, 0, kKvLen, 3);
    const polyhead_view values = tokens_of(v, kValueDim, b, 0, kKvLen, 3);
    CHECK_OK(polyhead_paged_sequence_create(cache, (uint64_t)b, &sequences[b]));
    CHECK_OK(polyhead_paged_sequence_append(cache, sequences[b], &keys, &values, tokens));
  }
  check_ragged(cache, sequences);

  /* 10 of 12 pages are taken: a fork takes none, and 17 tokens more do not fit behind it. */
  CHECK_OK(polyhead_paged_sequence_fork(cache, sequences[0], &fork));
  CHECK_OK(polyhead_paged_cache_free_pages(cache, &number));
  CHECK(number == 2);
  CHECK(polyhead_paged_sequence_extend(cache, fork, 17, NULL) == POLYHEAD_EXHAUSTED);
  CHECK(strstr(polyhead_last_error(), "the pool has 2 free pages") != NULL);
  CHECK_OK(polyhead_paged_sequence_length(cache, fork, &number));
  CHECK(number == kKvLen);
  check_ragged(cache, sequences);
  {
    const polyhead_view keys = tokens_of(k, kDim, 1, 0, 2, 3);
    const polyhead_view values = tokens_of(v, kValueDim, 1, 0, 2, 3);
    CHECK_OK(polyhead_paged_sequence_extend(cache, fork, 2, tokens));
    CHECK_OK(polyhead_paged_sequence_write(cache, fork, 0, kKvLen, &keys, &values));
    /* A page that both hold is copied before it is written, as long as there are pages. */
    CHECK_OK(polyhead_paged_sequence_write(cache, fork, 0, 0, &keys, &values));
    CHECK(polyhead_paged_sequence_write(cache, fork, 0, 8, &keys, &values) == POLYHEAD_EXHAUSTED);
  }
  CHECK_OK(polyhead_paged_sequence_truncate(cache, fork, 3));
  CHECK_OK(polyhead_paged_sequence_release(cache, fork));
  CHECK_REFUSED(polyhead_paged_sequence_release(cache, fork), "released");
  check_ragged(cache, sequences);

  CHECK_OK(polyhead_paged_sequence_create(cache, 0, &fork));
  CHECK_OK(polyhead_paged_sequence_adopt_prefix(cache, fork, tokens, kKvLen, &number));
  CHECK(number == kKvLen / 8 * 8);
  CHECK_REFUSED(polyhead_paged_sequence_adopt_prefix(cache, fork, NULL, 3, NULL), "tokens is null");
  CHECK_OK(polyhead_paged_sequence_release(cache, fork));

  CHECK_OK(polyhead_paged_sequences_save(FILE_NAME, &kPrint, cache, sequences, kBatch, NULL, 0));
  config = paged_config(4);
  CHECK_OK(polyhead_paged_cache_create(&config, &other));
  CHECK(polyhead_paged_sequences_load(FILE_NAME, &kPrint, other, 7, loaded, kBatch) ==
        POLYHEAD_EXHAUSTED);
  CHECK(loaded[0] == -1);
  polyhead_paged_cache_destroy(other);
  config = paged_config(40);
  config.page_tokens = 16;
  CHECK_OK(polyhead_paged_cache_create(&config, &other));
  CHECK_REFUSED(polyhead_paged_sequences_load(FILE_NAME, &kOther, other, 7, loaded, kBatch),
                "another fingerprint of the weights");
  CHECK_REFUSED(polyhead_paged_sequences_load(FILE_NAME, &kPrint, other, 7, loaded, 1),
                "holds 2 sequences, expected 1");
  CHECK_OK(polyhead_paged_cache_free_pages(other, &number));
  CHECK(number == 40 && loaded[0] == -1);
  CHECK_OK(polyhead_paged_cache_remembered_pages(other, &number));
  CHECK(number == 0); /* none of the file's */
  CHECK_REFUSED(polyhead_paged_sequences_key_scales(FILE_NAME, &kPrint, &q_view), "by channel");
  CHECK_OK(polyhead_paged_sequences_load(FILE_NAME, &kPrint, other, 7, loaded, kBatch));
  check_ragged(other, loaded);
  CHECK_OK(polyhead_paged_sequence_release(other, loaded[0]));
  CHECK_OK(polyhead_paged_cache_remembered_pages(other, &number));
  CHECK(number == kKvLen / 16);
  CHECK_OK(polyhead_paged_cache_bytes(other, &number));
  CHECK(number == 40 * 16 * kKvHeads * (kDim + kValueDim) * 4);
  polyhead_paged_cache_destroy(other);
  polyhead_paged_cache_destroy(cache);
  remove(FILE_NAME);
}

static void check_sliding_latents(polyhead_attention_arguments* call) {
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  float keys[kKvLen * kKvHeads * kDim];
  const int64_t extents[3] = {kKvLen, kKvHeads, kDim};
  const polyhead_view to = polyhead_make_view(keys, POLYHEAD_FLOAT32, 3, extents, NULL);
  polyhead_rope_config rope = {.struct_bytes = sizeof rope, .pairing = POLYHEAD_ROPE_HALF_SPLIT};
  config.window = config.chunk = kKvLen;
  config.values_in_keys = 1;
  CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_sliding_cache_append(cache, &k_view, &v_view, NULL), "v is given");
  CHECK_OK(polyhead_sliding_cache_append(cache, &k_view, NULL, NULL));
  CHECK_OK(polyhead_sliding_cache_view(cache, &view));
  check_same(call, &view);
  CHECK_OK(polyhead_sliding_cache_read(cache, 0, &to, NULL));
  CHECK(memcmp(keys, k, sizeof keys) == 0);
  poison(out, kOut);
  CHECK_REFUSED(polyhead_sliding_cache_attend_in_cache(cache, &q_view, &rope, &out_view, NULL, NULL,
                                                       NULL, NULL, NULL),
                "values_in_keys");
  CHECK(all_poisoned(out, kOut));
  polyhead_sliding_cache_destroy(cache);
}

static void check_paged_latents(polyhead_attention_arguments* call) {
  const polyhead_mask mask = causal_mask();
  polyhead_paged_cache_config config = paged_config(12);
  polyhead_paged_cache* cache = NULL;
  int64_t sequences[kBatch] = {-1, -1}, number = -1;
  int b;
  config.values_in_keys = 2;
  CHECK_REFUSED(polyhead_paged_cache_create(&config, &cache), "values_in_keys (2)");
  config.values_in_keys = 1;
  CHECK_OK(polyhead_paged_cache_create(&config, &cache));
  CHECK_OK(polyhead_paged_cache_bytes(cache, &number));
  CHECK(number == 12 * 8 * kKvHeads * kDim * 4);
  for (b = 0; b < kBatch; ++b) {
    const polyhead_view keys = tokens_of(k, kDim, b, 0, kKvLen, 3);
    CHECK_OK(polyhead_paged_sequence_create(cache, 0, &sequences[b]));
    CHECK_REFUSED(polyhead_paged_sequence_append(cache, sequences[b], &keys, &keys, NULL),
                  "v is given");
    CHECK_OK(polyhead_paged_sequence_append(cache, sequences[b], &keys, NULL, NULL));
    CHECK_OK(polyhead_paged_sequence_write(cache, sequences[b], 0, 0, &keys, NULL));
  }
  expect_call(call, &mask);
  check_ragged(cache, sequences);
  polyhead_paged_cache_destroy(cache);
}

/* Latents: values are the beginning of the keys, in every cache. */
static void test_values_in_keys(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_kv_cache_config config = kv_config(POLYHEAD_FLOAT32);
  polyhead_kv_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  const float* kept = v_view.data;
  config.values_in_keys = 1;
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_kv_cache_append(cache, &k_view, &v_view, NULL), "v is given");
  CHECK_OK(polyhead_kv_cache_append(cache, &k_view, NULL, NULL));
  CHECK_OK(polyhead_kv_cache_view(cache, &view));
  v_view.data = k;
  memcpy(v_view.strides, k_view.strides, sizeof v_view.strides);
  expect_call(&call, NULL);
  check_same(&call, &view);
  polyhead_kv_cache_destroy(cache);
  check_sliding_latents(&call);
  check_paged_latents(&call);
  v_view.data = (void*)(uintptr_t)kept;
}

/* A pool made with the scales that a file was saved with takes the file. */
static void test_paged_scales(void) {
  static float scales[kKvHeads * kDim], read[kKvHeads * kDim];
  const int64_t extents[3] = {1, kKvHeads, kDim}, turned[3] = {1, kDim, kKvHeads};
  const polyhead_view made = polyhead_make_view(scales, POLYHEAD_FLOAT32, 3, extents, NULL);
  const polyhead_view got = polyhead_make_view(read, POLYHEAD_FLOAT32, 3, extents, NULL);
  const polyhead_view wrong = polyhead_make_view(read, POLYHEAD_FLOAT32, 3, turned, NULL);
  polyhead_paged_cache_config config = paged_config(4);
  polyhead_paged_cache* cache = NULL;
  int64_t sequence = -1;
  char notes[6] = {0};
  size_t bytes = 0;
  int i;
  for (i = 0; i < kKvHeads * kDim; ++i) scales[i] = 0.5f + (float)i;
  config.element_type = POLYHEAD_INT8;
  config.key_scales = &made;
  CHECK_OK(polyhead_paged_cache_create(&config, &cache));
  CHECK_OK(polyhead_paged_sequence_create(cache, 0, &sequence));
  CHECK_REFUSED(polyhead_paged_sequences_save(FILE_NAME, &kPrint, cache, &sequence, 1, NULL, 3),
                "notes is null");
  CHECK_OK(polyhead_paged_sequences_save(FILE_NAME, &kPrint, cache, &sequence, 1, "notes", 6));
  polyhead_paged_cache_destroy(cache);
  CHECK_OK(polyhead_paged_sequences_notes(FILE_NAME, &kPrint, notes, 3, &bytes));
  CHECK(bytes == 6 && strcmp(notes, "not") == 0);
  CHECK_OK(polyhead_paged_sequences_notes(FILE_NAME, &kPrint, NULL, 0, &bytes));
  CHECK(bytes == 6);
  CHECK_OK(polyhead_paged_sequences_notes(FILE_NAME, &kPrint, notes, bytes, NULL));
  CHECK(strcmp(notes, "notes") == 0);
  CHECK_REFUSED(polyhead_paged_sequences_notes(FILE_NAME, &kPrint, NULL, 1, &bytes),
                "notes is null");
  CHECK_REFUSED(polyhead_paged_sequences_key_scales(FILE_NAME, &kPrint, &wrong),
                "is not dense float32 [1, 2, 8]: layers, kv_heads, head_dim");
  CHECK_OK(polyhead_paged_sequences_key_scales(FILE_NAME, &kPrint, &got));
  CHECK(memcmp(read, scales, sizeof read) == 0);
  config.key_scales = &got;
  CHECK_OK(polyhead_paged_cache_create(&config, &cache));
  CHECK_OK(polyhead_paged_sequences_load(FILE_NAME, &kPrint, cache, 0, &sequence, 1));
  polyhead_paged_cache_destroy(cache);
  remove(FILE_NAME);
}

/* A program built before the caches: shorter structs mean zeros. */
static void test_older_programs(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = causal_mask();
  polyhead_kv_cache_config config = kv_config(POLYHEAD_FLOAT32);
  polyhead_kv_cache* cache = NULL;
  expect_call(&call, &mask);
  call.struct_bytes = offsetof(polyhead_attention_arguments, kv);
  mask.struct_bytes = offsetof(polyhead_mask, first_tokens);
  mask.first_tokens = 99; /* not this program's */
  config.struct_bytes = offsetof(polyhead_kv_cache_config, key_scales);
  config.values_in_keys = 99;
  poison(out, kOut);
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK(memcmp(out, expected, sizeof out) == 0);
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  polyhead_kv_cache_destroy(cache);
}

/* A program built with later headers: longer structs, whose rest is zero, are filled as far as this
 * library knows them. */
static void test_newer_programs(void) {
  struct {
    polyhead_mask mask;
    int64_t newer_field;
  } mask = {{.struct_bytes = sizeof mask}, 0};
  struct {
    polyhead_kv_view view;
    int64_t newer_field;
  } view = {{.struct_bytes = sizeof view}, 0};
  polyhead_kv_cache_config config = kv_config(POLYHEAD_FLOAT32);
  polyhead_sliding_cache_config sliding = {.struct_bytes = sizeof sliding};
  polyhead_kv_cache* cache = NULL;
  polyhead_sliding_cache* ring = NULL;
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_OK(polyhead_kv_cache_view(cache, &view.view));
  CHECK(view.view.struct_bytes == sizeof view && view.view.k.axes == 4);
  view.newer_field = 1;
  CHECK_REFUSED(polyhead_kv_cache_view(cache, &view.view), "does not know");
  polyhead_kv_cache_destroy(cache);
  sliding.batch = 1;
  sliding.kv_heads = kKvHeads;
  sliding.head_dim = kDim;
  sliding.window = 5;
  sliding.element_type = POLYHEAD_FLOAT32;
  CHECK_OK(polyhead_sliding_cache_create(&sliding, &ring));
  CHECK_OK(polyhead_sliding_cache_mask(ring, &mask.mask));
  CHECK(mask.mask.struct_bytes == sizeof mask && mask.mask.windowed == 1 && mask.mask.left == 4);
  polyhead_sliding_cache_destroy(ring);
}

int main(void) {
  test_contiguous();
  test_codes();
  test_sliding();
  test_written_over();
  test_positions_in_the_cache();
  test_paged();
  test_values_in_keys();
  test_paged_scales();
  test_older_programs();
  test_newer_programs();
  return test_failures != 0;
}
