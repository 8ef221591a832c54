/* Sliding caches through the C door, and attention with positions in the cache. */
#include "c_caches.h"

#define FILE_NAME "c_sliding_cache_test.kv"

static float rows_out[kOut], rows_lse[kRows];

enum { kWindow = 5, kTenth = 10 };

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
  check_info(FILE_NAME, POLYHEAD_FILE_OF_SLIDING_CACHES, 1, kBatch);
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
  {
    const int64_t places[1] = {kKvLen - 1};
    CHECK_REFUSED(polyhead_sliding_cache_keep(cache, 0, kKvLen, places, 1), "places[0] (36)");
    CHECK_REFUSED(polyhead_sliding_cache_keep(cache, 0, 1, NULL, 1), "places is null");
    CHECK_OK(polyhead_sliding_cache_keep(cache, 0, kKvLen - 2, places, 1));
    CHECK_OK(polyhead_sliding_cache_length(cache, 0, &number));
    CHECK(number == kKvLen - 1);
  }
  CHECK_OK(polyhead_sliding_cache_truncate(cache, 0, kKvLen - 3));
  CHECK_REFUSED(polyhead_sliding_cache_truncate(cache, 0, kKvLen), "length (37)");
  CHECK_OK(polyhead_sliding_cache_clear(cache));
  CHECK_OK(polyhead_sliding_cache_length(cache, 0, &number));
  CHECK(number == 0);
  CHECK_OK(polyhead_sliding_cache_bytes(cache, &number));
  CHECK(number > 0);
  CHECK_REFUSED((view.struct_bytes = 3, polyhead_sliding_cache_view(cache, &view)),
                "view.struct_bytes (3)");
  CHECK_REFUSED(polyhead_sliding_cache_view(cache, NULL), "view is null");
  CHECK_REFUSED(polyhead_sliding_cache_mask(cache, NULL), "mask is null");
  CHECK_REFUSED(polyhead_sliding_cache_clear(NULL), "cache is null");
  polyhead_sliding_cache_destroy(cache);
  polyhead_sliding_cache_destroy(NULL);
}

/* Queries whose windows the ring has written over, and masks without the window, are refused; so is
 * a view that cannot say which those are. */
