// The packed product under every instruction set: against double, and the same bits however it is
// cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/element.hpp"
#include "base/memory.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "support/random.h"

namespace {

using polyhead::ElementType;
using polyhead::Isa;
using polyhead::base::AlignedBuffer;
using polyhead::kernels::cpu::GemmCall;
using polyhead::kernels::cpu::GemmRange;
using polyhead::kernels::cpu::GemmTable;
using polyhead::kernels::cpu::GemmWeights;
using polyhead::test::random_floats;

constexpr ElementType kTypes[] = {ElementType::float32, ElementType::float16,
                                  ElementType::bfloat16};

float rounded(float value, ElementType type) {
  std::byte bytes[4];
  polyhead::base::store_float32(bytes, type, value);
  return polyhead::base::load_float32(bytes, type);
}

/// y = x W^T + b for one shape, with everything it needs.
struct Product {
  const GemmTable& table;
  std::int64_t rows, in, out;
  std::vector<float> w, x, bias;
  GemmWeights packed;
  AlignedBuffer<std::byte> panels, prepared, scratch;

  Product(Isa isa, ElementType type, std::int64_t m, std::int64_t k, std::int64_t n)
      : table(polyhead::kernels::cpu::gemm(isa)), rows(m), in(k), out(n) {
    w = random_floats(n * k, 1);
    x = random_floats(m * k, 2);
    bias = random_floats(n, 3);
    packed = {nullptr, type, k, n, {}};
    panels = AlignedBuffer<std::byte>(static_cast<std::size_t>(table.packed_bytes(packed)));
    w.resize(w.size() + 16);  // packing reads whole vectors
    for (std::int64_t panel = 0; panel < panel_count(); ++panel) {
      table.pack_panel(panels.data(), packed, panel,
                       std::min<std::int64_t>(table.panel, n - panel * table.panel),
                       w.data() + panel * table.panel * k, k);
    }
    packed.panels = panels.data();
    const std::int64_t row_bytes = table.prepared_bytes(packed);
    prepared = AlignedBuffer<std::byte>(static_cast<std::size_t>(m * row_bytes));
    for (std::int64_t r = 0; r < m; ++r) {
      table.prepare(prepared.data() + r * row_bytes, packed,
                    reinterpret_cast<const std::byte*>(x.data() + r * k), ElementType::float32, 4);
    }
    scratch = AlignedBuffer<std::byte>(static_cast<std::size_t>(table.scratch_bytes));
  }

  std::int64_t panel_count() const { return (out + table.panel - 1) / table.panel; }

  GemmCall call(std::byte* y, ElementType y_type, std::int64_t y_row, std::int64_t y_column) const {
    return {prepared.data(), table.prepared_bytes(packed), packed, bias.data(), y, y_type, y_row,
            y_column};
  }

  /// The whole product as dense float32.
  std::vector<float> whole() {
    std::vector<float> y(static_cast<std::size_t>(rows * out), std::nanf(""));
    table.multiply(call(reinterpret_cast<std::byte*>(y.data()), ElementType::float32, out * 4, 4),
                   {0, rows, 0, panel_count()}, scratch.data());
    return y;
  }
};

TEST(Gemm, AgreesWithDouble) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type : kTypes) {
      for (const auto& [m, k, n] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
                                    {3, 5, 7},
                                    {8, 64, 48},
                                    {17, 131, 100},
                                    {9, 800, 50},
                                    {40, 1700, 50},
                                    {2, 0, 5},
                                    {130, 33, 145}}) {
        Product product(isa, type, m, k, n);
        const std::vector<float> y = product.whole();
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t o = 0; o < n; ++o) {
            double sum = 0, magnitude = 0;
            for (std::int64_t i = 0; i < k; ++i) {
              const float xi = product.x[static_cast<std::size_t>(r * k + i)];
              const double term =
                  static_cast<double>(
                      rounded(xi, type == ElementType::bfloat16 ? type : ElementType::float32)) *
                  rounded(product.w[static_cast<std::size_t>(o * k + i)], type);
              sum += term;
              magnitude += std::abs(term);
            }
            sum += product.bias[static_cast<std::size_t>(o)];
            // A chain of k roundings (two a step without fma or in a bf16 pair) of partial sums
            // that never exceed the sum of magnitudes, and the bias.
            const double bound = (2.0 * static_cast<double>(k) + 2) * 0x1p-24 * (magnitude + 4);
            ASSERT_NEAR(y[static_cast<std::size_t>(r * n + o)], sum, bound)
                << polyhead::isa_name(isa) << " " << polyhead::element_name(type) << " " << m << " "
                << k << " " << n;
          }
        }
      }
    }
  }
}

TEST(Gemm, SameBitsHoweverItIsCut) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type : kTypes) {
      Product product(isa, type, 37, 1000, 1000);
      const std::vector<float> whole = product.whole();
      std::vector<float> cut(whole.size(), std::nanf(""));
      const GemmCall call =
          product.call(reinterpret_cast<std::byte*>(cut.data()), ElementType::float32, 4000, 4);
      // Rows in runs of 1, 2, 3, ...; panels alternately one by one and in threes.
      std::int64_t row = 0;
      for (std::int64_t run = 1; row < 37; row += run++) {
        const std::int64_t step = run % 2 == 0 ? 1 : 3;
        for (std::int64_t panel = 0; panel < product.panel_count(); panel += step) {
          const GemmRange range{row, std::min(row + run, product.rows), panel,
                                std::min(panel + step, product.panel_count())};
          product.table.multiply(call, range, product.scratch.data());
        }
      }
      EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * 4), 0)
          << polyhead::isa_name(isa) << " " << polyhead::element_name(type);
    }
  }
}

TEST(Gemm, OutputsOfAnyTypeAndStrideAreTheRoundedOnes) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type : kTypes) {
      // More inputs than one pass takes, so that partial sums wait somewhere.
      const bool pairs = type == ElementType::bfloat16;
      Product product(isa, pairs ? type : ElementType::float32, 150, pairs ? 1700 : 900, 101);
      const std::vector<float> whole = product.whole();
      const std::int64_t bytes = polyhead::element_bytes(type);
      for (const std::int64_t column : {bytes, 3 * bytes}) {
        const std::int64_t row = 101 * column + 7 * bytes;
        std::vector<std::byte> y(static_cast<std::size_t>(150 * row), std::byte{0xff});
        product.table.multiply(product.call(y.data(), type, row, column),
                               {0, 150, 0, product.panel_count()}, product.scratch.data());
        for (std::int64_t r = 0; r < 150; ++r) {
          for (std::int64_t o = 0; o < 101; ++o) {
            ASSERT_EQ(polyhead::base::load_float32(y.data() + r * row + o * column, type),
                      rounded(whole[static_cast<std::size_t>(r * 101 + o)], type));
          }
          for (std::int64_t i = 101 * column; i < row; ++i) {  // nothing past the row
            ASSERT_EQ(y[static_cast<std::size_t>(r * row + i)], std::byte{0xff});
          }
        }
      }
    }
  }
}

TEST(Gemm, WeightsComeBackAsTheyWereRounded) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type : kTypes) {
      Product product(isa, type, 1, 37, 53);
      for (std::int64_t o = 0; o < 53; ++o) {
        for (std::int64_t i = 0; i < 37; ++i) {
          ASSERT_EQ(product.table.weight(product.packed, o, i),
                    rounded(product.w[static_cast<std::size_t>(o * 37 + i)], type));
        }
      }
    }
  }
}

}  // namespace
