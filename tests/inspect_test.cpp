// The second pass: exact weights, received mass and pooled maps against the definition and against
// the forward pass.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/heads.h"
#include "polyhead/inspect.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/problem.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

/// Every mask and modifier once, types and shapes in turn.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (int i = 0; i < kMaskKinds + kModifierKinds; ++i) {
    const std::size_t n = static_cast<std::size_t>(i);
    Case c;
    c.batch = 2;
    constexpr std::int64_t kQLens[] = {33, 1, 100}, kKvLens[] = {130, 64, 77};
    c.q_len = kQLens[n % 3];
    c.kv_len = kKvLens[n / 3 % 3];
    c.q_heads = n % 2 == 0 ? 4 : 3;
    c.kv_heads = n % 2 == 0 ? 2 : 1;
    c.head_dim = n % 4 == 0 ? 64 : 21;
    c.value_dim = 10;
    c.types = kTypes[n % kTypes.size()];
    c.types.out = f32;
    c.mask = i < kMaskKinds ? static_cast<MaskKind>(i) : MaskKind::causal_end;
    c.modifier = i < kMaskKinds ? ModifierKind::none : static_cast<ModifierKind>(i - kMaskKinds);
    c.layout = static_cast<LayoutKind>(n % kLayoutKinds);
    c.seed = 50 + n;
    if (effort() != Effort::smoke || i % 4 == 0) list.push_back(c);
  }
  return list;
}

/// Scores are of order 1 to 10 and carry at most head_dim roundings on either pass, the LSE the sum
/// over kv_len of the forward one; a weight is at most 1 (1 / (1 - 0.25) with dropout), so that is
/// its absolute error too.
double weight_bound(const Case& c) {
  return 4.0 / 3.0 * kEpsilon *
         (4.0 * static_cast<double>(c.head_dim) + static_cast<double>(c.kv_len) / 2 + 32);
}

struct Maps {
  Tensor weights, received, pooled;
  Maps(const Case& c, std::int64_t q_bins, std::int64_t kv_bins)
      : weights(f32, {c.batch, c.q_heads, c.q_len, c.kv_len}, {1, 0, 2, 3}, 5),
        received(f32, {c.batch, c.q_heads, c.kv_len}),
        pooled(f32, {c.batch, c.q_heads, q_bins, kv_bins}) {}
  InspectArguments arguments() {
    InspectArguments wanted;
    wanted.weights = weights.view();
    wanted.received = received.view();
    wanted.pooled = pooled.view();
    return wanted;
  }
};

TEST(Inspect, AgreesWithTheReference) {
  for (const Case& c : cases()) {
    Problem p(c);
    const kernels::AttendCall call = door::resolve(p.arguments());
    const reference::Result exact = reference::attend(call, true);
    const std::int64_t q_bins = 1 + c.q_len / 9, kv_bins = 7;
    const std::vector<double> received = reference::received(call, exact.weights);
    const std::vector<double> pooled = reference::pooled(call, exact.weights, q_bins, kv_bins);
    for (Isa isa : isas()) {
      p.run(isa);
      Maps maps(c, q_bins, kv_bins);
      inspect(p.arguments(), maps.arguments(), {.isa = isa});
      const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
      LargestDifference worst;
      std::size_t i = 0;
      for_each_index(maps.weights.extents(), [&](const Index& at) {
        const double found = maps.weights.get(at), expected = exact.weights[i++];
        if (expected == 0.0) {
          ASSERT_EQ(found, 0.0) << what;
        } else {
          worst.add(found, expected);
        }
      });
      EXPECT_LE(worst.value(), weight_bound(c)) << what;
      // Each of q_len terms with its own error, and their sum's roundings.
      const double rows = static_cast<double>(c.q_len);
      EXPECT_LE(largest_difference(maps.received, received),
                rows * (weight_bound(c) + rows * kEpsilon))
          << what;
      const double bin = 10.0 * (static_cast<double>(c.kv_len) / 7 + 1);
      EXPECT_LE(largest_difference(maps.pooled, pooled), bin * (weight_bound(c) + bin * kEpsilon))
          << what;
    }
  }
}

