/* The layer over caches through the C door: pages and rings give the bits of the whole, contexts
 * projected once those of the context itself, and whatever is wrong is refused. */
#include "c_check.h"
#include "polyhead/polyhead_layer_c.h"

enum {
  kTokens = 20,
  kModel = 16,
  kHeads = 2,
  kDim = 8,
  kPacked = 3 * kHeads * kDim,
  kX = kTokens * kModel,
  kStep = 5,
  kPage = 8
};

static float x[kX], y[kX], whole[kX];
static float w_qkv[kPacked * kModel], w_o[kModel * kModel];

/* A causal layer with RoPE, `left` of its window; and what it gives in one call, into `whole`. */
static polyhead_layer* make_layer(int64_t left) {
  const polyhead_rope_config rope = {.struct_bytes = sizeof rope,
                                     .pairing = POLYHEAD_ROPE_HALF_SPLIT};
  const polyhead_view w_qkv_view = matrix(w_qkv, kPacked, kModel);
  const polyhead_view w_o_view = matrix(w_o, kModel, kModel);
  const polyhead_view from = matrix(x, kTokens, kModel), to = matrix(whole, kTokens, kModel);
  polyhead_mask mask = {.struct_bytes = sizeof mask, .causal = 1};
  polyhead_layer_weights weights = {.struct_bytes = sizeof weights};
  polyhead_layer_config config = {.struct_bytes = sizeof config};
  polyhead_layer* layer = NULL;
  fill_random(x, kX, 1);
  fill_random(w_qkv, kPacked * kModel, 2);
  fill_random(w_o, kModel * kModel, 3);
  poison(y, kX);
  mask.windowed = left >= 0;
  mask.left = left;
  mask.right = -1;
  config.model_dim = kModel;
  config.q_heads = kHeads;
  config.rope = &rope;
  config.mask = &mask;
  weights.w_qkv = &w_qkv_view;
  weights.w_o = &w_o_view;
  CHECK_OK(polyhead_layer_create(&config, &weights, NULL, &layer));
  CHECK_OK(polyhead_layer_forward(layer, &from, &to, NULL));
  return layer;
}

static polyhead_paged_cache* make_pool(int64_t pages, int64_t layers) {
  polyhead_paged_cache_config config = {.struct_bytes = sizeof config};
  polyhead_paged_cache* pool = NULL;
  config.pages = pages;
  config.page_tokens = kPage;
  config.layers = layers;
  config.kv_heads = kHeads;
  config.head_dim = kDim;
  config.element_type = POLYHEAD_FLOAT32;
  CHECK_OK(polyhead_paged_cache_create(&config, &pool));
  return pool;
}

/* Two layers of one pool: the first makes the room, the second finds it. */
static void test_paged(void) {
  static float second[kX];
  const int32_t tokens[kTokens] = {4, 8, 15, 16, 23, 42};
  polyhead_layer* layer = make_layer(-1);
  polyhead_paged_cache* pool = make_pool(4, 2);
  polyhead_paged_sequences pages = {.struct_bytes = sizeof pages};
  int64_t sequences[2] = {-1, -1}, number = -1;
  int step;
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[0]));
  pages.cache = pool;
  pages.sequences = sequences;
  pages.count = 1;
  poison(second, kX);
  for (step = 0; step < kTokens; step += kStep) {
    const polyhead_view from = matrix(x + step * kModel, kStep, kModel);
    const polyhead_view to = matrix(y + step * kModel, kStep, kModel);
    const polyhead_view other = matrix(second + step * kModel, kStep, kModel);
    pages.layer = pages.room_made = 0;
    pages.tokens = tokens + step;
    pages.token_count = kStep;
    CHECK_OK(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL));
    pages.layer = pages.room_made = 1;
    pages.tokens = NULL;
    pages.token_count = 0;
    CHECK_OK(polyhead_layer_forward_paged(layer, &from, &pages, &other, NULL));
  }
  CHECK(memcmp(whole, y, sizeof y) == 0);
  CHECK(memcmp(whole, second, sizeof y) == 0);
  CHECK_OK(polyhead_paged_sequence_length(pool, sequences[0], &number));
  CHECK(number == kTokens);

  /* Another sequence begins with its pages; the pool has one page more. */
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[1]));
  CHECK_OK(polyhead_paged_sequence_adopt_prefix(pool, sequences[1], tokens, kTokens, &number));
  CHECK(number == 2 * kPage);
  {
    const polyhead_view from = matrix(x, kTokens, kModel), to = matrix(y, kTokens, kModel);
    const polyhead_view rest = matrix(x + 2 * kPage * kModel, 4, kModel);
    const polyhead_view rest_to = matrix(y + 2 * kPage * kModel, 4, kModel);
    poison(y, kX);
    pages.sequences = sequences + 1;
    pages.layer = pages.room_made = 0;
    CHECK(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL) == POLYHEAD_EXHAUSTED);
    CHECK(strstr(polyhead_last_error(), "polyhead_layer_forward_paged") != NULL);
    CHECK(all_poisoned(y, kX));
    CHECK_OK(polyhead_paged_sequence_length(pool, sequences[1], &number));
    CHECK(number == 2 * kPage);
    CHECK_OK(polyhead_layer_forward_paged(layer, &rest, &pages, &rest_to, NULL));
    CHECK(memcmp(whole + 2 * kPage * kModel, y + 2 * kPage * kModel, 4 * kModel * sizeof *y) == 0);
  }
  polyhead_paged_cache_destroy(pool);
  polyhead_layer_destroy(layer);
}

