/* From C: attention over a padded batch of two sequences, which part of it is padding, and how a
 * call is refused. */
#include <math.h>
#include <polyhead/polyhead_c.h>
#include <stdint.h>
#include <stdio.h>

enum { kBatch = 2, kTokens = 4, kHeads = 2, kDim = 8, kRows = kBatch * kTokens * kHeads };

int main(void) {
  float q[kRows * kDim], k[kRows * kDim], v[kRows * kDim], out[kRows * kDim], lse[kRows];
  const int32_t lengths_data[kBatch] = {4, 2}; /* the second sequence has two tokens of padding */
  const int64_t extents[4] = {kBatch, kTokens, kHeads, kDim}, batch[1] = {kBatch};
  const polyhead_view q_view = polyhead_make_view(q, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view k_view = polyhead_make_view(k, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view v_view = polyhead_make_view(v, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view out_view = polyhead_make_view(out, POLYHEAD_FLOAT32, 4, extents, NULL);
  const polyhead_view lse_view = polyhead_make_view(lse, POLYHEAD_FLOAT32, 3, extents, NULL);
  const polyhead_view lengths = polyhead_make_view(lengths_data, POLYHEAD_INT32, 1, batch, NULL);
  polyhead_mask mask = {.struct_bytes = sizeof mask, .causal = 1, .align = POLYHEAD_ALIGN_END};
  polyhead_attention_arguments call = {.struct_bytes = sizeof call,
                                       .q = &q_view,
                                       .k = &k_view,
                                       .v = &v_view,
                                       .out = &out_view,
                                       .lse = &lse_view,
                                       .mask = &mask};
  int i, token;
  for (i = 0; i < kRows * kDim; ++i) {
    q[i] = 2 * sinf((float)(i * i % 97));
    k[i] = cosf((float)(3 * i % 31));
    v[i] = (float)(i % 5);
  }
  mask.kv_lengths = mask.q_lengths = &lengths;
  if (polyhead_attention(&call, NULL) != POLYHEAD_OK) {
    fprintf(stderr, "%s\n", polyhead_last_error());
    return 1;
  }
  for (i = 0; i < kBatch; ++i) {
    printf("sequence %d, LSE of head 0:", i);
    for (token = 0; token < kTokens; ++token)
      printf(" %.3f", (double)lse[(i * kTokens + token) * kHeads]);
    printf("\n");
  }
  if (!isinf(lse[(kTokens + 3) * kHeads])) return 1; /* padding sees nothing */

  call.v = NULL;
  if (polyhead_attention(&call, NULL) == POLYHEAD_OK) return 1;
  printf("refused: %s\n", polyhead_last_error());
  return 0;
}
