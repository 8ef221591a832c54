// Every combination of two levels of all factors, against the definition, with each instruction set
// forced.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/bound.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/pairwise.h"
#include "support/problem.h"
#include "support/yardstick.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

struct Errors {
  LargestDifference out, lse, entropy, max_weight;
  void merge(const Errors& o) {
    out.add(o.out.value(), 0), lse.add(o.lse.value(), 0), entropy.add(o.entropy.value(), 0),
        max_weight.add(o.max_weight.value(), 0);
  }
};

std::size_t row_index(const Case& c, const Index& at) {
  return static_cast<std::size_t>((at[0] * c.q_len + at[1]) * c.q_heads + at[2]);
}

Errors errors_of_yardstick(const TwoPass& plain, const reference::Result& exact) {
  Errors errors;
  for (std::size_t i = 0; i < exact.out.size(); ++i) errors.out.add(plain.out[i], exact.out[i]);
  for (std::size_t i = 0; i < exact.lse.size(); ++i) {
    errors.lse.add(plain.lse[i], exact.lse[i]);
    errors.entropy.add(plain.entropy[i], exact.entropy[i]);
  }
  return errors;
}

Errors errors_of_problem(const Problem& p, const reference::Result& exact) {
  const Case& c = p.description();
  Errors errors;
  for_each_index(p.out.extents(), [&](const Index& at) {
    const std::size_t i =
        row_index(c, at) * static_cast<std::size_t>(c.value_dim) + static_cast<std::size_t>(at[3]);
    errors.out.add(p.out.get(at), exact.out[i]);
  });
  for_each_index(p.lse.extents(), [&](const Index& at) {
    const std::size_t i = row_index(c, at);
    errors.lse.add(p.lse.get(at), exact.lse[i]);
    if (!c.statistics) return;
    errors.entropy.add(p.entropy.get(at), exact.entropy[i]);
    errors.max_weight.add(p.max_weight.get(at), exact.max_weight[i]);
  });
  return errors;
}

