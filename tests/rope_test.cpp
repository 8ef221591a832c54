// Rotary embeddings: frequencies against values computed apart, rotations by their properties.
#include "polyhead/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/random.h"
#include "support/refusal.h"

namespace {

using polyhead::ConstView;
using polyhead::RopeConfig;
using polyhead::RopePairing;
using polyhead::RopeScaling;
using polyhead::View;
using polyhead::test::random_floats;

constexpr RopePairing kPairings[] = {RopePairing::half_split, RopePairing::interleaved};

RopeConfig config_of(RopePairing pairing, double base = 10000.0) {
  RopeConfig config;
  config.pairing = pairing;
  config.base = base;
  return config;
}

std::vector<float> rotated(std::vector<float> head, std::int64_t position,
                           const RopeConfig& config) {
  const auto dim = static_cast<std::int64_t>(head.size());
  polyhead::apply_rope(View(head.data(), {std::int64_t{1}, std::int64_t{1}, dim}),
                       ConstView(&position, {1}), config);
  return head;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

struct Known {
  std::size_t pair;
  double frequency;
};

void expect_known(const RopeConfig& config, std::int64_t head_dim,
                  std::initializer_list<Known> known) {
  const std::vector<double> frequencies = polyhead::rope_frequencies(config, head_dim);
  ASSERT_EQ(frequencies.size(), static_cast<std::size_t>(head_dim / 2));
  // The expected values are printed doubles of the same formula in another order: a dozen
  // roundings.
  for (const Known& k : known) {
    EXPECT_NEAR(frequencies[k.pair], k.frequency, 1e-14 * k.frequency) << "pair " << k.pair;
  }
}

// The figures below come from a few lines of Python that follow the papers' formulas directly, with
// f(i) = base ** (-2 * i / d).

TEST(Rope, LlamaThreeFrequencies) {
  // w = 2 * pi / f; f / 8 if w > 8192 / 1; f if w < 8192 / 4; else with t = (8192 / w - 1) / (4 -
  // 1): (1 - t) * f / 8 + t * f.
  RopeConfig config = config_of(RopePairing::half_split, 500000.0);
  config.scaling = RopeScaling::llama3;
  config.factor = 8;
  config.original_length = 8192;
  expect_known(config, 128,
               {{0, 1.0},
                {1, 0.8146172338565447},
                {28, 0.003211445994752591},
                {29, 0.002166570763503359},
                {32, 0.0005248461609929547},
                {34, 0.0001785078127679964},
                {35, 9.556212353964683e-05},
                {63, 3.068925988914511e-07}});
  EXPECT_EQ(polyhead::rope_attention_factor(config), 1.0);
}

TEST(Rope, DivisorsApplyOnTopOfAScaling) {
  // f(i) / 2 (linear), then by the divisor of the pair.
  RopeConfig config = config_of(RopePairing::half_split, 10000.0);
  config.scaling = RopeScaling::linear;
  config.factor = 2;
  config.frequency_divisors = {1.0f, 8.0f, 1.0f, 0.5f};
  expect_known(config, 8, {{0, 0.5}, {1, 0.1 / 16}, {2, 0.005}, {3, 0.001}});
}

TEST(Rope, YarnFrequencies) {
  // ends(n) = d * ln(4096 / (2 * pi * n)) / (2 * ln(base)), lo = floor(ends(32)) = 10,
  // hi = ceil(ends(1)) = 23; r = clamp((i - lo) / (hi - lo)); f / 4 * r + f * (1 - r).
  RopeConfig config = config_of(RopePairing::half_split);
  config.scaling = RopeScaling::yarn;
  config.factor = 4;
  config.original_length = 4096;
  expect_known(config, 64,
               {{0, 1.0},
                {10, 0.05623413251903491},
                {11, 0.039736785900001015},
                {16, 0.006538461538461538},
                {22, 0.0005471628953965915},
                {23, 0.000333380358040831},
                {31, 3.33380358040831e-05}});
  // 0.1 * ln(4) + 1
  EXPECT_NEAR(polyhead::rope_attention_factor(config), 1.138629436111989, 1e-15);
}

TEST(Rope, YarnWithoutTruncation) {
  // lo = 8.092779115512402, hi = 17.39802450158856
  RopeConfig config = config_of(RopePairing::interleaved, 150000.0);
  config.scaling = RopeScaling::yarn;
  config.factor = 32;
  config.original_length = 4096;
  config.truncate = false;
  expect_known(config, 64,
               {{8, 0.050813274815461475},
                {9, 0.03170569618466377},
                {17, 0.0001293187012450632},
                {18, 3.8308812373753384e-05},
                {31, 3.0235114281192144e-07}});
  EXPECT_NEAR(polyhead::rope_attention_factor(config), 1.3465735902799727, 1e-15);
}

TEST(Rope, YarnAttentionFactors) {
  RopeConfig config = config_of(RopePairing::interleaved);
  config.scaling = RopeScaling::yarn;
  config.factor = 40;
  config.original_length = 4096;
  config.mscale = 1.0;
  config.mscale_all_dim = 0.707;
  // (0.1 * 1.0 * ln(40) + 1) / (0.1 * 0.707 * ln(40) + 1)
  EXPECT_NEAR(polyhead::rope_attention_factor(config), 1.0857263992561355, 1e-15);
  config.mscale_all_dim = 1.0;
  EXPECT_EQ(polyhead::rope_attention_factor(config), 1.0);
  config.attention_factor = 0.75;
  EXPECT_EQ(polyhead::rope_attention_factor(config), 0.75);
}

TEST(Rope, LinearAndNtkFrequencies) {
  RopeConfig config = config_of(RopePairing::half_split);
  config.factor = 4;
  config.scaling = RopeScaling::linear;
  expect_known(config, 64, {{0, 0.25}, {16, 0.0025}});
  // base = 10000 * 4 ** (64 / 62): the last frequency is that of linear scaling, the first
  // unchanged
  config.scaling = RopeScaling::ntk_aware;
  expect_known(config, 64,
               {{0, 1.0},
                {1, 0.7170983281048126},
                {16, 0.004889442681677164},
                {31, 3.3338035804083106e-05}});
  expect_known(config, 2, {{0, 1.0}});
}

// Twice the rounding of a rotation (two products and a sum of float32, with rounded cos and sin): 4
// eps of the pair's norm, for each of q and k; so a dot product of d terms is within 8 eps |q||k|
// plus its own double rounding.
constexpr double kDotTolerance = 8 * 0x1p-24;

TEST(Rope, DotProductsDependOnDistanceAlone) {
  for (const RopePairing pairing : kPairings) {
    const RopeConfig config = config_of(pairing);
    const auto q = random_floats(64, 1), k = random_floats(64, 2);
    const double bound = kDotTolerance * std::sqrt(dot(q, q) * dot(k, k));
    for (const std::int64_t distance : {0, 1, 7, 63, 64, 1000}) {
      const double expected = dot(rotated(q, distance, config), k);
      for (const std::int64_t start : {-5, 1, 63, 64, 4095, 131072, 1 << 20, 8'000'001}) {
        const double found = dot(rotated(q, start + distance, config), rotated(k, start, config));
        EXPECT_NEAR(found, expected, bound) << "distance " << distance << " from " << start;
      }
    }
  }
}

TEST(Rope, PositionZeroIsIdentity) {
  for (const RopePairing pairing : kPairings) {
    const auto head = random_floats(96, 3);
    EXPECT_EQ(rotated(head, 0, config_of(pairing)), head);
  }
}

TEST(Rope, AgreesWithTheFormulaInDouble) {
  for (const RopePairing pairing : kPairings) {
    for (const std::int64_t position : {1LL, 63LL, 64LL, 127LL, 5000LL, 3'000'017LL, -77LL}) {
      RopeConfig config = config_of(pairing, 500000.0);
      config.rotary_dims = 48;
      const auto head = random_floats(80, 4);
      const auto found = rotated(head, position, config);
      for (std::size_t i = 0; i < 24; ++i) {
        const std::size_t a = pairing == RopePairing::half_split ? i : 2 * i;
        const std::size_t b = pairing == RopePairing::half_split ? i + 24 : 2 * i + 1;
        const double angle = static_cast<double>(position) *
                             std::pow(500000.0, -2.0 * static_cast<double>(i) / 48.0);
        const double x = head[a], y = head[b];
        // cos and sin rounded (half an eps of 2^-23 each), two products and a sum: 2^-24 * 4 of the
        // norm.
        const double bound =
            4 * 0x1p-24 * std::hypot(x, y) + 1e-9;  // 1e-9: the angle's own rounding
        EXPECT_NEAR(found[a], x * std::cos(angle) - y * std::sin(angle), bound);
        EXPECT_NEAR(found[b], x * std::sin(angle) + y * std::cos(angle), bound);
      }
      for (std::size_t i = 48; i < 80; ++i) EXPECT_EQ(found[i], head[i]) << "past rotary_dims";
    }
  }
}

TEST(Rope, HalfSplitIsInterleavedPermuted) {
  const auto interleaved = random_floats(64, 5);
  std::vector<float> split(64);
  for (std::size_t i = 0; i < 32; ++i) {
    split[i] = interleaved[2 * i];
    split[i + 32] = interleaved[2 * i + 1];
  }
  const auto a = rotated(interleaved, 12345, config_of(RopePairing::interleaved));
  const auto b = rotated(split, 12345, config_of(RopePairing::half_split));
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(a[2 * i], b[i]);
    EXPECT_EQ(a[2 * i + 1], b[i + 32]);
  }
}

TEST(Rope, YarnScalesWhatItRotates) {
  RopeConfig config = config_of(RopePairing::half_split);
  config.scaling = RopeScaling::yarn;
  config.factor = 4;
  config.original_length = 4096;
  config.rotary_dims = 32;
  const auto head = random_floats(64, 6);
  const auto found = rotated(head, 0, config);
  const float factor = static_cast<float>(polyhead::rope_attention_factor(config));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(found[i], i < 32 ? head[i] * factor : head[i]);
}

TEST(Rope, StridesBatchesAndTypes) {
  constexpr std::int64_t batch = 2, tokens = 130, heads = 3, dim = 8;
  const auto values = random_floats(batch * tokens * heads * dim, 7);
  std::vector<int> positions(batch * tokens);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int>(i * 37 % 1000);
  const RopeConfig config = config_of(RopePairing::interleaved);
  auto dense = values;
  polyhead::apply_rope(View(dense.data(), {batch, tokens, heads, dim}),
                       ConstView(positions.data(), {batch, tokens}), config);

  // The same in [batch, heads, dim, tokens] order, in bfloat16 and float16.
  std::vector<float> permuted(values.size());
  std::vector<polyhead::bfloat16> narrow(values.size());
  std::vector<polyhead::float16> half(values.size());
  const auto moved = [&](std::size_t i) {
    const std::size_t d = i % dim, h = i / dim % heads, t = i / dim / heads % tokens;
    const std::size_t b = i / dim / heads / tokens;
    return ((b * heads + h) * dim + d) * tokens + t;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    permuted[moved(i)] = values[i];
    narrow[i] = polyhead::to_bfloat16(values[i]);
    half[i] = polyhead::to_float16(values[i]);
  }
  const std::initializer_list<std::int64_t> extents = {batch, tokens, heads, dim};
  const std::initializer_list<std::int64_t> strides = {heads * dim * tokens, 1, dim * tokens,
                                                       tokens};
  polyhead::apply_rope(View(permuted.data(), extents, strides),
                       ConstView(positions.data(), {batch, tokens}), config);
  polyhead::apply_rope(View(narrow.data(), extents), ConstView(positions.data(), {batch, tokens}),
                       config);
  polyhead::apply_rope(View(half.data(), extents), ConstView(positions.data(), {batch, tokens}),
                       config);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(permuted[moved(i)], dense[i]);
    // Input and output rounding: half a unit of each, of the pair's norm (largest value here under
    // 6).
    ASSERT_NEAR(polyhead::to_float32(narrow[i]), dense[i], 6 * 0x1p-8);
    ASSERT_NEAR(polyhead::to_float32(half[i]), dense[i], 6 * 0x1p-11);
  }
}

