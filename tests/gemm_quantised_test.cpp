// Products with quantised weights: the bits of the same weights packed as float32, whatever the
// type, the instruction set, the rows and the cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/memory.hpp"
#include "base/weight_blocks.hpp"
#include "layers/linear.hpp"
#include "polyhead/executor.h"
#include "support/random.h"

namespace {

using polyhead::Isa;
using polyhead::WeightType;
using polyhead::base::AlignedBuffer;
using polyhead::base::LargePages;
using polyhead::kernels::cpu::GemmCall;
using polyhead::kernels::cpu::GemmTable;
using polyhead::kernels::cpu::GemmWeights;
using polyhead::layers::BlockRows;
using polyhead::layers::Engine;
using polyhead::layers::Linear;
using polyhead::test::random_floats;

constexpr WeightType kQuantised[] = {
    WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1, WeightType::q8_0,
    WeightType::q2_k, WeightType::q3_k, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

/// Where a block keeps its float16 scales.
std::vector<int> halves_of(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
    case WeightType::q5_0:
    case WeightType::q8_0:
      return {0};
    case WeightType::q2_k:
      return {80, 82};
    case WeightType::q3_k:
      return {108};
    case WeightType::q6_k:
      return {208};
    default:
      return {0, 2};
  }
}

/// Random blocks: every code, scales of either sign between 2^-7 and 1.
struct Blocks {
  WeightType type;
  std::int64_t rows, in, row_bytes;
  std::vector<std::byte> bytes;

  Blocks(WeightType of, std::int64_t row_count, std::int64_t columns, unsigned seed)
      : type(of), rows(row_count), in(columns) {
    const std::int64_t block = polyhead::block_bytes(type);
    row_bytes = in / polyhead::block_weights(type) * block;
    bytes.resize(static_cast<std::size_t>(rows * row_bytes));
    std::mt19937 generator(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 255);
    for (std::int64_t at = 0; at < rows * row_bytes; at += block) {
      for (const int half : halves_of(type)) {
        const auto bits = static_cast<std::uint16_t>((generator() & 0x9bff) | 0x2000);
        std::memcpy(bytes.data() + at + half, &bits, 2);
      }
    }
  }
  void floats(std::int64_t first, std::int64_t count, float* to) const {
    const int weights = polyhead::block_weights(type), block = polyhead::block_bytes(type);
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t b = 0; b < in / weights; ++b, to += weights) {
        polyhead::base::dequantise_block(type, bytes.data() + row * row_bytes + b * block, to);
      }
    }
  }
  BlockRows part() const { return {type, rows, bytes.data(), row_bytes}; }
};

/// Runs a call's items one after the other, but says that there are several workers.
class TwoWorkers : public polyhead::Executor {
 public:
  int concurrency() const override { return 2; }
  void run(int tasks, polyhead::Task task) override {
    for (int i = 0; i < tasks; ++i) task(i);
  }
};

Engine engine_for(Isa isa, TwoWorkers& executor) {
  Engine engine;
  engine.isa = isa;
  engine.gemm = &polyhead::kernels::cpu::gemm(isa);
  engine.rows = &polyhead::kernels::cpu::rowwise(isa);
  engine.crew = {&executor, 2};
  return engine;
}

std::vector<float> product(const Engine& engine, const Linear& linear, std::vector<float>& x,
                           std::int64_t rows) {
  std::vector<float> y(static_cast<std::size_t>(rows * linear.out()), std::nanf(""));
  const auto view = [&](std::vector<float>& of, std::int64_t columns) {
    polyhead::layers::Rows r;
    r.data = reinterpret_cast<std::byte*>(of.data());
    r.tokens = rows;
    r.columns = columns;
    r.batch_stride = rows * columns * 4;
    r.token_stride = columns * 4;
    r.column_stride = 4;
    return r;
  };
  polyhead::layers::Buffer prepared, scratch;
  const auto source = polyhead::layers::source_of(engine, linear, view(x, linear.in()), prepared);
  polyhead::layers::multiply(engine, {{&linear, source, view(y, linear.out())}}, scratch);
  return y;
}

Linear as_float32(const Engine& engine, LargePages& pages, const std::vector<const Blocks*>& parts,
                  std::vector<float> bias) {
  polyhead::layers::MatrixSource source;
  source.in = parts.front()->in;
  for (const Blocks* part : parts) source.out += part->rows;
  source.rows = [&](std::int64_t first, std::int64_t count, float* to) {
    std::int64_t begin = 0;
    for (const Blocks* part : parts) {
      for (std::int64_t row = first; row < first + count; ++row) {
        if (row < begin || row >= begin + part->rows) continue;
        part->floats(row - begin, 1, to + (row - first) * source.in);
      }
      begin += part->rows;
    }
  };
  return {engine, pages, polyhead::ElementType::float32, source, std::move(bias)};
}

