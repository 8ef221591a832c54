/* Frames through the C door: calibrated, entered and left they cost an int8 cache less than it
 * loses without them, arrays that are kept make the same frames again, and whatever is wrong is
 * refused. */
#include "c_check.h"
#include "polyhead/polyhead_cache_c.h"
#include "polyhead/polyhead_frames_c.h"

enum { kTokens = 40, kQHeads = 4, kKvHeads = 2, kDim = 32, kValueDim = 16, kModel = 24 };
enum { kQ = kTokens * kQHeads * kDim, kK = kTokens * kKvHeads * kDim };
enum { kV = kTokens * kKvHeads * kValueDim, kOut = kTokens * kQHeads * kValueDim };
enum { kMoments = kKvHeads * kValueDim * kValueDim };

static float q[kQ], k[kK], v[kV];
static float turned_q[kQ], turned_k[kK], turned_v[kV], out[kOut], exact[kOut];
static double moments[kMoments];

static polyhead_view rows(float* of, int64_t heads, int64_t dim) {
  const int64_t extents[4] = {1, kTokens, heads, dim};
  return polyhead_make_view(of, POLYHEAD_FLOAT32, 4, extents, NULL);
}

/* Keys around a centre, so that codes of them without a frame are coarse. */
static void fill(void) {
  int i;
  fill_random(q, kQ, 1);
  fill_random(k, kK, 2);
  fill_random(v, kV, 3);
  for (i = 0; i < kK; ++i) k[i] += (float)(i % kDim % 5) * 10.0f;
}

/* Attention over a cache of `type` that holds keys and values, into `out`. */
static void attend(float* queries, float* keys, float* values, int32_t type) {
  const polyhead_view q_view = rows(queries, kQHeads, kDim), k_view = rows(keys, kKvHeads, kDim);
  const polyhead_view v_view = rows(values, kKvHeads, kValueDim);
  const polyhead_view out_view = rows(out, kQHeads, kValueDim);
  polyhead_kv_cache_config config = {.struct_bytes = sizeof config};
  polyhead_kv_view held = {.struct_bytes = sizeof held};
  polyhead_attention_arguments call = {.struct_bytes = sizeof call};
  polyhead_kv_cache* cache = NULL;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.value_dim = kValueDim;
  config.capacity = kTokens;
  config.element_type = type;
  CHECK_OK(polyhead_kv_cache_create(&config, &cache));
  CHECK_OK(polyhead_kv_cache_append(cache, &k_view, &v_view, NULL));
  CHECK_OK(polyhead_kv_cache_view(cache, &held));
  call.q = &q_view;
  call.kv = &held;
  call.out = &out_view;
  poison(out, kOut);
  CHECK_OK(polyhead_attention(&call, NULL));
  polyhead_kv_cache_destroy(cache);
}

/* The same with all rows in `frames`. */
static void attend_in(const polyhead_layer_frames* frames, int32_t type) {
  const polyhead_view q_view = rows(turned_q, kQHeads, kDim);
  const polyhead_view k_view = rows(turned_k, kKvHeads, kDim);
  const polyhead_view v_view = rows(turned_v, kKvHeads, kValueDim);
  const polyhead_view out_view = rows(out, kQHeads, kValueDim);
  memcpy(turned_q, q, sizeof q);
  memcpy(turned_k, k, sizeof k);
  memcpy(turned_v, v, sizeof v);
  CHECK_OK(polyhead_enter_frames(frames, &q_view, &k_view, &v_view, NULL));
  attend(turned_q, turned_k, turned_v, type);
  CHECK_OK(polyhead_leave_frames(frames, &out_view, NULL));
}

