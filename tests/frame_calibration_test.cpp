// Frames found on some text: attention over int8 and int4 in them is nearer to what it is over
// float32, the same frames come out of any chunks, and what cannot be calibrated is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/crew.hpp"
#include "frames/rope_pairs.hpp"
#include "polyhead/attention.h"
#include "polyhead/code_frame.h"
#include "polyhead/kv_cache.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead {
namespace {

using test::Random;

constexpr std::int64_t kQHeads = 4, kKvHeads = 2, kDim = 64, kValueDim = 32;

RopeConfig rope(RopePairing pairing = RopePairing::half_split) {
  RopeConfig config;
  config.pairing = pairing;
  config.base = 10000.0;
  return config;
}

FrameCalibrationConfig config_of(bool rotated = true) {
  FrameCalibrationConfig config{kQHeads, kKvHeads, kDim, kValueDim};
  if (rotated) config.rope = rope();
  return config;
}

/// q, k and v of some tokens as models have them: keys around a centre and queries of few
/// directions, channels of very different size, then RoPE; a few channels of v are large.
struct Text {
  Text(std::int64_t first, std::int64_t count, std::uint64_t seed) : tokens(count) {
    Random random(seed), shape(1);  // one layer's shape, whatever the text
    const auto sizes = [&](std::int64_t dims) {
      std::vector<double> of;
      for (std::int64_t d = 0; d < dims; ++d) of.push_back(std::exp(shape.normal()));
      return of;
    };
    const std::vector<double> q_size = sizes(kDim), k_size = sizes(kDim), v_size = sizes(kValueDim);
    std::vector<double> centre, direction;
    for (std::int64_t d = 0; d < kDim; ++d) {
      centre.push_back(3.0 * shape.normal() * k_size[static_cast<std::size_t>(d)]);
      direction.push_back(shape.normal());
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      positions.push_back(first + t);
      for (std::int64_t h = 0; h < kQHeads; ++h) {
        const double along = random.normal();
        for (std::size_t d = 0; d < kDim; ++d) {
          q.push_back(
              static_cast<float>(0.3 * q_size[d] * (along * direction[d] + 0.3 * random.normal())));
        }
      }
      for (std::int64_t i = 0; i < kKvHeads * kDim; ++i) {
        const auto d = static_cast<std::size_t>(i % kDim);
        k.push_back(static_cast<float>(centre[d] + k_size[d] * random.normal()));
      }
      for (std::int64_t i = 0; i < kKvHeads * kValueDim; ++i) {
        const auto d = static_cast<std::size_t>(i % kValueDim);
        v.push_back(static_cast<float>(v_size[d] * random.normal()));
      }
    }
    const ConstView at(positions.data(), {tokens});
    apply_rope({q.data(), {tokens, kQHeads, kDim}}, at, rope());
    apply_rope({k.data(), {tokens, kKvHeads, kDim}}, at, rope());
  }

  View queries(std::int64_t first, std::int64_t count) {
    return {q.data() + first * kQHeads * kDim, {std::int64_t{1}, count, kQHeads, kDim}};
  }
  View keys(std::int64_t first, std::int64_t count) {
    return {k.data() + first * kKvHeads * kDim, {std::int64_t{1}, count, kKvHeads, kDim}};
  }
  View values(std::int64_t first, std::int64_t count) {
    return {v.data() + first * kKvHeads * kValueDim, {std::int64_t{1}, count, kKvHeads, kValueDim}};
  }
  ConstView places(std::int64_t first, std::int64_t count) const {
    return {positions.data() + first, {std::int64_t{1}, count}};
  }

