// Attention over a sliding cache with positions in the cache: two passes, one rotation of q each.
#include "polyhead/sliding_attention.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "layers/rows.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr const char* kCall = "attend_in_cache";

/// Refuses more rows of q than 64 bits count.
void check_rows(std::int64_t batch, std::int64_t q_len, std::int64_t q_heads) {
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(batch, q_len, &rows) || __builtin_mul_overflow(rows, q_heads, &rows)) {
    base::refuse(kCall, "batch (", batch, ") times q_len (", q_len, ") times q_heads (", q_heads,
                 ") overflow 64 bits");
  }
}

/// Where a call of some sizes keeps what it works on.
struct Rooms {
  std::byte *window_q, *first_q;               // q twice, rotated
  std::int64_t *ends, *places;                 // [batch, q_len]
  std::int64_t *first_lengths, *first_starts;  // [batch]
  float *outs, *lses;                          // of both parts
  double* turn;                                // what rotating takes
};

/// Memory of one call at a time: grows to the largest.
struct Scratch {
  layers::Buffer window_q, first_q, ends, places, first_lengths, first_starts, outs, lses, turn;

  Rooms rooms(const Limits& sizes) {
    const std::int64_t tokens = sizes.batch * sizes.q_len, rows = tokens * sizes.q_heads;
    const std::int64_t q_bytes = sizes.head_dim * element_bytes(sizes.q_type);
    const auto integers = [](layers::Buffer& of, std::int64_t count) {
      return reinterpret_cast<std::int64_t*>(of.need(count, 8));
    };
    return {window_q.need(rows, q_bytes),
            first_q.need(rows, q_bytes),
            integers(ends, tokens),
            integers(places, tokens),
            integers(first_lengths, sizes.batch),
            integers(first_starts, sizes.batch),
            reinterpret_cast<float*>(outs.need(rows, 2 * 4 * sizes.value_dim)),
            reinterpret_cast<float*>(lses.need(rows, 2 * 4)),
            reinterpret_cast<double*>(turn.need(position::turning_doubles(sizes.head_dim / 2), 8))};
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const layers::Buffer* buffer :
         {&window_q, &first_q, &ends, &places, &first_lengths, &first_starts, &outs, &lses, &turn})
      sum += buffer->bytes();
    return sum;
  }
};

/// One checked call.
class InCache {
 public:
  InCache(const SlidingCache& cache, ConstView q, View out, const Modifiers& modifiers,
          ConstView counts)
      : cache_(cache),
        config_(cache.config()),
        q_(q),
        out_(out),
        modifiers_(modifiers),
        counts_(counts),
        q_len_(q.layout.extents[1]),
        q_heads_(q.layout.extents[2]) {
    check();
  }

  /// `attend` runs attention over its arguments; `options` are for the join.
  template <class Attend>
  void run(const position::Rotation& rotation, Scratch& scratch, const Attend& attend,
           const Options& options) const {
    const Rooms rooms = scratch.rooms({.batch = config_.batch,
                                       .q_len = q_len_,
                                       .q_heads = q_heads_,
                                       .head_dim = config_.head_dim,
                                       .value_dim = config_.value_dim,
                                       .q_type = q_.type});
    place(rooms);
    AttentionArguments window;
    window.kv = cache_.view();
    window.mask = cache_.mask();
    window.mask.first_tokens = 0;
    window.mask.q_lengths = counts_;
    window.modifiers = modifiers_;
    window.q = rotated(rotation, rooms.ends, rooms.window_q, rooms.turn);
    if (config_.first_tokens == 0) {
      window.out = out_;
      return attend(window);
    }
    AttentionArguments first = window;
    first.kv.lengths = ConstView(rooms.first_lengths, {config_.batch});
    first.mask = causal();  // query p sees the first tokens t <= p - window
    first.mask.q_lengths = counts_;
    first.q_start = ConstView(rooms.first_starts, {config_.batch});
    first.q = rotated(rotation, rooms.places, rooms.first_q, rooms.turn);
    const AttentionArguments* const parts[] = {&window, &first};
    for (std::int64_t part = 0; part < 2; ++part) attend(as_part(*parts[part], rooms, part));
    join(rooms, options);
  }

