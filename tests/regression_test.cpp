// Faults that other libraries had, one test each.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/problem.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Largest difference of out from the reference, and of the LSE, in a float32 problem.
struct Distance {
  double out = 0.0, lse = 0.0;
};
Distance from_reference(Problem& p) {
  const Case& c = p.description();
  const kernels::reference::Result exact = kernels::reference::attend(door::resolve(p.arguments()));
  Distance distance;
  const auto grow = [](double& most, double found, double expected) {
    if (found == expected) return;
    const double difference = std::abs(found - expected);
    most = std::isnan(difference) ? kInfinity : std::max(most, difference);
  };
  for_each_index(p.lse.extents(), [&](const Index& at) {
    const std::size_t row = static_cast<std::size_t>((at[0] * c.q_len + at[1]) * c.q_heads + at[2]);
    grow(distance.lse, p.lse.get(at), exact.lse[row]);
    for (std::int64_t d = 0; d < c.value_dim; ++d) {
      grow(distance.out, p.out.get({at[0], at[1], at[2], d}),
           exact.out[row * static_cast<std::size_t>(c.value_dim) + static_cast<std::size_t>(d)]);
    }
  });
  return distance;
}

/// Worst-case roundings of a float32 case whose scores are of order 1: head_dim in a score, kv_len
/// in the sums, values up to 3.5.
double bound(const Case& c) { return 3.5 * kEpsilon * static_cast<double>(c.head_dim + c.kv_len); }

void expect_zero_row(const Problem& p, const Index& row, const std::string& what) {
  for (std::int64_t d = 0; d < p.description().value_dim; ++d) {
    ASSERT_EQ(p.out.get({row[0], row[1], row[2], d}), 0.0) << what;
  }
  ASSERT_EQ(p.lse.get(row), -kInfinity) << what;
}

TEST(Regression, FullyMaskedRowsAreZeroWithAnLseOfMinusInfinity) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) {
      for (std::int64_t q_len : {1, 4, 90}) {
        for (bool sink : {false, true}) {
          Case c;
          c.q_len = q_len;
          c.kv_len = 140;
          c.q_heads = 2;
          c.types = types;
          if (sink) c.modifier = ModifierKind::sink;
          Problem p(c);
          Tensor visible(ElementType::boolean, {1, 1, q_len, 140});
          visible.fill([&](const Index& at) { return at[2] % 3 == 0 ? 0.0 : 1.0; });
          p.mask = boolean(visible.const_view());
          p.run(isa);
          const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
          for (std::int64_t query = 0; query < q_len; ++query) {
            for (std::int64_t head = 0; head < 2; ++head) {
              if (query % 3 == 0)
                expect_zero_row(p, {0, query, head}, what);
              else
                ASSERT_TRUE(std::isfinite(p.lse.get({0, query, head}))) << what;
            }
          }
          // All hidden: by length, by a window beyond the keys, by a bias.
          const std::int32_t none[] = {0};
          const float minus = -std::numeric_limits<float>::infinity();
          for (int way = 0; way < 3; ++way) {
            p.mask = way == 0 ? lengths({none, {1}}) : way == 1 ? window(3, 0) : Mask{};
            const std::int64_t far[] = {1000};
            AttentionArguments a = p.arguments();
            if (way == 1) a.q_start = {far, {1}};
            if (way == 2) a.modifiers.bias = {&minus, {1, 1, 1, 1}};
            p.out.poison();
            p.lse.poison();
            attention(a, {.isa = isa});
            for (std::int64_t query = 0; query < q_len; ++query)
              expect_zero_row(p, {0, query, 1}, what);
          }
        }
      }
    }
  }
}

TEST(Regression, LeadingBlocksFullyMasked) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) {
      for (std::int64_t q_len : {1, 50}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 1200;
        c.types = types;
        c.types.out = f32;
        Problem p(c);
        Tensor visible(ElementType::boolean, {1, 1, 1, 1200});
        // One key in the last block of the first split, one in the second split.
        visible.fill([](const Index& at) { return at[3] == 1000 || at[3] == 1150 ? 1.0 : 0.0; });
        p.mask = boolean(visible.const_view());
        p.run(isa);
        const Distance distance = from_reference(p);
        EXPECT_LE(distance.out, types.v == bf16 ? 3.5 * 0x1p-8 : bound(c))
            << isa_name(isa) << describe(c);
        EXPECT_LE(distance.lse, bound(c)) << isa_name(isa) << describe(c);
      }
    }
  }
}

