// Rows in the frames in which int8 and int4 lose least: scores stay what they were, up to a
// constant a row, values come back, a row's bits are its own, and what does not fit is refused.
#include "polyhead/code_frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "polyhead/attention.h"
#include "polyhead/isa.h"
#include "polyhead/kv_cache.h"
#include "support/failing_allocation.h"
#include "support/random.h"
#include "support/refusal.h"

namespace polyhead {
namespace {

using test::Random;

struct Sizes {
  std::int64_t tokens, q_heads, kv_heads, dim;
  std::int64_t group() const { return q_heads / kv_heads; }
};
constexpr Sizes kSizes[] = {{5, 4, 2, 64}, {3, 3, 1, 48}, {19, 2, 2, 5}, {2, 2, 1, 768}};

std::vector<float> draws(std::int64_t count, Random& random, double least, double most) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random.uniform(least, most));
  return values;
}

double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

template <class Rows>
View view(Rows& rows, const Sizes& s, std::int64_t heads) {
  return {rows.data(), {std::int64_t{1}, s.tokens, heads, s.dim}};
}

CodeFrame frame_of(const Sizes& s, Random& random) {
  return {draws(s.kv_heads * s.dim, random, -1.0, 1.0),
          draws(s.kv_heads * s.dim, random, 0.5, 2.0)};
}

/// With a rounding that carries errors far.
CodeFrame rounding_frame(const Sizes& s, Random& random) {
  CodeFrame frame = frame_of(s, random);
  frame.carry = draws(s.kv_heads * s.dim * s.dim, random, -0.1, 0.1);
  frame.cost = draws(s.kv_heads * s.dim, random, 0.1, 1.0);
  return frame;
}

/// log2(dim) + 3 roundings of a turned row (docs/numerics.md), and one more for the double beside
/// it, of its largest length: `most` an element.
double turned_error(std::int64_t dim, double most) {
  return (std::log2(static_cast<double>(dim)) + 4.0) * std::ldexp(1.0, -24) * most *
         std::sqrt(static_cast<double>(dim));
}

TEST(CodeFrame, MovesEveryScoreOfARowByTheSame) {
  Random random(7);
  for (const Sizes& s : kSizes) {
    const std::vector<float> q = draws(s.tokens * s.q_heads * s.dim, random, -1.0, 1.0);
    const std::vector<float> k = draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0);
    const CodeFrame frame = frame_of(s, random);
    std::vector<float> turned_q = q, turned_k = k, v = k;
    enter_frames({frame, {}}, view(turned_q, s, s.q_heads), view(turned_k, s, s.kv_heads),
                 view(v, s, s.kv_heads));
    EXPECT_EQ(v, k) << "values without a frame";
    EXPECT_NE(turned_k, k);
    for (std::int64_t head = 0; head < s.q_heads; ++head) {
      const std::int64_t kv_head = head / s.group();
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        const std::int64_t query = (i * s.q_heads + head) * s.dim;
        const double moved = dot(&q[static_cast<std::size_t>(query)],
                                 &frame.centre[static_cast<std::size_t>(kv_head * s.dim)], s.dim);
        for (std::int64_t j = 0; j < s.tokens; ++j) {
          const std::int64_t key = (j * s.kv_heads + kv_head) * s.dim;
          const double before =
              dot(&q[static_cast<std::size_t>(query)], &k[static_cast<std::size_t>(key)], s.dim);
          const double after = dot(&turned_q[static_cast<std::size_t>(query)],
                                   &turned_k[static_cast<std::size_t>(key)], s.dim);
          // A key is at most 2 after centring, over a stretch of 1/2; a query at most 2.
          const double length = std::sqrt(static_cast<double>(s.dim));
          EXPECT_NEAR(
              after, before - moved,
              2.0 * length * turned_error(s.dim, 4.0) + 4.0 * length * turned_error(s.dim, 2.0))
              << s.dim << ' ' << head << ' ' << i << ' ' << j;
        }
      }
    }
  }
}