 private:
  void check() const {
    const std::int64_t batch = config_.batch;
    if (config_.values_in_keys) {
      base::refuse(
          kCall,
          "cache has values_in_keys, expected values of their own: those in the keys would "
          "be turned with them");
    }
    door::check_axes(kCall, "q", q_,
                     {{"batch", batch},
                      {"q_len", q_len_},
                      {"q_heads", q_heads_},
                      {"head_dim", config_.head_dim}});
    door::check_floating(kCall, "q", q_);
    door::footprint_of(kCall, "q", q_);
    check_rows(batch, q_len_, q_heads_);
    if (counts_.given()) {
      door::check_axes(kCall, "counts", counts_, {{"batch", batch}});
      door::check_integer(kCall, "counts", counts_);
      door::footprint_of(kCall, "counts", counts_);
    }
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t count = count_of(b), most = std::min(q_len_, cache_.length(b));
      if (count < 0 || count > std::min(most, config_.chunk)) {
        base::refuse(kCall, "sequence ", b, " has ", count, " queries, expected at most q_len (",
                     q_len_, "), chunk (", config_.chunk, ") and its length (", cache_.length(b),
                     ")");
      }
      const std::int64_t first = cache_.length(b) - count - config_.window + 1;
      if (count > 0 && std::max(first, config_.first_tokens) < cache_.oldest(b)) {
        base::refuse(kCall, "sequence ", b, " has ", count,
                     " queries, the first of which sees keys from ", first,
                     " on, but those before ", cache_.oldest(b),
                     " were written over before it was truncated");
      }
    }
    const Modifiers& m = modifiers_;
    const bool custom =
        std::ranges::any_of(m.custom, [](const TileModifier* f) { return f != nullptr; });
    if (m.bias.given() || m.alibi.given() || custom || m.dropout.probability != 0.0f) {
      base::refuse(kCall, "modifiers has ",
                   m.bias.given()    ? "bias"
                   : m.alibi.given() ? "alibi"
                   : custom          ? "custom"
                                     : "dropout",
                   ", expected scale, soft_cap and sink alone: the others go by positions");
    }
    check_call();
  }

  /// What the calls below would refuse of these arguments, refused in this call's name.
  void check_call() const {
    AttentionArguments whole;
    whole.q = q_;
    whole.kv = cache_.view();
    whole.out = out_;
    whole.mask = cache_.mask();
    whole.mask.q_lengths = counts_;
    whole.modifiers = modifiers_;
    door::resolve(whole, kCall);
  }

  std::int64_t count_of(std::int64_t b) const {
    return counts_.given() ? door::integers_of(counts_)[b] : q_len_;
  }

  /// Where each query stands: in its sequence, and in the cache.
  void place(const Rooms& rooms) const {
    for (std::int64_t b = 0; b < config_.batch; ++b) {
      const std::int64_t length = cache_.length(b), start = length - count_of(b);
      for (std::int64_t i = 0; i < q_len_; ++i) {
        rooms.ends[b * q_len_ + i] = start + i;
        rooms.places[b * q_len_ + i] =
            std::min(start + i, config_.first_tokens + config_.window - 1);
      }
      rooms.first_lengths[b] = std::min(length, config_.first_tokens);
      rooms.first_starts[b] = start - config_.window;
    }
  }

  std::int64_t rows() const { return config_.batch * q_len_ * q_heads_; }

  /// A dense copy of q in `to`, rotated by `positions` [batch, q_len].
  ConstView rotated(const position::Rotation& rotation, const std::int64_t* positions,
                    std::byte* to, double* turn) const {
    const std::int64_t bytes = element_bytes(q_.type), dim = config_.head_dim;
    const auto& strides = q_.layout.strides;
    const auto* const from = static_cast<const std::byte*>(q_.data);
    std::byte* element = to;
    for (std::int64_t row = 0; row < rows(); ++row) {
      const std::int64_t head = row % q_heads_, token = row / q_heads_;
      const std::int64_t at =
          token / q_len_ * strides[0] + token % q_len_ * strides[1] + head * strides[2];
      for (std::int64_t d = 0; d < dim; ++d, element += bytes)
        std::memcpy(element, from + (at + d * strides[3]) * bytes, static_cast<std::size_t>(bytes));
    }
    const View copy(to, q_.type, {config_.batch, q_len_, q_heads_, dim});
    position::rotate_heads(copy, ConstView(positions, {config_.batch, q_len_}), rotation, turn);
    return copy;
  }

  /// One of the two parts, into its rooms. A sink is counted once, by the join.
  AttentionArguments as_part(AttentionArguments call, const Rooms& rooms, std::int64_t part) const {
    call.modifiers.sink = {};
    call.out = {rooms.outs + part * rows() * config_.value_dim,
                {config_.batch, q_len_, q_heads_, config_.value_dim}};
    call.lse = {rooms.lses + part * rows(), {config_.batch, q_len_, q_heads_}};
    return call;
  }

  void join(const Rooms& rooms, const Options& options) const {
    MergeArguments merge;
    merge.outs = {rooms.outs,
                  {std::int64_t{2}, config_.batch, q_len_, q_heads_, config_.value_dim}};
    merge.lses = {rooms.lses, {std::int64_t{2}, config_.batch, q_len_, q_heads_}};
    merge.out = out_;
    merge.sink = modifiers_.sink;
    merge_partials(merge, options);
  }

  const SlidingCache& cache_;
  const SlidingCacheConfig& config_;
  const ConstView q_;
  const View out_;
  const Modifiers& modifiers_;
  const ConstView counts_;
  const std::int64_t q_len_, q_heads_;
};

}  // namespace

