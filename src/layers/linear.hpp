// A packed matrix and products with it.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "base/memory.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "layers/rows.hpp"

namespace polyhead::inline v0::layers {

/// y = x W^T + b with W packed for one instruction set.
class Linear {
 public:
  Linear() = default;

  /// Stacks checked [out, in] views, and their biases where given ([out] each; zeros where only
  /// some are).
  Linear(const kernels::cpu::GemmTable& table, ElementType type,
         std::initializer_list<ConstView> weights, std::initializer_list<ConstView> biases);

  const kernels::cpu::GemmWeights& weights() const { return packed_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  std::int64_t in() const { return packed_.in; }
  std::int64_t out() const { return packed_.out; }
  std::size_t bytes() const { return panels_.size() + bias_.size() * sizeof(float); }

 private:
  kernels::cpu::GemmWeights packed_;
  base::AlignedBuffer<std::byte> panels_;
  std::vector<float> bias_;
};

/// Rows in the form a product reads.
struct Source {
  const std::byte* data;
  std::int64_t row_bytes;
};

/// x itself where its rows can be multiplied as they lie, else prepared in `buffer`.
Source source_of(const Engine& engine, const Linear& linear, const Rows& x, Buffer& buffer);

/// One product; `y` has even rows.
struct Product {
  const Linear* linear;
  Source x;
  Rows y;
};

/// The products of one stage, all with the same rows, shared out together.
void multiply(const Engine& engine, std::span<const Product> products, Buffer& scratch);
inline void multiply(const Engine& engine, std::initializer_list<Product> products,
                     Buffer& scratch) {
  multiply(engine, std::span(products.begin(), products.size()), scratch);
}

}  // namespace polyhead::inline v0::layers
