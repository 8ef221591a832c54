/* The C door from C: ragged batches, statistics, merging, looking inside; plans and executors. */
#include "c_case.h"

/* ---- Other outputs and inputs ---- */

static void test_statistics(void) {
  static float entropy[kRows], max_weight[kRows];
  static int64_t max_key[kRows];
  const int64_t extents[3] = {kBatch, kQLen, kQHeads};
  const polyhead_view entropy_view = polyhead_make_view(entropy, POLYHEAD_FLOAT32, 3, extents, 0);
  const polyhead_view weight_view = polyhead_make_view(max_weight, POLYHEAD_FLOAT32, 3, extents, 0);
  const polyhead_view key_view = polyhead_make_view(max_key, POLYHEAD_INT64, 3, extents, 0);
  polyhead_attention_arguments call = arguments_of_call();
  const Meaning meaning = {NULL, NULL, NULL};
  double weights[kKvLen];
  int row;
  call.entropy = &entropy_view;
  call.max_weight = &weight_view;
  call.max_key = &key_view;
  check_call("with statistics", &call, &meaning);
  for (row = 0; row < kRows; ++row) {
    double expected = 0;
    int key, best = 0;
    weights_of(pair_of_row(row), &meaning, weights);
    for (key = 0; key < kKvLen; ++key) {
      expected -= weights[key] * log(weights[key]);
      if (weights[key] > weights[best]) best = key;
    }
    /* The entropy sums kKvLen terms w ln w, each with the relative error of a weight, and ln N < 4.
     */
    CHECK(fabs((double)entropy[row] - expected) <= 4 * kTolerance);
    CHECK(max_key[row] == best);
    CHECK(fabs((double)max_weight[row] - weights[best]) <= kTolerance);
  }
}

/* Two sequences behind one another give what each gives alone, to the bit. */
static void test_ragged(void) {
  static float alone[kOut];
  const int64_t q_offsets_data[3] = {0, kQLen, 2 * kQLen};
  const int32_t kv_offsets_data[3] = {0, kKvLen, 2 * kKvLen};
  const int64_t offsets_extent[1] = {3};
  const polyhead_view q_offsets =
      polyhead_make_view(q_offsets_data, POLYHEAD_INT64, 1, offsets_extent, NULL);
  const polyhead_view kv_offsets =
      polyhead_make_view(kv_offsets_data, POLYHEAD_INT32, 1, offsets_extent, NULL);
  const int64_t q_extents[3] = {kBatch * kQLen, kQHeads, kDim};
  const int64_t k_extents[3] = {kBatch * kKvLen, kKvHeads, kDim};
  const int64_t v_extents[3] = {kBatch * kKvLen, kKvHeads, kValueDim};
  const int64_t out_extents[3] = {kBatch * kQLen, kQHeads, kValueDim};
  polyhead_attention_arguments call = arguments_of_call();
  CHECK_OK(polyhead_attention(&call, NULL));
  memcpy(alone, out, sizeof out);
  call = arguments_of_call();
  q_view = polyhead_make_view(q, POLYHEAD_FLOAT32, 3, q_extents, NULL);
  k_view = polyhead_make_view(k, POLYHEAD_FLOAT32, 3, k_extents, NULL);
  v_view = polyhead_make_view(v, POLYHEAD_FLOAT32, 3, v_extents, NULL);
  out_view = polyhead_make_view(out, POLYHEAD_FLOAT32, 3, out_extents, NULL);
  lse_view = polyhead_make_view(lse, POLYHEAD_FLOAT32, 2, out_extents, NULL);
  call.q_offsets = &q_offsets;
  call.kv_offsets = &kv_offsets;
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK(memcmp(alone, out, sizeof out) == 0);
}