void attend_in_cache(const SlidingCache& cache, ConstView q, const RopeConfig& rope, View out,
                     const Modifiers& modifiers, ConstView counts, const Options& options) {
  const InCache call(cache, q, out, modifiers, counts);
  const std::int64_t dim = cache.config().head_dim;
  position::check_rope(kCall, rope, dim);
  const bool tables = q.layout.extents[0] * q.layout.extents[1] > position::kTableTokens;
  Scratch scratch;
  call.run(
      position::Rotation(rope, dim, tables), scratch,
      [&](const AttentionArguments& arguments) { attention(arguments, options); }, options);
}

// --- prepared once ---

struct InCacheWorkspace::State {
  Workspace attention;
  Scratch scratch;
};

InCacheWorkspace::InCacheWorkspace(std::unique_ptr<State> state) : state_(std::move(state)) {}
InCacheWorkspace::InCacheWorkspace(InCacheWorkspace&&) noexcept = default;
InCacheWorkspace& InCacheWorkspace::operator=(InCacheWorkspace&&) noexcept = default;
InCacheWorkspace::~InCacheWorkspace() = default;
std::size_t InCacheWorkspace::bytes() const {
  return state_ ? state_->attention.bytes() + state_->scratch.bytes() : 0;
}

struct InCachePlan::State {
  Limits limits;
  position::Rotation rotation;
  Crew crew;
  Plan attention;
};

InCachePlan::InCachePlan(const Limits& limits, const RopeConfig& rope, const Options& options) {
  Plan attention(limits, options);
  check_rows(limits.batch, limits.q_len, limits.q_heads);
  position::check_rope(kCall, rope, limits.head_dim);
  state_ = std::make_unique<State>(State{limits, position::Rotation(rope, limits.head_dim, true),
                                         crew_of(options), std::move(attention)});
}
InCachePlan::InCachePlan(InCachePlan&&) noexcept = default;
InCachePlan& InCachePlan::operator=(InCachePlan&&) noexcept = default;
InCachePlan::~InCachePlan() = default;

InCacheWorkspace InCachePlan::make_workspace() const {
  auto state = std::make_unique<InCacheWorkspace::State>(
      InCacheWorkspace::State{state_->attention.make_workspace(), {}});
  state->scratch.rooms(state_->limits);
  return InCacheWorkspace(std::move(state));
}

void InCachePlan::run(const SlidingCache& cache, ConstView q, View out, InCacheWorkspace& workspace,
                      const Modifiers& modifiers, ConstView counts) const {
  const InCache call(cache, q, out, modifiers, counts);
  const Limits& limits = state_->limits;
  const std::int64_t dim = cache.config().head_dim;
  if (dim != limits.head_dim)
    base::refuse(kCall, "head_dim (", dim, ") is not the plan's ", limits.head_dim);
  if (!workspace.state_) base::refuse(kCall, "workspace was moved from, expected the plan's");
  call.run(state_->rotation, workspace.state_->scratch,
           [&](const AttentionArguments& arguments) {
             state_->attention.run(arguments, workspace.state_->attention);
           },
           {.executor = state_->crew.executor, .threads = state_->crew.workers});
}

}  // namespace polyhead::inline v0
