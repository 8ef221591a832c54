// Frames found on the rows of some text.
#include <algorithm>
#include <cmath>
#include <complex>

#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "frames/door.hpp"
#include "frames/frame_of.hpp"
#include "frames/head_rows.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0 {
namespace frames {
namespace {

constexpr double kInt8Keys = 0.5;   // errors of equal size cost the scores least
constexpr double kInt4Keys = 0.75;  // 0.6 and 1 lose more (docs/numerics.md)
constexpr double kInt4Values = 1.0;
constexpr double kDamping = 0.02;
/// Tokens from which queries are known well enough for no more damping; fewer leave more directions
/// unseen, in which nothing must be thought free.
constexpr double kEnough = 700.0;

constexpr std::int64_t kBlock = 64;  // tokens whose rows are held in double at once

using Turns = std::vector<std::complex<double>>;

FrameCalibrationConfig checked(FrameCalibrationConfig config) {
  constexpr const char* kCall = "FrameCalibration";
  if (config.value_dim == 0) config.value_dim = config.head_dim;
  base::check_size(kCall, "q_heads", config.q_heads, 1, kMostHeads);
  base::check_size(kCall, "kv_heads", config.kv_heads, 1, kMostHeads);
  base::check_size(kCall, "head_dim", config.head_dim, 1, base::kMaxDim);
  base::check_size(kCall, "value_dim", config.value_dim, 1, base::kMaxDim);
  if (config.q_heads % config.kv_heads != 0) {
    base::refuse(kCall, "q_heads (", config.q_heads, ") is not a multiple of kv_heads (",
                 config.kv_heads, ")");
  }
  if (config.rope) position::check_rope(kCall, *config.rope, config.head_dim);
  return config;
}

/// The rows of one view of a chunk.
struct Seen {
  explicit Seen(const ConstView& view)
      : rows(view), data(static_cast<const std::byte*>(view.data)) {}

  void load(std::int64_t sequence, std::int64_t token, std::int64_t head, float* to) const {
    rows.load(data + rows.at(sequence, token, head), to);
  }

  HeadRows rows;
  const std::byte* data;
};

void check_sizes(const char* call, const NamedView& rows, std::int64_t heads, std::int64_t dim) {
  if (!rows.view.given()) base::refuse(call, rows.name, " is not given");
  check_rows(call, {rows});
  if (heads_of(rows.view) != heads)
    base::refuse(call, rows.name, " has ", heads_of(rows.view), " heads, expected ", heads);
  if (dim_of(rows.view) != dim)
    base::refuse(call, rows.name, " has ", dim_of(rows.view), " dims, expected ", dim);
}

/// Every row is finite.
void check_finite(const char* call, const char* name, const Seen& seen) {
  float row[base::kMaxDim];
  for (std::int64_t s = 0; s < seen.rows.sequences(); ++s) {
    for (std::int64_t t = 0; t < seen.rows.tokens(); ++t) {
      for (std::int64_t head = 0; head < seen.rows.heads(); ++head) {
        seen.load(s, t, head, row);
        if (all_finite({row, static_cast<std::size_t>(seen.rows.dim())})) continue;
        const float* const odd =
            std::find_if_not(row, row + seen.rows.dim(), [](float x) { return std::isfinite(x); });
        base::refuse(call, name, " has ", *odd, " at sequence ", s, ", token ", t, ", head ", head,
                     ", dim ", odd - row, ", expected finite numbers");
      }
    }
  }
}

/// int32 or int64 [batch?, tokens].
class Positions {
 public:
  Positions(const char* call, const ConstView& view, const ConstView& rows) : view_(view) {
    if (!view.given()) return;
    if (!base::is_integer(view.type))
      base::refuse(call, "positions are ", element_name(view.type), "; expected int32 or int64");
    const int axes = rows.layout.axes - 2;
    if (view.layout.too_many_axes || view.layout.axes != axes) {
      base::refuse(call, "positions have ", base::Axes(view.layout),
                   "; expected those of q's tokens, ", axes);
    }
    for (int axis = 0; axis < axes; ++axis) {
      const auto at = static_cast<std::size_t>(axis);
      if (view.layout.extents[at] == rows.layout.extents[at]) continue;
      base::refuse(call, "positions have ", view.layout.extents[at], " on axis ", axis,
                   "; expected q's ", rows.layout.extents[at]);
    }
    base::footprint_of(call, "positions", view);
    token_stride_ = base::kernel_stride(view, axes - 1);
    if (axes == 2) batch_stride_ = base::kernel_stride(view, 0);
  }