static polyhead_frame_calibration* calibration_of_rows(const polyhead_rope_config* rope) {
  const polyhead_view q_view = rows(q, kQHeads, kDim), k_view = rows(k, kKvHeads, kDim);
  const polyhead_view v_view = rows(v, kKvHeads, kValueDim);
  int64_t positions[kTokens], extents[2] = {1, kTokens}, tokens = -1;
  const polyhead_view at = polyhead_make_view(positions, POLYHEAD_INT64, 2, extents, NULL);
  polyhead_frame_calibration_config config = {.struct_bytes = sizeof config};
  polyhead_frame_calibration* calibration = NULL;
  int i;
  for (i = 0; i < kTokens; ++i) positions[i] = i;
  config.q_heads = kQHeads;
  config.kv_heads = kKvHeads;
  config.value_dim = kValueDim;
  CHECK_REFUSED(polyhead_frame_calibration_create(&config, &calibration), "config.head_dim is 0");
  config.head_dim = kDim;
  config.rope = rope;
  config.reserved = 1;
  CHECK_REFUSED(polyhead_frame_calibration_create(&config, &calibration), "reserved (1)");
  config.reserved = 0;
  config.not_centred = 2;
  CHECK_REFUSED(polyhead_frame_calibration_create(&config, &calibration), "not_centred (2)");
  config.not_centred = 0;
  CHECK_REFUSED(polyhead_frame_calibration_create(&config, NULL), "calibration is null");
  CHECK_REFUSED(polyhead_frame_calibration_create(NULL, &calibration), "config is null");
  CHECK(calibration == NULL);
  CHECK_OK(polyhead_frame_calibration_create(&config, &calibration));
  CHECK_REFUSED(polyhead_frame_calibration_add(NULL, &q_view, &k_view, &v_view, &at, NULL),
                "calibration is null");
  CHECK_REFUSED(polyhead_frame_calibration_add(calibration, NULL, &k_view, &v_view, &at, NULL),
                "q is null");
  CHECK_REFUSED(polyhead_frame_calibration_add(calibration, &k_view, &k_view, &v_view, &at, NULL),
                "q has 2 heads, expected 4");
  if (rope != NULL) {
    CHECK_REFUSED(
        polyhead_frame_calibration_add(calibration, &q_view, &k_view, &v_view, NULL, NULL),
        "positions are not given");
  }
  CHECK_OK(polyhead_frame_calibration_tokens(calibration, &tokens));
  CHECK(tokens == 0);
  CHECK_OK(polyhead_frame_calibration_add(calibration, &q_view, &k_view, &v_view, &at, NULL));
  CHECK_OK(polyhead_frame_calibration_tokens(calibration, &tokens));
  CHECK(tokens == kTokens);
  CHECK_REFUSED(polyhead_frame_calibration_tokens(calibration, NULL), "tokens is null");
  return calibration;
}

/* A quarter of the error without frames is what anybody could ask of keys so far from 0. */
static void test_codes_lose_less(void) {
  polyhead_frame_calibration* calibration = calibration_of_rows(NULL);
  const int32_t types[2] = {POLYHEAD_INT8, POLYHEAD_INT4};
  int i;
  attend(q, k, v, POLYHEAD_FLOAT32);
  memcpy(exact, out, sizeof out);
  for (i = 0; i < 2; ++i) {
    polyhead_layer_frames* frames = NULL;
    double without;
    CHECK_OK(polyhead_frame_calibration_frames(calibration, types[i], 100, NULL, 0, &frames));
    attend(q, k, v, types[i]);
    without = largest_difference(out, exact, kOut);
    attend_in(frames, types[i]);
    CHECK(largest_difference(out, exact, kOut) < without / 4);
    polyhead_layer_frames_destroy(frames);
  }
  polyhead_frame_calibration_destroy(calibration);
}

static void test_moments(void) {
  static float w[kModel * kQHeads * kValueDim];
  const polyhead_view w_o = matrix(w, kModel, kQHeads * kValueDim);
  int i;
  fill_random(w, kModel * kQHeads * kValueDim, 4);
  CHECK_REFUSED(polyhead_value_moments(&w_o, kKvHeads, kValueDim, moments, kMoments - 1, NULL),
                "count (511) is not 512");
  CHECK_REFUSED(polyhead_value_moments(&w_o, kKvHeads, kValueDim, NULL, kMoments, NULL),
                "moments is null");
  CHECK_REFUSED(polyhead_value_moments(NULL, kKvHeads, kValueDim, moments, kMoments, NULL),
                "w_o is null");
  CHECK_OK(polyhead_value_moments(&w_o, kKvHeads, kValueDim, moments, kMoments, NULL));
  for (i = 0; i < kKvHeads * kValueDim; ++i) CHECK(moments[i * kValueDim + i % kValueDim] > 0);
}

