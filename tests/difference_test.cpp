// What other tests measure with notices a NaN wherever it stands.
#include "support/difference.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace polyhead::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Difference, IsTheLargestOfAll) {
  const std::vector<double> expected = {1.0, -2.0, kInfinity, -kInfinity};
  EXPECT_EQ(largest_difference(expected, expected), 0.0);
  EXPECT_EQ(
      largest_difference(std::vector<float>{1.5f, -5.0f, 2.0f}, std::vector<double>{1, -2, 2}),
      3.0);
  EXPECT_EQ(largest_difference(std::vector<double>{}, std::vector<double>{}), 0.0);
  EXPECT_EQ(largest_difference(std::vector<double>{1.0}, expected), kInfinity);
}

TEST(Difference, IsInfiniteWithANaNOrAnInfinityWhereverItStands) {
  for (const double wrong : {kNan, kInfinity, -kInfinity}) {
    for (std::size_t place = 0; place < 3; ++place) {
      const std::vector<double> right = {1.0, 2.0, 3.0};
      std::vector<double> found = {1.5, 2.0, 3.25};
      found[place] = wrong;
      EXPECT_EQ(largest_difference(found, right), kInfinity) << wrong << " at " << place;
      EXPECT_EQ(largest_difference(right, found), kInfinity) << wrong << " at " << place;
      Tensor tensor(f32, {3}), other(f32, {3});
      tensor.fill([&](const Index& at) { return found[static_cast<std::size_t>(at[0])]; });
      other.fill([&](const Index& at) { return right[static_cast<std::size_t>(at[0])]; });
      EXPECT_EQ(largest_difference(tensor, right), kInfinity) << wrong << " at " << place;
      EXPECT_EQ(largest_difference(tensor, other), kInfinity) << wrong << " at " << place;
      EXPECT_EQ(largest_difference(other, tensor), kInfinity) << wrong << " at " << place;
    }
  }
  const std::vector<double> nothing = {kNan};
  EXPECT_EQ(largest_difference(nothing, nothing), kInfinity) << "an expected NaN is no number";
  const std::vector<double> up = {kInfinity}, down = {-kInfinity};
  EXPECT_EQ(largest_difference(up, down), kInfinity);
}

}  // namespace
}  // namespace polyhead::test
