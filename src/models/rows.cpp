#include "models/rows.hpp"

#include <cmath>

namespace polyhead::inline v0::models {
namespace {

using layers::Engine;

/// Sum of f(x[i]) in double, in four chains: the order is fixed.
template <class F>
double sum_of(const float* x, std::int64_t n, F f) {
  double sums[4] = {};
  for (std::int64_t i = 0; i < n; ++i) sums[i % 4] += f(static_cast<double>(x[i]));
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void normalise_row(const NormKind& kind, const NormWeights& w, const float* x, float* to,
                   std::int64_t n) {
  const auto count = static_cast<double>(n);
  if (kind.norm == Norm::rms) {
    const double mean = sum_of(x, n, [](double v) { return v * v; }) / count;
    const auto factor = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(kind.eps)));
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = x[i] * factor * w.weight[static_cast<std::size_t>(i)];
    return;
  }
  const double mean = sum_of(x, n, [](double v) { return v; }) / count;
  const double variance =
      sum_of(x, n, [mean](double v) { return (v - mean) * (v - mean); }) / count;
  const auto factor = static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(kind.eps)));
  const auto middle = static_cast<float>(mean);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float scaled = (x[i] - middle) * factor * w.weight[at];
    to[i] = w.bias.empty() ? scaled : scaled + w.bias[at];
  }
}

float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::silu:
      return x / (1.0f + std::exp(-x));
    case Activation::gelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    default: {
      constexpr float kScale = 0.79788456080286536f;  // sqrt(2 / pi)
      return 0.5f * x * (1.0f + std::tanh(kScale * (x + 0.044715f * x * x * x)));
    }
  }
}

/// Runs body(row, to) for every row, where `to` is float32: the row of `matrix` itself, or one that
/// is rounded into it afterwards.
template <class Body>
void write_rows(const Engine& engine, const Matrix& matrix, const Body& body) {
  layers::share_out_rows(engine.crew, matrix.rows, [&](std::int64_t row, int) {
    if (matrix.type == ElementType::float32) return body(row, matrix.floats(row));
    std::vector<float> wide(static_cast<std::size_t>(matrix.columns));
    body(row, wide.data());
    engine.gemm->narrow_row(matrix.row(row), wide.data(), matrix.type,
                            layers::float_bytes(matrix.type), matrix.columns);
  });
}

}  // namespace

Matrix Matrix::from_row(std::int64_t first, std::int64_t count) const {
  return {row(first), type, count, columns, pitch};
}

Matrix Matrix::from_column(std::int64_t first, std::int64_t count) const {
  return {data + first * layers::float_bytes(type), type, rows, count, pitch};
}

layers::Rows Matrix::as_rows() const {
  return {data, type, 1, rows, columns, rows * pitch, pitch, layers::float_bytes(type)};
}

Matrix matrix_in(layers::Buffer& memory, ElementType type, std::int64_t rows,
                 std::int64_t columns) {
  const std::int64_t pitch = layers::row_pitch(columns * layers::float_bytes(type));
  return {memory.need(rows, pitch), type, rows, columns, pitch};
}

void normalise(const Engine& engine, const NormKind& kind, const NormWeights& weights,
               const Matrix& from, const Matrix& to) {
  write_rows(engine, to, [&](std::int64_t row, float* out) {
    normalise_row(kind, weights, from.floats(row), out, from.columns);
  });
}

void add(const Engine& engine, const Matrix& sum, const Matrix& term) {
  layers::share_out_rows(engine.crew, sum.rows, [&](std::int64_t row, int) {
    float* const to = sum.floats(row);
    const float* const from = term.floats(row);
    for (std::int64_t i = 0; i < sum.columns; ++i) to[i] += from[i];
  });
}

void activate(const Engine& engine, Activation activation, const Matrix& gate, const Matrix& up,
              const Matrix& to) {
  write_rows(engine, to, [&](std::int64_t row, float* out) {
    const float* const x = gate.floats(row);
    for (std::int64_t i = 0; i < to.columns; ++i) out[i] = activated(activation, x[i]);
    if (up.columns == 0) return;
    const float* const factor = up.floats(row);
    for (std::int64_t i = 0; i < to.columns; ++i) out[i] *= factor[i];
  });
}

}  // namespace polyhead::inline v0::models
