/* One attention call in C and its definition in double, for the tests of the C door. */
#ifndef POLYHEAD_TESTS_C_CASE_H
#define POLYHEAD_TESTS_C_CASE_H

#include "c_check.h"

enum {
  kBatch = 2,
  kQLen = 7,
  kKvLen = 37,
  kQHeads = 4,
  kKvHeads = 2,
  kDim = 8,
  kValueDim = 5,
  kRows = kBatch * kQLen * kQHeads,
  kOut = kRows * kValueDim
};

/* Inputs in [-1, 1): a float32 score of kDim terms errs by at most kDim eps |q||k| / sqrt(kDim) <
 * 23 eps, a weight by twice that and a few for exp, the weighted sum of values below 1 by kKvLen
 * eps more. */
static const double kTolerance = (2 * 23 + 8 + kKvLen) * 1.2e-7;

static float q[kBatch * kQLen * kQHeads * kDim];
static float k[kBatch * kKvLen * kKvHeads * kDim];
static float v[kBatch * kKvLen * kKvHeads * kValueDim];
static float out[kOut];
static float lse[kRows];

static polyhead_view q_view, k_view, v_view, out_view, lse_view;

static inline polyhead_attention_arguments arguments_of_call(void) {
  const int64_t q_extents[4] = {kBatch, kQLen, kQHeads, kDim};
  const int64_t k_extents[4] = {kBatch, kKvLen, kKvHeads, kDim};
  const int64_t v_extents[4] = {kBatch, kKvLen, kKvHeads, kValueDim};
  const int64_t out_extents[4] = {kBatch, kQLen, kQHeads, kValueDim};
  polyhead_attention_arguments call = {.struct_bytes = sizeof call};
  fill_random(q, (int)(sizeof q / sizeof *q), 1);
  fill_random(k, (int)(sizeof k / sizeof *k), 2);
  fill_random(v, (int)(sizeof v / sizeof *v), 3);
  poison(out, kOut);
  poison(lse, kRows);
  q_view = polyhead_make_view(q, POLYHEAD_FLOAT32, 4, q_extents, NULL);
  k_view = polyhead_make_view(k, POLYHEAD_FLOAT32, 4, k_extents, NULL);
  v_view = polyhead_make_view(v, POLYHEAD_FLOAT32, 4, v_extents, NULL);
  out_view = polyhead_make_view(out, POLYHEAD_FLOAT32, 4, out_extents, NULL);
  lse_view = polyhead_make_view(lse, POLYHEAD_FLOAT32, 3, out_extents, NULL);
  call.q = &q_view;
  call.k = &k_view;
  call.v = &v_view;
  call.out = &out_view;
  call.lse = &lse_view;
  return call;
}

static inline polyhead_limits limits_of_call(void) {
  polyhead_limits limits = {.struct_bytes = sizeof limits};
  limits.batch = kBatch;
  limits.q_len = kQLen;
  limits.kv_len = kKvLen;
  limits.q_heads = kQHeads;
  limits.kv_heads = kKvHeads;
  limits.head_dim = kDim;
  limits.value_dim = kValueDim;
  limits.q_type = limits.kv_type = POLYHEAD_FLOAT32;
  return limits;
}

/* ---- The definition ---- */

typedef struct {
  int batch, head, query, key;
} Pair;

typedef struct {
  int (*sees)(Pair at);                    /* NULL: everything */
  double (*change)(double score, Pair at); /* after the scale; NULL: nothing */
  const float* sink;
} Meaning;

static inline double score_of(Pair at, const Meaning* meaning) {
  const int kv_head = at.head / (kQHeads / kKvHeads);
  const float* q_row = q + ((at.batch * kQLen + at.query) * kQHeads + at.head) * kDim;
  const float* k_row = k + ((at.batch * kKvLen + at.key) * kKvHeads + kv_head) * kDim;
  double score = 0;
  int i;
  if (meaning->sees && !meaning->sees(at)) return -INFINITY;
  for (i = 0; i < kDim; ++i) score += (double)q_row[i] * (double)k_row[i];
  score /= sqrt(kDim);
  return meaning->change ? meaning->change(score, at) : score;
}

/* One row of the definition: weights [kKvLen], returns the LSE. */
static inline double weights_of(Pair at, const Meaning* meaning, double* weights) {
  double top = meaning->sink ? (double)meaning->sink[at.head] : -INFINITY;
  double total;
  for (at.key = 0; at.key < kKvLen; ++at.key) {
    weights[at.key] = score_of(at, meaning);
    if (weights[at.key] > top) top = weights[at.key];
  }
  total = meaning->sink ? exp((double)meaning->sink[at.head] - top) : 0;
  for (at.key = 0; at.key < kKvLen; ++at.key) {
    weights[at.key] = top == -INFINITY ? 0 : exp(weights[at.key] - top);
    total += weights[at.key];
  }
  for (at.key = 0; at.key < kKvLen; ++at.key) weights[at.key] /= total > 0 ? total : 1;
  return total > 0 ? top + log(total) : -INFINITY;
}

static inline double value_of(Pair at, int dim, const double* weights) {
  const int kv_head = at.head / (kQHeads / kKvHeads);
  double sum = 0;
  for (at.key = 0; at.key < kKvLen; ++at.key) {
    sum += weights[at.key] *
           (double)v[((at.batch * kKvLen + at.key) * kKvHeads + kv_head) * kValueDim + dim];
  }
  return sum;
}

static inline Pair pair_of_row(int row) {
  const Pair at = {row / kQHeads / kQLen, row % kQHeads, row / kQHeads % kQLen, 0};
  return at;
}

/* Runs the call and compares out and lse with the definition. */
static inline void check_call(const char* name, const polyhead_attention_arguments* call,
                              const Meaning* meaning) {
  double weights[kKvLen];
  double worst = 0;
  int row, dim;
  CHECK_OK(polyhead_attention(call, NULL));
  for (row = 0; row < kRows; ++row) {
    const Pair at = pair_of_row(row);
    const double expected = weights_of(at, meaning, weights);
    add_difference(&worst, (double)lse[row], expected);
    for (dim = 0; dim < kValueDim; ++dim) {
      add_difference(&worst, (double)out[row * kValueDim + dim], value_of(at, dim, weights));
    }
  }
  if (!(worst <= kTolerance)) {
    ++test_failures;
    fprintf(stderr, "%s: largest error %g, tolerance %g\n", name, worst, kTolerance);
  }
}

#endif
