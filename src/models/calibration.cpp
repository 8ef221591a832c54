#include "models/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/element.hpp"
#include "models/head_rows.hpp"
#include "models/rows.hpp"
#include "models/shaped_rounding.hpp"
#include "models/walsh_hadamard.hpp"

namespace polyhead::inline v0::models {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// What is added to a deviation, as a share of the head's mean one: channels that were still in the
/// calibration may move later.
constexpr double kLeastShare = 1e-3;

/// Square roots of `squares`, none of them 0.
std::vector<double> magnitudes(const std::vector<double>& squares) {
  std::vector<double> roots;
  double sum = 0.0;
  for (const double square : squares) {
    roots.push_back(std::sqrt(std::max(square, 0.0)));
    sum += roots.back();
  }
  const double least = kLeastShare * sum / static_cast<double>(squares.size());
  for (double& root : roots) root = sum > 0.0 ? root + least : 1.0;
  return roots;
}

/// How a frame is made of what was measured: s = deviation^range / weight^(1 - range), a weight
/// being the root of how errors of the channel count.
struct Kind {
  double range;
  bool centred;
  double damping = 0.0;  ///< of shaped rounding; 0: to nearest
};
constexpr double kInt8Keys = 0.5;   // errors of equal size cost the scores least
constexpr double kInt4Keys = 0.75;  // 0.6 and 1 lose more (docs/numerics.md)
constexpr double kInt4Values = 1.0;
constexpr double kDamping = 0.02;
/// Tokens from which queries are known well enough for no more damping; fewer leave more directions
/// unseen, in which nothing must be thought free.
constexpr double kEnough = 700.0;

/// One head's rows as they were measured, and how errors of them count, e' M e.
struct Measured {
  std::int64_t dim;
  const double *mean, *moment, *errors;  ///< [dim], and [dim][dim] each
};

std::vector<double> diagonal(const double* matrix, std::int64_t dim) {
  std::vector<double> all;
  for (std::int64_t d = 0; d < dim; ++d) all.push_back(matrix[d * dim + d]);
  return all;
}

std::vector<double> stretch_of(const Measured& head, const Kind& kind) {
  std::vector<double> squares = diagonal(head.moment, head.dim);
  for (std::size_t d = 0; kind.centred && d < squares.size(); ++d)
    squares[d] -= head.mean[d] * head.mean[d];
  std::vector<double> stretch = magnitudes(squares);
  const std::vector<double> weights = magnitudes(diagonal(head.errors, head.dim));
  for (std::size_t d = 0; d < stretch.size(); ++d)
    stretch[d] = std::pow(stretch[d], kind.range) / std::pow(weights[d], 1.0 - kind.range);
  return stretch;
}

/// M as it is for errors in the frame: H S M S H.
std::vector<double> in_frame(const Measured& head, const std::vector<double>& stretch) {
  const std::int64_t dim = head.dim;
  std::vector<double> turned(head.errors, head.errors + dim * dim);
  for (std::int64_t i = 0; i < dim; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      turned[index(i * dim + j)] *= stretch[index(i)] * stretch[index(j)];
  for (std::int64_t i = 0; i < dim; ++i) walsh_hadamard(&turned[index(i * dim)], dim);
  for (std::int64_t i = 0; i < dim; ++i) walsh_hadamard(&turned[index(i)], dim, dim);
  return turned;
}

void add_head(CodeFrame& frame, const Measured& head, const Kind& kind) {
  const std::vector<double> stretch = stretch_of(head, kind);
  for (std::int64_t d = 0; d < head.dim; ++d) {
    frame.centre.push_back(static_cast<float>(kind.centred ? head.mean[d] : 0.0));
    frame.stretch.push_back(static_cast<float>(stretch[index(d)]));
  }
  if (kind.damping == 0.0) return;
  const RoundingShape shape = rounding_shape(in_frame(head, stretch), head.dim, kind.damping);
  frame.carry.insert(frame.carry.end(), shape.carry.begin(), shape.carry.end());
  frame.cost.insert(frame.cost.end(), shape.cost.begin(), shape.cost.end());
}

/// The frame of all heads of `dim` dims.
CodeFrame frame_of(const TurnedBackSums::Averages& rows, const std::vector<double>& errors,
                   std::int64_t dim, const Kind& kind) {
  CodeFrame frame;
  const std::int64_t heads = static_cast<std::int64_t>(rows.value.size()) / dim;
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t matrix = head * dim * dim;
    add_head(
        frame,
        {dim, rows.value.data() + head * dim, rows.moment.data() + matrix, errors.data() + matrix},
        kind);
  }
  return frame;
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
  TurnedBackSums sums(layer.config.kv_heads, dim);
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

FrameObserver::FrameObserver(const ModelConfig& config, const Crew& crew)
    : config_(config), crew_(crew) {
  for (const LayerGeometry& layer : config.layers) layers_.emplace_back(layer);
}

void FrameObserver::attending(std::int64_t layer, std::int64_t first_query,
                              AttentionArguments& arguments) {
  Seen& seen = layers_[index(layer)];
  const HeadRows queries(arguments.q), keys(arguments.k), values(arguments.v);
  const Modifiers& modifiers = arguments.modifiers;
  seen.tokens += queries.tokens;
  seen.centred = modifiers.soft_cap == 0.0f && !modifiers.sink.given();
  const std::int64_t group = queries.heads / keys.heads;
  std::vector<std::vector<std::complex<double>>> turns;
  for (std::int64_t t = 0; t < queries.tokens; ++t)
    turns.push_back(turns_back(seen.pairs, first_query + t));
  const auto add = [&](TurnedBackSums& sums, std::int64_t head, const HeadRows& rows,
                       std::int64_t of, std::int64_t first, std::span<const RopePair> pairs) {
    std::vector<double> all(index(queries.tokens * rows.dim));
    for (std::int64_t t = 0; t < queries.tokens; ++t) {
      const std::span<double> row(&all[index(t * rows.dim)], index(rows.dim));
      const std::byte* const from = rows.row(first + t, of);
      for (std::int64_t d = 0; d < rows.dim; ++d) row[index(d)] = rows.value(from, d);
      turn_back(row, pairs, turns[index(t)]);
    }
    sums.add(crew_, head, all);
  };
  for (std::int64_t head = 0; head < queries.heads; ++head)
    add(seen.queries, head / group, queries, head, 0, seen.pairs);
  for (std::int64_t head = 0; head < keys.heads; ++head) {
    add(seen.keys, head, keys, head, first_query, seen.pairs);
    add(seen.values, head, values, head, first_query, {});
  }
}

LayerFrames FrameObserver::frames(std::int64_t layer, ElementType type, std::int64_t length,
                                  const std::vector<double>& of_values) const {
  const Seen& seen = layers_[index(layer)];
  const LayerGeometry& sizes = config_.layers[index(layer)];
  const bool int4 = type == ElementType::int4;
  const double damping = kDamping * std::max(1.0, kEnough / static_cast<double>(seen.tokens));
  LayerFrames frames;
  frames.keys =
      frame_of(seen.keys.over(length, seen.pairs), seen.queries.over(length, seen.pairs).moment,
               sizes.head_dim, {int4 ? kInt4Keys : kInt8Keys, seen.centred, int4 ? damping : 0.0});
  if (int4) {
    frames.values = frame_of(seen.values.over(1, {}), of_values, sizes.value_dim,
                             {kInt4Values, false, kDamping});
  }
  return frames;
}

}  // namespace polyhead::inline v0::models