// What a query head makes of values in their frame is what it would have made of them as they were:
// here with all weight on one token.
TEST(CodeFrame, ValuesComeBack) {
  Random random(8);
  for (const Sizes& s : kSizes) {
    const std::vector<float> v = draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0);
    const LayerFrames frames{{}, frame_of(s, random)};
    std::vector<float> turned = v, out;
    enter_frames(frames, {}, {}, view(turned, s, s.kv_heads));
    EXPECT_NE(turned, v);
    const auto head_of = [&](const std::vector<float>& rows, std::int64_t row, std::int64_t head) {
      return rows.begin() + (row * s.kv_heads + head / s.group()) * s.dim;
    };
    for (std::int64_t row = 0; row < s.tokens * s.q_heads; ++row) {
      const auto from = head_of(turned, row / s.q_heads, row % s.q_heads);
      out.insert(out.end(), from, from + s.dim);
    }
    leave_frames(frames, view(out, s, s.q_heads));
    for (std::int64_t row = 0; row < s.tokens * s.q_heads; ++row) {
      const auto wanted = head_of(v, row / s.q_heads, row % s.q_heads);
      for (std::int64_t d = 0; d < s.dim; ++d) {
        // The turned row's errors stretched by 2 at most, and as many on the way back.
        EXPECT_NEAR(out[static_cast<std::size_t>(row * s.dim + d)], wanted[d],
                    2.0 * 2.0 * turned_error(s.dim, 4.0))
            << s.dim << ' ' << row;
      }
    }
  }
}

/// Bytes of q, k and v after enter_frames and of an out after leave_frames.
struct Entered {
  std::vector<float> q, k, v, out;
  bool operator==(const Entered& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    };
    return same(q, other.q) && same(k, other.k) && same(v, other.v) && same(out, other.out);
  }
};

/// `piece` tokens at a time.
Entered enter(const LayerFrames& frames, Entered rows, const Sizes& s, std::int64_t piece,
              const Options& options) {
  for (std::int64_t first = 0; first < s.tokens; first += piece) {
    const std::int64_t count = std::min(piece, s.tokens - first);
    const auto part = [&](std::vector<float>& of, std::int64_t heads) {
      return View(of.data() + first * heads * s.dim, {count, heads, s.dim});
    };
    enter_frames(frames, part(rows.q, s.q_heads), part(rows.k, s.kv_heads),
                 part(rows.v, s.kv_heads), options);
    leave_frames(frames, part(rows.out, s.q_heads), options);
  }
  return rows;
}

TEST(CodeFrame, ARowHasTheSameBitsInAnyChunkOnAnyThreadsAndInstructionSet) {
  Random random(9);
  ThreadPool pool(4);
  for (const Sizes s : {Sizes{37, 6, 2, 64}, Sizes{21, 2, 2, 33}}) {
    const LayerFrames frames{rounding_frame(s, random), rounding_frame(s, random)};
    const Entered rows{draws(s.tokens * s.q_heads * s.dim, random, -1.0, 1.0),
                       draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0),
                       draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0),
                       draws(s.tokens * s.q_heads * s.dim, random, -1.0, 1.0)};
    const Entered whole = enter(frames, rows, s, s.tokens, {.executor = &Executor::serial()});
    EXPECT_FALSE(whole == rows);
    for (const Isa isa : available_isas()) {
      for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{5}, s.tokens}) {
        EXPECT_TRUE(enter(frames, rows, s, piece, {.isa = isa, .executor = &pool}) == whole)
            << isa_name(isa) << ' ' << piece;
      }
    }
  }
}

