/* The C door to latent attention, from C: against its definition in double in both forms, with a
 * cache against the whole, and every way to be refused. */
#include "c_check.h"
#include "polyhead/polyhead_layer_c.h"

enum {
  kTokens = 7,
  kModel = 12,
  kHeads = 2,
  kRank = 6,
  kNope = 4,
  kRope = 2,
  kValue = 3,
  kQ = kNope + kRope,
  kLatent = kRank + kRope,
  kUp = kNope + kValue,
  kX = kTokens * kModel
};

/* As in c_layer_test.c, with one product more in each chain and latents of size 1 after the norm.
 */
static const double kTolerance = 4.0 * kModel * kModel * kRank * 1.2e-7;

static float x[kX], y[kX];
static float w_q[kHeads * kQ * kModel], w_kv_down[kLatent * kModel], kv_norm[kRank];
static float w_kv_up[kHeads * kUp * kRank], w_o[kModel * kHeads * kValue];

static const polyhead_rope_config kTurns = {.struct_bytes = sizeof(polyhead_rope_config),
                                            .pairing = POLYHEAD_ROPE_INTERLEAVED};

static polyhead_latent_config causal_config(polyhead_mask* mask) {
  polyhead_latent_config config = {.struct_bytes = sizeof config};
  *mask = (polyhead_mask){.struct_bytes = sizeof *mask, .causal = 1, .align = POLYHEAD_ALIGN_END};
  config.model_dim = kModel;
  config.heads = kHeads;
  config.kv_rank = kRank;
  config.nope_dim = kNope;
  config.rope_dim = kRope;
  config.value_dim = kValue;
  config.rope = &kTurns;
  config.mask = mask;
  return config;
}

/* A causal layer with random weights, its form `form`. */
static polyhead_latent* make_latent(int32_t form) {
  const polyhead_view q = matrix(w_q, kHeads * kQ, kModel),
                      down = matrix(w_kv_down, kLatent, kModel), norm = vector(kv_norm, kRank),
                      up = matrix(w_kv_up, kHeads * kUp, kRank),
                      o = matrix(w_o, kModel, kHeads * kValue);
  polyhead_latent_weights weights = {.struct_bytes = sizeof weights,
                                     .w_q = &q,
                                     .w_kv_down = &down,
                                     .kv_norm = &norm,
                                     .w_kv_up = &up,
                                     .w_o = &o};
  polyhead_mask mask;
  polyhead_latent_config config = causal_config(&mask);
  polyhead_latent* latent = NULL;
  config.form = form;
  fill_random(x, kX, 1);
  fill_random(w_q, kHeads * kQ * kModel, 2);
  fill_random(w_kv_down, kLatent * kModel, 3);
  fill_random(kv_norm, kRank, 4);
  fill_random(w_kv_up, kHeads * kUp * kRank, 5);
  fill_random(w_o, kModel * kHeads * kValue, 6);
  poison(y, kX);
  CHECK_OK(polyhead_latent_create(&config, &weights, NULL, &latent));
  return latent;
}

/* ---- The definition in double ---- */

static double times_row(const float* row, const double* with, int count) {
  double sum = 0;
  int i;
  for (i = 0; i < count; ++i) sum += (double)row[i] * with[i];
  return sum;
}

/* The one pair of dims that RoPE turns. */
static void turn(double* pair, int position) {
  const double a = pair[0], b = pair[1];
  pair[0] = a * cos(position) - b * sin(position);
  pair[1] = a * sin(position) + b * cos(position);
}

/* A token's latent, normalised, and its turned key. */
static void latent_of(int token, double* latent) {
  double input[kModel], squares = 0;
  int i;
  for (i = 0; i < kModel; ++i) input[i] = (double)x[token * kModel + i];
  for (i = 0; i < kLatent; ++i) latent[i] = times_row(w_kv_down + i * kModel, input, kModel);
  for (i = 0; i < kRank; ++i) squares += latent[i] * latent[i];
  for (i = 0; i < kRank; ++i) latent[i] *= (double)kv_norm[i] / sqrt(squares / kRank + 1e-6);
  turn(latent + kRank, token);
}

static void attend(int token, int head, double latents[kTokens][kLatent], double* values) {
  double input[kModel], q[kQ], weights[kTokens], top = -INFINITY, total = 0;
  const float* const up = w_kv_up + head * kUp * kRank;
  int key, i;
  for (i = 0; i < kModel; ++i) input[i] = (double)x[token * kModel + i];
  for (i = 0; i < kQ; ++i) q[i] = times_row(w_q + (head * kQ + i) * kModel, input, kModel);
  turn(q + kNope, token);
  for (key = 0; key <= token; ++key) {
    weights[key] = q[kNope] * latents[key][kRank] + q[kNope + 1] * latents[key][kRank + 1];
    for (i = 0; i < kNope; ++i)
      weights[key] += q[i] * times_row(up + i * kRank, latents[key], kRank);
    weights[key] /= sqrt(kQ);
    if (weights[key] > top) top = weights[key];
  }
  for (key = 0; key <= token; ++key) total += weights[key] = exp(weights[key] - top);
  for (i = 0; i < kValue; ++i) {
    values[i] = 0;
    for (key = 0; key <= token; ++key)
      values[i] += weights[key] / total * times_row(up + (kNope + i) * kRank, latents[key], kRank);
  }
}