TEST(Rope, RunsOfTokensEqualSingleOnes) {
  constexpr std::int64_t tokens = 300, dim = 64;
  const auto values = random_floats(tokens * dim, 8);
  std::vector<std::int64_t> positions(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) positions[static_cast<std::size_t>(i)] = 5000 + i;
  const RopeConfig config = config_of(RopePairing::half_split);
  auto together = values;
  polyhead::apply_rope(View(together.data(), {tokens, std::int64_t{1}, dim}),
                       ConstView(positions.data(), {tokens}), config);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto from = values.begin() + i * dim;
    const auto one = rotated(std::vector<float>(from, from + dim), 5000 + i, config);
    for (std::int64_t d = 0; d < dim; ++d) {
      ASSERT_EQ(one[static_cast<std::size_t>(d)], together[static_cast<std::size_t>(i * dim + d)]);
    }
  }
}

template <class Change>
void expect_refused(const char* message, Change change) {
  RopeConfig config = config_of(RopePairing::half_split);
  change(config);
  try {
    polyhead::rope_frequencies(config, 64);
    FAIL() << "expected: " << message;
  } catch (const polyhead::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), message);
  }
}

TEST(Rope, RefusesImpossibleConfigurations) {
  expect_refused("rope_frequencies: rope.pairing is not stated; expected half_split or interleaved",
                 [](RopeConfig& c) { c.pairing = RopePairing::unstated; });
  expect_refused(
      "rope_frequencies: rope.pairing (9) is no pairing, expected half_split or interleaved",
      [](RopeConfig& c) { c.pairing = static_cast<RopePairing>(9); });
  expect_refused(
      "rope_frequencies: rope.scaling (9) is no scaling, expected none, linear, ntk_aware, yarn or "
      "llama3",
      [](RopeConfig& c) { c.scaling = static_cast<RopeScaling>(9); });
  EXPECT_EQ(
      polyhead::test::refusal_of([] { polyhead::rope_attention_factor({}); }),
      "rope_attention_factor: rope.pairing is not stated; expected half_split or interleaved");
  expect_refused("rope_frequencies: rope.base (0) is not positive and finite",
                 [](RopeConfig& c) { c.base = 0; });
  expect_refused(
      "rope_frequencies: rope.rotary_dims (66) is not an even number from 0 to head_dim (64)",
      [](RopeConfig& c) { c.rotary_dims = 66; });
  expect_refused(
      "rope_frequencies: rope.rotary_dims (3) is not an even number from 0 to head_dim (64)",
      [](RopeConfig& c) { c.rotary_dims = 3; });
  EXPECT_EQ(polyhead::test::refusal_of(
                [] { polyhead::rope_frequencies(config_of(RopePairing::half_split), -4); }),
            "rope_frequencies: rope turns all of -4 dims, expected an even number of them or "
            "rope.rotary_dims");
  expect_refused("rope_frequencies: rope.factor (8) is given without a rope.scaling",
                 [](RopeConfig& c) { c.factor = 8; });
  expect_refused("rope_frequencies: rope.factor (0.5) is not finite and at least 1",
                 [](RopeConfig& c) { c.scaling = RopeScaling::linear, c.factor = 0.5; });
  expect_refused("rope_frequencies: rope.original_length (0) is not positive",
                 [](RopeConfig& c) { c.scaling = RopeScaling::llama3; });
  expect_refused(
      "rope_frequencies: rope.high_freq_factor (1) is not above rope.low_freq_factor (1)",
      [](RopeConfig& c) {
        c.scaling = RopeScaling::llama3, c.original_length = 8192, c.high_freq_factor = 1;
      });
}

