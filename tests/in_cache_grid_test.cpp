// Positions in a sliding cache, for every way to store and every group ratio, against the
// definition over the values that the cache holds; slots no query sees are NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "polyhead/sliding_attention.h"
#include "support/difference.h"
#include "support/held.h"
#include "support/plain.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kGroups[] = {1, 3, 4, 8};

RopeConfig rope() {
  RopeConfig rope;
  rope.pairing = RopePairing::half_split;
  return rope;
}

/// Row (b, i, head) of q turned to `position`, in double.
std::vector<double> turned(const Tensor& q, const Index& at, std::int64_t position) {
  const std::int64_t dim = q.extents()[3];
  const std::vector<double> frequencies = rope_frequencies(rope(), dim);
  std::vector<double> row;
  for (std::int64_t d = 0; d < dim; ++d) row.push_back(q.get({at[0], at[1], at[2], d}));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    const double a = row[i], b = row[i + frequencies.size()];
    row[i] = a * std::cos(angle) - b * std::sin(angle);
    row[i + frequencies.size()] = a * std::sin(angle) + b * std::cos(angle);
  }
  return row;
}

/// One output row under ALiBi of that slope: the query stands at its own position for the window,
/// and `gap` tokens earlier, as if those left out had never been, for the first tokens.
std::vector<double> in_cache_row(const Held& held, const Plain& plain, const Tensor& q,
                                 const Index& at, double slope) {
  const SlidingCacheConfig& c = held.sliding()->config();
  const auto b = static_cast<std::size_t>(at[0]);
  const std::int64_t p = held.lengths[b] - held.queries[b] + at[1];
  const std::int64_t begin = std::max<std::int64_t>(0, p - c.window + 1);
  const std::int64_t first = std::min(c.first_tokens, begin), gap = begin - first;
  const std::int64_t kv_head = at[2] / (q.extents()[2] / held.kv_heads);
  const std::vector<double> near = turned(q, at, p), far = turned(q, at, p - gap);
  std::vector<double> out(static_cast<std::size_t>(held.value_dim));
  double total = 0.0;
  for (std::int64_t t = 0; t <= p; ++t) {
    if (t >= first && t < begin) continue;
    double score = 0.0;
    for (std::int64_t d = 0; d < held.head_dim; ++d) {
      score += (t < first ? far : near)[static_cast<std::size_t>(d)] *
               plain.keys().get({at[0], t, kv_head, d});
    }
    const auto distance = static_cast<double>(p - (t < first ? gap : 0) - t);
    const double weight =
        std::exp(score / std::sqrt(static_cast<double>(held.head_dim)) - slope * distance);
    total += weight;
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] += weight * plain.values().get({at[0], t, kv_head, static_cast<std::int64_t>(d)});
    }
  }
  for (double& x : out) x /= total;
  return out;
}

// The bound of docs/numerics.md with scores of at most 4 * 40 / sqrt(40) = 26 (q and k of order 1),
// once for q's rotation, once for attention and once for joining two results.
TEST(InCache, EveryTypeAndGroupAgainstTheDefinition) {
  constexpr double kU = 0x1p-24, kScore = 26, kKeys = 40;
  const double bound = 3 * 2 * ((40 + 6) * kU * kScore + 4 * kU * 2 * kScore + kKeys * kU) * 3.5;
  for (const CacheKind kind : {CacheKind::sliding, CacheKind::sliding_and_first}) {
    for (const StoredForm& form : kStoredForms) {
      for (const bool decoding : {false, true}) {
        const auto held = Held::make(kind, form, decoding, 5);
        const Plain plain(*held);
        for (const std::int64_t group : kGroups) {
          Random random(static_cast<std::uint64_t>(group));
          const std::int64_t q_heads = group * held->kv_heads, most = held->most_queries();
          Modifiers modifiers;
          modifiers.alibi.use_default_slopes = group % 4 == 0;
          const auto slope_of = [&](std::int64_t head) {
            return modifiers.alibi.given() ? static_cast<double>(alibi_slope(head, q_heads)) : 0.0;
          };
          Tensor q(f32, {held->batch(), most, q_heads, held->head_dim});
          Tensor out(f32, {held->batch(), most, q_heads, held->value_dim});
          q.fill_normal(random);
          std::vector<std::vector<double>> expected;  // zeros for rows of padding
          for_each_index({held->batch(), most, q_heads}, [&](const Index& at) {
            expected.emplace_back(static_cast<std::size_t>(held->value_dim));
            if (at[1] < held->queries[static_cast<std::size_t>(at[0])])
              expected.back() = in_cache_row(*held, plain, q, at, slope_of(at[2]));
          });
          for (const Isa isa : available_isas()) {
            out.poison();
            attend_in_cache(*held->sliding(), rope(),
                            {.q = q.const_view(),
                             .out = out.view(),
                             .counts = ConstView(held->queries.data(), {held->batch()}),
                             .modifiers = modifiers},
                            {.isa = isa});
            LargestDifference worst;
            std::size_t row = 0;
            for_each_index({held->batch(), most, q_heads}, [&](const Index& at) {
              const std::vector<double>& exact = expected[row++];
              for (std::size_t d = 0; d < exact.size(); ++d) {
                worst.add(out.get({at[0], at[1], at[2], static_cast<std::int64_t>(d)}), exact[d]);
              }
            });
            EXPECT_LE(worst.value(), bound)
                << name_of(kind) << " " << name_of(form) << " group " << group
                << (decoding ? " decoding " : " prefill ") << isa_name(isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