TEST(Regression, LowestFiniteBiasesAreUniformWeights) {
  const float lowest = -FLT_MAX;
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
      for (std::int64_t q_len : {1, 20}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 100;
        c.types = types;
        c.types.out = f32;
        Problem p(c);
        p.modifiers.bias = {&lowest, {1, 1, 1, 1}};
        p.v.fill([](const Index& at) { return static_cast<double>(at[1] % 2); });
        p.run(isa);
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_NEAR(p.out.get(at), 0.5, 1e-5)
              << isa_name(isa) << describe(c);  // no score survives beside 3e38
        });
      }
    }
  }
}

TEST(Regression, SlidingWindowIsExactInPrefillAndDecoding) {
  // One-hot values: the output shows which keys were seen.
  for (Isa isa : isas()) {
    const std::int64_t n = 96;
    std::vector<float> q(static_cast<std::size_t>(n), 0.0f), k(q),
        v(static_cast<std::size_t>(n * n), 0.0f), out(v), row(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i * n + i)] = 1.0f;
    const std::int64_t one = 1;
    AttentionArguments a;
    a.q = {q.data(), {one, n, one, one}};
    a.k = {k.data(), {one, n, one, one}};
    a.v = {v.data(), {one, n, one, n}};
    a.out = {out.data(), {one, n, one, n}};
    const std::int64_t width = 5;  // keys, the query's own among them
    a.mask = window(width - 1, 0);
    attention(a, {.isa = isa});
    for (std::int64_t i = 0; i < n; ++i) {
      AttentionArguments decode = a;
      decode.q = {q.data(), {1, 1, 1, 1}};
      decode.k = {k.data(), {one, i + 1, one, one}};
      decode.v = {v.data(), {one, i + 1, one, n}};
      decode.out = {row.data(), {one, one, one, n}};
      decode.mask = window(width - 1, 0, Align::end);
      attention(decode, {.isa = isa});
      const float weight = 1.0f / static_cast<float>(std::min(i + 1, width));
      for (std::int64_t j = 0; j < n; ++j) {
        const float expected = j <= i && j > i - width ? weight : 0.0f;
        const float found = out[static_cast<std::size_t>(i * n + j)];
        ASSERT_NEAR(found, expected, kEpsilon) << isa_name(isa) << " query " << i << " key " << j;
        ASSERT_EQ(found, row[static_cast<std::size_t>(j)]) << isa_name(isa) << " decoding " << i;
      }
    }
  }
}

TEST(Regression, BroadcastKeysAndValuesWithTails) {
  for (Isa isa : isas()) {
    for (const Types& types : kTypes) {
      for (std::int64_t q_len : {1, 70}) {
        Case c;
        c.batch = 3;
        c.q_len = q_len;
        c.kv_len = 77;
        c.q_heads = c.kv_heads = 4;
        c.head_dim = 19;
        c.value_dim = 21;
        c.types = types;
        Problem p(c);
        // All sequences and heads share the first one's keys and values.
        AttentionArguments a = p.arguments();
        for (ConstView* view : {&a.k, &a.v}) view->layout.strides[0] = view->layout.strides[2] = 0;
        p.out.poison();
        attention(a, {.isa = isa});
        const Tensor broadcast = p.out;
        for (Tensor* tensor : {&p.k, &p.v}) {
          const Tensor source = *tensor;
          tensor->fill([&](const Index& at) { return source.get({0, at[1], 0, at[3]}); });
        }
        p.run(isa);
        EXPECT_EQ(differing_bits(broadcast, p.out), 0) << isa_name(isa) << describe(c);
        // Every token the same key and value: their mean is the value itself.
        for (ConstView* view : {&a.k, &a.v}) view->layout.strides[1] = 0;
        attention(a, {.isa = isa});
        const double unit = types.out == f32 ? 77 * kEpsilon : types.out == f16 ? 0x1p-10 : 0x1p-7;
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_NEAR(p.out.get(at), p.v.get({0, 0, 0, at[3]}), 3.5 * unit)
              << isa_name(isa) << describe(c);
        });
      }
    }
  }
}

TEST(Regression, StridesOfSizeOneAxesAreIgnored) {
  for (Isa isa : isas()) {
    for (const Types& types : kTypes) {
      Case c;
      c.q_len = 1;
      c.kv_len = 33;
      c.head_dim = 1;
      c.value_dim = 1;
      c.types = types;
      Problem p(c);
      p.run(isa);
      const Tensor plain = p.out;
      AttentionArguments a = p.arguments();
      const std::int64_t wild = std::int64_t{1} << 61;
      a.q.layout.strides = {wild, wild, -wild, wild};
      for (detail::Layout* layout : {&a.k.layout, &a.v.layout}) {
        layout->strides[0] = layout->strides[2] = wild;
        layout->strides[3] = -wild;
      }
      a.out.layout.strides = {0, wild, 0, -3};
      a.lse.layout.strides = {wild, 0, 0};
      p.out.poison();
      attention(a, {.isa = isa});
      EXPECT_EQ(differing_bits(plain, p.out), 0) << isa_name(isa) << describe(c);
    }
  }
}