  std::int64_t at(std::int64_t sequence, std::int64_t token) const {
    if (!view_.given()) return 0;
    const auto* const from = static_cast<const std::byte*>(view_.data) + sequence * batch_stride_ +
                             token * token_stride_;
    return view_.type == ElementType::int32 ? *reinterpret_cast<const std::int32_t*>(from)
                                            : *reinterpret_cast<const std::int64_t*>(from);
  }

 private:
  const ConstView& view_;
  std::int64_t batch_stride_ = 0, token_stride_ = 0;
};

/// Some tokens of one sequence, and what turns the pairs of each back to position 0.
struct Block {
  std::int64_t sequence, first, count;
  std::vector<Turns> turns;
};

/// Heads that share a KV head, or one.
struct HeadRange {
  std::int64_t first, count;
};

/// A block's rows of some heads, token by token, turned back where there are pairs.
std::vector<double> rows_of(const Seen& seen, const Block& block, const HeadRange& heads,
                            std::span<const RopePair> pairs) {
  const std::int64_t dim = seen.rows.dim();
  std::vector<double> all(static_cast<std::size_t>(block.count * heads.count * dim));
  float row[base::kMaxDim];
  double* to = all.data();
  for (std::int64_t t = 0; t < block.count; ++t) {
    for (std::int64_t head = heads.first; head < heads.first + heads.count; ++head, to += dim) {
      seen.load(block.sequence, block.first + t, head, row);
      std::copy_n(row, dim, to);
      turn_back({to, static_cast<std::size_t>(dim)}, pairs,
                block.turns[static_cast<std::size_t>(t)]);
    }
  }
  return all;
}

/// q, k and v of a chunk.
struct Chunk {
  Seen q, k, v;
};

}  // namespace
}  // namespace frames

struct FrameCalibration::State {
  explicit State(const FrameCalibrationConfig& from)
      : config(frames::checked(from)),
        pairs(frames::rope_pairs(config.rope, config.head_dim)),
        keys(config.kv_heads, config.head_dim),
        queries(config.kv_heads, config.head_dim),
        values(config.kv_heads, config.value_dim) {}

  void add(const Crew& crew, const frames::Chunk& chunk, const frames::Block& block) {
    const std::int64_t group = config.q_heads / config.kv_heads;
    for (std::int64_t head = 0; head < config.kv_heads; ++head) {
      const auto sum = [&](frames::TurnedBackSums& to, const frames::Seen& seen,
                           const frames::HeadRange& heads,
                           std::span<const frames::RopePair> turning) {
        to.add(crew, head, frames::rows_of(seen, block, heads, turning));
      };
      sum(queries, chunk.q, {head * group, group}, pairs);
      sum(keys, chunk.k, {head, 1}, pairs);
      sum(values, chunk.v, {head, 1}, {});
    }
    tokens += block.count;
  }

  FrameCalibrationConfig config;
  std::vector<frames::RopePair> pairs;
  frames::TurnedBackSums keys, queries, values;
  std::int64_t tokens = 0;
};

FrameCalibration::FrameCalibration(const FrameCalibrationConfig& config)
    : state_(std::make_unique<State>(config)) {}
FrameCalibration::FrameCalibration(FrameCalibration&&) noexcept = default;
FrameCalibration& FrameCalibration::operator=(FrameCalibration&&) noexcept = default;
FrameCalibration::~FrameCalibration() = default;

std::int64_t FrameCalibration::tokens() const { return state_->tokens; }

void FrameCalibration::add(ConstView q, ConstView k, ConstView v, ConstView positions,
                           const Options& options) {
  constexpr const char* kCall = "FrameCalibration::add";
  State& state = *state_;
  const FrameCalibrationConfig& config = state.config;
  const frames::NamedView queries{"q", q}, keys{"k", k}, values{"v", v};
  frames::check_sizes(kCall, queries, config.q_heads, config.head_dim);
  frames::check_sizes(kCall, keys, config.kv_heads, config.head_dim);
  frames::check_sizes(kCall, values, config.kv_heads, config.value_dim);
  frames::check_same_tokens(kCall, queries, keys);
  frames::check_same_tokens(kCall, queries, values);
  if (config.rope && !positions.given())
    base::refuse(kCall, "positions are not given; expected int32 or int64, as there is a RoPE");
  const frames::Positions at(kCall, positions, q);
  const Crew crew = frames::checked_crew(kCall, options);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  const frames::Chunk chunk{frames::Seen(q), frames::Seen(k), frames::Seen(v)};
  frames::check_finite(kCall, "q", chunk.q);
  frames::check_finite(kCall, "k", chunk.k);
  frames::check_finite(kCall, "v", chunk.v);
  for (std::int64_t s = 0; s < chunk.q.rows.sequences(); ++s) {
    for (std::int64_t first = 0; first < chunk.q.rows.tokens(); first += frames::kBlock) {
      frames::Block block{s, first, std::min(frames::kBlock, chunk.q.rows.tokens() - first), {}};
      for (std::int64_t t = 0; t < block.count; ++t)
        block.turns.push_back(frames::turns_back(state.pairs, at.at(s, first + t)));
      state.add(crew, chunk, block);
    }
  }
}

