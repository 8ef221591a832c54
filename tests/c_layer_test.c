/* The C door to the layer, from C: against the five steps in double, with a cache against the
 * whole, steps against forward, RoPE against its formula, and every way to be refused. */
#include "c_check.h"
#include "polyhead/polyhead_layer_c.h"

enum {
  kTokens = 9,
  kModel = 12,
  kQHeads = 3,
  kKvHeads = 1,
  kDim = 4,
  kPacked = (kQHeads + 2 * kKvHeads) * kDim,
  kX = kTokens * kModel
};

/* x, weights and biases below 1 in size: q, k and v err by kModel eps times a sum below kModel + 1,
 * scores by kDim times that once more, and the output by kModel eps again: 2 kModel^2 kDim eps
 * bounds their sum. */
static const double kTolerance = 2.0 * kModel * kModel * kDim * 1.2e-7;

static float x[kX], y[kX];
static float w_qkv[kPacked * kModel], b_qkv[kPacked], w_o[kModel * kQHeads * kDim], b_o[kModel];

static polyhead_layer_config causal_config(polyhead_mask* mask) {
  polyhead_layer_config config = {.struct_bytes = sizeof config};
  *mask = (polyhead_mask){.struct_bytes = sizeof *mask, .causal = 1, .align = POLYHEAD_ALIGN_END};
  config.model_dim = kModel;
  config.q_heads = kQHeads;
  config.kv_heads = kKvHeads;
  config.mask = mask;
  return config;
}

/* A causal layer with random weights; `change` may alter its configuration. */
static polyhead_layer* make_layer(const polyhead_rope_config* rope,
                                  const polyhead_modifiers* modifiers) {
  const polyhead_view w_qkv_view = matrix(w_qkv, kPacked, kModel);
  const polyhead_view w_o_view = matrix(w_o, kModel, kQHeads * kDim);
  const polyhead_view b_qkv_view = vector(b_qkv, kPacked), b_o_view = vector(b_o, kModel);
  polyhead_layer_weights weights = {.struct_bytes = sizeof weights};
  polyhead_layer* layer = NULL;
  polyhead_mask mask;
  polyhead_layer_config config = causal_config(&mask);
  config.rope = rope;
  config.modifiers = modifiers;
  fill_random(x, kX, 1);
  fill_random(w_qkv, kPacked * kModel, 2);
  fill_random(b_qkv, kPacked, 3);
  fill_random(w_o, kModel * kQHeads * kDim, 4);
  fill_random(b_o, kModel, 5);
  poison(y, kX);
  weights.w_qkv = &w_qkv_view;
  weights.b_qkv = &b_qkv_view;
  weights.w_o = &w_o_view;
  weights.b_o = &b_o_view;
  CHECK_OK(polyhead_layer_create(&config, &weights, NULL, &layer));
  return layer;
}

/* ---- The five steps in double ---- */

static void project(double packed[kTokens][kPacked]) {
  int token, column, i;
  for (token = 0; token < kTokens; ++token) {
    for (column = 0; column < kPacked; ++column) {
      double sum = (double)b_qkv[column];
      for (i = 0; i < kModel; ++i) {
        sum += (double)x[token * kModel + i] * (double)w_qkv[column * kModel + i];
      }
      packed[token][column] = sum;
    }
  }
}

/* One head's output for one query, into concatenated[head * kDim ..]. */
static void attend(double packed[kTokens][kPacked], int token, int head, double* concatenated) {
  double weights[kTokens], top = -INFINITY, total = 0;
  int key, i;
  for (key = 0; key <= token; ++key) {
    weights[key] = 0;
    for (i = 0; i < kDim; ++i) {
      weights[key] += packed[token][head * kDim + i] * packed[key][kQHeads * kDim + i];
    }
    weights[key] /= sqrt(kDim);
    if (weights[key] > top) top = weights[key];
  }
  for (key = 0; key <= token; ++key) total += weights[key] = exp(weights[key] - top);
  for (i = 0; i < kDim; ++i) {
    double sum = 0;
    for (key = 0; key <= token; ++key) {
      sum += weights[key] / total * packed[key][(kQHeads + kKvHeads) * kDim + i];
    }
    concatenated[head * kDim + i] = sum;
  }
}