  std::int64_t tokens;
  std::vector<std::int64_t> positions;
  std::vector<float> q, k, v;
};

void add(FrameCalibration& to, Text& text, std::int64_t piece, const Options& options = {}) {
  for (std::int64_t first = 0; first < text.tokens; first += piece) {
    const std::int64_t count = std::min(piece, text.tokens - first);
    to.add(text.queries(first, count), text.keys(first, count), text.values(first, count),
           text.places(first, count), options);
  }
}

/// Causal attention over what a cache of `type` holds of a text, entered into frames before.
std::vector<float> attend(Text text, ElementType type, const LayerFrames& frames,
                          std::int64_t piece = 1000) {
  KvCache cache({1, kKvHeads, kDim, kValueDim, type, text.tokens});
  std::vector<float> out(static_cast<std::size_t>(text.tokens * kQHeads * kValueDim), NAN);
  for (std::int64_t first = 0; first < text.tokens; first += piece) {
    const std::int64_t count = std::min(piece, text.tokens - first);
    const View q = text.queries(first, count), k = text.keys(first, count),
               v = text.values(first, count);
    enter_frames(frames, q, k, v);
    cache.append(k, v);
    AttentionArguments call;
    call.q = q;
    call.kv = cache.view();
    call.out = {out.data() + first * kQHeads * kValueDim,
                {std::int64_t{1}, count, kQHeads, kValueDim}};
    call.mask = causal(Align::end);
    attention(call);
    leave_frames(frames, call.out);
  }
  return out;
}

double squared_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double sum = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i)
    sum += std::pow(static_cast<double>(found[i]) - expected[i], 2);
  return sum;
}

LayerFrames calibrated(ElementType type) {
  Text prompt(0, 700, 2);
  FrameCalibration calibration(config_of());
  add(calibration, prompt, 700);
  return calibration.frames(type, 2000);
}

// On text that was not calibrated on, at later positions. A quarter of the error is what anybody
// could ask of so uneven a layer; a tenth and less is seen.
TEST(FrameCalibration, CodesInFramesLoseLess) {
  const Text text(900, 300, 3);
  const std::vector<float> exact = attend(text, ElementType::float32, {});
  for (const ElementType type : {ElementType::int8, ElementType::int4}) {
    const LayerFrames frames = calibrated(type);
    EXPECT_EQ(frames.keys.carry.empty(), type == ElementType::int8);
    EXPECT_EQ(frames.values.given(), type == ElementType::int4);
    const double without = squared_error(attend(text, type, {}), exact);
    const double within = squared_error(attend(text, type, frames), exact);
    RecordProperty(std::string("of_plain_") + element_name(type), std::to_string(within / without));
    EXPECT_LT(within, without / 4.0) << element_name(type);
  }
}

// With the bits of the plain call through any chunks.
TEST(FrameCalibration, ChunksChangeNoBitOfAttention) {
  const Text text(0, 90, 4);
  const LayerFrames frames = calibrated(ElementType::int4);
  const std::vector<float> whole = attend(text, ElementType::int4, frames);
  for (const std::int64_t piece : {1, 17})
    EXPECT_EQ(attend(text, ElementType::int4, frames, piece), whole) << piece;
}

bool same(const CodeFrame& a, const CodeFrame& b) {
  return a.centre == b.centre && a.stretch == b.stretch && a.carry == b.carry && a.cost == b.cost;
}

TEST(FrameCalibration, TheSameFramesFromAnyChunksThreadsAndStrides) {
  ThreadPool pool(3);
  Text text(0, 150, 5);
  FrameCalibration one(config_of());
  add(one, text, 150, {.executor = &Executor::serial()});
  const LayerFrames expected = one.frames(ElementType::int4, 500);
  for (const std::int64_t piece : {1, 7, 64, 150}) {
    FrameCalibration other(config_of());
    add(other, text, piece, {.executor = &pool});
    EXPECT_EQ(other.tokens(), 150);
    const LayerFrames found = other.frames(ElementType::int4, 500);
    EXPECT_TRUE(same(found.keys, expected.keys)) << piece;
    EXPECT_TRUE(same(found.values, expected.values)) << piece;
  }
  // One sequence without a batch axis, its tokens every second row.
  FrameCalibration third(config_of());
  std::vector<float> q(text.q.size() * 2, NAN);
  for (std::size_t i = 0; i < text.q.size(); ++i)
    q[i / (kQHeads * kDim) * 2 * kQHeads * kDim + i % (kQHeads * kDim)] = text.q[i];
  const std::vector<std::int32_t> positions(text.positions.begin(), text.positions.end());
  third.add(ConstView(q.data(), {text.tokens, kQHeads, kDim}, {2 * kQHeads * kDim, kDim, 1L}),
            ConstView(text.k.data(), {text.tokens, kKvHeads, kDim}),
            ConstView(text.v.data(), {text.tokens, kKvHeads, kValueDim}),
            ConstView(positions.data(), {text.tokens}));
  EXPECT_TRUE(same(third.frames(ElementType::int4, 500).keys, expected.keys));
}