// Any strides and batch: [batch, heads, tokens, dim] with a gap, backwards, beside dense tokens.
TEST(CodeFrame, StridesChangeNoBit) {
  Random random(10);
  const Sizes s{6, 2, 2, 32};
  const LayerFrames frames{rounding_frame(s, random), {}};
  const std::vector<float> rows = draws(2 * s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0);
  std::vector<float> dense = rows;
  enter_frames(frames, {}, {dense.data(), {std::int64_t{2}, s.tokens, s.kv_heads, s.dim}}, {});
  const std::int64_t pitch = s.dim + 3, sequence = s.kv_heads * s.tokens * pitch;
  std::vector<float> wide(static_cast<std::size_t>(2 * sequence), 5.0f);
  const View strided(wide.data() + (s.dim - 1), {std::int64_t{2}, s.tokens, s.kv_heads, s.dim},
                     {sequence, pitch, s.tokens * pitch, std::int64_t{-1}});
  const auto at = [&](std::int64_t row, std::int64_t d) -> float& {
    const std::int64_t head = row % s.kv_heads, token = row / s.kv_heads % s.tokens;
    return static_cast<float*>(strided.data)[row / s.kv_heads / s.tokens * sequence +
                                             token * pitch + head * s.tokens * pitch - d];
  };
  for (std::int64_t i = 0; i < std::ssize(rows); ++i)
    at(i / s.dim, i % s.dim) = rows[static_cast<std::size_t>(i)];
  enter_frames(frames, {}, strided, {});
  for (std::int64_t i = 0; i < std::ssize(rows); ++i)
    ASSERT_EQ(at(i / s.dim, i % s.dim), dense[static_cast<std::size_t>(i)]) << i;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (static_cast<std::int64_t>(i) % pitch < s.dim) continue;
    ASSERT_EQ(wide[i], 5.0f) << "a gap";
  }
}

// What leaves rounded, in any float type, is what a cache of int4 reads back.
TEST(CodeFrame, ACacheOfInt4KeepsWhatWasRounded) {
  Random random(11);
  const Sizes s{9, 2, 2, 64};
  const LayerFrames frames{rounding_frame(s, random), rounding_frame(s, random)};
  const auto check = [&](auto element, const auto& narrow, const auto& wide) {
    std::vector<decltype(element)> k, v;
    for (const float x : draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0)) {
      k.push_back(narrow(x));
      v.push_back(narrow(2.0f * x));
    }
    enter_frames(frames, {}, view(k, s, s.kv_heads), view(v, s, s.kv_heads));
    KvCache cache({1, s.kv_heads, s.dim, s.dim, ElementType::int4, s.tokens});
    cache.append(view(k, s, s.kv_heads), view(v, s, s.kv_heads));
    // A cache of floats that takes the codes' rows is no part of the door: one query sees one key.
    for (std::int64_t token = 0; token < s.tokens; ++token) {
      std::vector<float> q(static_cast<std::size_t>(s.q_heads * s.dim), 1.0f), out(q.size(), NAN);
      AttentionArguments call;
      call.q = ConstView(q.data(), {std::int64_t{1}, std::int64_t{1}, s.q_heads, s.dim});
      call.kv = cache.view();
      call.out = View(out.data(), {std::int64_t{1}, std::int64_t{1}, s.q_heads, s.dim});
      call.mask = window(0, 0, Align::unstated);
      call.q_start = ConstView(&token, {std::int64_t{1}});
      attention(call);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], wide(v[static_cast<std::size_t>(token) * out.size() + i])) << token;
    }
  };
  const auto same = [](float x) { return x; };
  const auto widen = [](auto x) { return to_float32(x); };
  check(float{}, same, same);
  check(bfloat16{}, to_bfloat16, widen);
  check(float16{}, to_float16, widen);
}

TEST(CodeFrame, NothingIsDoneWithoutAFrameOrRows) {
  std::vector<float> rows = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<float> before = rows;
  const View one(rows.data(), {1, 2, 2});
  enter_frames({}, one, {}, {});
  leave_frames({}, one);
  const LayerFrames frames{{{1, 1, 1, 1}, {2, 2, 2, 2}}, {{1, 1, 1, 1}, {2, 2, 2, 2}}};
  enter_frames(frames, {}, {}, {});
  enter_frames(frames, {rows.data(), {0, 2, 2}}, {rows.data(), {0, 2, 2}},
               {rows.data(), {0, 2, 2}});
  leave_frames(frames, {rows.data(), {0, 4, 2}});
  EXPECT_EQ(rows, before);
}