static double worst_error(void) {
  double packed[kTokens][kPacked], concatenated[kQHeads * kDim], worst = 0;
  int token, head, column, i;
  project(packed);
  for (token = 0; token < kTokens; ++token) {
    for (head = 0; head < kQHeads; ++head) attend(packed, token, head, concatenated);
    for (column = 0; column < kModel; ++column) {
      double expected = (double)b_o[column];
      for (i = 0; i < kQHeads * kDim; ++i) {
        expected += concatenated[i] * (double)w_o[column * kQHeads * kDim + i];
      }
      add_difference(&worst, (double)y[token * kModel + column], expected);
    }
  }
  return worst;
}

static void test_forward(void) {
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_layer* layer = make_layer(NULL, NULL);
  polyhead_layer_workspace* workspace = NULL;
  polyhead_layer_call call = {.struct_bytes = sizeof call};
  size_t bytes = 0, needed = 0;
  char text[4096];
  CHECK_OK(polyhead_layer_forward(layer, &x_view, &y_view, NULL));
  CHECK(worst_error() <= kTolerance);

  CHECK_OK(polyhead_layer_workspace_create(&workspace));
  call.workspace = workspace;
  poison(y, kX);
  CHECK_OK(polyhead_layer_forward(layer, &x_view, &y_view, &call));
  CHECK(worst_error() <= kTolerance);
  CHECK_OK(polyhead_layer_workspace_bytes(workspace, &bytes));
  CHECK(bytes > 0);

  poison(y, kX); /* cross attention to itself is self attention */
  CHECK_OK(polyhead_layer_forward_cross(layer, &x_view, &x_view, &y_view, NULL));
  CHECK(worst_error() <= kTolerance);

  CHECK_OK(polyhead_layer_describe(layer, text, sizeof text, &needed));
  CHECK(strlen(text) + 1 == needed);
  polyhead_layer_workspace_destroy(workspace);
  polyhead_layer_destroy(layer);
}

/* Prefill of four tokens, then one at a time, gives the whole's bits; so do the steps one by one.
 */
static void test_cache_and_steps(void) {
  static float whole[kX], packed[kTokens * kPacked], heads[kTokens * kQHeads * kDim];
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  const polyhead_rope_config rope = {.struct_bytes = sizeof rope,
                                     .pairing = POLYHEAD_ROPE_HALF_SPLIT};
  const int64_t heads_extents[4] = {1, kTokens, kQHeads, kDim};
  const polyhead_view heads_view = polyhead_make_view(heads, POLYHEAD_FLOAT32, 4, heads_extents, 0);
  const int64_t packed_extents[3] = {1, kTokens, kPacked};
  const polyhead_view packed_view =
      polyhead_make_view(packed, POLYHEAD_FLOAT32, 3, packed_extents, NULL);
  const int64_t whole_extents[3] = {1, kTokens, kModel};
  const polyhead_view x3 = polyhead_make_view(x, POLYHEAD_FLOAT32, 3, whole_extents, NULL);
  const polyhead_view y3 = polyhead_make_view(y, POLYHEAD_FLOAT32, 3, whole_extents, NULL);
  const int64_t concat_extents[3] = {1, kTokens, kQHeads * kDim};
  const polyhead_view concat = polyhead_make_view(heads, POLYHEAD_FLOAT32, 3, concat_extents, NULL);
  polyhead_view q = {.struct_bytes = sizeof q}, k = q, v = q;
  polyhead_layer* layer = make_layer(&rope, NULL);
  polyhead_kv_cache* cache = NULL;
  int64_t length = -1, packed_dim = 0;
  int token;
  CHECK_OK(polyhead_layer_forward(layer, &x_view, &y_view, NULL));
  memcpy(whole, y, sizeof y);

  poison(y, kX);
  CHECK_REFUSED(polyhead_layer_cache_create(layer, 1, kTokens, 0, 99, &cache), "element_type (99)");
  CHECK_OK(polyhead_layer_cache_create(layer, 1, kTokens, 0, POLYHEAD_INT8, &cache));
  CHECK_OK(polyhead_layer_forward_cached(layer, &x_view, cache, &y_view, NULL));
  CHECK(memcmp(whole, y, sizeof y) != 0);
  polyhead_kv_cache_destroy(cache);
  poison(y, kX);
  CHECK_OK(polyhead_layer_cache_create(layer, 1, kTokens, 0, 0, &cache));
  for (token = 0; token < kTokens; token += token ? 1 : 4) {
    const polyhead_view part = matrix(x + token * kModel, token ? 1 : 4, kModel);
    const polyhead_view to = matrix(y + token * kModel, token ? 1 : 4, kModel);
    CHECK_OK(polyhead_layer_forward_cached(layer, &part, cache, &to, NULL));
  }
  CHECK(memcmp(whole, y, sizeof y) == 0);
  CHECK_OK(polyhead_kv_cache_length(cache, 0, &length));
  CHECK(length == kTokens);
  CHECK_REFUSED(polyhead_layer_forward_cached(layer, &x_view, cache, &y_view, NULL), "");
  polyhead_kv_cache_destroy(cache);

  poison(y, kX);
  CHECK_OK(polyhead_layer_packed_dim(layer, &packed_dim));
  CHECK(packed_dim == kPacked);
  CHECK_OK(polyhead_layer_project(layer, &x3, &packed_view, NULL));
  CHECK_OK(polyhead_layer_split(layer, &packed_view, &q, &k, &v));
  CHECK(q.extents[2] == kQHeads && k.extents[2] == kKvHeads && v.extents[3] == kDim);
  CHECK_OK(polyhead_layer_attend(layer, &q, &k, &v, &heads_view, NULL));
  CHECK_OK(polyhead_layer_output(layer, &concat, &y3));
  CHECK(memcmp(whole, y, sizeof y) == 0);
  polyhead_layer_destroy(layer);
}