// Near-uniform weights and values around 1: sums of 131,072 terms must not drift.
TEST(Regression, NoDegradationAtLongKeys) {
  Case c;
  c.q_len = 2;
  c.kv_len = 131072;
  c.head_dim = 8;
  c.value_dim = 4;
  c.q_deviation = 0.05;
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
    for (std::int64_t q_len : {1, 24}) {
      if (effort() == Effort::smoke && q_len != 1) continue;
      c.types = types;
      c.q_len = q_len;
      Problem p(c);
      Random random(8);
      p.v.fill([&](const Index&) { return 1.0 + 0.1 * random.normal(); });
      // The mean of rounded values, as every query sees about that.
      for (Isa isa : isas()) {
        p.run(isa);
        const Distance distance = from_reference(p);
        // 16-bit: half a unit of the output just above 1, and what is left of the rounding of
        // weights after averaging.
        const double unit = types.out == f32   ? 1e-5
                            : types.out == f16 ? 0x1p-11 + 1e-5
                                               : 0x1p-8 + 1e-4;
        EXPECT_LE(distance.out, unit) << isa_name(isa) << describe(c);
        EXPECT_LE(distance.lse, 1e-5) << isa_name(isa) << describe(c);
      }
    }
  }
}

TEST(Regression, AMillionKeys) {
  const std::int64_t kv_len = 1000000;
  std::vector<float> k(static_cast<std::size_t>(kv_len) * 2), v(static_cast<std::size_t>(kv_len));
  std::vector<float> q(128, 1.0f), out(64), lse(64);
  double mean = 0;
  for (std::int64_t j = 0; j < kv_len; ++j) {
    v[static_cast<std::size_t>(j)] = static_cast<float>(j % 7);
    mean += static_cast<double>(j % 7) / static_cast<double>(kv_len);
  }
  const std::int64_t one = 1, two = 2;
  for (std::int64_t q_len : {1, 64}) {
    for (Isa isa : isas()) {
      if (isa == Isa::portable && effort() == Effort::smoke) continue;
      AttentionArguments a;
      a.q = {q.data(), {one, q_len, one, two}};
      a.k = {k.data(), {one, kv_len, one, two}};  // all zero: uniform weights
      a.v = {v.data(), {one, kv_len, one, one}};
      a.out = {out.data(), {one, q_len, one, one}};
      a.lse = {lse.data(), {one, q_len, one}};
      attention(a, {.isa = isa});
      for (std::int64_t i = 0; i < q_len; ++i) {
        ASSERT_NEAR(out[static_cast<std::size_t>(i)], mean, 1e-5) << isa_name(isa);
        ASSERT_NEAR(lse[static_cast<std::size_t>(i)], std::log(1e6), 1e-5) << isa_name(isa);
      }
    }
  }
}