// Weights of a row sum to 1 (less the sink's share), and weights times values are the output.
/// Alone, sums are taken as weights come out of the scores, which are not kept then.
TEST(Inspect, EachSumAloneHasTheBitsOfBoth) {
  std::vector<Case> list = cases();
  for (const Types& types : kTypes) {  // whole tiles and blocks without a mask
    Case c;
    c.q_len = 150;
    c.kv_len = 1100;
    c.types = types;
    c.types.out = f32;
    list.push_back(c);
  }
  for (const Case& c : list) {
    Problem p(c);
    const std::int64_t q_bins = 1 + c.q_len / 9, kv_bins = 1 + c.kv_len / 11;
    for (Isa isa : isas()) {
      p.run(isa);
      Maps both(c, q_bins, kv_bins), alone(c, q_bins, kv_bins);
      InspectArguments wanted = both.arguments(), received = alone.arguments(),
                       pooled = alone.arguments();
      wanted.weights = received.weights = pooled.weights = {};
      received.pooled = {};
      pooled.received = {};
      for (const InspectArguments& one : {wanted, received, pooled})
        inspect(p.arguments(), one, {.isa = isa});
      const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
      EXPECT_EQ(differing_bits(both.received, alone.received), 0) << what;
      EXPECT_EQ(differing_bits(both.pooled, alone.pooled), 0) << what;
    }
  }
}

TEST(Inspect, WeightsSumToOneAndTimesValuesGiveTheOutput) {
  for (const Case& c : cases()) {
    for (Isa isa : isas()) {
      Problem p(c);
      p.run(isa);
      Maps maps(c, 2, 2);
      inspect(p.arguments(), maps.arguments(), {.isa = isa});
      const bool bf16_weights =
          isa >= Isa::avx512_bf16 && c.types.q == bf16 && c.types.k == bf16 && c.types.v == bf16;
      const bool partial = c.modifier == ModifierKind::sink ||
                           c.modifier == ModifierKind::dropout ||
                           c.modifier == ModifierKind::everything;
      const double keys = static_cast<double>(c.kv_len);
      for (std::int64_t b = 0; b < c.batch; ++b) {
        for (std::int64_t head = 0; head < c.q_heads; ++head) {
          for (std::int64_t query = 0; query < c.q_len; ++query) {
            double total = 0;
            std::vector<double> sums(static_cast<std::size_t>(c.value_dim));
            for (std::int64_t key = 0; key < c.kv_len; ++key) {
              const double w = maps.weights.get({b, head, query, key});
              total += w;
              for (std::int64_t d = 0; d < c.value_dim; ++d) {
                sums[static_cast<std::size_t>(d)] +=
                    w * p.v.get({b, key, head * c.kv_heads / c.q_heads, d});
              }
            }
            const bool empty = std::isinf(p.lse.get({b, query, head}));
            // The common error of a row's weights is that of its LSE and scores; see weight_bound.
            const double tolerance = weight_bound(c) * std::sqrt(keys) + keys * kEpsilon;
            if (!partial) {
              ASSERT_NEAR(total, empty ? 0.0 : 1.0, tolerance) << isa_name(isa) << describe(c);
            }
            const double rounding = bf16_weights ? 0x1p-7 : 0.0;
            for (std::int64_t d = 0; d < c.value_dim; ++d) {
              ASSERT_NEAR(p.out.get({b, query, head, d}), sums[static_cast<std::size_t>(d)],
                          3.5 * 4 / 3 * (tolerance + rounding))
                  << isa_name(isa) << describe(c);
            }
          }
        }
      }
    }
  }
}

