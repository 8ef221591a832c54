// Row kernels under every instruction set against double, and their promise that the memory past a
// row's end is neither read into it nor written.
#include "kernels/cpu/rowwise_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/element.hpp"
#include "support/random.h"

namespace {

using polyhead::ElementType;
using polyhead::kernels::cpu::RowOut;
using polyhead::kernels::cpu::RowTable;
using polyhead::kernels::cpu::rowwise;
using polyhead::test::random_floats;

constexpr double kU = 0x1p-24;
constexpr std::int64_t kSizes[] = {1, 3, 4, 15, 16, 17, 31, 64, 65, 100, 255, 257, 576, 1536, 3001};

/// What a kernel writes into n floats, surrounded by others that must stay.
template <class Kernel>
std::vector<float> written(std::int64_t n, const Kernel& kernel) {
  std::vector<float> memory(static_cast<std::size_t>(n) + 32, 12345.0f);
  kernel(RowOut{reinterpret_cast<std::byte*>(memory.data() + 16), ElementType::float32});
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(memory[i], 12345.0f);
    EXPECT_EQ(memory[memory.size() - 1 - i], 12345.0f);
  }
  return {memory.begin() + 16, memory.end() - 16};
}

template <class Body>
void for_each_isa(const Body& body) {
  for (const polyhead::Isa isa : polyhead::available_isas()) {
    SCOPED_TRACE(polyhead::isa_name(isa));
    body(rowwise(isa));
  }
}

TEST(Rowwise, NormsAgreeWithDouble) {
  for_each_isa([](const RowTable& table) {
    for (const std::int64_t n : kSizes) {
      SCOPED_TRACE(n);
      std::vector<float> x = random_floats(n, 1, 3.0f);
      for (float& value : x) value += 1.0f;
      const std::vector<float> weight = random_floats(n, 2, 1.0f);
      const std::vector<float> bias = random_floats(n, 3, 1.0f);
      double sum = 0, squares = 0, spread = 0;
      for (const float v : x) sum += v, squares += static_cast<double>(v) * v;
      const double count = static_cast<double>(n), mean = sum / count;
      for (const float v : x) spread += (v - mean) * (v - mean);
      const double eps = static_cast<double>(1e-5f);

      const auto rms =
          written(n, [&](RowOut to) { table.rms_norm(to, x.data(), weight.data(), 1e-5f, n); });
      const auto layer = written(n, [&](RowOut to) {
        table.layer_norm(to, x.data(), weight.data(), bias.data(), 1e-5f, n);
      });
      const auto bare = written(
          n, [&](RowOut to) { table.layer_norm(to, x.data(), weight.data(), nullptr, 1e-5f, n); });
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double w = weight[i];
        const double expected = x[i] / std::sqrt(squares / count + eps) * w;
        ASSERT_NEAR(rms[i], expected, 14 * kU * std::abs(expected));
        const double factor = 1.0 / std::sqrt(spread / count + eps);
        const double scaled = (x[i] - mean) * factor * w;
        // Subtracting the rounded mean costs u |mean|, and u of the difference; sums as for rms.
        const double bound = (2 * std::abs(mean) * factor * std::abs(w) + 16 * std::abs(scaled) +
                              std::abs(bias[i]) + 1e-3) *
                             kU;
        ASSERT_NEAR(bare[i], scaled, bound);
        ASSERT_NEAR(layer[i], scaled + bias[i], bound + kU * std::abs(scaled + bias[i]));
      }
    }
  });
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(Rowwise, ActivationsAgreeWithDouble) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.003f);
  for (const float big : {20.0f, 88.0f, 130.0f, 1e4f, 1e20f, 3e38f, 1e-30f, 1e-40f, 0.0f}) {
    x.push_back(big);
    x.push_back(-big);
  }
  const auto n = static_cast<std::int64_t>(x.size());
  const std::vector<float> up = random_floats(n, 4, 2.0f);
  for_each_isa([&](const RowTable& table) {
    for (const auto& [kernel, exact] : {std::pair{table.silu, &silu}, std::pair{table.gelu, &gelu},
                                        std::pair{table.gelu_tanh, &gelu_tanh}}) {
      const auto plain = written(n, [&](RowOut to) { kernel(to, x.data(), nullptr, n); });
      const auto gated = written(n, [&](RowOut to) { kernel(to, x.data(), up.data(), n); });
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(plain[i], exact(x[i]), 8 * kU * std::abs(static_cast<double>(x[i])) + 1e-45)
            << x[i];
        ASSERT_EQ(gated[i], plain[i] * up[i]);
      }
      float nan = std::nanf("");
      kernel({reinterpret_cast<std::byte*>(&nan), ElementType::float32}, &nan, nullptr, 1);
      EXPECT_TRUE(std::isnan(nan));
    }
  });
}