/// Address space without memory behind it until it is touched.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() {
    if (valid()) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool valid() const { return data_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

TEST(Regression, OffsetsBeyondTwoToTheThirtyOneElements) {
  // Tokens 2^29 elements apart: the sixth begins at 5 * 2^29 > 2^31.
  const std::int64_t far = std::int64_t{1} << 29, tokens = 6;
  Case c;
  c.q_len = c.kv_len = tokens;
  c.q_heads = c.kv_heads = 2;
  c.mask = MaskKind::causal_end;
  const std::size_t bytes = static_cast<std::size_t>(far * tokens) * sizeof(float);
  Reserved q(bytes), k(bytes), v(bytes), out(bytes);
  for (const Reserved* array : {&q, &k, &v, &out}) {
    if (!array->valid()) GTEST_SKIP() << "no address space";
  }
  for (Isa isa : isas()) {
    Problem p(c);
    p.run(isa);
    const auto spread = [&](const Reserved& to, const Tensor& from) {
      const std::int64_t dim = from.extents()[3];
      for_each_index(from.extents(), [&](const Index& at) {
        to.floats()[at[1] * far + at[2] * dim + at[3]] = static_cast<float>(from.get(at));
      });
      return View(to.floats(), {std::int64_t{1}, tokens, std::int64_t{2}, dim},
                  {std::int64_t{0}, far, dim, std::int64_t{1}});
    };
    AttentionArguments a = p.arguments();
    a.q = spread(q, p.q);
    a.k = spread(k, p.k);
    a.v = spread(v, p.v);
    Tensor nothing(f32, p.out.extents());
    a.out = spread(out, nothing);
    attention(a, {.isa = isa});
    for_each_index(p.out.extents(), [&](const Index& at) {
      ASSERT_EQ(out.floats()[at[1] * far + at[2] * 16 + at[3]], p.out.get(at)) << isa_name(isa);
    });
  }
}

TEST(Regression, ManySequencesAndHeads) {
  for (const auto& [batch, heads] : {std::pair{4096, 16}, {65536, 1}, {1, 4096}}) {
    for (std::int64_t q_len : {1, 2}) {
      Case c;
      c.batch = batch;
      c.q_heads = c.kv_heads = heads;
      c.q_len = q_len;
      c.kv_len = 2;
      c.head_dim = c.value_dim = 4;
      Problem p(c);
      p.run(isas().back());
      EXPECT_LE(from_reference(p).out, bound(c)) << describe(c);
    }
  }
}

// Values near the largest float16, of which a sum would overflow: the mean does not.
TEST(Regression, LargeNormsOverflowNo16BitSum) {
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[1], kTypes[2]}) {
      for (std::int64_t q_len : {1, 20}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 200;
        c.head_dim = 128;
        c.types = types;
        Problem p(c);
        p.q.fill([](const Index&) { return 200.0; });
        p.k.fill([](const Index&) { return 200.0; });  // every product is 5,120,000
        p.v.fill([](const Index&) { return 60000.0; });
        p.run(isa);
        const double value = p.v.get({0, 0, 0, 0});
        for_each_index(p.out.extents(), [&](const Index& at) {
          ASSERT_EQ(p.out.get(at), value) << isa_name(isa) << describe(c);
        });
      }
    }
  }
}

// --- guard pages ---

/// One array that ends where its pages end, or begins where they begin; beyond lies memory that may
/// not be touched.
class Guarded {
 public:
  Guarded(const Tensor& from, bool at_end) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
                      size = from.bytes().size();
    const std::size_t body = (size + page - 1) / page * page;
    bytes_ = body + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, body, PROT_READ | PROT_WRITE);
    data_ = base_ + page + (at_end ? body - size : 0);
    if (size > 0) std::memcpy(data_, from.bytes().data(), size);
  }
  ~Guarded() { munmap(base_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte *base_, *data_;
  std::size_t bytes_;
};

TEST(Regression, NothingIsTouchedBeyondAnEdge) {
  Random random(31);
  const int count = case_count(20, 160, 1500);
  for (int i = 0; i < count; ++i) {
    Case c;
    constexpr std::int64_t kLengths[] = {1, 2, 3, 15, 17, 63, 65, 66, 129};
    constexpr std::int64_t kDims[] = {1, 2, 3, 5, 15, 16, 17, 31, 33, 63, 65, 100};
    c.q_len = kLengths[random.below(9)];
    c.kv_len = kLengths[random.below(9)];
    c.head_dim = kDims[random.below(12)];
    c.value_dim = kDims[random.below(12)];
    c.q_heads = 1 + random.below(3);
    c.types =
        kTypes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(kTypes.size())))];
    c.layout = i % 2 == 0 ? LayoutKind::dense : LayoutKind::heads_first;
    c.mask = i % 3 == 0   ? MaskKind::boolean_full
             : i % 3 == 1 ? MaskKind::bits
                          : MaskKind::documents;
    c.modifier = i % 5 == 0   ? ModifierKind::bias_full
                 : i % 5 == 1 ? ModifierKind::bias_16_bit
                              : ModifierKind::none;
    c.seed = 9000 + static_cast<std::uint64_t>(i);
    Problem p(c);
    // Tables without gaps, so that their last row ends at the edge.
    Tensor visible(ElementType::boolean, {1, c.q_heads, c.q_len, c.kv_len}),
        bias(f32, visible.extents());
    visible.fill([&](const Index&) { return random.chance(0.7); });
    bias.fill_normal(random);
    Tensor bits(ElementType::boolean, {1, 1, c.q_len, (c.kv_len + 7) / 8});
    for (Isa isa : isas()) {
      p.run(isa);
      for (bool at_end : {true, false}) {
        const Guarded q(p.q, at_end), k(p.k, at_end), v(p.v, at_end), out(p.out, at_end),
            lse(p.lse, at_end);
        const Guarded table(visible, at_end), packed(bits, at_end), added(bias, at_end);
        AttentionArguments a = p.arguments();
        a.q.data = q.data();
        a.k.data = k.data();
        a.v.data = v.data();
        a.out.data = out.data();
        a.lse.data = lse.data();
        const bool own_mask = c.mask == MaskKind::documents;
        if (c.mask == MaskKind::boolean_full) {
          a.mask.visible = visible.const_view();
          a.mask.visible.data = table.data();
        } else if (c.mask == MaskKind::bits) {
          const std::int64_t row = (c.kv_len + 7) / 8 * 8;
          const std::int64_t one = 1, none = 0;
          a.mask.visible =
              ConstView(packed.data(), ElementType::bit,
                        detail::Layout({one, one, c.q_len, c.kv_len}, {none, none, row, one}));
        }
        if (c.modifier == ModifierKind::bias_full) {
          a.modifiers.bias = bias.const_view();
          a.modifiers.bias.data = added.data();
        }
        attention(a, {.isa = isa});  // a touch beyond an edge ends the test here
        if (own_mask && c.modifier != ModifierKind::bias_full) {
          EXPECT_EQ(std::memcmp(out.data(), p.out.bytes().data(), p.out.bytes().size()), 0)
              << describe(c);
        }
      }
    }
  }
}

