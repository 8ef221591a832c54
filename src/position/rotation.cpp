// Turning heads by their position.
#include "position/rotation.hpp"

#include <cmath>
#include <cstddef>

#include "base/batch_of_one.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace position {

Rotation::Rotation(const RopeConfig& config, std::int64_t head_dim, bool tables)
    : pairing_(config.pairing),
      factor_(rope_attention_factor(config)),
      frequencies_(rope_frequencies(config, head_dim)) {
  if (!tables) return;
  const base::FloatEnvironment environment(base::Subnormals::kept);
  rests_.resize(static_cast<std::size_t>(kStep) * 2 * frequencies_.size());
  for (std::int64_t rest = 0; rest < kStep; ++rest) turn(rest, rests_.data() + rest * 2 * pairs());
}

void Rotation::turn(std::int64_t position, double* cos_then_sin) const {
  for (std::int64_t pair = 0; pair < pairs(); ++pair) {
    const double angle =
        static_cast<double>(position) * frequencies_[static_cast<std::size_t>(pair)];
    cos_then_sin[pair] = std::cos(angle);
    cos_then_sin[pairs() + pair] = std::sin(angle);
  }
}

void Rotation::at(std::int64_t position, Cursor& cursor, float* cos, float* sin) const {
  // Rounded down, so that negative positions have a rest from 0 on, too.
  std::int64_t rest = position % kStep;
  if (rest < 0) rest += kStep;
  const std::int64_t anchor = position - rest;
  double* const c = cursor.anchors;
  double* const s = cursor.anchors + pairs();
  if (cursor.anchor != anchor) {
    turn(anchor, cursor.anchors);
    cursor.anchor = anchor;
  }
  const double* const table = rests_.empty() ? nullptr : rests_.data() + rest * 2 * pairs();
  for (std::int64_t pair = 0; pair < pairs(); ++pair) {
    const double angle = static_cast<double>(rest) * frequencies_[static_cast<std::size_t>(pair)];
    const double rest_cos = table != nullptr ? table[pair] : std::cos(angle);
    const double rest_sin = table != nullptr ? table[pairs() + pair] : std::sin(angle);
    cos[pair] = static_cast<float>(factor_ * (c[pair] * rest_cos - s[pair] * rest_sin));
    sin[pair] = static_cast<float>(factor_ * (s[pair] * rest_cos + c[pair] * rest_sin));
  }
}

void rotate(float* head, const Rotation& rotation, const float* cos, const float* sin) {
  const std::int64_t pairs = rotation.pairs();
  if (rotation.pairing() == RopePairing::half_split) {
    float* const second = head + pairs;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const float x = head[pair], y = second[pair];
      head[pair] = x * cos[pair] - y * sin[pair];
      second[pair] = x * sin[pair] + y * cos[pair];
    }
    return;
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const float x = head[2 * pair], y = head[2 * pair + 1];
    head[2 * pair] = x * cos[pair] - y * sin[pair];
    head[2 * pair + 1] = x * sin[pair] + y * cos[pair];
  }
}