/// The same bits wherever an element stands that has the same lane arithmetic: elementwise work
/// does not depend on the row's length or on neighbours.
TEST(Rowwise, ElementwiseWorkKnowsNoNeighbours) {
  const std::vector<float> x = random_floats(300, 5, 4.0f), up = random_floats(300, 6, 1.0f);
  for_each_isa([&](const RowTable& table) {
    for (const auto kernel : {table.silu, table.gelu, table.gelu_tanh}) {
      const auto whole = written(300, [&](RowOut to) { kernel(to, x.data(), up.data(), 300); });
      for (std::int64_t i = 0; i < 300; ++i) {
        float one = 0.0f;
        kernel({reinterpret_cast<std::byte*>(&one), ElementType::float32}, x.data() + i,
               up.data() + i, 1);
        ASSERT_EQ(one, whole[static_cast<std::size_t>(i)]);
      }
    }
  });
}

TEST(Rowwise, SixteenBitRowsAreTheRoundedOnes) {
  for_each_isa([](const RowTable& table) {
    for (const std::int64_t n : kSizes) {
      const std::vector<float> x = random_floats(n, 7, 2.0f), w = random_floats(n, 8, 1.0f);
      const auto wide =
          written(n, [&](RowOut to) { table.rms_norm(to, x.data(), w.data(), 1e-6f, n); });
      for (const ElementType type : {ElementType::bfloat16, ElementType::float16}) {
        std::vector<std::byte> narrow(static_cast<std::size_t>(n) * 2 + 8, std::byte{0x5a});
        table.rms_norm({narrow.data(), type}, x.data(), w.data(), 1e-6f, n);
        for (std::int64_t i = 0; i < n; ++i) {
          std::byte expected[4];  // the widest element: two bytes are used
          polyhead::base::store_float32(expected, type, wide[static_cast<std::size_t>(i)]);
          ASSERT_EQ(std::memcmp(expected, narrow.data() + i * 2, 2), 0);
        }
        for (std::size_t i = 0; i < 8; ++i)
          ASSERT_EQ(narrow[narrow.size() - 1 - i], std::byte{0x5a});
      }
    }
  });
}

TEST(Rowwise, SumsAndCaps) {
  for_each_isa([](const RowTable& table) {
    for (const std::int64_t n : kSizes) {
      const std::vector<float> x = random_floats(n, 9, 40.0f), term = random_floats(n, 10, 1.0f);
      std::vector<float> sum = x, capped = x;
      table.add(sum.data(), term.data(), n);
      table.soft_cap(capped.data(), 30.0f, n);
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(sum[i], x[i] + term[i]);
        ASSERT_NEAR(capped[i], 30.0 * std::tanh(x[i] / 30.0), 8 * kU * 30.0);
      }
    }
  });
}

TEST(Rowwise, LogSumExp) {
  for_each_isa([](const RowTable& table) {
    for (const std::int64_t n : kSizes) {
      std::vector<float> x = random_floats(n, 11, 5.0f);
      const double most = *std::ranges::max_element(x);
      double sum = 0;
      for (const float v : x) sum += std::exp(v - most);
      EXPECT_NEAR(table.log_sum_exp(x.data(), n), std::log(sum) + most, 64 * kU);
      x[static_cast<std::size_t>(n / 2)] = std::nanf("");
      EXPECT_TRUE(std::isnan(table.log_sum_exp(x.data(), n)));
    }
    const float inf = std::numeric_limits<float>::infinity();
    const float hidden[] = {-inf, -inf, -inf}, open[] = {1.0f, inf, -inf};
    EXPECT_EQ(table.log_sum_exp(hidden, 3), -inf);
    EXPECT_EQ(table.log_sum_exp(open, 3), inf);
  });
}

}  // namespace
