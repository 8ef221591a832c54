/* The C door to looking inside: a traced row against attention's output and its own steps, of a
 * call and of a layer; what heads did, against the weights of a second pass; and every way to be
 * refused. */
#include "polyhead/polyhead_inspect_c.h"

#include "c_check.h"

enum {
  kTokens = 21,
  kHeads = 4,
  kKvHeads = 2,
  kDim = 8,
  kModel = kHeads * kDim,
  kQ = kTokens * kModel,
  kKv = kTokens * kKvHeads * kDim,
  kRows = kTokens * kHeads,
  kBins = 5
};

static float q[kQ], k[kKv], v[kKv], out[kQ], lse[kRows], w_o[kModel * kModel], b_o[kModel];
static float weights[kHeads * kTokens * kTokens];

static const int64_t q_extents[4] = {1, kTokens, kHeads, kDim};
static const int64_t kv_extents[4] = {1, kTokens, kKvHeads, kDim};
static const int64_t lse_extents[3] = {1, kTokens, kHeads};

/* A causal call over random numbers, made once: its out, lse and exact weights. */
static polyhead_view q_view, k_view, v_view, out_view, lse_view;
static polyhead_mask mask;
static polyhead_attention_arguments call;

static void make_call(void) {
  const int64_t weights_extents[4] = {1, kHeads, kTokens, kTokens};
  const polyhead_view weights_view =
      polyhead_make_view(weights, POLYHEAD_FLOAT32, 4, weights_extents, NULL);
  const polyhead_inspect_arguments wanted = {.struct_bytes = sizeof wanted,
                                             .weights = &weights_view};
  fill_random(q, kQ, 1);
  fill_random(k, kKv, 2);
  fill_random(v, kKv, 3);
  fill_random(w_o, kModel * kModel, 4);
  fill_random(b_o, kModel, 5);
  q_view = polyhead_make_view(q, POLYHEAD_FLOAT32, 4, q_extents, NULL);
  k_view = polyhead_make_view(k, POLYHEAD_FLOAT32, 4, kv_extents, NULL);
  v_view = polyhead_make_view(v, POLYHEAD_FLOAT32, 4, kv_extents, NULL);
  out_view = polyhead_make_view(out, POLYHEAD_FLOAT32, 4, q_extents, NULL);
  lse_view = polyhead_make_view(lse, POLYHEAD_FLOAT32, 3, lse_extents, NULL);
  mask = (polyhead_mask){.struct_bytes = sizeof mask, .causal = 1, .align = POLYHEAD_ALIGN_END};
  call = (polyhead_attention_arguments){.struct_bytes = sizeof call,
                                        .q = &q_view,
                                        .k = &k_view,
                                        .v = &v_view,
                                        .out = &out_view,
                                        .mask = &mask,
                                        .lse = &lse_view};
  CHECK_OK(polyhead_attention(&call, NULL));
  CHECK_OK(polyhead_inspect(&call, &wanted, NULL));
}

/* ---- Traces ---- */

/* One head's steps follow from each other, and from what the call was given. */
static void check_head(const polyhead_trace_head* head, const polyhead_trace_row* row) {
  const int64_t h = head->head;
  int64_t key, d;
  double total = 0.0;
  CHECK(head->kv_head == h / (kHeads / kKvHeads));
  CHECK(head->head_dim == kDim && head->value_dim == kDim && head->has_sink == 0);
  for (d = 0; d < kDim; ++d) CHECK(head->q[d] == q[(row->query * kHeads + h) * kDim + d]);
  for (key = 0; key < row->kv_len; ++key) {
    const int64_t at = (key * kKvHeads + head->kv_head) * kDim;
    const int seen = key <= row->query;
    double product = 0.0;
    for (d = 0; d < kDim; ++d) {
      CHECK(head->k[key * kDim + d] == k[at + d] && head->v[key * kDim + d] == v[at + d]);
      product += head->q[d] * head->k[key * kDim + d];
    }
    CHECK(head->products[key] == product && head->scaled[key] == row->scale * product);
    CHECK(head->modified[key] == head->scaled[key] && head->visible[key] == seen);
    CHECK(head->masked[key] == (seen ? head->modified[key] : -INFINITY));
    CHECK(head->weights[key] == head->dropped[key]);
    CHECK(fabs(head->weights[key] - (seen ? exp(head->masked[key] - head->lse) : 0.0)) < 1e-12);
    CHECK(fabs(head->weights[key] - weights[(h * kTokens + row->query) * kTokens + key]) < 1e-6);
    total += head->weights[key];
  }
  CHECK(fabs(total - 1.0) < 1e-12);
  CHECK(fabs(head->lse - lse[row->query * kHeads + h]) < 1e-5);
  for (d = 0; d < kDim; ++d) {
    CHECK(head->output[d] == row->concatenated[h * kDim + d]);
    CHECK(fabs(head->output[d] - out[(row->query * kHeads + h) * kDim + d]) < 1e-6);
  }
}

