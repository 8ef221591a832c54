// Weights of every stored type against values that the package `gguf` computed
// (tests/make/weight_types.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "models/formats/safetensors.hpp"
#include "models/model_file.hpp"

namespace polyhead {
namespace {

using models::dequantise_rows;
using models::WeightTensor;

constexpr WeightType kTypes[] = {WeightType::float32, WeightType::float16, WeightType::bfloat16,
                                 WeightType::q4_0,    WeightType::q4_1,    WeightType::q5_0,
                                 WeightType::q5_1,    WeightType::q8_0,    WeightType::q2_k,
                                 WeightType::q3_k,    WeightType::q4_k,    WeightType::q5_k,
                                 WeightType::q6_k};
static_assert(std::size(kTypes) == kWeightTypes);

struct Fixture {
  formats::Safetensors file{POLYHEAD_TEST_DATA "/weight_types.safetensors"};

  WeightTensor tensor(WeightType type) const {
    const auto blocks = file.stored(std::string(weight_type_name(type)) + ".blocks");
    WeightTensor weights;
    weights.name = "weights";
    weights.type = type;
    weights.shape = {blocks.shape[0], block_weights(type)};
    weights.data = blocks.data;
    return weights;
  }
  std::vector<float> values(WeightType type) const {
    const auto stored = file.stored(std::string(weight_type_name(type)) + ".values");
    std::vector<float> values(stored.data.size() / sizeof(float));
    std::memcpy(values.data(), stored.data.data(), stored.data.size());
    return values;
  }
};

/// Equal as numbers; zeros of either sign are one.
void expect_equal(const std::vector<float>& found, const std::vector<float>& expected,
                  const char* type) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], expected[i]) << type << ", weight " << i;
  }
}

TEST(Dequantise, EveryTypeMeansWhatGgmlSays) {
  const Fixture fixture;
  for (const WeightType type : kTypes) {
    if (block_weights(type) == 1) continue;
    const WeightTensor tensor = fixture.tensor(type);
    ASSERT_EQ(tensor.data.size(), static_cast<std::size_t>(tensor.shape[0] * block_bytes(type)));
    std::vector<float> values(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]), NAN);
    dequantise_rows(tensor, 0, tensor.shape[0], values.data());
    expect_equal(values, fixture.values(type), weight_type_name(type));
  }
}

TEST(Dequantise, RowsAreTheRowsOfTheWhole) {
  const Fixture fixture;
  for (const WeightType type : kTypes) {
    if (block_weights(type) == 1) continue;
    const WeightTensor tensor = fixture.tensor(type);
    const std::vector<float> whole = fixture.values(type);
    const auto columns = static_cast<std::size_t>(tensor.shape[1]);
    std::vector<float> row(columns + 1, -7.0f);
    dequantise_rows(tensor, 1, 1, row.data());
    EXPECT_EQ(row.back(), -7.0f) << "written past the row";
    row.pop_back();
    expect_equal(row, {whole.begin() + columns, whole.begin() + 2 * columns},
                 weight_type_name(type));
    dequantise_rows(tensor, 3, 0, row.data());  // nothing
  }
}

template <class T>
WeightTensor plain(WeightType type, const std::vector<T>& elements,
                   std::vector<std::int64_t> shape) {
  WeightTensor tensor;
  tensor.type = type;
  tensor.shape = std::move(shape);
  tensor.data = std::as_bytes(std::span(elements));
  return tensor;
}

TEST(Dequantise, PlainTypesAreWidened) {
  const std::vector<float> wide{1.5f, -2.0f, 0x1p-24f, -0.0f, 65504.0f, INFINITY};
  const std::vector<std::uint16_t> half{0x3e00, 0xc000, 0x0001, 0x8000, 0x7bff, 0x7c00};
  const std::vector<std::uint16_t> brain{0x3fc0, 0xc000, 0x3380, 0x8000, 0x477f, 0x7f80};
  std::vector<float> found(6);
  dequantise_rows(plain(WeightType::float32, wide, {2, 3}), 0, 2, found.data());
  EXPECT_EQ(found, wide);
  dequantise_rows(plain(WeightType::float16, half, {6}), 0, 1, found.data());
  EXPECT_EQ(found, wide);
  dequantise_rows(plain(WeightType::bfloat16, brain, {3, 2}), 0, 3, found.data());
  EXPECT_EQ(found, (std::vector<float>{1.5f, -2.0f, 0x1p-24f, -0.0f, 65280.0f, INFINITY}));
}

TEST(Dequantise, UnalignedDataAndTransposedMatrices) {
  const std::vector<float> stored{1, 2, 3, 4, 5, 6};  // [in = 3, out = 2]
  std::vector<std::byte> bytes(1 + sizeof(float) * stored.size());
  std::memcpy(bytes.data() + 1, stored.data(), bytes.size() - 1);
  WeightTensor tensor;
  tensor.shape = {2, 3};
  tensor.transposed = true;
  tensor.data = std::span(bytes).subspan(1);
  std::vector<float> found(6);
  dequantise_rows(tensor, 0, 2, found.data());
  EXPECT_EQ(found, (std::vector<float>{1, 3, 5, 2, 4, 6}));
  dequantise_rows(tensor, 1, 1, found.data());
  EXPECT_EQ((std::vector<float>(found.begin(), found.begin() + 3)), (std::vector<float>{2, 4, 6}));
}

}  // namespace
}  // namespace polyhead