double largest(const std::vector<double>& values) {
  double most = 0.0;
  for (double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

double largest_of(const Tensor& tensor) {
  double most = 0.0;
  for_each_index(tensor.extents(),
                 [&](const Index& at) { most = std::max(most, std::abs(tensor.get(at))); });
  return most;
}

constexpr int kDecidingSeeds = 20;  // the yardstick is the worst of so many

/// Runs one case with one instruction set; the worst errors over seeds are compared, since a single
/// small tensor may come out exact by luck. Where a few seeds agree that is enough; else all of
/// kDecidingSeeds decide.
///   out:  twice the yardstick's error and 4 eps max|v|: the kernel may add its sums in another
///   order. lse:  the same with 4 eps of the largest |lse|. entropy: the same with 16 eps of
///   ln(kv_len) + 1: it is the difference ln(sum) - E[score - max], and both terms
///         carry the kernel's exp2 (2 ulp) and its sums.
///   largest weight: 4 eps and what twice the LSE's error makes of a weight of at most 1.
void expect_close(Case c, Isa isa, int seeds) {
  Errors found, plain;
  double v_scale = 0.0, lse_scale = 1.0;
  const auto out_is_close = [&] {
    return found.out.value() <= 2 * plain.out.value() + 4 * kEpsilon * v_scale;
  };
  for (int seed = 0; seed < seeds || (!out_is_close() && seed < kDecidingSeeds); ++seed) {
    Problem p(c);
    const kernels::AttendCall call = door::resolve(p.arguments());
    const reference::Result exact = reference::attend(call);
    plain.merge(errors_of_yardstick(two_pass(call, rounding_of(call, isa)), exact));
    p.run(isa);
    found.merge(errors_of_problem(p, exact));
    v_scale = std::max(v_scale, largest_of(p.v));
    lse_scale = std::max(lse_scale, largest(exact.lse));
    ++c.seed;
  }
  const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
  for (const LargestDifference& yardstick : {plain.out, plain.lse, plain.entropy})
    ASSERT_LT(yardstick.value(), std::numeric_limits<double>::infinity()) << what;
  EXPECT_LE(found.out.value(), 2 * plain.out.value() + 4 * kEpsilon * v_scale) << what;
  EXPECT_LE(found.lse.value(), 2 * plain.lse.value() + 4 * kEpsilon * lse_scale) << what;
  if (!c.statistics) return;
  EXPECT_LE(
      found.entropy.value(),
      2 * plain.entropy.value() + 16 * kEpsilon * (std::log(static_cast<double>(c.kv_len) + 1) + 1))
      << what;
  EXPECT_LE(found.max_weight.value(),
            4 * kEpsilon + 2 * (2 * plain.lse.value() + 4 * kEpsilon * lse_scale))
      << what;
}

struct Heads {
  std::int64_t q, kv;
};
constexpr std::array<std::int64_t, 17> kDims = {1,  2,  3,  8,   16,  17,  31,  32, 59,
                                                64, 80, 96, 111, 128, 192, 255, 256};
constexpr std::array<std::int64_t, 14> kLengths = {1,  2,  7,  15, 16,  17,  48,
                                                   63, 64, 65, 97, 128, 129, 200};
constexpr std::array<Heads, 8> kHeads = {
    {{1, 1}, {3, 3}, {9, 3}, {8, 1}, {32, 8}, {6, 1}, {12, 1}, {5, 5}}};

/// What the factors of the grid are: of each the first level is the least work.
namespace factor {
enum Factor : std::size_t {
  head_dim,
  value_dim,
  q_len,
  kv_len,
  heads,
  mask,
  modifier,
  types,
  layout,
  batch
};
}
Levels all_levels() {
  return {static_cast<int>(kDims.size()),
          static_cast<int>(kDims.size()) + 1,  // the last: as head_dim
          static_cast<int>(kLengths.size()),
          static_cast<int>(kLengths.size()),
          static_cast<int>(kHeads.size()),
          kMaskKinds,
          kModifierKinds,
          static_cast<int>(kTypes.size()),
          kLayoutKinds,
          2};
}

Case case_of(const Levels& row) {
  const auto at = [&](factor::Factor of) { return static_cast<std::size_t>(row[of]); };
  Case c;
  c.head_dim = kDims[at(factor::head_dim)];
  c.value_dim = at(factor::value_dim) == kDims.size() ? c.head_dim : kDims[at(factor::value_dim)];
  c.q_len = kLengths[at(factor::q_len)];
  c.kv_len = kLengths[at(factor::kv_len)];
  c.q_heads = kHeads[at(factor::heads)].q;
  c.kv_heads = kHeads[at(factor::heads)].kv;
  c.mask = static_cast<MaskKind>(at(factor::mask));
  c.modifier = static_cast<ModifierKind>(at(factor::modifier));
  c.types = kTypes[at(factor::types)];
  c.layout = static_cast<LayoutKind>(at(factor::layout));
  c.batch = 1 + static_cast<std::int64_t>(at(factor::batch));
  return c;
}

/// Products of the scores and the weighted sums, of which the reference does a million in a moment.
std::int64_t work_of(const Case& c) {
  return c.batch * c.q_heads * c.q_len * c.kv_len * (c.head_dim + c.value_dim);
}

TEST(Grid, PairwiseAgainstTheReference) {
  const std::int64_t most = effort() == Effort::full ? 20000000 : 1500000;
  const Levels levels = all_levels();
  const std::vector<Levels> rows =
      pairwise_rows(levels, 7, [&](const Levels& row) { return work_of(case_of(row)) <= most; });
  ASSERT_EQ(missing_pair(levels, rows), Levels{});
  const std::size_t step = effort() == Effort::smoke ? 12 : 1;
  const int seeds = case_count(1, 2, 20);
  for (std::size_t i = 0; i < rows.size(); i += step) {
    Case c = case_of(rows[i]);
    c.seed = 1000 * (i + 1);
    c.statistics = i % 3 == 0;
    for (Isa isa : isas()) expect_close(c, isa, seeds);
  }
}

// No queries, no keys, or neither, beside all else.
TEST(Grid, PairwiseOfNothing) {
  Levels levels = all_levels();
  levels[factor::q_len] = 3;
  levels[factor::kv_len] = 1;
  const auto any = [](const Levels&) { return true; };
  const std::size_t step = effort() == Effort::smoke ? 12 : 1;
  const std::vector<Levels> rows = pairwise_rows(levels, 7, any);
  for (std::size_t i = 0; i < rows.size(); i += step) {
    Case c = case_of(rows[i]);
    c.q_len = rows[i][factor::q_len] == 0 ? 5 : 0;
    c.kv_len = rows[i][factor::q_len] == 1 ? 5 : 0;
    c.statistics = i % 3 == 0;
    for (Isa isa : isas()) expect_close(c, isa, 1);
  }
}

// Lengths around the split of 1,024 keys and long rows, a few of each kind.
TEST(Grid, LongKeys) {
  Random random(5);
  const int count = case_count(2, 12, 60);
  for (int i = 0; i < count; ++i) {
    Case c;
    constexpr std::array<std::int64_t, 7> kLong = {1023, 1024, 1025, 1500, 2048, 2049, 3100};
    c.kv_len = kLong[static_cast<std::size_t>(i) % kLong.size()];
    c.q_len = i % 2 == 0 ? 1 + random.below(4) : 20 + random.below(40);
    c.q_heads = i % 3 == 0 ? 4 : 2;
    c.kv_heads = i % 3 == 1 ? 2 : 1;
    c.head_dim = 8 + 8 * random.below(10);
    c.value_dim = 8 + 8 * random.below(10);
    c.mask = static_cast<MaskKind>(random.below(kMaskKinds));
    c.modifier = static_cast<ModifierKind>(random.below(kModifierKinds));
    c.types =
        kTypes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(kTypes.size())))];
    c.seed = 77 + static_cast<std::uint64_t>(i);
    for (Isa isa : isas()) expect_close(c, isa, 1);
  }
}