/* A prompt's chunk beside another sequence's step, and a view of both. */
static void test_ragged_and_views(void) {
  static float packed[kPacked], heads[kModel], out[kModel];
  const int64_t packed_extents[3] = {1, 1, kPacked}, three = 3;
  const polyhead_view packed_view =
      polyhead_make_view(packed, POLYHEAD_FLOAT32, 3, packed_extents, NULL);
  const int64_t heads_extents[4] = {1, 1, kHeads, kDim};
  const polyhead_view heads_view =
      polyhead_make_view(heads, POLYHEAD_FLOAT32, 4, heads_extents, NULL);
  const polyhead_view flat = matrix(heads, 1, kModel), out_view = matrix(out, 1, kModel);
  const int32_t offsets[3] = {0, 4, 5};
  const polyhead_view offsets_view = polyhead_make_view(offsets, POLYHEAD_INT32, 1, &three, NULL);
  polyhead_layer* layer = make_layer(-1);
  polyhead_paged_cache* pool = make_pool(4, 1);
  polyhead_paged_batch* batch = NULL;
  polyhead_kv_view kv = {.struct_bytes = sizeof kv};
  polyhead_paged_sequences pages = {.struct_bytes = sizeof pages, .count = 2};
  polyhead_layer_call call = {.struct_bytes = sizeof call};
  float rows[5 * kModel];
  int64_t sequences[2] = {-1, -1};
  const polyhead_view from = matrix(rows, 5, kModel), to = matrix(y, 5, kModel);
  polyhead_view q = {.struct_bytes = sizeof q}, k = q, v = q;
  int64_t last = 3;
  const int64_t one = 1;
  const polyhead_view position = polyhead_make_view(&last, POLYHEAD_INT64, 1, &one, NULL);
  const polyhead_view last_row = matrix(x + 3 * kModel, 1, kModel);
  const polyhead_view flat_packed = matrix(packed, 1, kPacked);
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[0]));
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[1]));
  pages.cache = pool;
  pages.sequences = sequences;
  memcpy(rows, x, 4 * kModel * sizeof *x);
  memcpy(rows + 4 * kModel, x, kModel * sizeof *x);
  call.offsets = &offsets_view;
  CHECK_OK(polyhead_layer_forward_paged(layer, &from, &pages, &to, &call));
  CHECK(memcmp(y, whole, 4 * kModel * sizeof *y) == 0);
  CHECK(memcmp(y + 4 * kModel, whole, kModel * sizeof *y) == 0);

  /* The third step alone, for the last token of the first sequence. */
  CHECK_OK(polyhead_paged_batch_create(&batch));
  CHECK_OK(polyhead_paged_batch_set(batch, pool, sequences, 1));
  CHECK_OK(polyhead_paged_cache_view(pool, 0, batch, &kv));
  CHECK_OK(polyhead_layer_project(layer, &last_row, &flat_packed, &position));
  CHECK_OK(polyhead_layer_split(layer, &packed_view, &q, &k, &v));
  CHECK_OK(polyhead_layer_attend_view(layer, &q, &kv, &heads_view, NULL));
  CHECK_OK(polyhead_layer_output(layer, &flat, &out_view));
  CHECK(memcmp(out, whole + 3 * kModel, sizeof out) == 0);
  polyhead_paged_batch_destroy(batch);
  polyhead_paged_cache_destroy(pool);
  polyhead_layer_destroy(layer);
}