// A NaN stays in its row.
TEST(CodeFrame, ANaNStaysInItsRow) {
  Random random(12);
  const Sizes s{3, 2, 2, 32};
  const LayerFrames frames{rounding_frame(s, random), {}};
  std::vector<float> clean = draws(s.tokens * s.kv_heads * s.dim, random, -1.0, 1.0);
  std::vector<float> dirty = clean;
  const std::int64_t row = 3;
  dirty[static_cast<std::size_t>(row * s.dim + 7)] = std::numeric_limits<float>::quiet_NaN();
  for (std::vector<float>* rows : {&clean, &dirty})
    enter_frames(frames, {}, view(*rows, s, s.kv_heads), {});
  for (std::int64_t i = 0; i < std::ssize(clean); ++i) {
    const float found = dirty[static_cast<std::size_t>(i)];
    if (i / s.dim == row) {
      EXPECT_TRUE(std::isnan(found)) << i;
    } else {
      EXPECT_EQ(found, clean[static_cast<std::size_t>(i)]) << i;
    }
  }
}

/// A good call, each part of which a test may spoil.
struct Good {
  Random random{13};
  Sizes s{3, 4, 2, 8};
  LayerFrames frames{rounding_frame(s, random), rounding_frame(s, random)};
  std::vector<float> rows = draws(3 * 3 * 4 * 8, random, -1.0, 1.0);
  View q{rows.data(), {3, 4, 8}}, k{rows.data() + 96, {3, 2, 8}}, v{rows.data() + 192, {3, 2, 8}};
};

template <class Spoil>
std::string refused(const Spoil& spoil) {
  Good call;
  spoil(call);
  const std::vector<float> before = call.rows;
  const std::string message =
      test::refusal_of([&] { enter_frames(call.frames, call.q, call.k, call.v); });
  EXPECT_TRUE(message == "accepted" || call.rows == before) << message;
  return message;
}

