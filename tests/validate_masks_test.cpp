// Refused masks, positions and modifiers.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "polyhead/attention.h"
#include "support/refused.h"

namespace polyhead::test {
namespace {

TEST(Refused, AlignmentMustBeStated) {
  expect_refused(
      "attention: mask.align is unstated, but a causal mask depends on it where q_len (3) and "
      "kv_len (5) or their "
      "valid lengths may differ; expected Align::end, Align::start or q_start",
      [](auto& a) { a.mask = causal(); });
  expect_refused("attention: mask.align is unstated, but a window depends*",
                 [](auto& a) { a.mask = window(1, 0); });
  expect_refused("attention: mask.align is unstated, but alibi depends*",
                 [](auto& a) { a.modifiers.alibi.use_default_slopes = true; });
  expect_refused("attention: mask.align is unstated, but dropout depends*",
                 [](auto& a) { a.modifiers.dropout.probability = 0.5f; });
  expect_accepted([](auto& a) { a.mask = window(-1, -1); });
  expect_accepted([](auto& a) { a.mask = causal(Align::start); });
  static const std::int32_t start[] = {0, 4}, lengths5[] = {5, 5}, lengths3[] = {3, 2};
  expect_accepted([](auto& a) { a.mask = causal(), a.q_start = {start, {2}}; });
  expect_refused("attention: q_start and mask.align are both given, expected one", [](auto& a) {
    a.mask = causal(Align::end);
    a.q_start = {start, {2}};
  });
  // Equal extents, but the valid lengths may differ.
  const auto square = [](auto& a) {
    a.k.layout.extents[1] = a.v.layout.extents[1] = 3;
    a.mask = causal();
  };
  expect_accepted(square);
  expect_refused("attention: mask.align is unstated*", [&](auto& a) {
    square(a);
    a.mask = a.mask & lengths({lengths3, {2}});
  });
  expect_accepted([&](auto& a) {
    square(a);
    a.mask = a.mask & lengths({lengths3, {2}}, {lengths3, {2}});
  });
  expect_accepted([&](auto& a) { a.mask = lengths({lengths5, {2}}); });
}

TEST(Refused, Masks) {
  expect_refused("attention: mask joins two masks of one kind that differ: prefix",
                 [](auto& a) { a.mask = prefix(1) & prefix(2); });
  expect_refused("attention: mask.left (-2) is less than -1 (unbounded)", [](auto& a) {
    a.mask = window(1, 1, Align::end);
    a.mask.left = -2;
  });
  expect_refused("attention: mask.right (-7) is less than -1 (unbounded)", [](auto& a) {
    a.mask = window(1, 1, Align::end);
    a.mask.right = -7;
  });
  expect_refused("attention: mask.left (1) is given without mask.windowed, expected that or -1",
                 [](auto& a) { a.mask.left = 1; });
  expect_refused("attention: mask.right (0) is given without mask.windowed, expected that or -1",
                 [](auto& a) { a.mask.right = 0; });
  expect_refused("attention: mask.prefix_length (-1) is negative",
                 [](auto& a) { a.mask = prefix(-1, Align::end); });
  expect_refused("attention: mask.prefix_length is given without mask.causal",
                 [](auto& a) { a.mask.prefix_length = 2; });
  expect_refused("attention: mask.prefix_lengths is given without mask.causal", [](auto& a) {
    static const std::int32_t lengths[] = {2, 3};
    a.mask.prefix_lengths = {lengths, {2}};
  });
  static const std::int32_t negative[] = {2, -3}, three[] = {1, 2, 3};
  static const float floats[] = {1, 2};
  expect_refused("attention: mask.prefix_lengths[1] (-3) is negative", [](auto& a) {
    a.mask = prefix({negative, {2}}, Align::end);
  });
  expect_refused("attention: mask.prefix_lengths: batch is 3, expected 2", [](auto& a) {
    a.mask = prefix({three, {3}}, Align::end);
  });
  expect_refused("attention: mask.kv_lengths[1] (-3) is not within 0 .. 5", [](auto& a) {
    a.mask = lengths({negative, {2}});
  });
  static const std::int64_t long_ones[] = {5, 6};
  expect_refused("attention: mask.kv_lengths[1] (6) is not within 0 .. 5", [](auto& a) {
    a.mask = lengths({long_ones, {2}});
  });
  expect_refused("attention: mask.q_lengths[0] (5) is not within 0 .. 3", [](auto& a) {
    a.mask = lengths({long_ones, {2}}, {long_ones, {2}}), a.mask.kv_lengths = {};
  });
  expect_refused("attention: mask.kv_lengths is float32, expected int32 or int64", [](auto& a) {
    a.mask = lengths({floats, {2}});
  });
  static const std::int64_t far[] = {0, kMax};
  expect_refused("attention: q_start[1] (9223372036854775807) is not within -2^48 .. 2^48",
                 [](auto& a) {
                   a.q_start = {far, {2}};
                 });
}

TEST(Refused, DocumentsAndTables) {
  static const std::int32_t ids[10] = {};
  static const std::uint8_t bytes[128] = {};
  static const float floats[64] = {};
  expect_refused("attention: mask.kv_documents is not given, expected [batch, tokens]",
                 [](auto& a) {
                   a.mask = documents({ids, {1, 3}}, {});
                 });
  expect_refused("attention: mask.q_documents: tokens is 5, expected 3", [](auto& a) {
    a.mask = documents({ids, {1, 5}}, {ids, {1, 5}});
  });
  expect_refused("attention: mask.kv_documents: batch is 3, expected 2 or 1", [](auto& a) {
    a.mask = documents({ids, {1, 3}}, {ids, {3, 5}, {0, 1}});
  });
  expect_refused("attention: mask.q_documents is float32*", [](auto& a) {
    a.mask = documents({floats, {1, 3}}, {ids, {1, 5}});
  });
  expect_refused(
      "attention: mask.visible is float32, expected boolean or bit (an additive mask is "
      "modifiers.bias)",
      [](auto& a) {
        a.mask = boolean({floats, {1, 1, 3, 5}});
      });
  expect_refused(
      "attention: mask.hidden is float32, expected boolean or bit (an additive mask is "
      "modifiers.bias)",
      [](auto& a) {
        a.mask = hidden({floats, {1, 1, 3, 5}});
      });
  expect_refused("attention: mask.hidden: q_heads is 2, expected 4 or 1", [](auto& a) {
    a.mask = hidden({bytes, {1, 2, 3, 5}});
  });
  expect_refused("attention: mask.visible: kv_len is 2, expected 5 or 1", [](auto& a) {
    a.mask = boolean({bytes, {1, 1, 3, 2}});
  });
  expect_accepted([](auto& a) { a.mask = boolean({bytes, {1, 1, 3, 1}}); });
  expect_refused("attention: mask.visible: q_heads is 2, expected 4 or 1", [](auto& a) {
    a.mask = boolean({bytes, {1, 2, 3, 5}});
  });
  expect_refused("attention: mask.visible has 2 axes, expected 4: [batch, q_heads, q_len, kv_len]",
                 [](auto& a) {
                   a.mask = boolean({bytes, {3, 5}});
                 });
  const auto bits = [](std::int64_t row, std::int64_t key) {
    return boolean({bytes, ElementType::bit,
                    detail::Layout({1, 1, 3, 5}, {std::int64_t{0}, std::int64_t{0}, row, key})});
  };
  expect_accepted([&](auto& a) { a.mask = bits(8, 1); });
  expect_refused("attention: mask.visible: kv_len is 1, expected 5", [&](auto& a) {
    a.mask = bits(8, 1);
    a.mask.visible.layout.extents[3] = 1;
  });
  expect_refused("attention: mask.visible: stride of axis 2 is 5 bits, expected whole bytes",
                 [&](auto& a) { a.mask = bits(5, 1); });
  expect_refused("attention: mask.visible: stride of the key axis is 2 bits, expected 1",
                 [&](auto& a) { a.mask = bits(16, 2); });
}

TEST(Refused, Modifiers) {
  static const float floats[64] = {};
  static const std::uint8_t bytes[64] = {};
  static const std::int32_t ids[2] = {};
  expect_refused("attention: modifiers.scale (nan) is not finite",
                 [](auto& a) { a.modifiers.scale = kNan; });
  expect_refused("attention: modifiers.scale (inf) is not finite",
                 [](auto& a) { a.modifiers.scale = kInfinity; });
  expect_refused("attention: modifiers.soft_cap (-1) is neither 0 (none) nor within 1e-30 .. 1e+30",
                 [](auto& a) { a.modifiers.soft_cap = -1.0f; });
  expect_refused("attention: modifiers.soft_cap (3.40282e+38)*",
                 [](auto& a) { a.modifiers.soft_cap = std::numeric_limits<float>::max(); });
  expect_refused("attention: modifiers.soft_cap (1e-39)*",
                 [](auto& a) { a.modifiers.soft_cap = 1e-39f; });
  expect_accepted([](auto& a) { a.modifiers.soft_cap = 1e30f; });
  expect_accepted([](auto& a) { a.modifiers.soft_cap = 1e-30f; });
  expect_refused("attention: modifiers.soft_cap (nan)*",
                 [](auto& a) { a.modifiers.soft_cap = kNan; });
  expect_refused("attention: modifiers.dropout.probability (1) is not within [0, 1)",
                 [](auto& a) { a.modifiers.dropout.probability = 1.0f; });
  expect_refused("attention: modifiers.dropout.probability (-0.5)*",
                 [](auto& a) { a.modifiers.dropout.probability = -0.5f; });
  expect_refused("attention: modifiers.dropout.probability (nan)*",
                 [](auto& a) { a.modifiers.dropout.probability = kNan; });
  expect_refused("attention: modifiers.dropout.sequence_ids: batch is 1, expected 2", [](auto& a) {
    a.modifiers.dropout.sequence_ids = {ids, {1}};
  });
  expect_refused(
      "attention: modifiers.bias is boolean, expected float32, float16 or bfloat16 (boolean masks "
      "are mask.visible and mask.hidden)",
      [](auto& a) {
        a.modifiers.bias = {bytes, {1, 1, 3, 5}};
      });
  expect_refused("attention: modifiers.bias: q_len is 2, expected 3 or 1", [](auto& a) {
    a.modifiers.bias = {floats, {1, 1, 2, 5}};
  });
  expect_refused("attention: modifiers.bias: kv_len is 4, expected 5 or 1", [](auto& a) {
    a.modifiers.bias = {floats, {1, 1, 1, 4}};
  });
  expect_refused("attention: modifiers.sink: q_heads is 2, expected 4", [](auto& a) {
    a.modifiers.sink = {floats, {2}};
  });
  expect_refused("attention: modifiers.sink is int32, expected float32", [](auto& a) {
    a.modifiers.sink = {reinterpret_cast<const std::int32_t*>(floats), {4}};
  });
  static const float sinks[4] = {0, -kInfinity, 1, kInfinity}, slopes[4] = {1, 1, kInfinity, 1};
  expect_refused("attention: modifiers.sink[3] (inf) is neither finite nor -inf (none)",
                 [](auto& a) {
                   a.modifiers.sink = {sinks, {4}};
                 });
  expect_refused("attention: modifiers.alibi.slopes[2] (inf) is not finite", [](auto& a) {
    a.modifiers.alibi.slopes = {slopes, {4}};
    a.mask.align = Align::end;
  });
  expect_refused("attention: modifiers.alibi.slopes: q_heads is 1, expected 4", [](auto& a) {
    a.modifiers.alibi.slopes = {floats, {1}};
    a.mask.align = Align::end;
  });
  expect_refused("attention: modifiers.alibi has both slopes and use_default_slopes, expected one",
                 [](auto& a) {
                   a.modifiers.alibi = {true, {floats, {4}}};
                   a.mask.align = Align::end;
                 });
}

}  // namespace
}  // namespace polyhead::test