// The factor alone is asked for without the frequencies, which have been refused then.
TEST(Rope, TheAttentionFactorRefusesWhatFrequenciesDo) {
  RopeConfig yarn = config_of(RopePairing::half_split);
  yarn.scaling = RopeScaling::yarn;
  yarn.factor = 4;
  yarn.original_length = 4096;
  const auto message = [&](auto change) {
    RopeConfig config = yarn;
    change(config);
    return polyhead::test::refusal_of([&] { polyhead::rope_attention_factor(config); });
  };
  const std::string kCall = "rope_attention_factor: rope.";
  EXPECT_EQ(message([](RopeConfig&) {}), "accepted");
  EXPECT_EQ(message([](RopeConfig& c) { c.factor = NAN; }),
            kCall + "factor (nan) is not finite and at least 1");
  EXPECT_EQ(message([](RopeConfig& c) { c.original_length = 0; }),
            kCall + "original_length (0) is not positive");
  EXPECT_EQ(message([](RopeConfig& c) { c.base = NAN; }),
            kCall + "base (nan) is not positive and finite");
  EXPECT_EQ(message([](RopeConfig& c) { c.scaling = RopeScaling::linear, c.factor = -1; }),
            kCall + "factor (-1) is not finite and at least 1");
  EXPECT_EQ(message([](RopeConfig& c) {
              c = config_of(RopePairing::half_split);
              c.scaling = static_cast<RopeScaling>(9);
            }),
            kCall + "scaling (9) is no scaling, expected none, linear, ntk_aware, yarn or llama3");
  EXPECT_EQ(message([](RopeConfig& c) { c.mscale_all_dim = -1; }),
            kCall + "mscale_all_dim (-1) is negative or not finite");
  EXPECT_EQ(message([](RopeConfig& c) { c.mscale = -1e-9; }),
            kCall + "mscale (-1e-09) is negative or not finite");
}