TEST(FrameCalibration, CentresOnlyWhereTheyMayBe) {
  Text text(0, 100, 6);
  FrameCalibrationConfig config = config_of();
  config.centred = false;
  FrameCalibration calibration(config);
  add(calibration, text, 100);
  for (const float c : calibration.frames(ElementType::int8, 200).keys.centre) EXPECT_EQ(c, 0.0f);
  const std::vector<float> with = calibrated(ElementType::int4).keys.centre;
  EXPECT_GT(*std::ranges::max_element(with), 0.0f);
}

// Rows seen at one place say what their averages are at others: here beside turning each of them.
TEST(FrameCalibration, AveragesAreThoseOfAllPositions) {
  const std::int64_t dim = 10, rows = 7, length = 300;
  const Crew crew = crew_of("test", {});
  for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
    RopeConfig config = rope(pairing);
    config.base = 500.0;
    config.rotary_dims = 8;
    const auto pairs = frames::rope_pairs(config, dim);
    ASSERT_EQ(pairs.size(), 4U);
    Random random(3);
    std::vector<float> still;
    for (std::int64_t i = 0; i < rows * dim; ++i)
      still.push_back(static_cast<float>(random.uniform(-1.0, 2.0)));
    const auto turned = [&](std::int64_t row, std::int64_t position) {
      std::vector<float> x(still.begin() + row * dim, still.begin() + (row + 1) * dim);
      apply_rope({x.data(), {std::int64_t{1}, std::int64_t{1}, dim}},
                 {&position, {std::int64_t{1}}}, config);
      return std::vector<double>(x.begin(), x.end());
    };
    frames::TurnedBackSums sums(2, dim);
    std::vector<double> value(10, 0.0), moment(100, 0.0);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<double> back = turned(row, 5 * row);
      frames::turn_back(back, pairs, frames::turns_back(pairs, 5 * row));
      sums.add(crew, 1, back);
      for (std::int64_t position = 0; position < length; ++position) {
        const std::vector<double> x = turned(row, position);
        for (std::size_t d = 0; d < x.size(); ++d) {
          value[d] += x[d] / static_cast<double>(rows * length);
          for (std::size_t e = 0; e < x.size(); ++e)
            moment[d * 10 + e] += x[d] * x[e] / static_cast<double>(rows * length);
        }
      }
    }
    const auto average = sums.over(length, pairs);
    for (std::size_t d = 0; d < value.size(); ++d)
      EXPECT_NEAR(average.value[10 + d], value[d], 1e-6) << d;
    for (std::size_t i = 0; i < moment.size(); ++i)
      EXPECT_NEAR(average.moment[100 + i], moment[i], 2e-6) << i / 10 << ' ' << i % 10;
  }
}

// W'W of each head's columns, summed over a group, beside what three loops make of it.
TEST(FrameCalibration, ValueMomentsAreThoseOfTheProjection) {
  constexpr std::int64_t kOut = 7, kColumns = kQHeads * kValueDim;
  Random random(7);
  std::vector<float> w(kOut * kColumns), turned(w.size());
  for (float& x : w) x = static_cast<float>(random.normal());
  for (std::int64_t i = 0; i < std::ssize(w); ++i)
    turned[static_cast<std::size_t>(i % kColumns * kOut + i / kColumns)] =
        w[static_cast<std::size_t>(i)];
  const auto moments = value_moments({w.data(), {kOut, kColumns}}, kKvHeads, kValueDim);
  ASSERT_EQ(std::ssize(moments), kKvHeads * kValueDim * kValueDim);
  double factor = 0.0;
  for (std::int64_t at = 0; at < std::ssize(moments); ++at) {
    const std::int64_t i = at / kValueDim % kValueDim, j = at % kValueDim;
    double sum = 0.0;
    for (std::int64_t head = 0; head < kQHeads; ++head) {
      if (head / (kQHeads / kKvHeads) != at / kValueDim / kValueDim) continue;
      for (std::int64_t row = 0; row < kOut; ++row) {
        const float* const from = &w[static_cast<std::size_t>(row * kColumns + head * kValueDim)];
        sum += static_cast<double>(from[i]) * from[j];
      }
    }
    if (at == 0) factor = moments[0] / sum;
    EXPECT_NEAR(moments[static_cast<std::size_t>(at)], factor * sum, 1e-12) << at;
  }
  EXPECT_EQ(value_moments({turned.data(), {kOut, kColumns}, {1L, kOut}}, kKvHeads, kValueDim),
            moments);
  const auto refusal = [&](const ConstView& w_o, std::int64_t heads, std::int64_t dim) {
    return test::refusal_of([&] { (void)value_moments(w_o, heads, dim); });
  };
  EXPECT_EQ(refusal({w.data(), {kOut, kColumns}}, 3, kValueDim),
            "value_moments: w_o has 128 columns, expected those of whole groups of 3 KV heads of "
            "32");
  EXPECT_EQ(refusal({w.data(), {kColumns}}, 1, kValueDim),
            "value_moments: w_o has 1 axis; expected [out, q_heads * value_dim]");
  EXPECT_EQ(refusal({w.data(), {kOut, kColumns}}, 0, kValueDim),
            "value_moments: kv_heads (0) is not within 1 .. 65536");
  EXPECT_EQ(refusal({w.data(), {kOut, kColumns}}, 1, 769),
            "value_moments: value_dim (769) is not within 1 .. 768");
}