static int32_t halve_scores(void* context, const polyhead_score_tile* tile) {
  int i;
  (void)context;
  for (i = 0; i < tile->key_count * tile->lane_count; ++i) tile->scores[i] *= 0.5f;
  return 0;
}

/* A modifier of the layer is copied: halving by a callback is half the scale, to the bit. */
static void test_modifiers(void) {
  static float halved[kX];
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_tile_modifier halve = {.struct_bytes = sizeof halve, .apply = halve_scores};
  polyhead_modifiers modifiers = {.struct_bytes = sizeof modifiers};
  polyhead_layer* layer;
  modifiers.custom[0] = &halve;
  layer = make_layer(NULL, &modifiers);
  memset(&halve, 0, sizeof halve);
  CHECK_OK(polyhead_layer_forward(layer, &x_view, &y_view, NULL));
  memcpy(halved, y, sizeof y);
  polyhead_layer_destroy(layer);

  modifiers.custom[0] = NULL;
  modifiers.scale_given = 1;
  modifiers.scale = 0.25f; /* half of 1 / sqrt(4) */
  layer = make_layer(NULL, &modifiers);
  CHECK_OK(polyhead_layer_forward(layer, &x_view, &y_view, NULL));
  CHECK(largest_difference(halved, y, kX) <= kTolerance);
  polyhead_layer_destroy(layer);
}