/* Without first tokens both kinds of positions give the bits of the plain window. */
static void test_sliding(void) {
  polyhead_layer* plain = make_layer(6);
  polyhead_sliding_cache_config config = {.struct_bytes = sizeof config};
  int32_t positions;
  config.kv_heads = kHeads;
  config.head_dim = kDim;
  config.window = 7;
  config.chunk = kStep;
  config.element_type = POLYHEAD_FLOAT32;
  for (positions = 0; positions < 2; ++positions) {
    polyhead_sliding_cache* cache = NULL;
    int64_t length = -1;
    int step;
    poison(y, kX);
    CHECK_OK(polyhead_sliding_cache_create(&config, &cache));
    for (step = 0; step < kTokens; step += kStep) {
      const polyhead_view from = matrix(x + step * kModel, kStep, kModel);
      const polyhead_view to = matrix(y + step * kModel, kStep, kModel);
      CHECK_OK(polyhead_layer_forward_sliding(plain, &from, cache, &to, positions, NULL));
    }
    CHECK(memcmp(whole, y, sizeof y) == 0);
    CHECK_OK(polyhead_sliding_cache_length(cache, 0, &length));
    CHECK(length == kTokens);
    polyhead_sliding_cache_destroy(cache);
  }
  polyhead_layer_destroy(plain);
}

/* One sequence by offsets, with places for RoPE: what it gives by lengths. */
static void check_joined_context(const polyhead_layer* layer, const polyhead_mask* mask,
                                 float* context, int64_t fewer, const float* expected) {
  const int64_t offsets[2] = {0, kTokens}, context_offsets[2] = {0, fewer};
  const int64_t two = 2, all = 2 * kTokens;
  const polyhead_view first = polyhead_make_view((void*)offsets, POLYHEAD_INT64, 1, &two, NULL);
  const polyhead_view second =
      polyhead_make_view((void*)context_offsets, POLYHEAD_INT64, 1, &two, NULL);
  const polyhead_view from = matrix(x, kTokens, kModel), to = matrix(y, kTokens, kModel);
  const polyhead_view other = matrix(context, all, kModel);
  int64_t places[2 * kTokens];
  const polyhead_view at = polyhead_make_view(places, POLYHEAD_INT64, 1, &all, NULL);
  polyhead_layer_call call = {.struct_bytes = sizeof call, .mask = mask, .offsets = &first};
  int64_t i;
  for (i = 0; i < all; ++i) places[i] = i;
  call.context_offsets = &second;
  call.context_positions = &at;
  poison(y, kX);
  CHECK_OK(polyhead_layer_forward_cross(layer, &from, &other, &to, &call));
  CHECK(memcmp(expected, y, sizeof y) == 0);
  for (i = 0; i < all; ++i) places[i] = 3 * i;
  CHECK_OK(polyhead_layer_forward_cross(layer, &from, &other, &to, &call));
  CHECK(memcmp(expected, y, sizeof y) != 0);
}

