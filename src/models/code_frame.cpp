#include "models/code_frame.hpp"

#include <span>
#include <vector>

#include "models/head_rows.hpp"
#include "models/shaped_rounding.hpp"
#include "models/walsh_hadamard.hpp"

namespace polyhead::inline v0::models {
namespace {

/// One head's part of a frame.
struct HeadFrame {
  HeadFrame(const CodeFrame& frame, std::int64_t head, std::int64_t dim)
      : centre(frame.centre.data() + head * dim), stretch(frame.stretch.data() + head * dim) {
    if (frame.carry.empty()) return;
    carry = frame.carry.data() + head * dim * dim;
    cost = frame.cost.data() + head * dim;
  }

  /// H ((x - c) / s), rounded where the frame says how.
  void enter(std::span<float> x) const {
    for (std::size_t d = 0; d < x.size(); ++d) x[d] = (x[d] - centre[d]) / stretch[d];
    walsh_hadamard(x.data(), static_cast<std::int64_t>(x.size()));
    if (carry != nullptr) round_shaped(x, carry, cost);
  }
  void enter_query(std::span<float> x) const {
    for (std::size_t d = 0; d < x.size(); ++d) x[d] *= stretch[d];
    walsh_hadamard(x.data(), static_cast<std::int64_t>(x.size()));
  }
  void leave(std::span<float> x) const {
    walsh_hadamard(x.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t d = 0; d < x.size(); ++d) x[d] = x[d] * stretch[d] + centre[d];
  }

  const float *centre, *stretch, *carry = nullptr, *cost = nullptr;
};

/// One row through `change`, in float32, by way of `values`. The rows are a pass's own, which gives
/// them out as views.
template <class Change>
void change_row(const HeadRows& rows, std::int64_t token, std::int64_t head,
                std::vector<float>& values, const Change& change) {
  auto* const row = const_cast<std::byte*>(rows.row(token, head));
  values.resize(static_cast<std::size_t>(rows.dim));
  for (std::int64_t d = 0; d < rows.dim; ++d)
    values[static_cast<std::size_t>(d)] = rows.value(row, d);
  change(std::span<float>(values));
  for (std::int64_t d = 0; d < rows.dim; ++d) {
    base::store_float32(row + d * element_bytes(rows.type), rows.type,
                        values[static_cast<std::size_t>(d)]);
  }
}

}  // namespace

void enter_frames(const Crew& crew, const LayerFrames& frames, const ConstView& q,
                  const ConstView& k, const ConstView& v) {
  const HeadRows queries(q), keys(k), values(v);
  const std::int64_t group = queries.heads / keys.heads;
  layers::share_out_rows(crew, keys.tokens, [&](std::int64_t token, int) {
    std::vector<float> row;
    for (std::int64_t head = 0; head < keys.heads; ++head) {
      const HeadFrame frame(frames.keys, head, keys.dim);
      change_row(keys, token, head, row, [&](std::span<float> x) { frame.enter(x); });
      for (std::int64_t i = head * group; i < (head + 1) * group; ++i)
        change_row(queries, token, i, row, [&](std::span<float> x) { frame.enter_query(x); });
      if (frames.values.centre.empty()) continue;
      const HeadFrame of_values(frames.values, head, values.dim);
      change_row(values, token, head, row, [&](std::span<float> x) { of_values.enter(x); });
    }
  });
}

void leave_frame(const Crew& crew, const CodeFrame& values, std::int64_t kv_heads,
                 const ConstView& out) {
  if (values.centre.empty()) return;
  const HeadRows rows(out);
  const std::int64_t group = rows.heads / kv_heads;
  layers::share_out_rows(crew, rows.tokens, [&](std::int64_t token, int) {
    std::vector<float> row;
    for (std::int64_t head = 0; head < rows.heads; ++head) {
      const HeadFrame frame(values, head / group, rows.dim);
      change_row(rows, token, head, row, [&](std::span<float> x) { frame.leave(x); });
    }
  });
}

}  // namespace polyhead::inline v0::models
