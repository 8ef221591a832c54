#include "support/difference.h"

namespace polyhead::test {

double largest_difference(const Tensor& found, const std::vector<double>& expected,
                          const std::function<bool(const Index&)>& counts) {
  LargestDifference largest;
  std::size_t i = 0;
  for_each_index(found.extents(), [&](const Index& at) {
    const double value = expected.at(i++);
    if (!counts || counts(at)) largest.add(found.get(at), value);
  });
  if (i != expected.size()) return std::numeric_limits<double>::infinity();
  return largest.value();
}

double largest_difference(const Tensor& a, const Tensor& b) {
  LargestDifference largest;
  for_each_index(a.extents(), [&](const Index& at) { largest.add(a.get(at), b.get(at)); });
  return largest.value();
}

}  // namespace polyhead::test
