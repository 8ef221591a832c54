// What a view's lists mean: integers of any types, dense strides, and no more axes than a view has.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "polyhead/types.h"

namespace polyhead {
namespace {

template <class Left, class Right>
void expect_equal(const Left& a, const Right& b) {
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.layout.axes, b.layout.axes);
  EXPECT_EQ(a.layout.extents, b.layout.extents);
  EXPECT_EQ(a.layout.strides, b.layout.strides);
  EXPECT_EQ(a.layout.too_many_axes, b.layout.too_many_axes);
}

TEST(Views, TakeIntegersOfSeveralTypesInOneList) {
  std::array<float, 64> memory{};
  float* const data = memory.data();
  const float* const read = data;
  const int heads = 2;
  const std::int64_t tokens = 4, one = 1;
  const std::size_t dim = 8;
  const std::int64_t two = heads, eight = 8;
  expect_equal(View(data, {1, tokens, heads, dim}), View(data, {one, tokens, two, eight}));
  expect_equal(ConstView(read, {1, tokens, heads, dim}), View(data, {one, tokens, two, eight}));
  expect_equal(View(data, ElementType::float32, {1, tokens, heads, dim}),
               View(data, {one, tokens, two, eight}));
  expect_equal(View(data, {tokens, heads}, {dim, 1}), View(data, {tokens, two}, {eight, one}));
  expect_equal(ConstView(read, {4, 2}, {dim, 1}), View(data, {tokens, two}, {eight, one}));
  expect_equal(View(data, ElementType::float32, {{tokens}, {2}}), View(data, {tokens}, {two}));
}

TEST(Views, AreDenseWhereNoStridesAreGiven) {
  std::array<float, 24> memory{};
  expect_equal(View(memory.data(), {2, 3, 4}), View(memory.data(), {2, 3, 4}, {12, 4, 1}));
}

TEST(Views, SayThatThereAreTooManyAxes) {
  std::array<float, 4> memory{};
  const std::int64_t tokens = 1;
  EXPECT_FALSE(View(memory.data(), {1, 1, tokens, 1, 1}).layout.too_many_axes);
  EXPECT_TRUE(View(memory.data(), {1, 1, tokens, 1, 1, 1}).layout.too_many_axes);
  EXPECT_TRUE(View(memory.data(), {1, 1}, {1, 1, 1}).layout.too_many_axes);
  EXPECT_TRUE(View(memory.data(), {1, tokens}, {1, tokens, 1}).layout.too_many_axes);
}

}  // namespace
}  // namespace polyhead
