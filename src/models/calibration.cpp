#include "models/calibration.hpp"

#include <numeric>

#include "base/element.hpp"
#include "frames/rope_pairs.hpp"
#include "models/rows.hpp"

namespace polyhead::inline v0::models {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Rows [first, first + count) of [1, tokens, heads, dim].
ConstView rows_from(ConstView rows, std::int64_t first, std::int64_t count) {
  rows.data = static_cast<const std::byte*>(rows.data) +
              first * rows.layout.strides[1] * element_bytes(rows.type);
  rows.layout.extents[1] = count;
  return rows;
}

}  // namespace

std::vector<double> value_moments(const layers::Engine& engine, const Block& block) {
  const layers::Layer& layer = block.attention;
  const std::int64_t dim = layer.config.value_dim, heads = layer.config.q_heads;
  const std::int64_t inputs = layer.concat_columns(), outputs = layer.output_columns();
  // What the projection makes of each input alone; of none, its bias.
  layers::Buffer one, prepared, result, scratch;
  const Matrix x = matrix_in(one, layer.activation, inputs + 1, inputs);
  const Matrix y = matrix_in(result, ElementType::float32, inputs + 1, outputs);
  for (std::int64_t row = 0; row <= inputs; ++row) {
    for (std::int64_t column = 0; column < inputs; ++column) {
      base::store_float32(x.row(row) + column * element_bytes(x.type), x.type,
                          row == column ? 1.0f : 0.0f);
    }
  }
  const auto source = layers::source_of(engine, layer.o, x.as_rows(), prepared);
  layers::multiply(engine, {{&layer.o, source, y.as_rows()}}, scratch);
  const std::vector<float>& norm = block.post_attention_norm.weight;
  frames::TurnedBackSums sums(layer.config.kv_heads, dim);
  const std::int64_t group = heads / layer.config.kv_heads;
  std::vector<double> rows(index(outputs * dim));  // [output][dim] of one query head
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t to = 0; to < outputs; ++to) {
      const double weight = norm.empty() ? 1.0 : static_cast<double>(norm[index(to)]);
      for (std::int64_t d = 0; d < dim; ++d) {
        rows[index(to * dim + d)] =
            weight * (static_cast<double>(y.floats(head * dim + d)[to]) - y.floats(inputs)[to]);
      }
    }
    sums.add(engine.crew, head / group, rows);
  }
  return sums.over(1, {}).moment;  // their mean: only its shape matters
}

FrameObserver::FrameObserver(const ModelConfig& config, const layers::Engine& engine)
    : config_(config), options_(options_of(engine)), layers_(config.layers.size()) {}

void FrameObserver::attending(std::int64_t layer, std::int64_t first_query,
                              AttentionArguments& arguments) {
  std::optional<FrameCalibration>& calibration = layers_[index(layer)];
  if (!calibration) {
    const LayerGeometry& sizes = config_.layers[index(layer)];
    const Modifiers& modifiers = arguments.modifiers;
    calibration.emplace(
        FrameCalibrationConfig{sizes.q_heads, sizes.kv_heads, sizes.head_dim, sizes.value_dim,
                               sizes.rope, modifiers.soft_cap == 0.0f && !modifiers.sink.given()});
  }
  const std::int64_t count = arguments.q.layout.extents[1];
  std::vector<std::int64_t> positions(index(count));
  std::iota(positions.begin(), positions.end(), first_query);
  calibration->add(arguments.q, rows_from(arguments.k, first_query, count),
                   rows_from(arguments.v, first_query, count),
                   {positions.data(), {std::int64_t{1}, count}}, options_);
}

const FrameCalibration& FrameObserver::layer(std::int64_t index_of) const {
  return *layers_[index(index_of)];
}

}  // namespace polyhead::inline v0::models