static void test_rope(void) {
  float row[2 * kDim], original[2 * kDim];
  const int64_t extents[3] = {2, 1, kDim}, count[1] = {2};
  const int32_t positions_data[2] = {0, 5};
  const polyhead_view view = polyhead_make_view(row, POLYHEAD_FLOAT32, 3, extents, NULL);
  const polyhead_view positions =
      polyhead_make_view(positions_data, POLYHEAD_INT32, 1, count, NULL);
  float halves[kDim] = {0}, expected[2 * kDim];
  const int64_t pairs[1] = {kDim / 2}, one[1] = {1}, second[1] = {2};
  const int32_t twice_data[2] = {0, 10};
  const polyhead_view twice_positions =
      polyhead_make_view(twice_data, POLYHEAD_INT32, 1, count, NULL);
  const polyhead_view every_second = polyhead_make_view(halves, POLYHEAD_FLOAT32, 1, pairs, second);
  const polyhead_view too_few = polyhead_make_view(halves, POLYHEAD_FLOAT32, 1, one, NULL);
  const polyhead_view of_integers =
      polyhead_make_view(positions_data, POLYHEAD_INT32, 1, count, NULL);
  polyhead_rope_config config = {.struct_bytes = sizeof config};
  int i;
  fill_random(row, 2 * kDim, 6);
  memcpy(original, row, sizeof row);
  CHECK_REFUSED(polyhead_apply_rope(&view, &positions, &config), "pairing");
  CHECK_REFUSED((config.pairing = 3, polyhead_apply_rope(&view, &positions, &config)),
                "pairing (3)");
  config.pairing = POLYHEAD_ROPE_INTERLEAVED;
  CHECK_REFUSED((config.scaling = 9, polyhead_apply_rope(&view, &positions, &config)),
                "scaling (9)");
  config.scaling = POLYHEAD_ROPE_SCALING_NONE;
  CHECK_REFUSED((config.attention_factor = 5, polyhead_apply_rope(&view, &positions, &config)),
                "rope.attention_factor (5) is given without rope.attention_factor_given");
  CHECK_REFUSED(
      (config.attention_factor_given = 1, polyhead_apply_rope(&view, &positions, &config)),
      "rope.attention_factor (5) is given without yarn");
  config.attention_factor = 0;
  config.attention_factor_given = 0;
  CHECK_REFUSED((config.original_length = 77, polyhead_apply_rope(&view, &positions, &config)),
                "rope.original_length (77) is given without a rope.scaling");
  config.original_length = 0;
  CHECK_REFUSED(polyhead_apply_rope(&view, &positions, NULL), "rope is null");
  CHECK_REFUSED(polyhead_apply_rope(NULL, &positions, &config), "x is null");
  CHECK(memcmp(original, row, sizeof row) == 0);

  config.frequency_divisors = &of_integers;
  CHECK_REFUSED(polyhead_apply_rope(&view, &positions, &config),
                "rope.frequency_divisors is int32, expected float32");
  config.frequency_divisors = &too_few;
  CHECK_REFUSED(polyhead_apply_rope(&view, &positions, &config), "rope.frequency_divisors has 1");
  config.frequency_divisors = NULL;
  CHECK(memcmp(original, row, sizeof row) == 0);

  CHECK_OK(polyhead_apply_rope(&view, &positions, &config));
  CHECK(memcmp(original, row, kDim * sizeof *row) == 0); /* position 0 */
  for (i = 0; i < kDim; i += 2) {
    const double angle = 5 * pow(10000.0, -(double)i / kDim);
    const double a = (double)original[kDim + i], b = (double)original[kDim + i + 1];
    /* Two roundings of numbers below 2 each. */
    CHECK(fabs((double)row[kDim + i] - (a * cos(angle) - b * sin(angle))) < 8 * 1.2e-7);
    CHECK(fabs((double)row[kDim + i + 1] - (a * sin(angle) + b * cos(angle))) < 8 * 1.2e-7);
  }
  /* Every frequency halved: position 10 turns as 5 did. */
  for (i = 0; i < kDim / 2; ++i) halves[2 * i] = 2;
  config.frequency_divisors = &every_second;
  memcpy(expected, row, sizeof row);
  memcpy(row, original, sizeof row);
  CHECK_OK(polyhead_apply_rope(&view, &twice_positions, &config));
  CHECK(memcmp(expected, row, sizeof row) == 0);
}