static void test_trace(void) {
  const polyhead_view w_o_view = matrix(w_o, kModel, kModel), b_o_view = vector(b_o, kModel);
  polyhead_explain_row which = {.struct_bytes = sizeof which, .query = 13};
  polyhead_trace_row row = {.struct_bytes = sizeof row};
  polyhead_trace_head head = {.struct_bytes = sizeof head};
  polyhead_trace* trace = NULL;
  int64_t i, j;
  CHECK_OK(polyhead_explain(&call, &which, &w_o_view, &b_o_view, &trace));
  CHECK_OK(polyhead_trace_get_row(trace, &row));
  CHECK(row.batch == 0 && row.query == 13 && row.q_pos == 13 && row.kv_len == kTokens);
  CHECK(row.heads == kHeads && row.concatenated_count == kModel && row.projected_count == kModel);
  CHECK(row.input == NULL && row.input_count == 0);
  for (i = 0; i < kHeads; ++i) {
    CHECK_OK(polyhead_trace_get_head(trace, i, &head));
    CHECK(head.head == i);
    check_head(&head, &row);
  }
  for (i = 0; i < kModel; ++i) {
    double expected = b_o[i];
    for (j = 0; j < kModel; ++j) expected += w_o[i * kModel + j] * row.concatenated[j];
    CHECK(fabs(row.projected[i] - expected) < 1e-12);
  }
  CHECK_REFUSED(polyhead_trace_get_head(trace, kHeads, &head), "index (4) is not within 0 .. 3");
  CHECK_REFUSED(polyhead_trace_get_head(trace, -1, &head), "index (-1)");
  CHECK_REFUSED(polyhead_trace_get_head(trace, 0, NULL), "head is null");
  CHECK_REFUSED(polyhead_trace_get_head(NULL, 0, &head), "trace is null");
  CHECK_REFUSED(polyhead_trace_get_row(trace, NULL), "row is null");
  row.struct_bytes = 8;
  CHECK_REFUSED(polyhead_trace_get_row(trace, &row), "row.struct_bytes (8)");
  polyhead_trace_destroy(trace);

  row.struct_bytes = sizeof row;
  which.one_head = 1;
  which.head = 2;
  CHECK_OK(polyhead_explain(&call, &which, NULL, NULL, &trace));
  CHECK_OK(polyhead_trace_get_row(trace, &row));
  CHECK(row.heads == 1 && row.projected == NULL && row.concatenated_count == kModel);
  CHECK_OK(polyhead_trace_get_head(trace, 0, &head));
  CHECK(head.head == 2);
  check_head(&head, &row);
  polyhead_trace_destroy(trace);
  polyhead_trace_destroy(NULL);
}

static void test_trace_refusals(void) {
  polyhead_explain_row which = {.struct_bytes = sizeof which, .query = kTokens};
  polyhead_trace* trace = NULL;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace), "query (21)");
  which.query = 0;
  which.head = 1;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace),
                "row.head (1) is given without row.one_head");
  which.one_head = 1;
  which.head = -1;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace), "row.head (-1) is negative");
  which.head = kHeads;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace),
                "row.head (4) is not below q_heads (4)");
  which.one_head = 7;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace), "row.one_head (7)");
  which.one_head = 0;
  which.head = 0;
  which.reserved = 1;
  CHECK_REFUSED(polyhead_explain(&call, &which, NULL, NULL, &trace), "row.reserved (1)");
  CHECK_REFUSED(polyhead_explain(NULL, NULL, NULL, NULL, &trace), "is null");
  CHECK_REFUSED(polyhead_explain(&call, NULL, NULL, NULL, NULL), "trace is null");
  CHECK(trace == NULL);
}

/* A layer's row, in which `of` says which of its calls made it, comes to y. */
static void check_layer_row(polyhead_trace* trace, const float* x, const float* y) {
  polyhead_trace_row row = {.struct_bytes = sizeof row};
  int64_t i;
  CHECK_OK(polyhead_trace_get_row(trace, &row));
  CHECK(row.projected_count == kModel && row.input_count == kModel);
  for (i = 0; i < row.projected_count; ++i) {
    CHECK(row.input[i] == x[row.query * kModel + i]);
    CHECK(fabs(row.projected[i] - y[row.query * kModel + i]) < 1e-4);
  }
  polyhead_trace_destroy(trace);
}

