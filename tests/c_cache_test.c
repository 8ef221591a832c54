/* Caches through the C door: what they hold gives the bits of the plain call, files bring it back,
 * and whatever is wrong is refused. */
#include "c_caches.h"

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
  check_info(FILE_NAME, POLYHEAD_FILE_OF_CACHES, 1, kBatch);
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
  {
    /* A branch of a draft: the last token in the place of the second. */
    const int64_t places[1] = {kKvLen - 1};
    const float* keys;
    CHECK_REFUSED(polyhead_kv_cache_keep(loaded, 0, kKvLen + 1, places, 0), "first (38)");
    CHECK_REFUSED(polyhead_kv_cache_keep(loaded, 0, 1, NULL, 1), "places is null");
    CHECK_OK(polyhead_kv_cache_keep(loaded, 0, 1, places, 1));
    CHECK_OK(polyhead_kv_cache_length(loaded, 0, &number));
    CHECK(number == 2);
    CHECK_OK(polyhead_kv_cache_view(loaded, &view));
    keys = view.k.data;
    CHECK(memcmp(keys + view.k.strides[1], k + (kKvLen - 1) * kKvHeads * kDim,
                 kDim * sizeof(float)) == 0);
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

/* Latents: values are the beginning of the keys. */
static void test_values_in_keys(void) {
  polyhead_attention_arguments call = latents_of_call();
  polyhead_kv_cache_config config = kv_config(POLYHEAD_FLOAT32);
  polyhead_kv_cache* cache = NULL;
  polyhead_kv_view view = {.struct_bytes = sizeof view};
  config.values_in_keys = 1;
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_REFUSED(polyhead_kv_cache_append(cache, &k_view, &v_view, NULL), "v is given");
  CHECK_OK(polyhead_kv_cache_append(cache, &k_view, NULL, NULL));
  CHECK_OK(polyhead_kv_cache_view(cache, &view));
  check_same(&call, &view);
  polyhead_kv_cache_destroy(cache);
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
  test_values_in_keys();
  test_older_programs();
  test_newer_programs();
  return test_failures != 0;
}