// Errors are put where the moments say that they cost least.
TEST(FrameCalibration, MomentsShapeTheRoundingOfValues) {
  Text text(0, 200, 8);
  FrameCalibration calibration(config_of());
  add(calibration, text, 200);
  std::vector<double> moments(kKvHeads * kValueDim * kValueDim, 0.0);
  for (std::size_t i = 0; i < moments.size(); ++i)
    moments[i] = i % kValueDim == i / kValueDim % kValueDim ? 1.0 : 0.9;  // nearly one direction
  const LayerFrames alike = calibration.frames(ElementType::int4, 200);
  const LayerFrames shaped = calibration.frames(ElementType::int4, 200, moments);
  EXPECT_TRUE(same(alike.keys, shaped.keys));
  const auto cost = [&](const LayerFrames& frames) {
    Text rounded = text;
    const View v = rounded.values(0, rounded.tokens);
    enter_frames(frames, {}, {}, v);
    leave_frames(frames, v);
    double sum = 0.0;
    for (std::size_t row = 0; row < text.v.size(); row += kValueDim) {
      double along = 0.0;
      for (std::size_t d = 0; d < kValueDim; ++d)
        along += static_cast<double>(rounded.v[row + d]) - text.v[row + d];
      sum += along * along;
    }
    return sum;
  };
  EXPECT_LT(cost(shaped), cost(alike) / 4.0);
}

