/* The C door from C: every way to be refused. */
#include "c_case.h"

static int32_t run_nothing(void* context, int32_t count, polyhead_task task, void* task_context) {
  (void)context;
  (void)count;
  (void)task;
  (void)task_context;
  return 5;
}

/* ---- Refusals: a status, a message, nothing written ---- */

static void test_bad_structs(void) {
  struct {
    polyhead_mask mask;
    int64_t newer_field;
  } newer = {.mask = {.struct_bytes = sizeof newer}, .newer_field = 0};
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  polyhead_modifiers modifiers = {.struct_bytes = 0};
  polyhead_options options = {.struct_bytes = sizeof options + 100000};
  CHECK_REFUSED(polyhead_attention(NULL, NULL), "arguments is null");
  call.struct_bytes = 8;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "arguments.struct_bytes (8)");
  call.struct_bytes = sizeof call;
  CHECK_REFUSED(polyhead_attention(&call, &options), "options.struct_bytes");
  call.modifiers = &modifiers;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "modifiers.struct_bytes (0)");
  call.modifiers = NULL;
  q_view.struct_bytes = 0;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "q.struct_bytes (0)");
  q_view.struct_bytes = sizeof q_view;
  mask.struct_bytes = 12;
  call.mask = &mask;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "mask.struct_bytes (12)");
  mask.struct_bytes = sizeof mask - 3; /* within its last pointer */
  CHECK_REFUSED(polyhead_attention(&call, NULL), "is not the size of its struct");
  mask.struct_bytes = sizeof mask;

  /* A program built against a later header: fine while it leaves what is new at zero. */
  call.mask = &newer.mask;
  newer.newer_field = 1;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "does not know");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
  newer.newer_field = 0;
  CHECK_OK(polyhead_attention(&call, NULL));
}

static void test_bad_values(void) {
  polyhead_attention_arguments call = arguments_of_call();
  polyhead_mask mask = {.struct_bytes = sizeof mask};
  polyhead_modifiers modifiers = {.struct_bytes = sizeof modifiers};
  polyhead_tile_modifier no_function = {.struct_bytes = sizeof no_function};
  polyhead_options options = {.struct_bytes = sizeof options};
  CHECK_REFUSED((call.q = NULL, polyhead_attention(&call, NULL)), "q");
  call.q = &q_view;
  CHECK_REFUSED((call.out = NULL, polyhead_attention(&call, NULL)), "out");
  call.out = &out_view;
  CHECK_REFUSED((q_view.element_type = 0, polyhead_attention(&call, NULL)), "q (0)");
  CHECK_REFUSED((q_view.element_type = 99, polyhead_attention(&call, NULL)), "q (99)");
  q_view.element_type = POLYHEAD_FLOAT32;
  CHECK_REFUSED((k_view.axes = 0, polyhead_attention(&call, NULL)), "k has 0 axes");
  CHECK_REFUSED((k_view.axes = 9, polyhead_attention(&call, NULL)), "k has 9 axes");
  k_view.axes = 4;
  CHECK_REFUSED((v_view.data = NULL, polyhead_attention(&call, NULL)), "v");
  v_view.data = v;
  CHECK_REFUSED((out_view.extents[3] = kDim + 1, polyhead_attention(&call, NULL)), "out");
  out_view.extents[3] = kValueDim;
  CHECK_REFUSED((q_view.extents[2] = 3, polyhead_attention(&call, NULL)), "heads");
  q_view.extents[2] = kQHeads;

  call.mask = &mask;
  mask.causal = 1;
  CHECK_REFUSED(polyhead_attention(&call, NULL),
                "expected POLYHEAD_ALIGN_END, POLYHEAD_ALIGN_START");
  CHECK_REFUSED((mask.align = 3, polyhead_attention(&call, NULL)), "mask.align (3)");
  mask.align = POLYHEAD_ALIGN_END;
  CHECK_REFUSED((mask.causal = 2, polyhead_attention(&call, NULL)), "mask.causal (2)");
  mask.causal = 1;
  CHECK_REFUSED((mask.reserved = 1, polyhead_attention(&call, NULL)), "reserved");
  mask.reserved = 0;
  CHECK_REFUSED((mask.left = 1, polyhead_attention(&call, NULL)), "mask.left (1) is of a window");
  CHECK_REFUSED((mask.left = -5, polyhead_attention(&call, NULL)), "mask.left (-5)");
  mask.left = 0;
  CHECK_REFUSED((mask.right = 2, polyhead_attention(&call, NULL)), "mask.right (2)");
  mask.right = 0;
  mask.windowed = 1;
  CHECK_REFUSED((mask.left = -2, polyhead_attention(&call, NULL)), "-2");
  call.mask = NULL;

  call.modifiers = &modifiers;
  modifiers.scale_given = 1;
  CHECK_REFUSED((modifiers.scale = NAN, polyhead_attention(&call, NULL)), "scale");
  modifiers.scale_given = 0;
  CHECK_REFUSED((modifiers.scale = 3, polyhead_attention(&call, NULL)),
                "modifiers.scale (3) is given without modifiers.scale_given");
  modifiers.scale = 0;
  CHECK_REFUSED((modifiers.dropout = 1.0f, polyhead_attention(&call, NULL)),
                "modifiers.dropout (1)");
  modifiers.dropout = 0;
  modifiers.custom[1] = &no_function;
  CHECK_REFUSED(polyhead_attention(&call, NULL), "apply is null");
  call.modifiers = NULL;

  CHECK_REFUSED((options.isa = 77, polyhead_attention(&call, &options)), "isa (77)");
  options.isa = 0;
  CHECK_REFUSED((options.threads = -1, polyhead_attention(&call, &options)), "threads");
  CHECK(all_poisoned(out, kOut) && all_poisoned(lse, kRows));
}

