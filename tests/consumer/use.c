/* A user's program in C: one call, the same over a cache, a frame, and one refused call. */
#include <polyhead/polyhead_cache_c.h>
#include <polyhead/polyhead_frames_c.h>
#include <stdio.h>
#include <string.h>

static polyhead_view view(float* data, int64_t tokens) {
  const int64_t extents[4] = {1, tokens, 1, 1};
  return polyhead_make_view(data, POLYHEAD_FLOAT32, 4, extents, NULL);
}

/* A value in a frame, and back. */
static int through_a_frame(void) {
  const float centre[1] = {1.0f}, stretch[1] = {2.0f};
  float v[1] = {4.0f};
  const polyhead_view rows = view(v, 1);
  polyhead_code_frame frame = {sizeof frame};
  polyhead_layer_frames* frames = NULL;
  frame.kv_heads = frame.dim = 1;
  frame.centre = centre;
  frame.stretch = stretch;
  if (polyhead_layer_frames_create(NULL, &frame, &frames) != POLYHEAD_OK) return 0;
  if (polyhead_enter_frames(frames, NULL, NULL, &rows, NULL) != POLYHEAD_OK) return 0;
  if (v[0] != 1.5f) return 0;
  if (polyhead_leave_frames(frames, &rows, NULL) != POLYHEAD_OK) return 0;
  polyhead_layer_frames_destroy(frames);
  return v[0] == 4.0f;
}

/* The call over a cache that holds k and v gives what it gave. */
static int over_a_cache(polyhead_attention_arguments call, const float* out) {
  const float expected = *out;
  polyhead_kv_cache_config config = {sizeof config};
  polyhead_kv_view held = {sizeof held};
  polyhead_kv_cache* cache = NULL;
  config.batch = config.kv_heads = config.head_dim = 1;
  config.capacity = 2;
  config.element_type = POLYHEAD_FLOAT32;
  if (polyhead_kv_cache_create(&config, &cache) != POLYHEAD_OK) return 0;
  if (polyhead_kv_cache_append(cache, call.k, call.v, NULL) != POLYHEAD_OK) return 0;
  if (polyhead_kv_cache_view(cache, &held) != POLYHEAD_OK) return 0;
  call.k = call.v = NULL;
  call.kv = &held;
  if (polyhead_attention(&call, NULL) != POLYHEAD_OK) return 0;
  polyhead_kv_cache_destroy(cache);
  return *out == expected;
}

int main(void) {
  float q[1] = {0.0f}, k[2] = {1.0f, 1.0f}, v[2] = {0.0f, 4.0f}, out[1] = {-1.0f};
  const polyhead_view q_view = view(q, 1), k_view = view(k, 2), v_view = view(v, 2);
  const polyhead_view out_view = view(out, 1), wrong_out = view(out, 0);
  polyhead_attention_arguments call = {sizeof call};
  call.q = &q_view;
  call.k = &k_view;
  call.v = &v_view;
  call.out = &out_view;
  if (polyhead_attention(&call, NULL) != POLYHEAD_OK) return 1;
  if (!(out[0] >= 2.0f - 1e-6f && out[0] <= 2.0f + 1e-6f)) return 2;

  if (!over_a_cache(call, out)) return 5;
  if (!through_a_frame()) return 6;

  call.out = &wrong_out;
  if (polyhead_attention(&call, NULL) != POLYHEAD_INVALID_ARGUMENT) return 3;
  if (strlen(polyhead_last_error()) == 0) return 4;
  printf("polyhead %s, as it should: %s\n", polyhead_version(), polyhead_last_error());
  return 0;
}