// --- user code ---

struct EveryField : ScoreModifier<EveryField> {
  float operator()(float score, ScoreAt at) const {
    return score + 0.1f * static_cast<float>(at.batch) + 0.01f * static_cast<float>(at.query % 11) +
           0.5f * static_cast<float>(at.kv_pos % 3) + 0.2f * static_cast<float>(at.head) -
           0.03f * static_cast<float>(at.q_pos % 7);
  }
};

TEST(Regression, AScoreFunctionIsToldTheRightPlaces) {
  const EveryField modifier;
  for (Isa isa : isas()) {
    for (const auto& [q_heads, kv_heads, q_len] : {std::tuple{3, 1, 50}, {4, 4, 1}, {6, 2, 130}}) {
      Case c;
      c.batch = 3;
      c.q_heads = q_heads;
      c.kv_heads = kv_heads;
      c.q_len = q_len;
      c.kv_len = 200;
      c.mask = MaskKind::window_causal;
      Problem p(c);
      p.modifiers.custom[1] = &modifier;
      p.run(isa);
      const Distance distance = from_reference(p);
      EXPECT_LE(distance.out, bound(c)) << isa_name(isa) << describe(c);
      EXPECT_LE(distance.lse, bound(c)) << isa_name(isa) << describe(c);
    }
  }
}

struct Refuses : TileModifier {
  void apply(const ScoreTile&) const override { throw std::runtime_error("not today"); }
};

TEST(Regression, AnExceptionOfAScoreFunctionComesOut) {
  const Refuses modifier;
  ThreadPool pool(3);
  for (Executor* executor : {&Executor::serial(), static_cast<Executor*>(&pool)}) {
    Case c;
    c.q_len = c.kv_len = 300;
    c.q_heads = c.kv_heads = 3;
    Problem p(c);
    p.modifiers.custom[0] = &modifier;
    EXPECT_THROW(p.run(Isa::automatic, executor), std::runtime_error);
    p.modifiers.custom[0] = nullptr;
    EXPECT_NO_THROW(p.run(Isa::automatic, executor)) << "the executor still works";
  }
}

struct Broken : Executor {
  int concurrency() const override { return 4; }
  void run(int, Task) override { throw std::runtime_error("no threads left"); }
};

TEST(Regression, AnExceptionOfTheExecutorComesOut) {
  Broken executor;
  Case c;
  c.q_len = c.kv_len = 600;
  c.q_heads = c.kv_heads = 4;
  Problem p(c);
  EXPECT_THROW(p.run(Isa::automatic, &executor), std::runtime_error);
}

// An executor may run tasks in any order, one after the other: nothing may wait for a task that has
// not begun.
struct Backwards : Executor {
  int concurrency() const override { return 4; }
  void run(int count, Task task) override {
    for (int index = count - 1; index >= 0; --index) task(index);
  }
};

TEST(Regression, TasksRunOneAfterTheOtherInAnyOrder) {
  Backwards executor;
  for (std::int64_t q_len : {1, 3, 200}) {
    for (const Types& types : {kTypes[0], kTypes[1]}) {
      Case c;
      c.q_len = q_len;
      c.kv_len = 5000;
      c.q_heads = 2;
      c.types = types;
      Problem p(c);
      p.run(Isa::automatic);
      const Outputs one(p);
      p.run(Isa::automatic, &executor);
      EXPECT_EQ(differing_bits(one, Outputs(p)), 0) << describe(c);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