// Where the LSE is so large that float32 rounds it coarsely, weights still sum to one, and times
// values to the output: a bias that is as good as -inf over a whole row, and huge products.
TEST(Inspect, WeightsOfRowsWithALargeLse) {
  constexpr std::int64_t kQueries = 130, kKeys = 1200, kDim = 16;
  Random random(12);
  for (const Isa isa : isas()) {
    for (const float bias : {0.0f, -1e4f, -1e9f, -FLT_MAX}) {
      const double size = bias == 0.0f ? 60.0 : 1.0;
      Tensor q(f32, {1, kQueries, 1, kDim}), k(f32, {1, kKeys, 1, kDim});
      Tensor v(f32, {1, kKeys, 1, 1}), out(f32, {1, kQueries, 1, 1}), lse(f32, {1, kQueries, 1});
      Tensor weights(f32, {1, 1, kQueries, kKeys}), received(f32, {1, 1, kKeys});
      Tensor pooled(f32, {1, 1, 2, 3});
      for (Tensor* x : {&q, &k}) {
        x->fill([&](const Index&) { return size * random.normal(); });
      }
      v.fill_normal(random);
      AttentionArguments a;
      a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = out.view(), a.lse = lse.view();
      if (bias != 0.0f) a.modifiers.bias = {&bias, {1, 1, 1, 1}};
      attention(a, {.isa = isa});
      inspect(a, {.weights = weights.view()}, {.isa = isa});
      inspect(a, {.received = received.view()}, {.isa = isa});
      inspect(a, {.pooled = pooled.view()}, {.isa = isa});
      double mass = 0.0, cells = 0.0;
      for (std::int64_t i = 0; i < kQueries; ++i) {
        double sum = 0.0, product = 0.0;
        for (std::int64_t j = 0; j < kKeys; ++j) {
          sum += weights.get({0, 0, i, j});
          product += weights.get({0, 0, i, j}) * v.get({0, j, 0, 0});
        }
        ASSERT_NEAR(sum, 1.0, 2e-5) << isa_name(isa) << " " << bias << " row " << i;
        ASSERT_NEAR(product, out.get({0, i, 0, 0}), 5e-5) << isa_name(isa) << " " << bias;
      }
      for (std::int64_t j = 0; j < kKeys; ++j) mass += received.get({0, 0, j});
      for (std::int64_t at = 0; at < 6; ++at) cells += pooled.get({0, 0, at / 3, at % 3});
      EXPECT_NEAR(mass, kQueries, 1e-2) << isa_name(isa) << " " << bias;
      EXPECT_NEAR(cells, kQueries, 1e-2) << isa_name(isa) << " " << bias;
    }
  }
}

// A sink's share is not the keys'. Scores and sink are whole numbers, but float32 has sixteenths at
// the size of their LSE.
TEST(Inspect, WeightsBesideASinkWithALargeLse) {
  const float sink = 1e6f, bias[2] = {1e6f, 999999.0f}, q = 0.0f, k[2] = {}, v[2] = {1.0f, 0.0f};
  for (const Isa isa : isas()) {
    float out, lse, weights[2];
    AttentionArguments a;
    a.q = {&q, {1, 1, 1, 1}}, a.k = {k, {1, 2, 1, 1}}, a.v = {v, {1, 2, 1, 1}};
    a.out = {&out, {1, 1, 1, 1}}, a.lse = {&lse, {1, 1, 1}};
    a.modifiers.sink = {&sink, {1}};
    a.modifiers.bias = {bias, {1, 1, 1, 2}};
    attention(a, {.isa = isa});
    inspect(a, {.weights = View(weights, {1, 1, 1, 2})}, {.isa = isa});
    const double z = 2.0 + std::exp(-1.0);
    EXPECT_NEAR(weights[0], 1.0 / z, 1e-6) << isa_name(isa);
    EXPECT_NEAR(weights[1], std::exp(-1.0) / z, 1e-6) << isa_name(isa);
  }
}

TEST(Inspect, ChosenHeadsAndQueries) {
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[3]}) {
      Case c;
      c.batch = 2;
      c.q_len = 60;
      c.kv_len = 90;
      c.q_heads = 6;
      c.kv_heads = 2;
      c.types = types;
      c.mask = MaskKind::window_causal;
      Problem p(c);
      p.run(isa);
      Maps all(c, 2, 2);
      inspect(p.arguments(), all.arguments(), {.isa = isa});
      const std::int32_t heads[] = {5, 0, 3, 5};
      Tensor some(f32, {2, 4, 7, 90});
      InspectArguments wanted;
      wanted.weights = some.view();
      wanted.heads = {heads, {4}};
      wanted.first_query = 51;
      inspect(p.arguments(), wanted, {.isa = isa});
      for_each_index(some.extents(), [&](const Index& at) {
        ASSERT_EQ(some.get(at), all.weights.get({at[0], heads[at[1]], at[2] + 51, at[3]}))
            << isa_name(isa);
      });
    }
  }
}

TEST(Inspect, SameBitsForAnyThreads) {
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1]}) {
      Case c;
      c.batch = 2;
      c.q_len = 300;
      c.kv_len = 310;
      c.q_heads = 3;
      c.types = types;
      c.mask = MaskKind::causal_end;
      Problem p(c);
      p.run(isa);
      Maps one(c, 5, 6);
      inspect(p.arguments(), one.arguments(), {.isa = isa, .executor = &Executor::serial()});
      for (int threads = 2; threads <= 5; ++threads) {
        ThreadPool pool(threads);
        Maps other(c, 5, 6);
        inspect(p.arguments(), other.arguments(), {.isa = isa, .executor = &pool});
        EXPECT_EQ(differing_bits(one.weights, other.weights), 0) << isa_name(isa);
        EXPECT_EQ(differing_bits(one.received, other.received), 0) << isa_name(isa);
        EXPECT_EQ(differing_bits(one.pooled, other.pooled), 0) << isa_name(isa);
      }
    }
  }
}

