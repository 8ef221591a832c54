// A product with packed weights made ready to run.
#include <cstring>
#include <random>

#include "base/weight_blocks.hpp"
#include "cases/numbers.hpp"
#include "layers/linear.hpp"

namespace polyhead::bench {
namespace {

using layers::Linear;

/// Random blocks with every scale 2^-4.
std::vector<std::byte> random_blocks(WeightType type, std::int64_t count) {
  const auto block = static_cast<std::size_t>(block_bytes(type));
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * block);
  std::mt19937 generator(5);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 255);
  const std::uint16_t scale = 0x2c00;
  const std::size_t at = type == WeightType::q6_k ? 208 : 0;
  const bool second = type == WeightType::q4_1 || type == WeightType::q4_k;
  for (std::size_t first = 0; first < bytes.size(); first += block) {
    std::memcpy(bytes.data() + first + at, &scale, 2);
    if (second) std::memcpy(bytes.data() + first + at + 2, &scale, 2);
  }
  return bytes;
}

class Product : public Workload {
 public:
  Product(const Case& c, Isa isa, Executor& executor)
      : engine_(layers::engine_of("product", options_of(isa, executor))),
        linear_(packed(c)),
        x_(c.type, c.q_len * c.inputs, 1),
        y_(ElementType::float32, c.q_len * c.outputs, 2) {
    x_rows_ = rows_of(x_.data(), c.type, c.q_len, c.inputs);
    y_rows_ = rows_of(y_.data(), ElementType::float32, c.q_len, c.outputs);
    work_ = 2.0 * static_cast<double>(c.q_len) * static_cast<double>(c.inputs) *
            static_cast<double>(c.outputs);
    if (c.against == Against::dram) work_ = static_cast<double>(linear_.bytes());
  }

  void run() override {
    const layers::Source source = layers::source_of(engine_, linear_, x_rows_, prepared_);
    layers::multiply(engine_, {{&linear_, source, y_rows_}}, scratch_);
  }

 private:
  Linear packed(const Case& c) const {
    base::LargePages pages(0);
    const int weights = block_weights(c.weights);
    if (weights > 1) {
      const std::vector<std::byte> blocks =
          random_blocks(c.weights, c.inputs / weights * c.outputs);
      const layers::BlockRows rows{c.weights, c.outputs, blocks.data(),
                                   c.inputs / weights * block_bytes(c.weights)};
      return {engine_, pages, c.inputs, {&rows, 1}, {}};
    }
    const layers::MatrixSource source{
        c.inputs, c.outputs, [&](std::int64_t first, std::int64_t count, float* to) {
          for (std::int64_t i = 0; i < count * c.inputs; ++i) {
            to[i] = static_cast<float>((first * 7 + i) % 19 - 9) * 0.05f;
          }
        }};
    return {engine_, pages, c.type, source, {}};
  }

  static layers::Rows rows_of(void* data, ElementType type, std::int64_t rows,
                              std::int64_t columns) {
    const std::int64_t bytes = layers::float_bytes(type);
    return {static_cast<std::byte*>(data),
            type,
            1,
            rows,
            columns,
            rows * columns * bytes,
            columns * bytes,
            bytes};
  }

  layers::Engine engine_;
  Linear linear_;
  Numbers x_, y_;
  layers::Rows x_rows_, y_rows_;
  layers::Buffer prepared_, scratch_;
};

}  // namespace

std::unique_ptr<Workload> make_product_workload(const Case& of, Isa isa, Executor& executor) {
  return std::make_unique<Product>(of, isa, executor);
}

}  // namespace polyhead::bench
