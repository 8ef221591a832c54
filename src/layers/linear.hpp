// A packed matrix and products with it.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "base/large_pages.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "layers/rows.hpp"

namespace polyhead::inline v0::layers {

/// A matrix [out, in] to be packed. rows(first, count, to) writes that many of its rows into `to`,
/// dense float32; threads call it at once, for different rows.
struct MatrixSource {
  std::int64_t in = 0, out = 0;
  std::function<void(std::int64_t first, std::int64_t count, float* to)> rows;
};

/// Consecutive rows of a matrix as blocks of a quantised type.
struct BlockRows {
  WeightType type = WeightType::q8_0;
  std::int64_t count = 0;
  const std::byte* data = nullptr;  ///< any alignment
  std::int64_t row_bytes = 0;
};

/// The form that holds all parts quantised; its bits are 0 where there is none.
base::BlockForm form_of(std::span<const BlockRows> parts);

/// Bytes that a packed matrix of this shape takes among others.
std::size_t packed_bytes(const kernels::cpu::GemmTable& table,
                         const kernels::cpu::GemmWeights& shape);

/// The same of [out, in] views that become a Linear each, together; those not given take none.
std::size_t packed_bytes(const kernels::cpu::GemmTable& table, ElementType type,
                         std::span<const ConstView> weights);

/// y = x W^T + b with W packed for one instruction set. Products with quantised weights have the
/// bits of products with the same weights as float32.
class Linear {
 public:
  Linear() = default;

  /// Stacks checked [out, in] views, and their biases where given ([out] each; zeros where only
  /// some are).
  Linear(const kernels::cpu::GemmTable& table, base::LargePages& pages, ElementType type,
         std::initializer_list<ConstView> weights, std::initializer_list<ConstView> biases);

  /// Rounds the source to `type`, on all threads of the engine. `bias`: [out], or empty.
  Linear(const Engine& engine, base::LargePages& pages, ElementType type,
         const MatrixSource& source, std::vector<float> bias);

  /// Keeps `parts`, stacked, as they are: form_of(parts) has bits. `bias`: [out], or empty.
  Linear(const Engine& engine, base::LargePages& pages, std::int64_t in,
         std::span<const BlockRows> parts, std::vector<float> bias);

  const kernels::cpu::GemmWeights& weights() const { return packed_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  std::int64_t in() const { return packed_.in; }
  std::int64_t out() const { return packed_.out; }
  std::size_t bytes() const { return panel_bytes_ + bias_.size() * sizeof(float); }

 private:
  void reserve(const kernels::cpu::GemmTable& table, base::LargePages& pages);
  void pack(const kernels::cpu::GemmTable& table, const Crew& crew, const MatrixSource& source);

  kernels::cpu::GemmWeights packed_;
  std::shared_ptr<std::byte> panels_;
  std::size_t panel_bytes_ = 0;
  std::vector<float> bias_;
};

/// Rows in the form a product reads.
struct Source {
  const std::byte* data;
  std::int64_t row_bytes;
};

/// Whether a product reads the rows of x where they lie, and rows that begin multiples of `apart`
/// bytes after them.
bool lie_ready(const Engine& engine, const Linear& linear, const Rows& x, std::int64_t apart = 0);

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