static double worst_error(void) {
  double latents[kTokens][kLatent], values[kHeads * kValue], worst = 0;
  int token, head, column;
  for (token = 0; token < kTokens; ++token) latent_of(token, latents[token]);
  for (token = 0; token < kTokens; ++token) {
    for (head = 0; head < kHeads; ++head) attend(token, head, latents, values + head * kValue);
    for (column = 0; column < kModel; ++column) {
      add_difference(&worst, (double)y[token * kModel + column],
                     times_row(w_o + column * kHeads * kValue, values, kHeads * kValue));
    }
  }
  return worst;
}

/* ---- Tests ---- */

static void test_forms(void) {
  static float first[kX];
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  const int32_t forms[] = {POLYHEAD_LATENT_EXPANDED, POLYHEAD_LATENT_ABSORBED};
  char text[4096];
  size_t needed = 0;
  int i;
  for (i = 0; i < 2; ++i) {
    polyhead_latent* latent = make_latent(forms[i]);
    CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, 0, NULL));
    CHECK(worst_error() <= kTolerance);
    memcpy(first, y, sizeof y);
    poison(y, kX); /* the other form, then this one by name */
    CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, forms[1 - i], NULL));
    CHECK(worst_error() <= kTolerance);
    CHECK(memcmp(first, y, sizeof y) != 0);
    CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, forms[i], NULL));
    CHECK(memcmp(first, y, sizeof y) == 0);
    CHECK_OK(polyhead_latent_describe(latent, text, sizeof text, &needed));
    CHECK(strlen(text) + 1 == needed);
    polyhead_latent_destroy(latent);
  }
}

/* Three tokens, then one at a time, give the whole's bits; a cache of bfloat16 is read too, in both
 * forms. */
static void test_cache(void) {
  static float whole[kX];
  static const float zeros[kX];
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_latent* latent = make_latent(POLYHEAD_LATENT_ABSORBED);
  polyhead_kv_cache *cache = NULL, *small = NULL;
  int token, form;
  CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, 0, NULL));
  memcpy(whole, y, sizeof y);
  poison(y, kX);
  CHECK_OK(polyhead_latent_cache_create(latent, 1, kTokens, 0, 0, &cache));
  for (token = 0; token < kTokens; token += token ? 1 : 3) {
    const polyhead_view part = matrix(x + token * kModel, token ? 1 : 3, kModel);
    const polyhead_view to = matrix(y + token * kModel, token ? 1 : 3, kModel);
    CHECK_OK(polyhead_latent_forward_cached(latent, &part, cache, &to, 0, NULL));
  }
  CHECK(memcmp(whole, y, sizeof y) == 0);
  CHECK_REFUSED(polyhead_latent_forward_cached(latent, &x_view, cache, &y_view, 0, NULL),
                "capacity");

  for (form = 0; form < 2; ++form) {
    poison(y, kX);
    CHECK_OK(polyhead_latent_cache_create(latent, 1, kTokens, 0, POLYHEAD_BFLOAT16, &small));
    CHECK_OK(polyhead_latent_forward_cached(
        latent, &x_view, small, &y_view, form ? POLYHEAD_LATENT_EXPANDED : POLYHEAD_LATENT_ABSORBED,
        NULL));
    CHECK(memcmp(whole, y, sizeof y) != 0);
    /* A latent moves by at most 2^-8 of itself, either way: values made of latents by about as much
     * of the largest, and weights, of scores near 1, move them by as much again. */
    CHECK(largest_difference(whole, y, kX) <= 2 * largest_difference(whole, zeros, kX) / 256);
    polyhead_kv_cache_destroy(small);
  }
  polyhead_kv_cache_destroy(cache);
  polyhead_latent_destroy(latent);
}

/* Rows of latents into pages and attention over their view give the bits of the contiguous cache:
 * four tokens, then one at a time, in both forms. */