/* Frames that were kept as arrays and made again give the same bits. */
static void test_arrays(void) {
  polyhead_rope_config rope = {.struct_bytes = sizeof rope};
  polyhead_frame_calibration* calibration;
  polyhead_layer_frames *frames = NULL, *again = NULL;
  polyhead_code_frame keys = {.struct_bytes = sizeof keys};
  polyhead_code_frame values = {.struct_bytes = sizeof values};
  rope.pairing = POLYHEAD_ROPE_HALF_SPLIT;
  calibration = calibration_of_rows(&rope);
  CHECK_REFUSED(
      polyhead_frame_calibration_frames(calibration, POLYHEAD_FLOAT16, 9, NULL, 0, &frames),
      "float16");
  CHECK_REFUSED(
      polyhead_frame_calibration_frames(calibration, POLYHEAD_INT4, 9, moments, 3, &frames),
      "moments has 3 numbers");
  CHECK_REFUSED(polyhead_frame_calibration_frames(calibration, POLYHEAD_INT4, 9, NULL, 3, &frames),
                "moments is null");
  CHECK(frames == NULL);
  CHECK_OK(polyhead_frame_calibration_frames(calibration, POLYHEAD_INT4, 100, moments, kMoments,
                                             &frames));
  polyhead_frame_calibration_destroy(calibration);
  CHECK_OK(polyhead_layer_frames_get(frames, &keys, &values));
  CHECK(keys.kv_heads == kKvHeads && keys.dim == kDim && values.dim == kValueDim);
  CHECK(keys.centre && keys.stretch && keys.carry && keys.cost && values.carry);
  attend_in(frames, POLYHEAD_INT4);
  memcpy(exact, out, sizeof out);
  CHECK_OK(polyhead_layer_frames_create(&keys, &values, &again));
  polyhead_layer_frames_destroy(frames);
  attend_in(again, POLYHEAD_INT4);
  CHECK(memcmp(out, exact, sizeof out) == 0);
  CHECK_OK(polyhead_layer_frames_get(again, &keys, NULL));

  frames = NULL;
  CHECK_REFUSED((keys.cost = NULL, polyhead_layer_frames_create(&keys, NULL, &frames)),
                "keys.cost is null");
  keys.carry = NULL; /* to nearest */
  CHECK_REFUSED((keys.dim = 769, polyhead_layer_frames_create(&keys, NULL, &frames)),
                "keys.dim (769)");
  keys.dim = kDim;
  CHECK_REFUSED((keys.struct_bytes = 8, polyhead_layer_frames_create(&keys, NULL, &frames)),
                "keys.struct_bytes (8)");
  keys.struct_bytes = sizeof keys;
  CHECK_REFUSED(polyhead_layer_frames_create(&keys, NULL, NULL), "frames is null");
  CHECK(frames == NULL);
  CHECK_OK(polyhead_layer_frames_create(&keys, NULL, &frames));
  CHECK_OK(polyhead_layer_frames_get(frames, &keys, &values));
  CHECK(keys.centre && !keys.carry && !values.centre && values.dim == 0);
  CHECK_REFUSED((values.struct_bytes = 0, polyhead_layer_frames_get(frames, &keys, &values)),
                "values.struct_bytes (0)");
  polyhead_layer_frames_destroy(frames);
  polyhead_layer_frames_destroy(again);
}

static void test_refusals(void) {
  polyhead_layer_frames* frames = NULL;
  float numbers[kKvHeads * kDim];
  polyhead_code_frame frame = {.struct_bytes = sizeof frame};
  polyhead_view k_view = rows(turned_k, kKvHeads, kDim), turned;
  const polyhead_view out_view = rows(out, kQHeads, kDim);
  int i;
  for (i = 0; i < kKvHeads * kDim; ++i) numbers[i] = 2.0f;
  frame.kv_heads = kKvHeads;
  frame.dim = kDim;
  frame.centre = frame.stretch = numbers;
  numbers[3] = NAN;
  CHECK_REFUSED(polyhead_layer_frames_create(&frame, NULL, &frames), "keys.centre[3]");
  CHECK_REFUSED(polyhead_layer_frames_create(NULL, &frame, &frames), "values.centre[3]");
  numbers[3] = 1.0f;
  CHECK_OK(polyhead_layer_frames_create(&frame, &frame, &frames));
  poison(turned_k, kK);
  CHECK_REFUSED(polyhead_enter_frames(NULL, NULL, &k_view, NULL, NULL), "frames is null");
  k_view.extents[2] = 1;
  CHECK_REFUSED(polyhead_enter_frames(frames, NULL, &k_view, NULL, NULL), "k has");
  turned = rows(turned_k, 1, kKvHeads * kDim);
  CHECK_REFUSED(polyhead_enter_frames(frames, NULL, &turned, NULL, NULL),
                "k has 1 heads, expected 2 as the frame");
  CHECK_REFUSED(polyhead_enter_frames(frames, &turned, NULL, NULL, NULL), "q has a dim of");
  CHECK_REFUSED(polyhead_enter_frames(frames, NULL, NULL, &turned, NULL), "v has 1 heads");
  CHECK_REFUSED(polyhead_leave_frames(frames, &turned, NULL), "out has a dim of");
  CHECK_REFUSED(polyhead_leave_frames(frames, NULL, NULL), "out is null");
  CHECK_REFUSED(polyhead_leave_frames(NULL, &out_view, NULL), "frames is null");
  k_view.axes = 2;
  CHECK_REFUSED(polyhead_leave_frames(frames, &k_view, NULL), "out has 2 axes");
  CHECK(all_poisoned(turned_k, kK));
  polyhead_layer_frames_destroy(frames);
  polyhead_layer_frames_destroy(NULL);
  polyhead_frame_calibration_destroy(NULL);
}

int main(void) {
  fill();
  test_codes_lose_less();
  test_moments();
  test_arrays();
  test_refusals();
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