static void test_layer(void) {
  static float w_qkv[(kHeads + 2 * kKvHeads) * kDim * kModel], x[kQ], y[kQ];
  const polyhead_view w_qkv_view = matrix(w_qkv, (kHeads + 2 * kKvHeads) * kDim, kModel);
  const polyhead_view w_o_view = matrix(w_o, kModel, kModel);
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  const polyhead_layer_weights of = {
      .struct_bytes = sizeof of, .w_qkv = &w_qkv_view, .w_o = &w_o_view};
  const polyhead_layer_config config = {.struct_bytes = sizeof config,
                                        .model_dim = kModel,
                                        .q_heads = kHeads,
                                        .kv_heads = kKvHeads,
                                        .mask = &mask};
  const polyhead_explain_row which = {.struct_bytes = sizeof which, .query = 9};
  polyhead_kv_view kv = {.struct_bytes = sizeof kv};
  polyhead_layer* layer = NULL;
  polyhead_kv_cache* cache = NULL;
  polyhead_trace* trace = NULL;
  fill_random(w_qkv, (kHeads + 2 * kKvHeads) * kDim * kModel, 6);
  fill_random(x, kQ, 7);
  CHECK_OK(polyhead_layer_create(&config, &of, NULL, &layer));
  CHECK_OK(polyhead_layer_cache_create(layer, 1, kTokens, 0, 0, &cache));
  CHECK_OK(polyhead_layer_forward_cached(layer, &x_view, cache, &y_view, NULL));
  CHECK_OK(polyhead_layer_explain(layer, &x_view, &which, NULL, &trace));
  check_layer_row(trace, x, y);
  CHECK_OK(polyhead_kv_cache_view(cache, &kv));
  CHECK_OK(polyhead_layer_explain_view(layer, &x_view, &kv, &which, NULL, &trace));
  check_layer_row(trace, x, y);
  CHECK_OK(polyhead_layer_forward_cross(layer, &x_view, &x_view, &y_view, NULL));
  CHECK_OK(polyhead_layer_explain_cross(layer, &x_view, &x_view, &which, NULL, &trace));
  check_layer_row(trace, x, y);

  trace = NULL;
  CHECK_REFUSED(polyhead_layer_explain(NULL, &x_view, NULL, NULL, &trace), "layer is null");
  CHECK_REFUSED(polyhead_layer_explain(layer, NULL, NULL, NULL, &trace), "x");
  CHECK_REFUSED(polyhead_layer_explain(layer, &x_view, NULL, NULL, NULL), "trace is null");
  CHECK_REFUSED(polyhead_layer_explain_cross(NULL, &x_view, &x_view, NULL, NULL, &trace),
                "layer is null");
  CHECK_REFUSED(polyhead_layer_explain_cross(layer, &x_view, NULL, NULL, NULL, &trace), "context");
  CHECK_REFUSED(polyhead_layer_explain_view(NULL, &x_view, &kv, NULL, NULL, &trace),
                "layer is null");
  CHECK_REFUSED(polyhead_layer_explain_view(layer, &x_view, NULL, NULL, NULL, &trace),
                "kv is null");
  CHECK(trace == NULL);
  polyhead_kv_cache_destroy(cache);
  polyhead_layer_destroy(layer);
}

/* ---- Heads ---- */

static polyhead_head_study study_of(const int32_t* tokens, const uint8_t* delimiters) {
  polyhead_head_study study = {.struct_bytes = sizeof study,
                               .q_heads = kHeads,
                               .q_len = kTokens,
                               .kv_len = kTokens,
                               .tokens = tokens,
                               .delimiters = delimiters,
                               .maps = 2};
  study.map_q_bins[0] = study.map_kv_bins[0] = kBins;
  study.map_pool[0] = POLYHEAD_POOL_SUM;
  study.map_q_bins[1] = study.map_kv_bins[1] = 1;
  return study;
}

/* What visits brought: full rows of head 1, and of each head how many entries and how much. */
struct seen {
  float full[kTokens * kTokens];
  double mass[kHeads];
  int64_t rows[kHeads];
  int32_t code;
};

static int32_t visit(void* context, const polyhead_head_row_block* block) {
  struct seen* const to = context;
  int64_t r, i;
  if (to->code != 0) return to->code;
  for (r = 0; r < block->rows; ++r) {
    to->mass[block->head] += block->rest[r];
    for (i = block->offsets[r]; i < block->offsets[r + 1]; ++i) {
      to->mass[block->head] += block->weights[i];
      CHECK(block->keys[i] <= block->first_query + r);
    }
    for (i = 0; block->full != NULL && i < block->full_keys; ++i)
      to->full[(block->first_query + r) * kTokens + i] = block->full[r * block->full_keys + i];
  }
  to->rows[block->head] += block->rows;
  CHECK((block->full != NULL) == (block->head == 1));
  return 0;
}