static void test_pages(void) {
  static float whole[kX], rows[kTokens * kLatent];
  const int32_t forms[] = {POLYHEAD_LATENT_EXPANDED, POLYHEAD_LATENT_ABSORBED};
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_paged_cache_config config = {.struct_bytes = sizeof config, .pages = 2};
  polyhead_layer_workspace* workspace = NULL;
  polyhead_paged_batch* batch = NULL;
  int64_t positions[kTokens];
  int i, token;
  config.page_tokens = 8;
  config.kv_heads = 1;
  config.head_dim = kLatent;
  config.value_dim = kRank;
  config.element_type = POLYHEAD_FLOAT32;
  config.values_in_keys = 1;
  CHECK_OK(polyhead_layer_workspace_create(&workspace));
  CHECK_OK(polyhead_paged_batch_create(&batch));
  for (token = 0; token < kTokens; ++token) positions[token] = token;
  for (i = 0; i < 2; ++i) {
    polyhead_latent* latent = make_latent(forms[i]);
    polyhead_paged_cache* cache = NULL;
    polyhead_kv_view view = {.struct_bytes = sizeof view};
    int64_t sequence = -1;
    CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, 0, NULL));
    memcpy(whole, y, sizeof y);
    poison(y, kX);
    CHECK_OK(polyhead_paged_cache_create(&config, &cache));
    CHECK_OK(polyhead_paged_sequence_create(cache, 0, &sequence));
    for (token = 0; token < kTokens; token += token ? 1 : 4) {
      const int64_t count = token ? 1 : 4, extents[3] = {count, 1, kLatent};
      const polyhead_view part = matrix(x + token * kModel, count, kModel);
      const polyhead_view to = matrix(y + token * kModel, count, kModel);
      const polyhead_view made = matrix(rows, count, kLatent);
      const polyhead_view keys = polyhead_make_view(rows, POLYHEAD_FLOAT32, 3, extents, NULL);
      const polyhead_view at =
          polyhead_make_view(positions + token, POLYHEAD_INT64, 1, &count, NULL);
      CHECK_OK(polyhead_latent_rows(latent, &part, &made, &at, i ? workspace : NULL));
      CHECK_OK(polyhead_paged_sequence_append(cache, sequence, &keys, NULL, NULL));
      CHECK_OK(polyhead_paged_batch_set(batch, cache, &sequence, 1));
      CHECK_OK(polyhead_paged_cache_view(cache, 0, batch, &view));
      CHECK_OK(polyhead_latent_forward_view(latent, &part, &view, &to, 0, NULL));
    }
    CHECK(memcmp(whole, y, sizeof y) == 0);
    poison(y, kX);
    CHECK_REFUSED(polyhead_latent_rows(latent, &x_view, &y_view, NULL, NULL), "positions");
    CHECK_REFUSED(polyhead_latent_rows(NULL, &x_view, &y_view, NULL, NULL), "latent is null");
    CHECK_REFUSED(polyhead_latent_forward_view(latent, &x_view, NULL, &y_view, 0, NULL),
                  "kv is null");
    CHECK_REFUSED(polyhead_latent_forward_view(latent, &x_view, &view, &y_view, 3, NULL),
                  "form (3)");
    CHECK_OK(polyhead_paged_sequence_truncate(cache, sequence, 2));
    CHECK_OK(polyhead_paged_batch_set(batch, cache, &sequence, 1));
    CHECK_OK(polyhead_paged_cache_view(cache, 0, batch, &view));
    CHECK_REFUSED(polyhead_latent_forward_view(latent, &x_view, &view, &y_view, 0, NULL),
                  "kv has 2 tokens of sequence 0");
    CHECK(all_poisoned(y, kX));
    polyhead_paged_cache_destroy(cache);
    polyhead_latent_destroy(latent);
  }
  polyhead_paged_batch_destroy(batch);
  polyhead_layer_workspace_destroy(workspace);
}

/* The layer appends to pages and rings by itself: four tokens, then one at a time, give the bits of
 * the whole; a pool without room is a status. */