// "At most this many": scratch is for those who have something to do.
TEST(Inspect, ManyMoreThreadsThanRows) {
  Case c;
  c.q_len = 4;
  c.kv_len = 6;
  Problem p(c);
  p.run(Isa::automatic);
  Maps one(c, 2, 2), many(c, 2, 2);
  inspect(p.arguments(), one.arguments(), {.threads = 1});
  inspect(p.arguments(), many.arguments(), {.threads = ThreadPool::kMost});
  EXPECT_EQ(differing_bits(one.weights, many.weights), 0);
  EXPECT_EQ(differing_bits(one.received, many.received), 0);
}

// Weights of whole blocks are made a row at a time where rows are dense, with the bits they have
// elsewhere.
TEST(Inspect, SameBitsForAnyLayout) {
  for (Isa isa : isas()) {
    int turn = 0;
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[3]}) {
      for (const std::int64_t head_dim : {1, 21, 64, 100, 256}) {
        Case c;
        c.batch = 2;
        c.q_len = 107;
        c.kv_len = 200;
        c.q_heads = 4;
        c.kv_heads = 2;
        c.head_dim = head_dim;
        c.types = types;
        c.mask = ++turn % 2 == 0 ? MaskKind::none : MaskKind::window_causal;
        Problem p(c);
        p.run(isa);
        Tensor dense(f32, {c.batch, c.q_heads, c.q_len, c.kv_len});
        Tensor turned(f32, {c.batch, c.q_heads, c.q_len, c.kv_len}, {0, 1, 3, 2});
        for (Tensor* to : {&dense, &turned}) {
          InspectArguments wanted;
          wanted.weights = to->view();
          inspect(p.arguments(), wanted, {.isa = isa});
        }
        EXPECT_EQ(differing_bits(dense, turned), 0) << isa_name(isa) << describe(c);
      }
    }
  }
}

// Weights too large for the caches are written past them where rows are whole lines: the same bits
// as a few rows at a time, wherever rows begin, and nothing beside them.
TEST(Inspect, LargeWeightsAreThoseOfAFewRows) {
  constexpr std::int64_t kKeys = 1400, kRows = 100, kHeads = 16;
  for (Isa isa : isas()) {
    for (const MaskKind mask : {MaskKind::none, MaskKind::causal_end}) {
      Case c;
      c.q_len = kRows;
      c.kv_len = kKeys;
      c.q_heads = kHeads;
      c.head_dim = c.value_dim = 8;
      c.mask = mask;
      Problem p(c);
      p.run(isa);
      for (const std::int64_t gap : {0, 5, 8}) {
        constexpr float kUntouched = -7.0f;
        constexpr std::int64_t kLine = 16;
        const std::int64_t pitch = kKeys + gap;
        const bool lines = pitch % kLine == 0;
        std::vector<float> memory(static_cast<std::size_t>(kHeads * kRows * pitch + 2 * kLine),
                                  kUntouched);
        const auto past = static_cast<std::int64_t>(
            reinterpret_cast<std::uintptr_t>(memory.data()) / sizeof(float) % kLine);
        float* const all = memory.data() + (kLine - past) + (lines ? 0 : 3);
        InspectArguments wanted;
        wanted.weights = {all, {std::int64_t{1}, kHeads, kRows, kKeys}};
        wanted.weights.layout.strides = {kHeads * kRows * pitch, kRows * pitch, pitch, 1};
        inspect(p.arguments(), wanted, {.isa = isa});
        for (std::int64_t head = 0; head < kHeads; ++head) {
          Tensor few(f32, {1, 1, kRows, kKeys});
          const std::int64_t heads[] = {head};
          wanted.weights = few.view();
          wanted.heads = {heads, {1}};
          inspect(p.arguments(), wanted, {.isa = isa});
          for (std::int64_t row = 0; row < kRows; ++row) {
            const float* at = all + (head * kRows + row) * pitch;
            ASSERT_EQ(std::memcmp(at, few.address({0, 0, row, 0}), kKeys * sizeof *at), 0)
                << isa_name(isa) << " head " << head << " row " << row;
            for (std::int64_t key = kKeys; key < pitch; ++key)
              ASSERT_EQ(at[key], kUntouched) << isa_name(isa);
          }
        }
      }
    }
  }
}