static double at(const polyhead_view* view, int64_t i) { return ((const float*)view->data)[i]; }

static void check_statistics(const polyhead_head_statistics* statistics) {
  int64_t h, i;
  for (h = 0; h < kHeads; ++h) {
    polyhead_head_measures measures = {.struct_bytes = sizeof measures};
    polyhead_view entropy = {.struct_bytes = sizeof entropy}, first = entropy, largest = entropy,
                  largest_key = entropy, received = entropy, map = entropy, one = entropy;
    double sum = 0.0, previous = 0.0, mass = 0.0, most = 0.0;
    CHECK_OK(polyhead_head_statistics_measures(statistics, h, &measures));
    CHECK_OK(
        polyhead_head_statistics_rows(statistics, h, &entropy, &first, &largest, &largest_key));
    CHECK_OK(polyhead_head_statistics_received(statistics, h, &received));
    CHECK_OK(polyhead_head_statistics_map(statistics, h, 0, &map));
    CHECK_OK(polyhead_head_statistics_map(statistics, h, 1, &one));
    CHECK(entropy.extents[0] == kTokens && received.extents[0] == kTokens);
    CHECK(largest_key.element_type == POLYHEAD_INT32 && map.axes == 2);
    CHECK(map.extents[0] == kBins && map.extents[1] == kBins);
    for (i = 0; i < kTokens; ++i) {
      const float* const row = weights + (h * kTokens + i) * kTokens;
      const int32_t top = ((const int32_t*)largest_key.data)[i];
      sum += at(&entropy, i);
      mass += at(&received, i);
      CHECK(fabs(at(&first, i) - row[0]) < 1e-6);
      CHECK(top >= 0 && top <= i && fabs(at(&largest, i) - row[top]) < 1e-6);
      if (i >= 2) previous += row[i - 1]; /* those that see the key and another but key 0 .. */
      if (i == 1) previous += row[0];     /* .. do not matter to the mean */
      if (row[top] > most) most = row[top];
    }
    CHECK(fabs(measures.mean_entropy - sum / kTokens) < 1e-6);
    CHECK(fabs(mass - kTokens) < 1e-4);
    CHECK(measures.targets[POLYHEAD_TARGET_PREVIOUS].rows == kTokens - 1);
    CHECK(fabs(measures.targets[POLYHEAD_TARGET_PREVIOUS].mean - previous / (kTokens - 1)) < 1e-6);
    CHECK(measures.targets[POLYHEAD_TARGET_INDUCTION].rows > 0);
    CHECK(measures.targets[POLYHEAD_TARGET_DELIMITER].rows > 0);
    CHECK(polyhead_head_role_name(measures.role) != NULL);
    CHECK(fabs(at(&one, 0) - most) < 1e-6);
    for (i = 0, mass = 0.0; i < kBins * kBins; ++i) mass += at(&map, i);
    CHECK(fabs(mass - kTokens) < 1e-4);
  }
}

static void test_statistics(void) {
  static int32_t tokens[kTokens];
  static uint8_t delimiters[kTokens];
  static struct seen seen;
  const uint8_t full_heads[kHeads] = {0, 1, 0, 0};
  const polyhead_head_study study = study_of(tokens, delimiters);
  polyhead_head_row_visitor visitor = {.struct_bytes = sizeof visitor,
                                       .visit = visit,
                                       .context = &seen,
                                       .full_heads = full_heads,
                                       .sparse = 1,
                                       .least = 2,
                                       .threshold = 0.2f};
  polyhead_head_statistics* statistics = NULL;
  int64_t i;
  for (i = 0; i < kTokens; ++i) tokens[i] = (int32_t)(i % 6), delimiters[i] = i % 5 == 2;
  CHECK_OK(polyhead_head_statistics_create(&study, &statistics));
  CHECK_OK(polyhead_head_statistics_add(statistics, &call, NULL, &visitor));
  check_statistics(statistics);
  for (i = 0; i < kHeads; ++i) {
    CHECK(seen.rows[i] == kTokens);
    CHECK(fabs(seen.mass[i] - kTokens) < 1e-4);
  }
  for (i = 0; i < kTokens * kTokens; ++i)
    CHECK(fabs(seen.full[i] - weights[kTokens * kTokens + i]) < 1e-6);
  CHECK_REFUSED(polyhead_head_statistics_add(statistics, &call, NULL, NULL), "q_len");
  polyhead_head_statistics_destroy(statistics);

  CHECK_OK(polyhead_head_statistics_create(&study, &statistics));
  visitor.threshold = 0.0f;
  CHECK_REFUSED(polyhead_head_statistics_add(statistics, &call, NULL, &visitor), "threshold");
  visitor.threshold = 0.2f;
  visitor.reserved = 3;
  CHECK_REFUSED(polyhead_head_statistics_add(statistics, &call, NULL, &visitor),
                "visitor.reserved (3)");
  visitor.reserved = 0;
  visitor.visit = NULL;
  CHECK_REFUSED(polyhead_head_statistics_add(statistics, &call, NULL, &visitor),
                "visitor.visit is null");
  visitor.visit = visit;
  seen.code = 5;
  CHECK(polyhead_head_statistics_add(statistics, &call, NULL, &visitor) ==
        POLYHEAD_CALLBACK_FAILED);
  CHECK(strstr(polyhead_last_error(), "a row visitor returned 5, expected 0") != NULL);
  polyhead_head_statistics_destroy(statistics);
  polyhead_head_statistics_destroy(NULL);
}