TEST(GemmQuantised, HasTheBitsOfFloat32) {
  TwoWorkers executor;
  for (const Isa isa : polyhead::available_isas()) {
    const Engine engine = engine_for(isa, executor);
    LargePages pages(0);
    for (const WeightType type : kQuantised) {
      const std::int64_t whole = polyhead::block_weights(type);
      // One block; several, with an odd number of outputs; more inputs than a pass takes.
      for (const auto& [in, out] : {std::pair{whole, std::int64_t{1}},
                                    {whole * 3, std::int64_t{131}},
                                    {std::int64_t{1280}, std::int64_t{50}}}) {
        const Blocks blocks(type, out, in, 1);
        const std::vector<float> bias = random_floats(out, 2);
        const BlockRows part = blocks.part();
        const Linear kept(engine, pages, in, {&part, 1}, bias);
        const Linear wide = as_float32(engine, pages, {&blocks}, bias);
        EXPECT_LT(kept.bytes(), wide.bytes());
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 70}) {
          if (rows > 9 && in == whole) continue;
          std::vector<float> x = random_floats(rows * in, 3);
          const auto y = product(engine, kept, x, rows), z = product(engine, wide, x, rows);
          ASSERT_EQ(std::memcmp(y.data(), z.data(), y.size() * 4), 0)
              << polyhead::isa_name(isa) << " " << polyhead::weight_type_name(type) << " " << rows
              << " x " << in << " x " << out;
        }
      }
    }
  }
}

TEST(GemmQuantised, WeightsAreTheDequantisedOnes) {
  TwoWorkers executor;
  for (const Isa isa : polyhead::available_isas()) {
    const Engine engine = engine_for(isa, executor);
    LargePages pages(0);
    for (const WeightType type : kQuantised) {
      const Blocks blocks(type, 53, 512, 4);
      const BlockRows part = blocks.part();
      const Linear linear(engine, pages, 512, {&part, 1}, {});
      std::vector<float> row(512);
      for (std::int64_t o = 0; o < 53; ++o) {
        blocks.floats(o, 1, row.data());
        for (std::int64_t i = 0; i < 512; ++i) {
          ASSERT_EQ(engine.gemm->weight(linear.weights(), o, i), row[static_cast<std::size_t>(i)])
              << polyhead::isa_name(isa) << " " << polyhead::weight_type_name(type);
        }
      }
    }
  }
}

TEST(GemmQuantised, StacksPartsOfDifferentTypes) {
  TwoWorkers executor;
  const auto form = [](WeightType a, WeightType b) {
    const BlockRows parts[] = {{a, 1, nullptr, 0}, {b, 1, nullptr, 0}};
    return polyhead::layers::form_of(parts);
  };
  EXPECT_EQ(form(WeightType::q4_0, WeightType::q4_k).bits, 0);
  EXPECT_EQ(form(WeightType::q4_0, WeightType::float16).bits, 0);
  EXPECT_EQ(form(WeightType::float32, WeightType::float32).bits, 0);
  for (const Isa isa : polyhead::available_isas()) {
    const Engine engine = engine_for(isa, executor);
    LargePages pages(0);
    for (const WeightType a : kQuantised) {
      for (const WeightType b : kQuantised) {
        if (form(a, b).bits == 0) continue;
        const Blocks first(a, 40, 512, 5), second(b, 37, 512, 6);
        const BlockRows parts[] = {first.part(), second.part()};
        const Linear kept(engine, pages, 512, parts, {});
        const Linear wide = as_float32(engine, pages, {&first, &second}, {});
        std::vector<float> x = random_floats(3 * 512, 7);
        const auto y = product(engine, kept, x, 3), z = product(engine, wide, x, 3);
        ASSERT_EQ(std::memcmp(y.data(), z.data(), y.size() * 4), 0)
            << polyhead::isa_name(isa) << " " << polyhead::weight_type_name(a) << " "
            << polyhead::weight_type_name(b);
      }
    }
  }
}

TEST(GemmQuantised, SixteenBitRowsAreTheRoundedOnes) {
  for (const Isa isa : polyhead::available_isas()) {
    const GemmTable& table = polyhead::kernels::cpu::gemm(isa);
    const Blocks blocks(WeightType::q4_1, 60, 1600, 8);
    GemmWeights packed;
    packed.in = 1600;
    packed.out = 60;
    packed.blocks = polyhead::base::block_form(WeightType::q4_1);
    AlignedBuffer<std::byte> panels(static_cast<std::size_t>(table.packed_bytes(packed)));
    table.pack_blocks(panels.data(), packed, 0, 60, WeightType::q4_1, blocks.bytes.data(),
                      blocks.row_bytes);
    packed.panels = panels.data();
    AlignedBuffer<std::byte> scratch(
        static_cast<std::size_t>(table.scratch_bytes + table.unpack_bytes));
    for (const std::int64_t rows : {2, 300}) {  // 300: partial sums go through scratch
      const std::vector<float> x = random_floats(rows * 1600, 9);
      std::vector<float> wide(static_cast<std::size_t>(rows * 60));
      std::vector<polyhead::bfloat16> narrow(wide.size());
      GemmCall call{reinterpret_cast<const std::byte*>(x.data()),
                    6400,
                    packed,
                    nullptr,
                    reinterpret_cast<std::byte*>(wide.data()),
                    polyhead::ElementType::float32,
                    240,
                    4};
      const std::int64_t panel_count = (60 + table.panel - 1) / table.panel;
      table.multiply(call, {0, rows, 0, panel_count}, scratch.data());
      call.y = reinterpret_cast<std::byte*>(narrow.data());
      call.y_type = polyhead::ElementType::bfloat16;
      call.y_row = 120;
      call.y_column = 2;
      table.multiply(call, {0, rows, 0, panel_count}, scratch.data());
      for (std::size_t i = 0; i < wide.size(); ++i) {
        ASSERT_EQ(narrow[i].bits, polyhead::to_bfloat16(wide[i]).bits);
      }
    }
  }
}

}  // namespace