// The largest weight and its key of the forward pass are those of the weights.
TEST(Inspect, StatisticsAgreeWithWeights) {
  for (Isa isa : isas()) {
    for (const Types& types : kTypes) {
      Case c;
      c.q_len = 70;
      c.kv_len = 200;
      c.q_heads = 2;
      c.types = types;
      c.mask = MaskKind::causal_end;
      c.statistics = true;
      Problem p(c);
      p.run(isa);
      Maps maps(c, 1, 1);
      inspect(p.arguments(), maps.arguments(), {.isa = isa});
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t query = 0; query < c.q_len; ++query) {
          const Index row = {0, query, head};
          const std::int64_t key = p.max_key.get_int(row);
          const double most = p.max_weight.get(row);
          ASSERT_GE(key, 0);
          EXPECT_NEAR(maps.weights.get({0, head, query, key}), most, weight_bound(c))
              << isa_name(isa);
          for (std::int64_t j = 0; j < c.kv_len; ++j) {
            ASSERT_LE(maps.weights.get({0, head, query, j}), most + weight_bound(c))
                << isa_name(isa) << describe(c);
          }
        }
      }
    }
  }
}

// Values of another type than keys take scores by another path: a second pass must too. Numbers
// below 2^-126 are 0 for the bf16 dot.
TEST(Inspect, ValuesOfAnotherTypeThanKeys) {
  for (const bool cached : {false, true}) {
    const bfloat16 q[] = {to_bfloat16(8e-39f)}, k[] = {to_bfloat16(1e36f), to_bfloat16(3e36f)};
    const float v[] = {1.0f, 2.0f};
    float out = 0, lse = 0, largest = 0, weights[2] = {};
    AttentionArguments call;
    call.q = ConstView(q, {1, 1, 1, 1});
    const ConstView keys(k, {1, 2, 1, 1}), values(v, {1, 2, 1, 1});
    if (cached)
      call.kv = {.k = keys, .v = values};
    else
      call.k = keys, call.v = values;
    call.out = View(&out, {1, 1, 1, 1});
    call.lse = View(&lse, {1, 1, 1});
    call.statistics.max_weight = View(&largest, {1, 1, 1});
    call.modifiers.scale = 100.0f;
    for (Isa isa : isas()) {
      attention(call, {.isa = isa});
      inspect(call, {.weights = View(weights, {1, 1, 1, 2})}, {.isa = isa});
      EXPECT_FLOAT_EQ(weights[1], largest) << isa_name(isa);
      EXPECT_NEAR(weights[0] + weights[1], 1.0f, 1e-6f) << isa_name(isa);
      EXPECT_NEAR(weights[0] + 2 * weights[1], out, 1e-6f) << isa_name(isa);
      EXPECT_GT(weights[1], 0.8f);
      HeadStatistics statistics({.q_heads = 1, .q_len = 1, .kv_len = 2});
      AttentionArguments part = call;
      part.statistics = {};
      statistics.add(part, {.isa = isa});
      EXPECT_FLOAT_EQ(statistics.rows(0).largest[0], largest) << isa_name(isa);
    }
  }
}

TEST(Inspect, ZeroSizes) {
  for (const auto& [batch, q_len, kv_len] : {std::tuple{0, 3, 4}, {2, 0, 4}, {2, 3, 0}}) {
    Case c;
    c.batch = batch;
    c.q_len = q_len;
    c.kv_len = kv_len;
    Problem p(c);
    p.run(Isa::automatic);
    Maps maps(c, 2, 3);
    EXPECT_NO_THROW(inspect(p.arguments(), maps.arguments()));
    for_each_index(maps.received.extents(),
                   [&](const Index& at) { EXPECT_EQ(maps.received.get(at), 0.0); });
    for_each_index(maps.pooled.extents(),
                   [&](const Index& at) { EXPECT_EQ(maps.pooled.get(at), 0.0); });
  }
}

TEST(Inspect, MapsWithoutBinsAreLeftAlone) {
  for (const auto& [q_bins, kv_bins] : {std::pair<std::int64_t, std::int64_t>{2, 0}, {0, 2}}) {
    Case c;
    Problem p(c);
    p.run(Isa::automatic);
    float untouched[4] = {7, 7, 7, 7};
    InspectArguments wanted;
    wanted.pooled = {untouched, {c.batch, c.q_heads, q_bins, kv_bins}};
    EXPECT_NO_THROW(inspect(p.arguments(), wanted));
    for (const float value : untouched) EXPECT_EQ(value, 7.0f);
  }
}

}  // namespace
}  // namespace polyhead::test