namespace {

constexpr const char* kCall = "apply_rope";

/// [tokens, ...] as a batch of one, where `view` has not `axes` already.
template <class Strided>
Strided with_batch(const Strided& view, int axes) {
  return view.layout.axes == axes ? view : base::batch_of_one(view);
}

void check(const View& x, const ConstView& positions, const RopeConfig& config) {
  const int axes = x.layout.axes;
  if (x.layout.too_many_axes || (axes != 3 && axes != 4)) {
    base::refuse(kCall, "x has ", base::Axes(x.layout),
                 "; expected [tokens, heads, dim] or [batch, tokens, heads, dim]");
  }
  if (!base::is_floating(x.type)) {
    base::refuse(kCall, "x is ", element_name(x.type), "; expected float32, float16 or bfloat16");
  }
  if (!positions.given()) base::refuse(kCall, "positions are not given; expected int32 or int64");
  if (!base::is_integer(positions.type)) {
    base::refuse(kCall, "positions are ", element_name(positions.type),
                 "; expected int32 or int64");
  }
  if (positions.layout.too_many_axes || positions.layout.axes != axes - 2) {
    base::refuse(kCall, "positions have ", base::Axes(positions.layout),
                 "; expected those of x's tokens, ", axes - 2);
  }
  for (int axis = 0; axis < axes - 2; ++axis) {
    if (positions.layout.extents[axis] != x.layout.extents[axis]) {
      base::refuse(kCall, "positions have ", positions.layout.extents[axis], " on axis ", axis,
                   "; expected x's ", x.layout.extents[axis]);
    }
  }
  const base::Footprint read = base::footprint_of(kCall, "positions", positions);
  base::check_writable(kCall, base::footprint_of(kCall, "x", x), &read, 1);
  check_rope(kCall, config, x.layout.extents[axes - 1]);
}

/// Rotates every head of x by way of float32: the elements that turn, gathered, rotated and put
/// back.
template <class T, class Load, class Store>
void rotate_all(const View& x, const ConstView& positions, const Rotation& rotation, double* memory,
                Load load, Store store) {
  const auto& extents = x.layout.extents;
  const auto& strides = x.layout.strides;
  const std::int64_t pairs = rotation.pairs();
  auto* const cos = reinterpret_cast<float*>(memory + 2 * pairs);
  float *const sin = cos + pairs, *const head = sin + pairs;
  Rotation::Cursor cursor{memory};
  for (std::int64_t b = 0; b < extents[0]; ++b) {
    for (std::int64_t token = 0; token < extents[1]; ++token) {
      const std::int64_t at = b * positions.layout.strides[0] + token * positions.layout.strides[1];
      const std::int64_t position = positions.type == ElementType::int32
                                        ? static_cast<const std::int32_t*>(positions.data)[at]
                                        : static_cast<const std::int64_t*>(positions.data)[at];
      rotation.at(position, cursor, cos, sin);
      for (std::int64_t h = 0; h < extents[2]; ++h) {
        T* const from =
            static_cast<T*>(x.data) + b * strides[0] + token * strides[1] + h * strides[2];
        for (std::int64_t i = 0; i < 2 * pairs; ++i) head[i] = load(from[i * strides[3]]);
        rotate(head, rotation, cos, sin);
        for (std::int64_t i = 0; i < 2 * pairs; ++i) from[i * strides[3]] = store(head[i]);
      }
    }
  }
}

}  // namespace

void rotate_heads(const View& x, const ConstView& positions, const Rotation& rotation,
                  double* memory) {
  const base::FloatEnvironment environment;
  switch (x.type) {
    case ElementType::float16:
      return rotate_all<float16>(
          x, positions, rotation, memory, [](float16 value) { return to_float32(value); },
          [](float value) { return to_float16(value); });
    case ElementType::bfloat16:
      return rotate_all<bfloat16>(
          x, positions, rotation, memory, [](bfloat16 value) { return to_float32(value); },
          [](float value) { return to_bfloat16(value); });
    default:
      return rotate_all<float>(
          x, positions, rotation, memory, [](float value) { return value; },
          [](float value) { return value; });
  }
}

}  // namespace position

void apply_rope(View x, ConstView positions, const RopeConfig& config) {
  position::check(x, positions, config);
  const View heads = position::with_batch(x, 4);
  const auto& extents = heads.layout.extents;
  if (extents[0] == 0 || extents[1] == 0 || extents[2] == 0 || extents[3] == 0) return;
  const position::Rotation rotation(config, extents[3],
                                    extents[0] * extents[1] > position::kTableTokens);
  std::vector<double> memory(static_cast<std::size_t>(position::turning_doubles(rotation.pairs())));
  position::rotate_heads(heads, position::with_batch(positions, 2), rotation, memory.data());
}

}  // namespace polyhead::inline v0