TEST(Rope, RefusesFieldsOfAnotherScaling) {
  expect_refused("rope_frequencies: rope.original_length (77) is given without a rope.scaling",
                 [](RopeConfig& c) { c.original_length = 77; });
  expect_refused(
      "rope_frequencies: rope.attention_factor (5) is given without yarn as rope.scaling",
      [](RopeConfig& c) { c.attention_factor = 5; });
  expect_refused("rope_frequencies: rope.mscale (1) is given without yarn as rope.scaling",
                 [](RopeConfig& c) { c.scaling = RopeScaling::linear, c.mscale = 1; });
  expect_refused("rope_frequencies: rope.beta_fast (16) is given without yarn as rope.scaling",
                 [](RopeConfig& c) { c.scaling = RopeScaling::ntk_aware, c.beta_fast = 16; });
  expect_refused("rope_frequencies: rope.truncate (0) is given without yarn as rope.scaling",
                 [](RopeConfig& c) { c.truncate = false; });
  expect_refused(
      "rope_frequencies: rope.low_freq_factor (2) is given without llama3 as rope.scaling",
      [](RopeConfig& c) { c.low_freq_factor = 2; });
  RopeConfig config = config_of(RopePairing::half_split);
  config.attention_factor = 5;
  EXPECT_THROW(polyhead::rope_attention_factor(config), polyhead::InvalidArgument);
}