/* Cross attention by its steps gives `expected`, what it gives in one call. */
static void check_steps(const polyhead_layer* layer, const polyhead_view* from,
                        const polyhead_view* context, const polyhead_layer_call* call,
                        const float* expected) {
  static float q_rows[kX], kv_rows[4 * kX], heads[kX];
  const int64_t kv_extents[3] = {1, 2 * kTokens, 2 * kModel}, x_extents[3] = {1, kTokens, kModel};
  const int64_t heads_extents[4] = {1, kTokens, kHeads, kModel / kHeads};
  const polyhead_view packed_q = polyhead_make_view(q_rows, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  const polyhead_view packed_kv =
      polyhead_make_view(kv_rows, POLYHEAD_FLOAT32, 3, kv_extents, NULL);
  const polyhead_view of_heads =
      polyhead_make_view(heads, POLYHEAD_FLOAT32, 4, heads_extents, NULL);
  const polyhead_view concatenated =
      polyhead_make_view(heads, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  const polyhead_view to = polyhead_make_view(y, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  polyhead_view q = {.struct_bytes = sizeof q}, k = q, v = q;
  poison(y, kX);
  CHECK_OK(polyhead_layer_project_q(layer, from, &packed_q, NULL));
  CHECK_OK(polyhead_layer_project_kv(layer, context, &packed_kv, NULL));
  CHECK_OK(polyhead_layer_split_cross(layer, &packed_q, &packed_kv, &q, &k, &v));
  CHECK_OK(polyhead_layer_attend(layer, &q, &k, &v, &of_heads, call));
  CHECK_OK(polyhead_layer_output(layer, &concatenated, &to));
  CHECK(memcmp(expected, y, sizeof y) == 0);
  poison(y, kX);
  CHECK_REFUSED(polyhead_layer_project_q(NULL, from, &packed_q, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_project_q(layer, from, NULL, NULL), "q");
  CHECK_REFUSED(polyhead_layer_project_kv(NULL, context, &packed_kv, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_project_kv(layer, from, &packed_kv, NULL),
                "kv has batch 1 and tokens");
  CHECK_REFUSED(polyhead_layer_split_cross(NULL, &packed_q, &packed_kv, &q, &k, &v),
                "layer is null");
  CHECK_REFUSED(polyhead_layer_split_cross(layer, &packed_q, &packed_kv, NULL, &k, &v),
                "q is null");
  CHECK_REFUSED(polyhead_layer_split_cross(layer, &packed_kv, &packed_kv, &q, &k, &v),
                "columns is");
  CHECK(all_poisoned(y, kX));
}

static void test_context(void) {
  static float context[2 * kX], expected[kX];
  const int64_t extents[3] = {1, 2 * kTokens, kModel}, one = 1, fewer = 31;
  const polyhead_view context_view =
      polyhead_make_view(context, POLYHEAD_FLOAT32, 3, extents, NULL);
  const polyhead_view lengths = polyhead_make_view(&fewer, POLYHEAD_INT64, 1, &one, NULL);
  const int64_t x_extents[3] = {1, kTokens, kModel};
  const polyhead_view from = polyhead_make_view(x, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  const polyhead_view to = polyhead_make_view(y, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  const polyhead_view want = polyhead_make_view(expected, POLYHEAD_FLOAT32, 3, x_extents, NULL);
  polyhead_mask end = {.struct_bytes = sizeof end, .align = POLYHEAD_ALIGN_END};
  polyhead_layer_call call = {.struct_bytes = sizeof call};
  polyhead_layer* layer = make_layer(-1);
  polyhead_kv_cache* cache = NULL;
  polyhead_kv_view kv = {.struct_bytes = sizeof kv};
  int64_t length = -1;
  fill_random(context, 2 * kX, 9);
  call.mask = &end;
  call.context_lengths = &lengths;
  CHECK_OK(polyhead_layer_forward_cross(layer, &from, &context_view, &want, &call));
  check_joined_context(layer, &end, context, fewer, expected);
  check_steps(layer, &from, &context_view, &call, expected);
  CHECK_OK(polyhead_layer_cache_create(layer, 1, 2 * kTokens, 0, 0, &cache));
  CHECK_OK(polyhead_layer_project_context(layer, &context_view, cache, &lengths, NULL));
  CHECK_OK(polyhead_kv_cache_length(cache, 0, &length));
  CHECK(length == fewer);
  call.context_lengths = NULL;
  CHECK_OK(polyhead_layer_cross(layer, &from, cache, &to, &call));
  CHECK(memcmp(expected, y, sizeof y) == 0);
  poison(y, kX);
  CHECK_OK(polyhead_kv_cache_view(cache, &kv));
  CHECK_OK(polyhead_layer_cross_view(layer, &from, &kv, &to, &call));
  CHECK(memcmp(expected, y, sizeof y) == 0);

  poison(y, kX);
  call.context_lengths = &lengths;
  CHECK_REFUSED(polyhead_layer_cross(layer, &from, cache, &to, &call),
                "context_lengths are given, but the cache has its own");
  CHECK_REFUSED(polyhead_layer_cross_view(layer, &from, &kv, &to, &call),
                "context_lengths are given, but context has its own");
  CHECK_REFUSED(polyhead_layer_cross(NULL, &from, cache, &to, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_cross(layer, &from, NULL, &to, NULL), "context is null");
  CHECK_REFUSED(polyhead_layer_cross_view(NULL, &from, &kv, &to, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_cross_view(layer, &from, NULL, &to, NULL), "context is null");
  CHECK_REFUSED(polyhead_layer_project_context(NULL, &context_view, cache, NULL, NULL),
                "layer is null");
  CHECK_REFUSED(polyhead_layer_project_context(layer, &context_view, NULL, NULL, NULL),
                "cache is null");
  CHECK_REFUSED(polyhead_layer_project_context(layer, NULL, cache, NULL, NULL), "context");
  CHECK_REFUSED(polyhead_layer_project_context(layer, &context_view, cache, NULL, NULL),
                "exceed the capacity");
  CHECK_REFUSED(polyhead_layer_attend_view(NULL, &from, &kv, &to, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_attend_view(layer, &from, NULL, &to, NULL), "kv is null");
  CHECK(all_poisoned(y, kX));
  polyhead_kv_cache_destroy(cache);
  polyhead_layer_destroy(layer);
}

static void test_refusals(void) {
  const polyhead_view from = matrix(x, kStep, kModel), to = matrix(y, kStep, kModel);
  polyhead_layer* layer = make_layer(-1);
  polyhead_paged_cache* pool = make_pool(4, 1);
  polyhead_sliding_cache_config config = {.struct_bytes = sizeof config};
  polyhead_sliding_cache* ring = NULL;
  polyhead_paged_sequences pages = {.struct_bytes = sizeof pages};
  polyhead_paged_extension a = {.struct_bytes = sizeof a, .count = 17}, b = a;
  const polyhead_paged_extension* parts[2];
  const int32_t numbers[17] = {0};
  int64_t sequences[2] = {-1, -1}, length = -1;
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[0]));
  CHECK_OK(polyhead_paged_sequence_create(pool, 0, &sequences[1]));
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, NULL, &to, NULL), "pages is null");
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.cache is null");
  pages.cache = pool;
  pages.count = 1;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.sequences is null");
  pages.sequences = sequences;
  CHECK_REFUSED(polyhead_layer_forward_paged(NULL, &from, &pages, &to, NULL), "layer is null");
  pages.struct_bytes = 8;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.struct_bytes (8)");
  pages.struct_bytes = sizeof pages;
  pages.room_made = 2;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.room_made (2)");
  pages.room_made = 0;
  pages.reserved = 1;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.reserved (1)");
  pages.reserved = 0;
  pages.token_count = 2;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.tokens is null");
  pages.tokens = numbers;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL),
                "pages.tokens has 2 numbers, expected 5");
  pages.token_count = 0;
  pages.layer = 1;
  CHECK_REFUSED(polyhead_layer_forward_paged(layer, &from, &pages, &to, NULL), "pages.layer (1)");

  config.kv_heads = kHeads;
  config.head_dim = kDim;
  config.window = 7;
  config.chunk = 4;
  config.element_type = POLYHEAD_FLOAT32;
  CHECK_OK(polyhead_sliding_cache_create(&config, &ring));
  CHECK_REFUSED(polyhead_layer_forward_sliding(NULL, &from, ring, &to, 0, NULL), "layer is null");
  CHECK_REFUSED(polyhead_layer_forward_sliding(layer, &from, NULL, &to, 0, NULL), "cache is null");
  CHECK_REFUSED(polyhead_layer_forward_sliding(layer, &from, ring, &to, 2, NULL), "positions (2)");
  CHECK_REFUSED(polyhead_layer_forward_sliding(layer, &from, ring, &to, 0, NULL), "chunk (4)");
  CHECK_OK(polyhead_sliding_cache_length(ring, 0, &length));
  CHECK(length == 0);

  /* Room for both or for none. */
  a.sequence = sequences[0];
  b.sequence = sequences[1];
  parts[0] = &a;
  parts[1] = &b;
  CHECK(polyhead_paged_sequences_extend(pool, parts, 2) == POLYHEAD_EXHAUSTED);
  CHECK_OK(polyhead_paged_sequence_length(pool, sequences[0], &length));
  CHECK(length == 0);
  b.count = 8;
  b.struct_bytes = 4;
  CHECK_REFUSED(polyhead_paged_sequences_extend(pool, parts, 2), "parts[1].struct_bytes (4)");
  b.struct_bytes = sizeof b;
  parts[1] = NULL;
  CHECK_REFUSED(polyhead_paged_sequences_extend(pool, parts, 2), "parts[1] is null");
  CHECK_REFUSED(polyhead_paged_sequences_extend(pool, NULL, 2), "parts is null");
  CHECK_REFUSED(polyhead_paged_sequences_extend(NULL, parts, 1), "cache is null");
  parts[1] = &a;
  CHECK_REFUSED(polyhead_paged_sequences_extend(pool, parts, 2), "given twice");
  parts[1] = &b;
  a.tokens = numbers;
  CHECK_OK(polyhead_paged_sequences_extend(pool, parts, 2));
  CHECK_OK(polyhead_paged_sequence_length(pool, sequences[0], &length));
  CHECK(length == 17);
  CHECK_OK(polyhead_paged_sequence_length(pool, sequences[1], &length));
  CHECK(length == 8);
  CHECK(all_poisoned(y, kX));
  polyhead_sliding_cache_destroy(ring);
  polyhead_paged_cache_destroy(pool);
  polyhead_layer_destroy(layer);
}

int main(void) {
  test_paged();
  test_ragged_and_views();
  test_sliding();
  test_context();
  test_refusals();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