static void test_own_appends(void) {
  static float whole[kX];
  const int32_t forms[] = {POLYHEAD_LATENT_EXPANDED, POLYHEAD_LATENT_ABSORBED};
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_paged_cache_config config = {.struct_bytes = sizeof config, .pages = 1};
  polyhead_sliding_cache_config ring_config = {.struct_bytes = sizeof ring_config, .batch = 1};
  int i, kind, token;
  config.page_tokens = 8;
  ring_config.window = kTokens;
  ring_config.chunk = 4;
  config.kv_heads = ring_config.kv_heads = 1;
  config.head_dim = ring_config.head_dim = kLatent;
  config.value_dim = ring_config.value_dim = kRank;
  config.element_type = ring_config.element_type = POLYHEAD_FLOAT32;
  config.values_in_keys = ring_config.values_in_keys = 1;
  for (i = 0; i < 2; ++i) {
    polyhead_latent* latent = make_latent(forms[i]);
    polyhead_paged_cache* cache = NULL;
    polyhead_sliding_cache* ring = NULL;
    polyhead_paged_sequences pages = {.struct_bytes = sizeof pages, .count = 1};
    int64_t sequence = -1, other = -1;
    CHECK_OK(polyhead_latent_forward(latent, &x_view, &y_view, 0, NULL));
    memcpy(whole, y, sizeof y);
    CHECK_OK(polyhead_paged_cache_create(&config, &cache));
    CHECK_OK(polyhead_paged_sequence_create(cache, 0, &sequence));
    CHECK_OK(polyhead_paged_sequence_create(cache, 0, &other));
    CHECK_OK(polyhead_sliding_cache_create(&ring_config, &ring));
    pages.cache = cache;
    pages.sequences = &sequence;
    for (kind = 0; kind < 2; ++kind) {
      poison(y, kX);
      for (token = 0; token < kTokens; token += token ? 1 : 4) {
        const polyhead_view part = matrix(x + token * kModel, token ? 1 : 4, kModel);
        const polyhead_view to = matrix(y + token * kModel, token ? 1 : 4, kModel);
        if (kind == 0)
          CHECK_OK(polyhead_latent_forward_paged(latent, &part, &pages, &to, 0, NULL));
        else
          CHECK_OK(polyhead_latent_forward_sliding(latent, &part, ring, &to, 0, NULL));
      }
      CHECK(memcmp(whole, y, sizeof y) == 0);
    }
    poison(y, kX);
    pages.sequences = &other;
    CHECK(polyhead_latent_forward_paged(latent, &x_view, &pages, &y_view, 0, NULL) ==
          POLYHEAD_EXHAUSTED);
    CHECK_REFUSED(polyhead_latent_forward_paged(NULL, &x_view, &pages, &y_view, 0, NULL),
                  "latent is null");
    CHECK_REFUSED(polyhead_latent_forward_paged(latent, &x_view, NULL, &y_view, 0, NULL),
                  "pages is null");
    CHECK_REFUSED(polyhead_latent_forward_paged(latent, &x_view, &pages, &y_view, 3, NULL),
                  "form (3)");
    CHECK_REFUSED(polyhead_latent_forward_sliding(latent, &x_view, NULL, &y_view, 0, NULL),
                  "cache is null");
    CHECK_REFUSED(polyhead_latent_forward_sliding(latent, &x_view, ring, &y_view, 0, NULL),
                  "chunk (4)");
    CHECK(all_poisoned(y, kX));
    polyhead_sliding_cache_destroy(ring);
    polyhead_paged_cache_destroy(cache);
    polyhead_latent_destroy(latent);
  }
}

static void test_refusals(void) {
  const polyhead_view x_view = matrix(x, kTokens, kModel), y_view = matrix(y, kTokens, kModel);
  polyhead_latent_weights weights = {.struct_bytes = sizeof weights};
  polyhead_mask mask;
  polyhead_latent_config config = causal_config(&mask);
  polyhead_latent *made = NULL, *latent = make_latent(0);
  polyhead_kv_cache* cache = NULL;
  CHECK_REFUSED(polyhead_latent_create(NULL, &weights, NULL, &made), "config is null");
  CHECK_REFUSED(polyhead_latent_create(&config, NULL, NULL, &made), "weights is null");
  CHECK_REFUSED(polyhead_latent_create(&config, &weights, NULL, NULL), "latent is null");
  CHECK_REFUSED(polyhead_latent_create(&config, &weights, NULL, &made), "w_q");
  config.form = 3;
  CHECK_REFUSED(polyhead_latent_create(&config, &weights, NULL, &made), "config.form (3)");
  config.weight_type = 99;
  CHECK_REFUSED(polyhead_latent_create(&config, &weights, NULL, &made), "weight_type (99)");
  config.struct_bytes = 1;
  CHECK_REFUSED(polyhead_latent_create(&config, &weights, NULL, &made), "config.struct_bytes (1)");
  CHECK(made == NULL);
  CHECK_REFUSED(polyhead_latent_forward(NULL, &x_view, &y_view, 0, NULL), "latent is null");
  CHECK_REFUSED(polyhead_latent_forward(latent, NULL, &y_view, 0, NULL), "x");
  CHECK_REFUSED(polyhead_latent_forward(latent, &x_view, &y_view, -1, NULL), "form (-1)");
  CHECK_REFUSED(polyhead_latent_forward_cached(latent, &x_view, NULL, &y_view, 0, NULL),
                "cache is null");
  CHECK_REFUSED(polyhead_latent_cache_create(latent, 1, 4, 0, 99, &cache), "type (99)");
  CHECK_REFUSED(polyhead_latent_cache_create(latent, 1, 4, 2, 0, &cache), "growing (2)");
  CHECK(cache == NULL);
  CHECK(all_poisoned(y, kX));
  polyhead_latent_destroy(latent);
  polyhead_latent_destroy(NULL);
}

int main(void) {
  test_forms();
  test_cache();
  test_pages();
  test_own_appends();
  test_refusals();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