static void test_written_over(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  polyhead_view few_k, few_v;
  int64_t oldest = -1;
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
  CHECK_OK(polyhead_sliding_cache_oldest(cache, 0, &oldest));
  CHECK(oldest == ((const int64_t*)view.oldest.data)[0] && oldest > 0);
  CHECK_REFUSED(polyhead_sliding_cache_oldest(cache, 0, NULL), "oldest is null");
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
  CHECK_REFUSED(polyhead_sliding_cache_view(cache, &view), "view.struct_bytes");
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
  polyhead_in_cache_arguments call = {
      .struct_bytes = sizeof call, .q = &q_view, .out = &out_view, .lse = &lse_view};
  size_t bytes = 0;
  CHECK_REFUSED(polyhead_in_cache_plan_create(&limits, rope, NULL, NULL), "plan is null");
  CHECK_OK(polyhead_in_cache_plan_create(&limits, rope, NULL, &plan));
  CHECK_REFUSED(polyhead_in_cache_workspace_create(NULL, &workspace), "plan is null");
  CHECK_OK(polyhead_in_cache_workspace_create(plan, &workspace));
  poison(out, kOut);
  poison(lse, kRows);
  CHECK_REFUSED(polyhead_in_cache_plan_run(plan, cache, &call, NULL), "workspace is null");
  CHECK_REFUSED(polyhead_in_cache_plan_run(plan, cache, NULL, workspace), "arguments is null");
  CHECK_OK(polyhead_in_cache_workspace_bytes(workspace, &bytes));
  CHECK(bytes > 0);
  limits.q_len = kQLen - 1;
  CHECK_OK(polyhead_in_cache_plan_create(&limits, rope, NULL, &small));
  CHECK_OK(polyhead_in_cache_workspace_create(small, &little));
  CHECK_REFUSED(polyhead_in_cache_plan_run(small, cache, &call, little),
                "q_len (7) exceeds the plan's limit of 6");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
  CHECK_OK(polyhead_in_cache_plan_run(plan, cache, &call, workspace));
  CHECK(memcmp(rows_out, out, sizeof out) == 0);
  CHECK(memcmp(rows_lse, lse, sizeof lse) == 0);
  poison(out, kOut);
  poison(lse, kRows);
  offsets[kBatch] -= 1;
  offsets[1] = kBatch * kQLen;
  call.q = &ragged_q;
  call.out = &ragged_out;
  call.lse = &ragged_lse;
  call.q_offsets = &offsets_view;
  CHECK_REFUSED(polyhead_in_cache_plan_run(plan, cache, &call, workspace),
                "expected ascending offsets");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
  for (b = 0; b <= kBatch; ++b) offsets[b] = b * kQLen;
  CHECK_OK(polyhead_in_cache_plan_run(plan, cache, &call, workspace));
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
  polyhead_in_cache_arguments in_cache = {
      .struct_bytes = sizeof in_cache, .q = &q_view, .out = &out_view, .lse = &lse_view};
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
  CHECK_OK(polyhead_sliding_cache_mask(cache, &mask));
  expect_call(&call, &mask); /* what a model without rope has */
  poison(out, kOut);
  CHECK_OK(polyhead_sliding_cache_attend_in_cache(cache, NULL, &in_cache, NULL));
  CHECK(memcmp(out, expected, sizeof expected) == 0);
  poison(out, kOut);
  CHECK_REFUSED(polyhead_sliding_cache_attend_in_cache(cache, &rope, &in_cache, NULL), "pairing");
  CHECK_REFUSED(
      (in_cache.q = NULL, polyhead_sliding_cache_attend_in_cache(cache, &rope, &in_cache, NULL)),
      "q is null");
  in_cache.q = &q_view;
  CHECK(all_poisoned(out, kOut));
  rope.pairing = POLYHEAD_ROPE_HALF_SPLIT;
  CHECK_OK(polyhead_sliding_cache_attend_in_cache(cache, &rope, &in_cache, NULL));
  memcpy(rows_out, out, sizeof out);
  memcpy(rows_lse, lse, sizeof lse);
  check_plan(cache, &rope);
  CHECK_OK(polyhead_apply_rope(&q_view, &positions_view, &rope));
  expect_call(&call, &mask);
  CHECK(memcmp(rows_out, expected, sizeof expected) == 0);
  CHECK(memcmp(rows_lse, expected_lse, sizeof expected_lse) == 0);
  polyhead_sliding_cache_destroy(cache);
}

static void test_values_in_keys(void) {
  polyhead_attention_arguments call = latents_of_call();
  polyhead_sliding_cache_config config = sliding_config();
  polyhead_sliding_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  float keys[kKvLen * kKvHeads * kDim];
  const int64_t extents[3] = {kKvLen, kKvHeads, kDim};
  const polyhead_view to = polyhead_make_view(keys, POLYHEAD_FLOAT32, 3, extents, NULL);
  polyhead_rope_config rope = {.struct_bytes = sizeof rope, .pairing = POLYHEAD_ROPE_HALF_SPLIT};
  const polyhead_in_cache_arguments in_cache = {
      .struct_bytes = sizeof in_cache, .q = &q_view, .out = &out_view};
  config.window = config.chunk = kKvLen;
  config.values_in_keys = 1;
  CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_sliding_cache_append(cache, &k_view, &v_view, NULL), "v is given");
  CHECK_OK(polyhead_sliding_cache_append(cache, &k_view, NULL, NULL));
  CHECK_OK(polyhead_sliding_cache_view(cache, &view));
  check_same(&call, &view);
  CHECK_OK(polyhead_sliding_cache_read(cache, 0, &to, NULL));
  CHECK(memcmp(keys, k, sizeof keys) == 0);
  poison(out, kOut);
  CHECK_REFUSED(polyhead_sliding_cache_attend_in_cache(cache, &rope, &in_cache, NULL),
                "values_in_keys");
  CHECK(all_poisoned(out, kOut));
  CHECK_OK(polyhead_sliding_cache_attend_in_cache(cache, NULL, &in_cache, NULL));
  polyhead_sliding_cache_destroy(cache);
}

int main(void) {
  test_sliding();
  test_written_over();
  test_positions_in_the_cache();
  test_values_in_keys();
  remove(FILE_NAME);
  return test_failures != 0;
}
