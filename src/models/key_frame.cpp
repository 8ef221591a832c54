#include "models/key_frame.hpp"

#include <algorithm>
#include <cmath>

#include "base/element.hpp"

namespace polyhead::inline v0::models {
namespace {

/// The last three axes of rows [.., tokens, heads, dim] of one sequence or one ragged run.
struct HeadRows {
  explicit HeadRows(const ConstView& view)
      : data(static_cast<const std::byte*>(view.data)), type(view.type) {
    const auto axes = static_cast<std::size_t>(view.layout.axes);
    tokens = view.layout.extents[axes - 3];
    heads = view.layout.extents[axes - 2];
    dim = view.layout.extents[axes - 1];
    token_stride_ = view.layout.strides[axes - 3];
    head_stride_ = view.layout.strides[axes - 2];
  }

  const std::byte* row(std::int64_t t, std::int64_t h) const {
    return data + (t * token_stride_ + h * head_stride_) * element_bytes(type);
  }
  float value(const std::byte* row, std::int64_t d) const {
    return base::load_float32(row + d * element_bytes(type), type);
  }

  const std::byte* data;
  ElementType type;
  std::int64_t tokens, heads, dim;

 private:
  std::int64_t token_stride_, head_stride_;  // elements
};

/// Runs of the largest power of two that divides n, each through the orthonormal Walsh-Hadamard
/// transform, which is its own inverse and transpose.
void walsh_hadamard(float* x, std::int64_t n) {
  const std::int64_t run = n & -n;
  for (std::int64_t half = 1; half < run; half *= 2) {
    for (std::int64_t first = 0; first < n; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(run));
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

/// What is added to a deviation, as a share of the head's mean one: channels that were still in the
/// calibration may move later.
constexpr double kLeastShare = 1e-3;

/// Square roots of `squares` [dim], none of them 0.
std::vector<double> magnitudes(const double* squares, std::int64_t dim) {
  std::vector<double> roots;
  double sum = 0.0;
  for (std::int64_t d = 0; d < dim; ++d) {
    roots.push_back(std::sqrt(std::max(squares[d], 0.0)));
    sum += roots.back();
  }
  const double least = kLeastShare * sum / static_cast<double>(dim);
  for (double& root : roots) root = sum > 0.0 ? root + least : 1.0;
  return roots;
}

}  // namespace

void enter_frame(const Crew& crew, const KeyFrame& frame, const ConstView& q, const ConstView& k) {
  const HeadRows queries(q), keys(k);
  const std::int64_t dim = keys.dim, group = queries.heads / keys.heads;
  layers::share_out_rows(crew, queries.tokens, [&](std::int64_t token, int) {
    std::vector<float> turned(static_cast<std::size_t>(dim));
    const auto turn = [&](const HeadRows& rows, std::int64_t head, const auto& enter) {
      // The rows are a pass's own, which gives them out as views.
      auto* const row = const_cast<std::byte*>(rows.row(token, head));
      for (std::int64_t d = 0; d < dim; ++d)
        turned[static_cast<std::size_t>(d)] = enter(rows.value(row, d), d);
      walsh_hadamard(turned.data(), dim);
      for (std::int64_t d = 0; d < dim; ++d) {
        base::store_float32(row + d * element_bytes(rows.type), rows.type,
                            turned[static_cast<std::size_t>(d)]);
      }
    };
    for (std::int64_t head = 0; head < keys.heads; ++head) {
      const float* const centre = frame.centre.data() + head * dim;
      const float* const stretch = frame.stretch.data() + head * dim;
      turn(keys, head, [&](float x, std::int64_t d) { return (x - centre[d]) / stretch[d]; });
      for (std::int64_t i = 0; i < group; ++i)
        turn(queries, head * group + i, [&](float x, std::int64_t d) { return x * stretch[d]; });
    }
  });
}

KeyFrameObserver::KeyFrameObserver(const ModelConfig& config) {
  for (const LayerGeometry& layer : config.layers) layers_.emplace_back(layer);
}

void KeyFrameObserver::attending(std::int64_t layer, std::int64_t first_query,
                                 AttentionArguments& arguments) {
  Seen& seen = layers_[static_cast<std::size_t>(layer)];
  const HeadRows queries(arguments.q), keys(arguments.k);
  const Modifiers& modifiers = arguments.modifiers;
  seen.centred = modifiers.soft_cap == 0.0f && !modifiers.sink.given();
  const std::int64_t group = queries.heads / keys.heads;
  std::vector<double> row(static_cast<std::size_t>(keys.dim));
  const auto add = [&](TurnedBackSums& sums, std::int64_t head, const HeadRows& rows,
                       const std::byte* from, const auto& turns) {
    for (std::int64_t d = 0; d < keys.dim; ++d)
      row[static_cast<std::size_t>(d)] = rows.value(from, d);
    sums.add(head, row, seen.pairs, turns);
  };
  for (std::int64_t t = 0; t < queries.tokens; ++t) {
    const std::int64_t position = first_query + t;
    const auto turns = turns_back(seen.pairs, position);
    for (std::int64_t head = 0; head < queries.heads; ++head)
      add(seen.queries, head / group, queries, queries.row(t, head), turns);
    for (std::int64_t head = 0; head < keys.heads; ++head)
      add(seen.keys, head, keys, keys.row(position, head), turns);
  }
}

std::vector<KeyFrame> KeyFrameObserver::frames(std::int64_t length) const {
  std::vector<KeyFrame> frames;
  for (const Seen& seen : layers_) {
    const auto queries = seen.queries.over(length, seen.pairs);
    auto keys = seen.keys.over(length, seen.pairs);
    KeyFrame frame;
    for (std::size_t i = 0; i < keys.value.size(); ++i) {
      const double centre = seen.centred ? keys.value[i] : 0.0;
      keys.squared[i] -= centre * centre;  // now about the centre
      frame.centre.push_back(static_cast<float>(centre));
    }
    const auto dim = static_cast<std::size_t>(seen.head_dim);
    for (std::size_t head = 0; head < keys.value.size(); head += dim) {
      const auto of_keys = magnitudes(keys.squared.data() + head, seen.head_dim);
      const auto of_queries = magnitudes(queries.squared.data() + head, seen.head_dim);
      for (std::size_t d = 0; d < dim; ++d)
        frame.stretch.push_back(static_cast<float>(std::sqrt(of_keys[d] / of_queries[d])));
    }
    frames.push_back(std::move(frame));
  }
  return frames;
}

}  // namespace polyhead::inline v0::models