/* Keys in two parts, merged, are the whole. */
static void test_merge(void) {
  static float whole[kOut], parts[2 * kOut], part_lses[2 * kRows], merged_lse[kRows];
  const int64_t outs_extents[5] = {2, kBatch, kQLen, kQHeads, kValueDim};
  const int64_t lses_extents[4] = {2, kBatch, kQLen, kQHeads};
  const polyhead_view outs = polyhead_make_view(parts, POLYHEAD_FLOAT32, 5, outs_extents, NULL);
  const polyhead_view lses = polyhead_make_view(part_lses, POLYHEAD_FLOAT32, 4, lses_extents, NULL);
  polyhead_merge_arguments merge = {.struct_bytes = sizeof merge};
  polyhead_attention_arguments call = arguments_of_call();
  const int split = 20;
  CHECK_OK(polyhead_attention(&call, NULL));
  memcpy(whole, out, sizeof out);
  memcpy(merged_lse, lse, sizeof lse);

  k_view.extents[1] = v_view.extents[1] = split;
  out_view.data = parts;
  lse_view.data = part_lses;
  CHECK_OK(polyhead_attention(&call, NULL));
  k_view.data = k + split * kKvHeads * kDim;
  v_view.data = v + split * kKvHeads * kValueDim;
  k_view.extents[1] = v_view.extents[1] = kKvLen - split;
  out_view.data = parts + kOut;
  lse_view.data = part_lses + kRows;
  CHECK_OK(polyhead_attention(&call, NULL));

  poison(out, kOut);
  out_view.data = out;
  lse_view.data = lse;
  merge.outs = &outs;
  merge.lses = &lses;
  merge.out = &out_view;
  merge.lse = &lse_view;
  CHECK_OK(polyhead_merge_partials(&merge, NULL));
  CHECK(largest_difference(out, whole, kOut) <= 2 * kTolerance);
  CHECK(largest_difference(lse, merged_lse, kRows) <= 2 * kTolerance);

  CHECK_OK(polyhead_lse_to_base2(&lse_view));
  CHECK(fabs(lse[0] * 0.6931471805599453 - merged_lse[0]) <= 2 * kTolerance);
  CHECK_OK(polyhead_lse_from_base2(&lse_view));
  CHECK(largest_difference(lse, merged_lse, kRows) <= 2 * kTolerance);
  CHECK_REFUSED(polyhead_lse_to_base2(NULL), "lse is null");
  CHECK_REFUSED(polyhead_lse_from_base2(NULL), "lse is null");
}

static int causal_end(Pair at) { return at.key <= kKvLen - kQLen + at.query; }

