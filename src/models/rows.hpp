// Elementwise work on the rows of activations, shared out over threads. A row's result depends on
// that row alone.
#pragma once

#include <cstdint>

#include "layers/rows.hpp"
#include "models/blocks.hpp"

namespace polyhead::inline v0::models {

/// What a public call of the library is to run on.
inline Options options_of(const layers::Engine& engine) {
  return {engine.isa, engine.crew.executor, engine.crew.workers};
}

/// Dense float32 or bfloat16 rows at one distance.
struct Matrix {
  std::byte* data = nullptr;
  ElementType type = ElementType::float32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t pitch = 0;  ///< bytes

  std::byte* row(std::int64_t index) const { return data + index * pitch; }
  float* floats(std::int64_t index) const { return reinterpret_cast<float*>(row(index)); }
  Matrix from_row(std::int64_t first, std::int64_t count) const;
  Matrix from_column(std::int64_t first, std::int64_t count) const;
  layers::Rows as_rows() const;
};

/// A matrix in `memory`, which grows to hold it.
Matrix matrix_in(layers::Buffer& memory, ElementType type, std::int64_t rows, std::int64_t columns);

/// How rows are normalised.
struct NormKind {
  Norm norm = Norm::rms;
  float eps = 1e-5f;
};

/// to = norm(from); the same matrix may be both. float32 in, float32 or bfloat16 out.
void normalise(const layers::Engine& engine, const NormKind& kind, const NormWeights& weights,
               const Matrix& from, const Matrix& to);

/// sum += term, both float32.
void add(const layers::Engine& engine, const Matrix& sum, const Matrix& term);

/// to = activation(gate) * up, or activation(gate) where `up` has no columns.
void activate(const layers::Engine& engine, Activation activation, const Matrix& gate,
              const Matrix& up, const Matrix& to);

}  // namespace polyhead::inline v0::models
