// How far what was found lies from what was expected: the maximum that no NaN slips by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include "support/tensor.h"

namespace polyhead::test {

/// The largest difference of the pairs added; infinity once a side was NaN, or infinite and the
/// other was not the same. std::max(largest, NaN) is `largest`, and an output that nobody wrote is
/// NaN.
class LargestDifference {
 public:
  void add(double found, double expected) {
    if (found == expected) return;
    const double difference = std::abs(found - expected);
    value_ = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                    : std::max(value_, difference);
  }
  double value() const { return value_; }

 private:
  double value_ = 0.0;
};

/// Infinity where one has more values.
template <class Found, class Expected>
double largest_difference(const std::vector<Found>& found, const std::vector<Expected>& expected) {
  if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
  LargestDifference largest;
  for (std::size_t i = 0; i < found.size(); ++i)
    largest.add(static_cast<double>(found[i]), static_cast<double>(expected[i]));
  return largest.value();
}

/// `expected` in the order of for_each_index, as many; where `counts` is given, of the elements it
/// takes.
double largest_difference(const Tensor& found, const std::vector<double>& expected,
                          const std::function<bool(const Index&)>& counts = {});

double largest_difference(const Tensor& a, const Tensor& b);

}  // namespace polyhead::test