static void test_inspect(void) {
  enum { kHeads = 2, kQueries = 3, kFirst = 2 };
  static float weights[kBatch * kHeads * kQueries * kKvLen];
  const int64_t extents[4] = {kBatch, kHeads, kQueries, kKvLen};
  const int64_t heads_extent[1] = {kHeads};
  const int32_t heads_data[kHeads] = {3, 1};
  const polyhead_view view = polyhead_make_view(weights, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view heads = polyhead_make_view(heads_data, POLYHEAD_INT32, 1, heads_extent, NULL);
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_inspect_arguments wanted = {.struct_bytes = sizeof wanted};
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  const Meaning meaning = {causal_end, NULL, NULL};
  double expected[kKvLen];
  double worst = 0;
  int i, key;
  mask.causal = 1;
  mask.align = POLYHEAD_ALIGN_END;
  call.mask = &mask;
  check_call("before inspect", &call, &meaning);
  poison(weights, kBatch * kHeads * kQueries * kKvLen);
  wanted.weights = &view;
  wanted.heads = &heads;
  wanted.first_query = kFirst;
  CHECK_OK(polyhead_inspect(&call, &wanted, NULL));
  for (i = 0; i < kBatch * kHeads * kQueries; ++i) {
    const Pair at = {i / (kHeads * kQueries), heads_data[i / kQueries % kHeads],
                     kFirst + i % kQueries, 0};
    weights_of(at, &meaning, expected);
    for (key = 0; key < kKvLen; ++key) {
      add_difference(&worst, (double)weights[i * kKvLen + key], expected[key]);
    }
  }
  CHECK(worst <= kTolerance);
}

/* ---- Plans, executors, threads ---- */

static int32_t run_backwards(void* context, int32_t count, polyhead_task task, void* task_context) {
  ++*(int*)context;
  while (count > 0) task(task_context, --count);
  return 0;
}

static int32_t run_nothing(void* context, int32_t count, polyhead_task task, void* task_context) {
  (void)context;
  (void)count;
  (void)task;
  (void)task_context;
  return 5;
}

static void test_executors(void) {
  static float expected[kOut];
  int runs = 0;
  const polyhead_executor_callbacks mine = {sizeof mine, &runs, 3, run_backwards};
  const polyhead_executor_callbacks failing = {sizeof failing, NULL, 2, run_nothing};
  polyhead_executor* executor = NULL;
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_options options = {.struct_bytes = sizeof options};
  options.threads = 1;
  CHECK_OK(polyhead_attention(&call, &options));
  memcpy(expected, out, sizeof out);

  poison(out, kOut);
  options.threads = 0;
  CHECK_OK(polyhead_executor_create(&mine, &executor));
  options.executor = executor;
  CHECK_OK(polyhead_attention(&call, &options));
  CHECK(memcmp(expected, out, sizeof out) == 0);
  polyhead_executor_destroy(executor);

  poison(out, kOut);
  CHECK_OK(polyhead_executor_create_pool(2, &executor));
  options.executor = executor;
  CHECK_OK(polyhead_attention(&call, &options));
  CHECK(memcmp(expected, out, sizeof out) == 0);
  polyhead_executor_destroy(executor);

  /* A pool may be left alone by a small call; a failing one must be told of where it is used. */
  CHECK_OK(polyhead_executor_create(&failing, &executor));
  options.executor = executor;
  poison(out, kOut);
  if (polyhead_attention(&call, &options) == POLYHEAD_OK) {
    CHECK(memcmp(expected, out, sizeof out) == 0);
  } else {
    CHECK(strstr(polyhead_last_error(), "returned 5") != NULL);
  }
  polyhead_executor_destroy(executor);
  polyhead_executor_destroy(NULL);
}

static void test_plan(void) {
  static float expected[kOut];
  const polyhead_limits limits = limits_of_call();
  polyhead_plan* plan = NULL;
  polyhead_workspace* workspace = NULL;
  size_t needed = 0, bytes = 0;
  char text[4096], start[8];
  polyhead_attention_arguments call = arguments_of_call();
  CHECK_OK(polyhead_attention(&call, NULL));
  memcpy(expected, out, sizeof out);

  CHECK_OK(polyhead_plan_create(&limits, NULL, &plan));
  CHECK_OK(polyhead_workspace_create(plan, &workspace));
  CHECK_OK(polyhead_workspace_bytes(workspace, &bytes));
  poison(out, kOut);
  CHECK_OK(polyhead_plan_run(plan, &call, workspace));
  CHECK(memcmp(expected, out, sizeof out) == 0);

  CHECK_OK(polyhead_plan_describe(plan, NULL, NULL, 0, &needed));
  CHECK(needed > 1 && needed <= sizeof text);
  CHECK_OK(polyhead_plan_describe(plan, NULL, text, sizeof text, NULL));
  CHECK(strlen(text) + 1 == needed);
  CHECK_OK(polyhead_plan_describe(plan, NULL, start, sizeof start, NULL));
  CHECK(strlen(start) == sizeof start - 1 && strncmp(start, text, sizeof start - 1) == 0);
  CHECK_OK(polyhead_plan_describe(plan, &call, text, sizeof text, &needed));

  poison(out, kOut);
  CHECK_REFUSED(polyhead_plan_run(plan, &call, NULL), "workspace is null");
  CHECK_REFUSED(polyhead_plan_run(NULL, &call, workspace), "plan is null");
  CHECK_REFUSED(polyhead_plan_describe(plan, NULL, NULL, 3, NULL), "text is null");
  CHECK(all_poisoned(out, kOut));
  polyhead_workspace_destroy(workspace);
  polyhead_plan_destroy(plan);
  polyhead_workspace_destroy(NULL);
  polyhead_plan_destroy(NULL);
}

static void test_instruction_sets(void) {
  static float expected[kOut];
  polyhead_options options = {.struct_bytes = sizeof options};
  polyhead_attention_arguments call = arguments_of_call();
  int32_t isa = -1;
  CHECK_OK(polyhead_resolve_isa(POLYHEAD_ISA_AUTOMATIC, &isa));
  CHECK(isa > POLYHEAD_ISA_AUTOMATIC && isa <= POLYHEAD_ISA_AMX_BF16);
  CHECK(strcmp(polyhead_isa_name(POLYHEAD_ISA_PORTABLE), "portable") == 0);
  CHECK(polyhead_isa_name(99) == NULL && polyhead_isa_name(-1) == NULL);
  options.isa = POLYHEAD_ISA_PORTABLE;
  CHECK_OK(polyhead_attention(&call, &options));
  memcpy(expected, out, sizeof out);
  for (isa = POLYHEAD_ISA_AVX2; isa <= POLYHEAD_ISA_AMX_BF16; ++isa) {
    int32_t resolved = -7;
    if (polyhead_resolve_isa(isa, &resolved) != POLYHEAD_OK) {
      CHECK(resolved == -7); /* this machine lacks it */
      continue;
    }
    CHECK(resolved == isa);
    options.isa = isa;
    CHECK_OK(polyhead_attention(&call, &options));
    CHECK(largest_difference(out, expected, kOut) <= 2 * kTolerance);
  }
}

int main(void) {
  test_statistics();
  test_ragged();
  test_merge();
  test_inspect();
  test_executors();
  test_plan();
  test_instruction_sets();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