// Latent attention's dims, and others above 256.
TEST(Grid, LargeDims) {
  for (const auto& [head_dim, value_dim] :
       {std::pair{576, 512}, {320, 257}, {768, 768}, {1, 600}}) {
    for (std::int64_t q_len : {1, 40}) {
      if (effort() == Effort::smoke && q_len != 1) continue;
      for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
        Case c;
        c.head_dim = head_dim;
        c.value_dim = value_dim;
        c.q_len = q_len;
        c.kv_len = 70;
        c.q_heads = 4;
        c.types = types;
        c.mask = MaskKind::causal_end;
        for (Isa isa : isas()) expect_close(c, isa, 1);
      }
    }
  }
}

// Adversarial inputs: large norms (one key dominates or the softmax is sharp) and constant rows.
TEST(Grid, LargeNormsAndConstantRows) {
  for (double deviation : {0.0, 1e-3, 8.0, 40.0}) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
      Case c;
      c.q_len = effort() == Effort::smoke ? 3 : 33;
      c.kv_len = 300;
      c.q_heads = c.kv_heads = 2;
      c.head_dim = c.value_dim = 64;
      c.types = types;
      c.q_deviation = deviation;
      for (Isa isa : isas()) expect_close(c, isa, 3);
    }
  }
}

// Adversarial inputs: large norms, constant rows, one dominant key, values that cancel.
TEST(Grid, StaysWithinTheDocumentedBound) {
  enum Kind { large_norms, constant_rows, dominant_key, cancelling_values, kKinds };
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[2], kTypes[5]}) {
      for (std::int64_t q_len : {1, 25}) {
        if (effort() == Effort::smoke && q_len != 1) continue;
        Case c;
        c.q_len = q_len;
        c.kv_len = 1100;
        c.head_dim = 48;
        c.value_dim = 8;
        c.types = types;
        c.q_deviation = kind == large_norms ? 60.0 : 1.0;
        Problem p(c);
        if (kind == constant_rows)
          p.k.fill([](const Index& at) { return 0.3 * static_cast<double>(at[3] % 5); });
        if (kind == dominant_key) {
          p.q.fill([](const Index&) { return 1.0; });
          p.k.fill([](const Index& at) { return at[1] == 777 ? 20.0 : -1.0; });
        }
        if (kind == cancelling_values)
          p.v.fill([](const Index& at) { return at[1] % 2 == 0 ? 1000.0 : -1000.0; });
        const kernels::AttendCall call = door::resolve(p.arguments());
        const reference::Result exact = reference::attend(call, true);
        const Seen seen(call);
        const Bound sizes{largest(exact.out), largest(exact.lse)};
        Tensor weights(f32, {c.batch, c.q_heads, c.q_len, c.kv_len});
        for (Isa isa : isas()) {
          SCOPED_TRACE(std::string(isa_name(isa)) + " kind " + std::to_string(kind) + ": " +
                       describe(c));
          p.run(isa);
          const Errors found = errors_of_problem(p, exact);
          const Bound bound = documented_bound(seen, sizes, rounding_of(call, isa));
          EXPECT_LE(found.out.value(), bound.out);
          EXPECT_LE(found.lse.value(), bound.lse);
          weights.poison();
          inspect(p.arguments(), {.weights = weights.view()}, {.isa = isa});
          expect_weights_near("weight", weights, exact.weights,
                              documented_weight_bound(seen, rounding_of(call, isa)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
