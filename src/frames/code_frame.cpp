// Rows into their frames, and back.
#include "polyhead/code_frame.h"

#include <algorithm>
#include <iterator>

#include "base/ceil_div.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"
#include "base/share_out.hpp"
#include "frames/door.hpp"
#include "frames/head_rows.hpp"
#include "frames/shaped_rounding.hpp"
#include "frames/walsh_hadamard.hpp"

namespace polyhead::inline v0 {
namespace frames {
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
    walsh_hadamard(x.data(), std::ssize(x));
    if (carry != nullptr) round_shaped(x, carry, cost);
  }
  void enter_query(std::span<float> x) const {
    for (std::size_t d = 0; d < x.size(); ++d) x[d] *= stretch[d];
    walsh_hadamard(x.data(), std::ssize(x));
  }
  void leave(std::span<float> x) const {
    walsh_hadamard(x.data(), std::ssize(x));
    for (std::size_t d = 0; d < x.size(); ++d) x[d] = x[d] * stretch[d] + centre[d];
  }

  const float *centre, *stretch, *carry = nullptr, *cost = nullptr;
};

using Change = void (HeadFrame::*)(std::span<float>) const;

/// A checked view's rows on their way through a frame.
class Passage {
 public:
  Passage(const View& view, const CodeFrame& frame, Change change)
      : data_(static_cast<std::byte*>(view.data)), frame_(frame), change_(change), rows_(view) {
    if (!frame.given() || rows_.heads() == 0) return;
    count_ = rows_.sequences() * rows_.tokens() * rows_.heads();
    group_ = rows_.heads() / (std::ssize(frame.centre) / rows_.dim());
    // A row that is rounded is work enough for an item; others are a few hundred operations each.
    rows_an_item_ = change == &HeadFrame::enter && !frame.carry.empty() ? 1 : 16;
    items_ = base::ceil_div(count_, rows_an_item_);
  }

  std::int64_t items() const { return items_; }

  void run(std::int64_t item) const {
    const std::int64_t end = std::min(count_, (item + 1) * rows_an_item_);
    for (std::int64_t row = item * rows_an_item_; row < end; ++row) {
      const std::int64_t token = row / rows_.heads(), head = row % rows_.heads();
      std::byte* const at = data_ + rows_.at(token / rows_.tokens(), token % rows_.tokens(), head);
      float x[base::kMaxDim];
      rows_.load(at, x);
      const HeadFrame frame(frame_, head / group_, rows_.dim());
      (frame.*change_)({x, static_cast<std::size_t>(rows_.dim())});
      rows_.store(x, at);
    }
  }

 private:
  std::byte* data_;
  const CodeFrame& frame_;
  Change change_;
  HeadRows rows_;
  std::int64_t count_ = 0, group_ = 1, rows_an_item_ = 1, items_ = 0;
};

void run_all(const Crew& crew, std::span<const Passage> passages) {
  std::int64_t items = 0;
  for (const Passage& passage : passages) items += passage.items();
  base::share_out(*crew.executor, crew.workers, items, [&](std::int64_t item, int) {
    const Passage* passage = passages.data();
    for (; item >= passage->items(); ++passage) item -= passage->items();
    passage->run(item);
  });
}

void check_entering(const char* call, const LayerFrames& to, const View& q, const View& k,
                    const View& v) {
  const NamedView queries{"q", q}, keys{"k", k}, values{"v", v};
  check_rows(call, {queries, keys, values});
  if (k.given() && v.given()) {
    check_same_tokens(call, keys, values);
    if (heads_of(v) != heads_of(k))
      base::refuse(call, "v has ", heads_of(v), " heads, expected k's ", heads_of(k));
  }
  if (k.given() && q.given() && dim_of(q) != dim_of(k))
    base::refuse(call, "q has ", dim_of(q), " dims, expected k's ", dim_of(k));
  if (k.given()) check_frame(call, "frames.keys", to.keys, heads_of(k), dim_of(k));
  if (v.given()) check_frame(call, "frames.values", to.values, heads_of(v), dim_of(v));
  if (q.given() && k.given()) {
    check_groups(call, queries, heads_of(k));
  } else if (q.given() && to.keys.given()) {
    check_groups(call, queries, kv_heads_of(call, "frames.keys", to.keys, dim_of(q)));
  }
  check_apart(call, {queries, keys, values});
}

}  // namespace
}  // namespace frames

void enter_frames(const LayerFrames& to, View q, View k, View v, const Options& options) {
  constexpr const char* kCall = "enter_frames";
  using frames::HeadFrame;
  frames::check_entering(kCall, to, q, k, v);
  const frames::Passage passages[] = {{k, to.keys, &HeadFrame::enter},
                                      {v, to.values, &HeadFrame::enter},
                                      {q, to.keys, &HeadFrame::enter_query}};
  frames::run_all(frames::checked_crew(kCall, options), passages);
}

void leave_frames(const LayerFrames& from, View out, const Options& options) {
  constexpr const char* kCall = "leave_frames";
  const frames::NamedView rows{"out", out};
  if (!out.given()) base::refuse(kCall, "out is not given");
  frames::check_rows(kCall, {rows});
  const Crew crew = frames::checked_crew(kCall, options);
  if (!from.values.given()) return;
  frames::check_groups(
      kCall, rows, frames::kv_heads_of(kCall, "frames.values", from.values, frames::dim_of(out)));
  frames::check_apart(kCall, {rows});
  const frames::Passage passages[] = {{out, from.values, &frames::HeadFrame::leave}};
  frames::run_all(crew, passages);
}

}  // namespace polyhead::inline v0
