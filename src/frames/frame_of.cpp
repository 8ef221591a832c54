#include "frames/frame_of.hpp"

#include <algorithm>
#include <cmath>

#include "frames/shaped_rounding.hpp"
#include "frames/walsh_hadamard.hpp"

namespace polyhead::inline v0::frames {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// What is added to a deviation, as a share of the head's mean one: channels that were still in the
/// calibration may move later.
constexpr double kLeastShare = 1e-3;

/// Of a mean's square: what rows have less of is the rounding of their sums, and they do not vary.
constexpr double kLeastSpread = 1e-12;

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

std::vector<double> stretch_of(const Measured& head, const FrameKind& kind) {
  std::vector<double> squares = diagonal(head.moment, head.dim);
  for (std::size_t d = 0; kind.centred && d < squares.size(); ++d) {
    const double centre = head.mean[d] * head.mean[d];
    squares[d] = squares[d] - centre > kLeastSpread * centre ? squares[d] - centre : 0.0;
  }
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

void add_head(CodeFrame& frame, const Measured& head, const FrameKind& kind) {
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

}  // namespace

CodeFrame frame_of(const TurnedBackSums::Averages& rows, const std::vector<double>& errors,
                   std::int64_t dim, const FrameKind& kind) {
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

}  // namespace polyhead::inline v0::frames