static void test_statistics_refusals(void) {
  polyhead_head_study study = study_of(NULL, NULL);
  polyhead_head_statistics* statistics = NULL;
  polyhead_head_measures measures = {.struct_bytes = sizeof measures};
  polyhead_view view = {.struct_bytes = sizeof view}, other = view;
  study.maps = 5;
  CHECK_REFUSED(polyhead_head_statistics_create(&study, &statistics),
                "study.maps (5) is not within 0 .. 4");
  study.maps = 1;
  study.map_q_bins[0] = 0;
  CHECK_REFUSED(polyhead_head_statistics_create(&study, &statistics), "map_q_bins and map_kv_bins");
  study.map_q_bins[0] = study.map_kv_bins[0] = 1;
  study.map_pool[0] = 2;
  CHECK_REFUSED(polyhead_head_statistics_create(&study, &statistics), "study.map_pool (2)");
  study.map_pool[0] = POLYHEAD_POOL_MAXIMUM;
  study.kv_len = -1;
  CHECK_REFUSED(polyhead_head_statistics_create(&study, &statistics), "kv_len (-1)");
  study.kv_len = kTokens;
  study.without_rows = 2;
  CHECK_REFUSED(polyhead_head_statistics_create(&study, &statistics), "study.without_rows (2)");
  CHECK_REFUSED(polyhead_head_statistics_create(NULL, &statistics), "study is null");
  CHECK_REFUSED(polyhead_head_statistics_create(&study, NULL), "statistics is null");
  CHECK(statistics == NULL);
  study.without_rows = study.without_received = 1;
  CHECK_OK(polyhead_head_statistics_create(&study, &statistics));
  CHECK_OK(polyhead_head_statistics_received(statistics, 0, &view));
  CHECK(view.data == NULL && view.extents[0] == 0);
  CHECK_REFUSED(polyhead_head_statistics_received(statistics, kHeads, &view), "head (4)");
  CHECK_REFUSED(polyhead_head_statistics_received(statistics, 0, NULL), "received is null");
  CHECK_REFUSED(polyhead_head_statistics_map(statistics, 0, 1, &view), "map (1)");
  CHECK_REFUSED(polyhead_head_statistics_rows(statistics, 0, &view, &other, &view, NULL),
                "largest_key is null");
  CHECK_REFUSED(polyhead_head_statistics_measures(statistics, -1, &measures), "head (-1)");
  measures.struct_bytes = 0;
  CHECK_REFUSED(polyhead_head_statistics_measures(statistics, 0, &measures),
                "measures.struct_bytes (0)");
  CHECK_REFUSED(polyhead_head_statistics_measures(NULL, 0, &measures), "statistics is null");
  CHECK_REFUSED(polyhead_head_statistics_add(NULL, &call, NULL, NULL), "statistics is null");
  polyhead_head_statistics_destroy(statistics);
  CHECK(strcmp(polyhead_head_role_name(POLYHEAD_ROLE_BROAD), "broad") == 0);
  CHECK(strcmp(polyhead_head_target_name(POLYHEAD_TARGET_DELIMITER), "delimiter") == 0);
  CHECK(polyhead_head_role_name(9) == NULL && polyhead_head_target_name(-1) == NULL);
}

int main(void) {
  make_call();
  test_trace();
  test_trace_refusals();
  test_layer();
  test_statistics();
  test_statistics_refusals();
  return test_failures != 0;
}