TEST(Rope, RefusesImpossibleDivisors) {
  expect_refused(
      "rope_frequencies: rope.frequency_divisors has 3 elements (expected 32, one a pair)",
      [](RopeConfig& c) {
        c.frequency_divisors = {1, 1, 1};
      });
  expect_refused("rope_frequencies: rope.frequency_divisors[31] (0) is not positive and finite",
                 [](RopeConfig& c) {
                   c.frequency_divisors.assign(32, 1.0f), c.frequency_divisors[31] = 0.0f;
                 });
}

TEST(Rope, RefusesMismatchedPositions) {
  std::vector<float> x(2 * 3 * 4);
  std::vector<std::int64_t> positions(3);
  EXPECT_THROW(polyhead::apply_rope(View(x.data(), {2, 3, 4}), ConstView(positions.data(), {3}),
                                    config_of(RopePairing::half_split)),
               polyhead::InvalidArgument);
  EXPECT_THROW(polyhead::apply_rope(View(x.data(), {3, 8}), ConstView(positions.data(), {3}),
                                    config_of(RopePairing::half_split)),
               polyhead::InvalidArgument);
  const auto refusal = [&](View rotated, ConstView at) {
    return polyhead::test::refusal_of(
        [&] { polyhead::apply_rope(rotated, at, config_of(RopePairing::half_split)); });
  };
  const View rows(x.data(), {3, 2, 4});
  EXPECT_EQ(refusal(rows, {}), "apply_rope: positions are not given; expected int32 or int64");
  EXPECT_EQ(refusal(rows, ConstView(positions.data(), {3}, {1, 1})),
            "apply_rope: positions have more than 5 axes, or not as many strides as extents; "
            "expected those of x's tokens, 1");
  View far = rows;
  far.layout.strides[0] = std::int64_t{1} << 62;
  EXPECT_EQ(refusal(far, ConstView(positions.data(), {3})),
            "apply_rope: x: extents times strides overflow 64 bits (axis 0)");
  View twice = rows;
  twice.layout.strides[1] = 3;
  EXPECT_EQ(refusal(twice, ConstView(positions.data(), {3})),
            "apply_rope: x: its elements overlap each other");
  EXPECT_EQ(refusal(View(reinterpret_cast<float*>(positions.data()), {3, 1, 2}),
                    ConstView(positions.data(), {3})),
            "apply_rope: x overlaps positions (or cannot be shown not to)");
  EXPECT_NO_THROW(polyhead::apply_rope(View(x.data(), {0, 3, 4}), ConstView(positions.data(), {0}),
                                       config_of(RopePairing::half_split)));
}

}  // namespace
