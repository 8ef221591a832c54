#include "models/rows.hpp"

namespace polyhead::inline v0::models {
namespace {

using kernels::cpu::RowOut;
using layers::Engine;

RowOut out_row(const Matrix& matrix, std::int64_t row) { return {matrix.row(row), matrix.type}; }

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
  const auto& rows = *engine.rows;
  const float* const weight = weights.weight.data();
  const float* const bias = weights.bias.empty() ? nullptr : weights.bias.data();
  layers::share_out_rows(engine.crew, to.rows, [&](std::int64_t row, int) {
    const RowOut out = out_row(to, row);
    if (kind.norm == Norm::rms) {
      rows.rms_norm(out, from.floats(row), weight, kind.eps, from.columns);
    } else {
      rows.layer_norm(out, from.floats(row), weight, bias, kind.eps, from.columns);
    }
  });
}

void add(const Engine& engine, const Matrix& sum, const Matrix& term) {
  layers::share_out_rows(engine.crew, sum.rows, [&](std::int64_t row, int) {
    engine.rows->add(sum.floats(row), term.floats(row), sum.columns);
  });
}

void activate(const Engine& engine, Activation activation, const Matrix& gate, const Matrix& up,
              const Matrix& to) {
  const auto& rows = *engine.rows;
  const auto kernel = activation == Activation::silu   ? rows.silu
                      : activation == Activation::gelu ? rows.gelu
                                                       : rows.gelu_tanh;
  layers::share_out_rows(engine.crew, to.rows, [&](std::int64_t row, int) {
    kernel(out_row(to, row), gate.floats(row), up.columns > 0 ? up.floats(row) : nullptr,
           to.columns);
  });
}

}  // namespace polyhead::inline v0::models