namespace frames {
namespace {

constexpr double kRounding = 1e-6;  // by which sums of a pair's products may differ, of its squares

/// Refuses moments of another size, that are not finite or not symmetric; whether they are those of
/// any errors is seen in what comes of them, by check_pivots().
void check_moments(const char* call, std::span<const double> moments, std::int64_t heads,
                   std::int64_t dim) {
  if (moments.empty()) return;
  if (std::ssize(moments) != heads * dim * dim) {
    base::refuse(call, "moments has ", moments.size(), " numbers, expected ", heads * dim * dim,
                 ": kv_heads * value_dim * value_dim");
  }
  for (std::size_t i = 0; i < moments.size(); ++i) {
    if (!std::isfinite(moments[i]))
      base::refuse(call, "moments[", i, "] is ", moments[i], ", expected a finite number");
  }
  for (std::int64_t row = 0; row < heads * dim; ++row) {
    const std::int64_t i = row % dim, head = (row - i) * dim;
    const auto at = [&](std::int64_t a, std::int64_t b) {
      return moments[static_cast<std::size_t>(head + a * dim + b)];
    };
    for (std::int64_t j = 0; j < i; ++j) {
      if (std::fabs(at(i, j) - at(j, i)) <= kRounding * (std::fabs(at(i, i)) + std::fabs(at(j, j))))
        continue;
      base::refuse(call, "moments of KV head ", row / dim, " have ", at(i, j), " at [", i, "][", j,
                   "] and ", at(j, i), " at [", j, "][", i, "], expected symmetric ones");
    }
  }
}

/// Refuses moments that are no sum of squares: rounding finds it, by a pivot below 0.
void check_pivots(const char* call, const std::vector<float>& pivots, std::int64_t dim) {
  const auto odd = std::ranges::find_if(pivots, [](float x) { return x < 0.0f; });
  if (odd == pivots.end()) return;
  base::refuse(call, "moments of KV head ", (odd - pivots.begin()) / dim,
               " are no sum of squares: a pivot of theirs is ", *odd, ", expected none below 0");
}

/// Of errors that count alike in every dim.
std::vector<double> alike(std::int64_t heads, std::int64_t dim) {
  std::vector<double> moments(static_cast<std::size_t>(heads * dim * dim), 0.0);
  for (std::int64_t row = 0; row < heads * dim; ++row)
    moments[static_cast<std::size_t>(row * dim + row % dim)] = 1.0;
  return moments;
}

}  // namespace
}  // namespace frames

LayerFrames FrameCalibration::frames(ElementType type, std::int64_t length,
                                     std::span<const double> moments) const {
  constexpr const char* kCall = "FrameCalibration::frames";
  const State& state = *state_;
  const auto& [q_heads, kv_heads, head_dim, value_dim, rope, centred] = state.config;
  const bool int4 = type == ElementType::int4;
  if (!int4 && type != ElementType::int8)
    base::refuse(kCall, "type is ", element_name(type), ", expected int8 or int4");
  if (length < 1) base::refuse(kCall, "length (", length, ") is not at least 1");
  if (state.tokens == 0) base::refuse(kCall, "no token was added yet");
  const base::FloatEnvironment environment(base::Subnormals::kept);
  frames::check_moments(kCall, moments, kv_heads, value_dim);
  const double few = std::max(1.0, frames::kEnough / static_cast<double>(state.tokens));
  LayerFrames made;
  made.keys = frames::frame_of(
      state.keys.over(length, state.pairs), state.queries.over(length, state.pairs).moment,
      head_dim,
      {int4 ? frames::kInt4Keys : frames::kInt8Keys, centred, int4 ? frames::kDamping * few : 0.0});
  if (int4) {
    const std::vector<double> errors = moments.empty()
                                           ? frames::alike(kv_heads, value_dim)
                                           : std::vector<double>(moments.begin(), moments.end());
    made.values = frames::frame_of(state.values.over(1, {}), errors, value_dim,
                                   {frames::kInt4Values, false, frames::kDamping});
    frames::check_pivots(kCall, made.values.cost, value_dim);
  }
  // Of rows or moments beyond float32.
  frames::check_frame(kCall, "keys", made.keys, kv_heads, head_dim);
  frames::check_frame(kCall, "values", made.values, kv_heads, value_dim);
  return made;
}

}  // namespace polyhead::inline v0
