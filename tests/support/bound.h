// How far from the exact result docs/numerics.md says that a call's outputs may be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/element.hpp"
#include "kernels/contract.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/modifiers.h"
#include "support/tensor.h"
#include "support/yardstick.h"

namespace polyhead::test {

struct Bound {
  double out = 0.0, lse = 0.0;
};

/// Sums over what one call's rows see, for the bound's A, S, V and n.
class Seen {
 public:
  /// `keys`, where they have scales by channel, those that the call's keys come from;
  /// `custom_adds`, the most that the user's own modifiers add to a score, in magnitude.
  explicit Seen(const kernels::AttendCall& call, const kernels::Operand& keys = {},
                double custom_adds = 0.0)
      : call_(call), custom_adds_(custom_adds) {
    if (keys.scales.data != nullptr && keys.scales.shift == 0) channels_ = keys.scales;
    for (std::int64_t b = 0; b < call.batch; ++b) {
      const kernels::Sequence s = kernels::sequence_of(call, b);
      for (std::int64_t query = 0; query < s.q_len; ++query) {
        for (std::int64_t head = 0; head < call.q_heads; ++head) add_row(s, head, query);
      }
      keys_ = std::max(keys_, s.kv_len);
    }
  }
  const kernels::AttendCall& call() const { return call_; }
  double score() const { return score_; }
  double query() const { return query_; }
  double value() const { return value_; }
  std::int64_t keys() const { return keys_; }

 private:
  void add_row(const kernels::Sequence& s, std::int64_t head, std::int64_t query) {
    namespace reference = kernels::reference;
    const std::int64_t kv_head = head / call_.group();
    const std::byte* const q = s.q + query * call_.q.token + head * call_.q.head;
    for (std::int64_t key = 0; key < s.kv_len; ++key) {
      if (!reference::visible(call_, s, head, query, key)) continue;
      const double added = added_by_modifiers(s, head, query, key);
      if (std::isinf(added)) continue;  // hidden by a bias
      double sum = 0.0, most = 0.0, keys = 0.0;
      for (std::int64_t d = 0; d < call_.head_dim; ++d) {
        const double x = base::load_float32(q + d * call_.q.dim, call_.q.type);
        const double y = reference::key_element(call_, s, call_.k, s.k, kv_head, key, d);
        const double channel = scale_of(kv_head, d);
        sum += std::abs(x * y);
        most = std::max(most, std::abs(x * channel));
        keys += std::abs(y / channel);
      }
      score_ = std::max(score_, std::abs(call_.score.scale) * sum + added);
      query_ = std::max(query_, std::abs(call_.score.scale) * most * keys);
      for (std::int64_t d = 0; d < call_.value_dim; ++d) {
        value_ = std::max(
            value_, std::abs(reference::key_element(call_, s, call_.v, s.v, kv_head, key, d)));
      }
    }
  }

  double scale_of(std::int64_t kv_head, std::int64_t d) const {
    if (channels_.data == nullptr) return 1.0;
    return channels_.data[kv_head * channels_.head + d * channels_.block];
  }

  double added_by_modifiers(const kernels::Sequence& s, std::int64_t head, std::int64_t query,
                            std::int64_t key) const {
    const kernels::ScoreSpec& spec = call_.score;
    double added = custom_adds_;
    if (spec.bias.data != nullptr) {
      added += std::abs(base::load_float32(spec.bias.data + s.batch * spec.bias.batch +
                                               head * spec.bias.head + query * spec.bias.query +
                                               key * spec.bias.key,
                                           spec.bias.type));
    }
    if (spec.alibi) {
      const float slope = spec.alibi_slopes != nullptr ? spec.alibi_slopes[head * spec.alibi_stride]
                                                       : alibi_slope(head, call_.q_heads);
      added += slope * static_cast<double>(std::abs(s.q_pos0 + query - key));
    }
    return added;
  }

  const kernels::AttendCall& call_;
  double custom_adds_;
  kernels::Scales channels_;
  double score_ = 0.0, query_ = 0.0, value_ = 0.0;
  std::int64_t keys_ = 0;
};

/// For the worst row of a call whose results are at most `largest` in magnitude. A user's own
/// modifiers hide a pair or add a number that is the same in float32 wherever it is added.
inline Bound documented_bound(const Seen& seen, const Bound& largest, WeightRounding rounding) {
  const kernels::AttendCall& call = seen.call();
  const double u = 0x1p-24, a = seen.score(), n = static_cast<double>(seen.keys());
  const double sums = std::min(n, 1024.0) + std::ceil(n / 1024) + 8;
  const double range = std::min(2 * a, 87.0);
  double weight = (static_cast<double>(call.head_dim) + 6) * u * a + 4 * u * range + 4 * u;
  if (rounding == WeightRounding::integer) weight += 0x1p-15 * seen.query();
  // The kernel rounds what a user's modifier gives; so does the definition, and what it is handed.
  weight += 3 * call.score.custom_count * u * a;
  Bound bound{2 * (weight + sums * u) * seen.value(), weight + sums * u + u * largest.lse};
  if (rounding == WeightRounding::bfloat16) bound.out += 0x1p-8 * seen.value();
  if (rounding == WeightRounding::integer) bound.out += 0x1p-9 * seen.value();
  // Weights that dropout keeps are divided by its share, in double: what all of them sum to, 1 at
  // the most before, is so much more.
  bound.out /= 1.0 - static_cast<double>(call.score.dropout);
  if (call.out.type == ElementType::float16) bound.out += std::max(0x1p-11 * largest.out, 0x1p-25);
  if (call.out.type == ElementType::bfloat16) bound.out += 0x1p-8 * largest.out;
  return bound;
}

/// Of each exact weight: 2 (e + N u) + 64 u, of which the LSE's bound has e + N u.
inline double documented_weight_bound(const Seen& seen, WeightRounding rounding) {
  return 2 * documented_bound(seen, {}, rounding).lse + 64 * 0x1p-24;
}

/// Weights, or sums of them, each within a part of what is expected; those under 2^-126 may be 0,
/// and those that are 0 are.
inline void expect_weights_near(const char* what, const Tensor& found,
                                const std::vector<double>& expected, double part) {
  std::size_t i = 0;
  for_each_index(found.extents(), [&](const Index& at) {
    const double value = expected.at(i++), error = std::abs(found.get(at) - value);
    ASSERT_TRUE(error <= part * value + 0x1p-126) << what << " " << found.get(at) << ", " << value;
    if (value == 0.0) {
      ASSERT_EQ(found.get(at), 0.0) << what;
    }
  });
}

}  // namespace polyhead::test
