/* Paged caches through the C door: exhaustion is a status, and ragged calls and files. */
#include "c_caches.h"

#define FILE_NAME "c_paged_cache_test.kv"

static float rows_out[kOut];

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
  {
    static const int32_t parents[4] = {-1, 0, 0, 1};
    const polyhead_draft_tree tree = {
        .struct_bytes = sizeof tree, .held = 3, .parents = parents, .count = 4};
    int64_t places[4], count = -1;
    CHECK_OK(polyhead_draft_tree_branch(&tree, 3, places, &count));
    CHECK(count == 3 && places[0] == 3 && places[1] == 4 && places[2] == 6);
    CHECK_REFUSED(polyhead_draft_tree_branch(&tree, 4, places, &count), "last (4)");
    CHECK_REFUSED(polyhead_draft_tree_branch(&tree, 3, NULL, &count), "places is null");
    CHECK_REFUSED(polyhead_draft_tree_branch(&tree, 3, places, NULL), "count is null");
    CHECK_OK(polyhead_draft_tree_branch(&tree, -1, NULL, &count));
    CHECK(count == 0);
    CHECK_REFUSED(polyhead_paged_sequence_keep(cache, fork, 4, places, NULL, 3), "places[0] (3)");
    CHECK_REFUSED(polyhead_paged_sequence_keep(cache, fork, 3, NULL, NULL, 3), "places is null");
    places[0] = 10; /* on a page that both hold, and the pool has none to copy to */
    CHECK(polyhead_paged_sequence_keep(cache, fork, 8, places, NULL, 1) == POLYHEAD_EXHAUSTED);
    places[0] = 3;
    CHECK_OK(polyhead_paged_sequence_keep(cache, fork, 3, places, tokens, 3));
    CHECK_OK(polyhead_paged_sequence_length(cache, fork, &number));
    CHECK(number == 6);
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
  check_info(FILE_NAME, POLYHEAD_FILE_OF_SEQUENCES, kBatch, 1);
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
  CHECK_OK(polyhead_paged_cache_serve(other, &kPrint)); /* as the file has said */
  CHECK_REFUSED(polyhead_paged_cache_serve(other, &kOther), "weights");
  CHECK_REFUSED(polyhead_paged_cache_serve(other, NULL), "is null");
  polyhead_paged_cache_destroy(other);
  polyhead_paged_cache_destroy(cache);
  remove(FILE_NAME);
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

static void test_values_in_keys(void) {
  polyhead_attention_arguments call = latents_of_call();
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
  expect_call(&call, &mask);
  check_ragged(cache, sequences);
  polyhead_paged_cache_destroy(cache);
}

/* What is said of a file: its path as it is, and the reason behind however long a path. */
static void test_paths_in_messages(void) {
  static char path[20001];
  const char* const named =
      "statistics.entropy/KvCache: type is, use_projections is false, extend()";
  size_t bytes = 0;
  CHECK_REFUSED(polyhead_paged_sequences_notes(named, &kPrint, NULL, 0, &bytes), named);
  memset(path, 'p', sizeof path - 1);
  CHECK_REFUSED(polyhead_paged_sequences_notes(path, &kPrint, NULL, 0, &bytes), "load_notes: ppp");
  CHECK(strstr(polyhead_last_error(), "ppp [...] ppp") != NULL);
  CHECK(strstr(polyhead_last_error(), "File name too long") != NULL);
}

int main(void) {
  test_paged();
  test_paged_scales();
  test_values_in_keys();
  test_paths_in_messages();
  return test_failures != 0;
}
