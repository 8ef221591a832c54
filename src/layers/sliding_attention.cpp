// Attention over a sliding cache with positions in the cache: two passes, one rotation of q each.
#include "polyhead/sliding_attention.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr const char* kCall = "attend_in_cache";

/// One checked call.
class InCache {
 public:
  InCache(const SlidingCache& cache, ConstView q, const RopeConfig& rope, View out,
          const Modifiers& modifiers, ConstView counts, const Options& options)
      : cache_(cache),
        config_(cache.config()),
        q_(q),
        rope_(rope),
        out_(out),
        modifiers_(modifiers),
        counts_(counts),
        options_(options),
        q_len_(q.layout.extents[1]),
        q_heads_(q.layout.extents[2]) {
    check();
    place();
  }

  void run() {
    AttentionArguments window;
    window.kv = cache_.view();
    window.mask = cache_.mask();
    window.mask.first_tokens = 0;
    window.mask.q_lengths = counts_;
    window.modifiers = modifiers_;
    const std::vector<std::byte> at_end = rotated(ends_);
    window.q = dense(at_end);
    if (config_.first_tokens == 0) {
      window.out = out_;
      return attention(window, options_);
    }
    AttentionArguments first = window;
    first.kv.lengths = ConstView(first_lengths_.data(), {config_.batch});
    first.mask = causal();  // query p sees the first tokens t <= p - window
    first.mask.q_lengths = counts_;
    first.q_start = ConstView(first_starts_.data(), {config_.batch});
    const std::vector<std::byte> in_cache = rotated(places_);
    first.q = dense(in_cache);
    join(window, first);
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
    position::check_rope(kCall, rope_, config_.head_dim);
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
  }

  std::int64_t count_of(std::int64_t b) const {
    return counts_.given() ? door::integers_of(counts_)[b] : q_len_;
  }

  /// Where each query stands: in its sequence, and in the cache.
  void place() {
    for (std::int64_t b = 0; b < config_.batch; ++b) {
      const std::int64_t length = cache_.length(b), start = length - count_of(b);
      for (std::int64_t i = 0; i < q_len_; ++i) {
        ends_.push_back(start + i);
        places_.push_back(std::min(start + i, config_.first_tokens + config_.window - 1));
      }
      first_lengths_.push_back(std::min(length, config_.first_tokens));
      first_starts_.push_back(start - config_.window);
    }
  }

  std::int64_t rows() const { return config_.batch * q_len_ * q_heads_; }

  ConstView dense(const std::vector<std::byte>& q) const {
    return {q.data(), q_.type, {config_.batch, q_len_, q_heads_, config_.head_dim}};
  }

  /// A dense copy of q, rotated by `positions` [batch, q_len].
  std::vector<std::byte> rotated(const std::vector<std::int64_t>& positions) const {
    const std::int64_t bytes = element_bytes(q_.type), dim = config_.head_dim;
    std::vector<std::byte> copy(static_cast<std::size_t>(rows() * dim * bytes));
    const auto& strides = q_.layout.strides;
    const auto* const from = static_cast<const std::byte*>(q_.data);
    std::byte* to = copy.data();
    for (std::int64_t row = 0; row < rows(); ++row) {
      const std::int64_t head = row % q_heads_, token = row / q_heads_;
      const std::int64_t at =
          token / q_len_ * strides[0] + token % q_len_ * strides[1] + head * strides[2];
      for (std::int64_t d = 0; d < dim; ++d, to += bytes)
        std::memcpy(to, from + (at + d * strides[3]) * bytes, static_cast<std::size_t>(bytes));
    }
    if (copy.empty()) return copy;
    apply_rope(View(copy.data(), q_.type, {config_.batch, q_len_, q_heads_, dim}),
               ConstView(positions.data(), {config_.batch, q_len_}), rope_);
    return copy;
  }

  /// Both parts and their joint result. A sink is counted once, by the join.
  void join(AttentionArguments& window, AttentionArguments& first) const {
    const auto values = static_cast<std::size_t>(rows() * config_.value_dim);
    std::vector<float> outs(2 * values), lses(2 * static_cast<std::size_t>(rows()));
    AttentionArguments* const parts[] = {&window, &first};
    for (std::size_t part = 0; part < 2; ++part) {
      AttentionArguments& call = *parts[part];
      call.modifiers.sink = {};
      call.out = {outs.data() + part * values,
                  {config_.batch, q_len_, q_heads_, config_.value_dim}};
      call.lse = {lses.data() + part * static_cast<std::size_t>(rows()),
                  {config_.batch, q_len_, q_heads_}};
      attention(call, options_);
    }
    MergeArguments merge;
    merge.outs = {outs.data(),
                  {std::int64_t{2}, config_.batch, q_len_, q_heads_, config_.value_dim}};
    merge.lses = {lses.data(), {std::int64_t{2}, config_.batch, q_len_, q_heads_}};
    merge.out = out_;
    merge.sink = modifiers_.sink;
    merge_partials(merge, options_);
  }

  const SlidingCache& cache_;
  const SlidingCacheConfig& config_;
  const ConstView q_;
  const RopeConfig& rope_;
  const View out_;
  const Modifiers& modifiers_;
  const ConstView counts_;
  const Options& options_;
  const std::int64_t q_len_, q_heads_;
  std::vector<std::int64_t> ends_, places_;  // [batch, q_len]
  std::vector<std::int64_t> first_lengths_, first_starts_;
};

}  // namespace

void attend_in_cache(const SlidingCache& cache, ConstView q, const RopeConfig& rope, View out,
                     const Modifiers& modifiers, ConstView counts, const Options& options) {
  InCache(cache, q, rope, out, modifiers, counts, options).run();
}

}  // namespace polyhead::inline v0