TEST(FrameCalibration, RefusesByName) {
  const auto made = [](const auto& spoil) {
    FrameCalibrationConfig config = config_of();
    spoil(config);
    return test::refusal_of([&] { FrameCalibration calibration(config); });
  };
  EXPECT_EQ(made([](auto& c) { c.q_heads = 3; }),
            "FrameCalibration: q_heads (3) is not a multiple of kv_heads (2)");
  EXPECT_EQ(made([](auto& c) { c.kv_heads = 0; }),
            "FrameCalibration: kv_heads (0) is not within 1 .. 65536");
  EXPECT_EQ(made([](auto& c) { c.head_dim = 769; }),
            "FrameCalibration: head_dim (769) is not within 1 .. 768");
  EXPECT_EQ(made([](auto& c) { c.rope->rotary_dims = 65; }).substr(0, 18), "FrameCalibration: ");

  Text text(0, 5, 9);
  FrameCalibration calibration(config_of());
  const auto adding = [&](const ConstView& q, const ConstView& k, const ConstView& v,
                          const ConstView& positions) {
    return test::refusal_of([&] { calibration.add(q, k, v, positions); });
  };
  const View q = text.queries(0, 5), k = text.keys(0, 5), v = text.values(0, 5);
  const ConstView at = text.places(0, 5);
  EXPECT_EQ(adding({}, k, v, at), "FrameCalibration::add: q is not given");
  EXPECT_EQ(adding(k, k, v, at), "FrameCalibration::add: q has 2 heads, expected 4");
  EXPECT_EQ(adding(q, k, k, at), "FrameCalibration::add: v has 64 dims, expected 32");
  EXPECT_EQ(adding(q, text.keys(0, 4), v, at),
            "FrameCalibration::add: k has tokens 4, expected q's 5");
  EXPECT_EQ(adding(q, k, v, {}),
            "FrameCalibration::add: positions are not given; expected int32 or int64, as there is "
            "a RoPE");
  EXPECT_EQ(adding(q, k, v, text.places(0, 4)),
            "FrameCalibration::add: positions have 4 on axis 1; expected q's 5");
  EXPECT_EQ(adding(q, k, v, q),
            "FrameCalibration::add: positions are float32; expected int32 or "
            "int64");
  text.v[70] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(
      adding(q, k, v, at),
      "FrameCalibration::add: v has inf at sequence 0, token 1, head 0, dim 6, expected finite "
      "numbers");
  EXPECT_EQ(calibration.tokens(), 0);
  const auto framing = [&](ElementType type, std::int64_t length, std::vector<double> moments) {
    return test::refusal_of([&] { (void)calibration.frames(type, length, moments); });
  };
  EXPECT_EQ(framing(ElementType::int8, 9, {}), "FrameCalibration::frames: no token was added yet");
  text.v[70] = 1.0f;
  EXPECT_EQ(adding(q, k, v, at), "accepted");
  EXPECT_EQ(framing(ElementType::int8, 9, {}), "accepted");
  EXPECT_EQ(framing(ElementType::float16, 9, {}),
            "FrameCalibration::frames: type is float16, expected int8 or int4");
  EXPECT_EQ(framing(ElementType::int8, 0, {}),
            "FrameCalibration::frames: length (0) is not at least 1");
  EXPECT_EQ(framing(ElementType::int4, 9, {1.0}),
            "FrameCalibration::frames: moments has 1 numbers, expected 2048: kv_heads * value_dim "
            "* value_dim");
  std::vector<double> moments(2048, NAN);
  EXPECT_EQ(framing(ElementType::int4, 9, moments),
            "FrameCalibration::frames: moments[0] is nan, expected a finite number");
  std::ranges::fill(moments, 0.0);
  EXPECT_EQ(framing(ElementType::int4, 9, moments), "accepted");  // of a head that nobody reads
  moments[1024 + 32 + 2] = 50.0;
  EXPECT_EQ(framing(ElementType::int4, 9, moments),
            "FrameCalibration::frames: moments of KV head 1 have 0 at [2][1] and 50 at [1][2], "
            "expected symmetric ones");
  moments[1024 + 64 + 1] = 50.0;
  EXPECT_EQ(
      framing(ElementType::int4, 9, moments)
          .find("FrameCalibration::frames: moments of KV head 1 are no sum of squares: a pivot "
                "of theirs is -"),
      0);
}

// A head of one value at all tokens, or of none but zeros, has a frame too.
TEST(FrameCalibration, DullRowsHaveAFrame) {
  FrameCalibration calibration({2, 1, 4, 4});
  const std::vector<float> zeros(3 * 2 * 4, 0.0f), ones(3 * 4, 1.0f);
  calibration.add(ConstView(zeros.data(), {3, 2, 4}), ConstView(ones.data(), {3, 1, 4}),
                  ConstView(zeros.data(), {3, 1, 4}));
  for (const ElementType type : {ElementType::int8, ElementType::int4}) {
    std::vector<float> k = ones;
    enter_frames(calibration.frames(type, 8), {}, {k.data(), {3, 1, 4}}, {});
    for (const float x : k) EXPECT_EQ(x, 0.0f);
  }
}

// What sums of equal rows leave of their variance is rounding, not a spread to go by.
TEST(FrameCalibration, KeysThatDoNotVaryStretchNothing) {
  constexpr std::int64_t kEqual = 700, kWide = 4;
  std::vector<float> q, k, v(kEqual * kWide, 1.0f);
  for (std::int64_t row = 0; row < kEqual; ++row) {
    for (const float key : {0.1f, -1.3f, 2.7f, 0.9f}) {
      k.push_back(key);
      q.push_back(static_cast<float>(q.size() % 5) - 2.0f);
    }
  }
  FrameCalibration calibration({.head_dim = kWide});
  calibration.add(ConstView(q.data(), {kEqual, 1, kWide}), ConstView(k.data(), {kEqual, 1, kWide}),
                  ConstView(v.data(), {kEqual, 1, kWide}));
  const auto frames = calibration.frames(ElementType::int8, 100);
  for (const float stretch : frames.keys.stretch) EXPECT_NEAR(stretch, 0.8f, 0.1f);
}

}  // namespace
}  // namespace polyhead
