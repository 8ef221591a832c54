/* What the tests in C measure with notices a NaN wherever it stands. */
#include "c_check.h"

int main(void) {
  const float right[3] = {1.0f, 2.0f, -INFINITY};
  const float wrong[3] = {NAN, INFINITY, -INFINITY};
  float found[3] = {1.5f, 2.25f, -INFINITY};
  int place, i;
  CHECK(largest_difference(right, right, 3) == 0);
  CHECK(largest_difference(found, right, 3) == 0.5);
  for (place = 0; place < 2; ++place) {
    for (i = 0; i < 3; ++i) {
      const float kept = found[place];
      found[place] = wrong[i];
      CHECK(isinf(largest_difference(found, right, 3)));
      CHECK(isinf(largest_difference(right, found, 3)));
      found[place] = kept;
    }
  }
  found[2] = NAN; /* where infinity is expected */
  CHECK(isinf(largest_difference(found, right, 3)));
  if (test_failures) fprintf(stderr, "%d checks failed\n", test_failures);
  return test_failures != 0;
}
