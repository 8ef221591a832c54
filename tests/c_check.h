/* A few lines of testing for C programs: CHECK counts failures, main returns test_failures != 0. */
#ifndef POLYHEAD_TESTS_C_CHECK_H
#define POLYHEAD_TESTS_C_CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "polyhead/polyhead_c.h"

static int test_failures = 0;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      ++test_failures;                                                \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                 \
  } while (0)

/* The call succeeds; otherwise its message is shown. */
#define CHECK_OK(call)                                                                      \
  do {                                                                                      \
    if ((call) != POLYHEAD_OK) {                                                            \
      ++test_failures;                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, polyhead_last_error()); \
    }                                                                                       \
  } while (0)

/* The call is refused and its message holds `part`. */
#define CHECK_REFUSED(call, part)                                                              \
  do {                                                                                         \
    const polyhead_status status_ = (call);                                                    \
    if (status_ != POLYHEAD_INVALID_ARGUMENT || strstr(polyhead_last_error(), part) == NULL) { \
      ++test_failures;                                                                         \
      fprintf(stderr, "%s:%d: %s: status %d, \"%s\", expected \"%s\"\n", __FILE__, __LINE__,   \
              #call, (int)status_, polyhead_last_error(), part);                               \
    }                                                                                          \
  } while (0)

/* Uniform in [-1, 1), the same on every machine. */
static inline void fill_random(float* to, int count, uint32_t seed) {
  int i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static inline polyhead_view matrix(const float* data, int64_t rows, int64_t columns) {
  const int64_t extents[2] = {rows, columns};
  return polyhead_make_view(data, POLYHEAD_FLOAT32, 2, extents, NULL);
}

static inline polyhead_view vector(const float* data, int64_t count) {
  return polyhead_make_view(data, POLYHEAD_FLOAT32, 1, &count, NULL);
}

static inline void poison(float* to, int count) {
  int i;
  for (i = 0; i < count; ++i) to[i] = NAN;
}

static inline int all_poisoned(const float* of, int count) {
  int i;
  for (i = 0; i < count; ++i) {
    if (!isnan(of[i])) return 0;
  }
  return 1;
}

/* *largest becomes what one pair more makes of it: infinity, for good, where one side is NaN or
 * infinite and the other is not the same. A NaN there would lose to the next number. */
static inline void add_difference(double* largest, double found, double expected) {
  const double difference = fabs(found - expected);
  if (found == expected) return;
  if (isnan(difference)) {
    *largest = INFINITY;
  } else if (difference > *largest) {
    *largest = difference;
  }
}

static inline double largest_difference(const float* a, const float* b, int count) {
  double largest = 0;
  int i;
  for (i = 0; i < count; ++i) add_difference(&largest, (double)a[i], (double)b[i]);
  return largest;
}

#endif