TEST(CodeFrame, RefusesByNameWithNothingWritten) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused([](Good&) {}), "accepted");
  EXPECT_EQ(refused([](Good& g) {
              g.k.layout = {3, 1, 8};
            }),
            "enter_frames: v has 2 heads, expected k's 1");
  EXPECT_EQ(refused([](Good& g) {
              g.k.layout = g.v.layout = {3, 1, 8};
            }),
            "enter_frames: frames.keys.centre has 16 numbers, expected 8: kv_heads * dim");
  EXPECT_EQ(refused([](Good& g) {
              g.v.layout = {2, 2, 8};
            }),
            "enter_frames: v has tokens 2, expected k's 3");
  EXPECT_EQ(refused([](Good& g) {
              g.v.layout = {3, 2, 4};
            }),
            "enter_frames: frames.values.centre has 16 numbers, expected 8: kv_heads * dim");
  EXPECT_EQ(refused([](Good& g) {
              g.q.layout = {3, 3, 8};
            }),
            "enter_frames: q has 3 heads, expected a multiple of the KV heads, 2");
  EXPECT_EQ(refused([](Good& g) {
              g.q.layout = {3, 4, 4};
            }),
            "enter_frames: q has 4 dims, expected k's 8");
  EXPECT_EQ(refused([](Good& g) {
              g.k = g.v = {};
              g.q.layout = {3, 4, 4};
            }),
            "enter_frames: frames.keys.carry has 128 numbers, expected 64: kv_heads * dim * dim");
  EXPECT_EQ(refused([](Good& g) {
              g.q.layout = {3, 32};
            }),
            "enter_frames: q has 2 axes; expected [tokens, heads, dim] or [batch, tokens, heads, "
            "dim]");
  EXPECT_EQ(refused([](Good& g) { g.k.type = ElementType::int32; }),
            "enter_frames: k is int32; expected float32, float16 or bfloat16");
  EXPECT_EQ(refused([](Good& g) { g.k.data = nullptr; }),
            "enter_frames: k: data is null, but the view has elements");
  EXPECT_EQ(refused([](Good& g) { g.k.layout.strides[0] = 0; }),
            "enter_frames: k: its elements overlap each other");
  EXPECT_EQ(refused([](Good& g) { g.v.data = g.k.data; }),
            "enter_frames: v overlaps k (or cannot be shown not to)");
  EXPECT_EQ(refused([](Good& g) {
              g.v.layout = {1, 1, 769};
            }),
            "enter_frames: v has 769 dims, expected at most 768");
  EXPECT_EQ(refused([](Good& g) { g.frames.keys.stretch.pop_back(); }),
            "enter_frames: frames.keys.stretch has 15 numbers, expected 16: kv_heads * dim");
  EXPECT_EQ(refused([](Good& g) { g.frames.keys.cost.clear(); }),
            "enter_frames: frames.keys.cost has 0 numbers, expected 16: kv_heads * dim");
  EXPECT_EQ(refused([](Good& g) { g.frames.values.centre[3] = kNan; }),
            "enter_frames: frames.values.centre[3] is nan, expected a finite number");
  EXPECT_EQ(refused([](Good& g) { g.frames.values.carry[127] = -INFINITY; }),
            "enter_frames: frames.values.carry[127] is -inf, expected a finite number");
  EXPECT_EQ(refused([](Good& g) { g.frames.keys.cost[15] = kNan; }),
            "enter_frames: frames.keys.cost[15] is nan, expected a finite number");
  EXPECT_EQ(refused([](Good& g) { g.frames.keys.stretch[5] = 0.0f; }),
            "enter_frames: frames.keys.stretch[5] is 0, expected a positive number");
  EXPECT_EQ(refused([](Good& g) { g.frames.values.cost[2] = -0.5f; }),
            "enter_frames: frames.values.cost[2] is -0.5, expected no number below 0");
  EXPECT_EQ(refused([](Good& g) {
              g.frames.keys = {};
              g.q.layout.extents[1] = 3;
            }),
            "enter_frames: q has 3 heads, expected a multiple of the KV heads, 2");
}

TEST(CodeFrame, LeavingRefusesByName) {
  Good good;
  const auto leaving = [&](const View& out, const Options& options = {}) {
    return test::refusal_of([&] { leave_frames(good.frames, out, options); });
  };
  EXPECT_EQ(leaving(good.q), "accepted");
  EXPECT_EQ(leaving({}), "leave_frames: out is not given");
  EXPECT_EQ(leaving({good.rows.data(), {3, 3, 8}}),
            "leave_frames: out has 3 heads, expected a multiple of the KV heads, 2");
  EXPECT_EQ(leaving({good.rows.data(), {3, 4, 4}}),
            "leave_frames: frames.values.carry has 128 numbers, expected 64: kv_heads * dim * dim");
  EXPECT_EQ(leaving({good.rows.data(), {3, 4, 8}, {0, 8, 1}}),
            "leave_frames: out: its elements overlap each other");
  EXPECT_EQ(leaving(good.q, {.threads = -1}), "leave_frames: threads (-1) is negative");
  good.frames.values.stretch[0] = -1.0f;
  EXPECT_EQ(leaving(good.q),
            "leave_frames: frames.values.stretch[0] is -1, expected a positive number");
}

// A step of decoding: not one allocation.
TEST(CodeFrame, AllocatesNothing) {
  Good good;
  const Options serial{.executor = &Executor::serial()};
  enter_frames(good.frames, good.q, good.k, good.v, serial);
  test::allocations_left = 0;  // the next one fails
  enter_frames(good.frames, good.q, good.k, good.v, serial);
  leave_frames(good.frames, good.q, serial);
  test::allocations_left = -1;
}

}  // namespace
}  // namespace polyhead