static void test_bad_handles(void) {
  polyhead_limits limits = limits_of_call();
  polyhead_executor_callbacks callbacks = {.struct_bytes = sizeof callbacks};
  polyhead_executor* const mark = (polyhead_executor*)(void*)&callbacks;
  polyhead_executor* executor = mark;
  polyhead_plan* plan = (polyhead_plan*)(void*)&callbacks;
  polyhead_merge_arguments merge = {.struct_bytes = sizeof merge};
  polyhead_inspect_arguments wanted = {.struct_bytes = sizeof wanted};
  polyhead_attention_arguments call = arguments_of_call();
  CHECK_REFUSED(polyhead_executor_create(&callbacks, &executor), "run is null");
  callbacks.run = run_nothing;
  CHECK_REFUSED(polyhead_executor_create(&callbacks, &executor), "concurrency (0)");
  CHECK_REFUSED(polyhead_executor_create(NULL, &executor), "callbacks is null");
  CHECK_REFUSED(polyhead_executor_create_pool(0, &executor), "threads");
  CHECK_REFUSED(polyhead_executor_create_pool(1, NULL), "executor is null");
  CHECK(executor == mark);
  CHECK_REFUSED(polyhead_plan_create(&limits, NULL, NULL), "plan is null");
  CHECK_REFUSED((limits.q_type = 0, polyhead_plan_create(&limits, NULL, &plan)), "q_type (0)");
  limits.q_type = POLYHEAD_FLOAT32;
  CHECK_REFUSED((limits.v_type = 77, polyhead_plan_create(&limits, NULL, &plan)), "v_type (77)");
  CHECK_REFUSED((limits.v_type = POLYHEAD_INT8, polyhead_plan_create(&limits, NULL, &plan)),
                "v_type is int8");
  limits.v_type = 0;
  CHECK_REFUSED((limits.head_dim = -1, polyhead_plan_create(&limits, NULL, &plan)), "head_dim");
  CHECK(plan == (polyhead_plan*)(void*)&callbacks);
  CHECK_REFUSED(polyhead_resolve_isa(12, &(int32_t){0}), "isa (12)");
  CHECK_REFUSED(polyhead_resolve_isa(0, NULL), "resolved is null");
  CHECK_REFUSED(polyhead_merge_partials(NULL, NULL), "arguments is null");
  CHECK_REFUSED(polyhead_merge_partials(&merge, NULL), "outs");
  CHECK_REFUSED(polyhead_inspect(NULL, &wanted, NULL), "arguments is null");
  CHECK_REFUSED(polyhead_inspect(&call, NULL, NULL), "wanted is null");
  CHECK_REFUSED((call.lse = NULL, polyhead_inspect(&call, &wanted, NULL)), "inspect");
}

int main(void) {
  CHECK(strcmp(polyhead_last_error(), "") == 0);
  CHECK(strchr(polyhead_version(), '.') != NULL);
  test_bad_structs();
  test_bad_values();
  test_bad_handles();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