static void test_cache(void) {
  float k_data[2 * kDim], v_data[2 * kDim];
  const int64_t extents[4] = {1, 2, 1, kDim};
  const polyhead_view k = polyhead_make_view(k_data, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view v = polyhead_make_view(v_data, POLYHEAD_FLOAT32, 4, extents, NULL);
  polyhead_kv_cache_config config = {.struct_bytes = sizeof config};
  polyhead_kv_cache* cache = NULL;
  polyhead_view keys = {.struct_bytes = sizeof keys}, values = keys, lengths = keys, bad = {0};
  int64_t number = -1;
  fill_random(k_data, 2 * kDim, 7);
  fill_random(v_data, 2 * kDim, 8);
  config.head_dim = kDim; /* batch and kv_heads: 1 */
  config.capacity = 3;
  CHECK_REFUSED(polyhead_kv_cache_create(&config, &cache), "element_type (0)");
  CHECK_REFUSED((config.head_dim = 0, polyhead_kv_cache_create(&config, &cache)),
                "config.head_dim is 0, expected at least 1");
  config.head_dim = kDim;
  config.element_type = POLYHEAD_INT32;
  CHECK_REFUSED(polyhead_kv_cache_create(&config, &cache), "element_type is int32");
  config.element_type = POLYHEAD_FLOAT32;
  CHECK_REFUSED((config.growing = 7, polyhead_kv_cache_create(&config, &cache)), "growing (7)");
  config.growing = 0;
  CHECK(cache == NULL);
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_OK(polyhead_kv_cache_append(cache, &k, &v, NULL));
  CHECK_OK(polyhead_kv_cache_capacity(cache, &number));
  CHECK(number == 3);
  CHECK_REFUSED(polyhead_kv_cache_append(cache, &k, &v, NULL), ""); /* full */
  CHECK_REFUSED(polyhead_kv_cache_append(cache, NULL, &v, NULL), "k is null");
  CHECK_REFUSED(polyhead_kv_cache_views(cache, &keys, &values, &bad), "lengths.struct_bytes (0)");
  CHECK(keys.axes == 0); /* nothing written */
  CHECK_OK(polyhead_kv_cache_views(cache, &keys, &values, &lengths));
  CHECK(keys.extents[1] == 2 && *(const int64_t*)lengths.data == 2);
  CHECK(memcmp(keys.data, k_data, kDim * sizeof *k_data) == 0);
  CHECK(memcmp(values.data, v_data, kDim * sizeof *v_data) == 0);
  CHECK_OK(polyhead_kv_cache_truncate(cache, 0, 1));
  CHECK_OK(polyhead_kv_cache_length(cache, 0, &number));
  CHECK(number == 1);
  CHECK_REFUSED((number = 7, polyhead_kv_cache_length(cache, 1, &number)), "1");
  CHECK(number == 7);
  CHECK_REFUSED(polyhead_kv_cache_length(NULL, 0, &number), "cache is null");
  polyhead_kv_cache_destroy(cache);
  polyhead_kv_cache_destroy(NULL);
}

static void test_refusals(void) {
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  const polyhead_view narrow = matrix(x, kTokens, kModel - 1);
  polyhead_layer_weights weights = {.struct_bytes = sizeof weights};
  polyhead_layer_call call = {.struct_bytes = 4};
  polyhead_rope_config rope = {.struct_bytes = sizeof rope};
  polyhead_mask mask;
  polyhead_layer_config config = causal_config(&mask);
  const polyhead_layer_config bare = {
      .struct_bytes = sizeof bare, .model_dim = 4, .q_heads = 1, .no_projections = 1};
  polyhead_layer* made = NULL;
  polyhead_layer* layer = make_layer(NULL, NULL);
  CHECK_REFUSED(polyhead_layer_create(NULL, &weights, NULL, &made), "config is null");
  CHECK_REFUSED(polyhead_layer_create(&config, NULL, NULL, &made), "weights is null");
  CHECK_REFUSED(polyhead_layer_create(&config, &weights, NULL, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_create(&config, &weights, NULL, &made), "w_q");
  /* Fields that the library's own structs have by other names. */
  weights.w_q = &x_view;
  CHECK_REFUSED(polyhead_layer_create(&bare, &weights, NULL, &made),
                "w_q is given, but no_projections is 1");
  rope.pairing = POLYHEAD_ROPE_HALF_SPLIT;
  rope.no_truncate = 1;
  config.rope = &rope;
  CHECK_REFUSED(polyhead_layer_create(&config, &weights, NULL, &made),
                "rope.no_truncate (1) is given without yarn");
  config.rope = NULL;
  weights.w_q = NULL;
  config.weight_type = 99;
  CHECK_REFUSED(polyhead_layer_create(&config, &weights, NULL, &made), "weight_type (99)");
  config.struct_bytes = 1;
  CHECK_REFUSED(polyhead_layer_create(&config, &weights, NULL, &made), "config.struct_bytes (1)");
  CHECK(made == NULL);
  CHECK_REFUSED(polyhead_layer_forward(NULL, &x_view, &y_view, NULL), "layer is null");
  /* Nothing is made that nobody could destroy, which the address sanitizer would see. */
  CHECK_REFUSED(polyhead_layer_workspace_create(NULL), "workspace is null");
  CHECK_REFUSED(polyhead_layer_forward(layer, NULL, &y_view, NULL), "x");
  CHECK_REFUSED(polyhead_layer_forward(layer, &x_view, NULL, NULL), "y");
  CHECK_REFUSED(polyhead_layer_forward(layer, &narrow, &y_view, NULL), "x");
  CHECK_REFUSED(polyhead_layer_forward(layer, &x_view, &y_view, &call), "call.struct_bytes (4)");
  CHECK_REFUSED(polyhead_layer_forward_cached(layer, &x_view, NULL, &y_view, NULL),
                "cache is null");
  CHECK(all_poisoned(y, kX));
  polyhead_layer_destroy(layer);
  polyhead_layer_destroy(NULL);
  polyhead_layer_workspace_destroy(NULL);
}

int main(void) {
  test_forward();
  test_cache_and_steps();
  test_modifiers();
  test_rope();
  test_cache();
  test_refusals();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
