// Bad input: everything refused names the argument, what was found and what was expected, and
// writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr ElementType f32 = ElementType::float32;

/// A good call: batch 2, q_len 3, kv_len 5, heads 4 / 2, dims 8 / 6, with every output.
struct Sample {
  Tensor q{f32, {2, 3, 4, 8}}, k{f32, {2, 5, 2, 8}}, v{f32, {2, 5, 2, 6}}, out{f32, {2, 3, 4, 6}},
      lse{f32, {2, 3, 4}}, entropy{f32, {2, 3, 4}}, max_weight{f32, {2, 3, 4}},
      max_key{ElementType::int64, {2, 3, 4}};
  AttentionArguments arguments;

  Sample() {
    Random random(1);
    for (Tensor* input : {&q, &k, &v}) input->fill_normal(random);
    arguments.q = q.view();
    arguments.k = k.view();
    arguments.v = v.view();
    arguments.out = out.view();
    arguments.lse = lse.view();
    arguments.statistics = {entropy.view(), max_weight.view(), max_key.view()};
  }

  std::vector<std::vector<std::byte>> written() const {
    return {out.bytes(), lse.bytes(), entropy.bytes(), max_weight.bytes(), max_key.bytes()};
  }
};

using Change = std::function<void(AttentionArguments&)>;

/// The message with which a changed good call is refused; "accepted" if it is not.
std::string message_of(const Change& change) {
  Sample sample;
  change(sample.arguments);
  const auto before = sample.written();
  std::string message = "accepted";
  try {
    attention(sample.arguments);
  } catch (const InvalidArgument& error) {
    message = error.what();
    EXPECT_EQ(sample.written(), before) << message;
  }
  return message;
}

/// Each change of a good call is refused with exactly this message (or one that begins so, where it
/// ends in '*').
void expect_refused(const std::string& expected, const Change& change) {
  const std::string message = message_of(change);
  if (expected.back() == '*') {
    EXPECT_EQ(message.substr(0, expected.size() - 1), expected.substr(0, expected.size() - 1))
        << message;
  } else {
    EXPECT_EQ(message, expected);
  }
}

void expect_accepted(const Change& change) { EXPECT_EQ(message_of(change), "accepted"); }

TEST(Refused, NothingElse) {
  expect_accepted([](AttentionArguments&) {});
}

TEST(Refused, MissingTensorsAndAxes) {
  expect_refused("attention: q is not given, expected [batch, q_len, q_heads, head_dim]",
                 [](auto& a) { a.q = {}; });
  expect_refused("attention: out is not given*", [](auto& a) { a.out = {}; });
  expect_refused("attention: k has 3 axes, expected 4: [batch, kv_len, kv_heads, head_dim]",
                 [](auto& a) { a.k.layout.axes = 3; });
  expect_refused("attention: v has 5 axes*", [](auto& a) { a.v.layout.axes = 5; });
  expect_refused("attention: q has more*", [](auto& a) { a.q.layout.too_many_axes = true; });
  expect_refused("attention: lse has 4 axes, expected 3: [batch, q_len, q_heads]", [](auto& a) {
    a.lse.layout.axes = 4;
    a.lse.layout.extents[3] = 1;
  });
}

TEST(Refused, ElementTypes) {
  expect_refused("attention: q is int32, expected float32, float16 or bfloat16",
                 [](auto& a) { a.q.type = ElementType::int32; });
  expect_refused("attention: out is boolean*", [](auto& a) { a.out.type = ElementType::boolean; });
  expect_refused("attention: v is bit*", [](auto& a) { a.v.type = ElementType::bit; });
  expect_refused("attention: lse is float16, expected float32",
                 [](auto& a) { a.lse.type = ElementType::float16; });
  expect_refused("attention: statistics.max_key is int32, expected int64",
                 [](auto& a) { a.statistics.max_key.type = ElementType::int32; });
}

TEST(Refused, Extents) {
  expect_refused("attention: k: batch is 1, expected 2",
                 [](auto& a) { a.k.layout.extents[0] = 1; });
  expect_refused("attention: k: head_dim is 7, expected 8",
                 [](auto& a) { a.k.layout.extents[3] = 7; });
  expect_refused("attention: v: kv_len is 4, expected 5",
                 [](auto& a) { a.v.layout.extents[1] = 4; });
  expect_refused("attention: v: kv_heads is 1, expected 2",
                 [](auto& a) { a.v.layout.extents[2] = 1; });
  expect_refused("attention: out: q_len is 2, expected 3",
                 [](auto& a) { a.out.layout.extents[1] = 2; });
  expect_refused("attention: out: q_heads is 3, expected 4",
                 [](auto& a) { a.out.layout.extents[2] = 3; });
  expect_refused("attention: out: value_dim is 5, expected 6",
                 [](auto& a) { a.out.layout.extents[3] = 5; });
  expect_refused("attention: lse: q_len is 2, expected 3",
                 [](auto& a) { a.lse.layout.extents[1] = 2; });
  expect_refused("attention: statistics.entropy: q_heads is 2, expected 4",
                 [](auto& a) { a.statistics.entropy.layout.extents[2] = 2; });
  expect_refused("attention: q: q_len (-1) is negative",
                 [](auto& a) { a.q.layout.extents[1] = -1; });
  expect_refused("attention: q_heads (3) is not a multiple of kv_heads (2)", [](auto& a) {
    for (auto* view : {&a.q.layout, &a.out.layout, &a.lse.layout}) view->extents[2] = 3;
    a.statistics = {};
  });
  expect_refused("attention: q_heads (4) is not a multiple of kv_heads (0)",
                 [](auto& a) { a.k.layout.extents[2] = a.v.layout.extents[2] = 0; });
  expect_refused("attention: head_dim (1025) is more than 768", [](auto& a) {
    a.q.layout.extents[3] = a.k.layout.extents[3] = 1025;
    a.q.layout.strides = a.k.layout.strides = {};
  });
  expect_refused("attention: q: extent 562949953421312 of axis 1 is more than 2^48", [](auto& a) {
    a.q.layout.extents[1] = a.out.layout.extents[1] = a.lse.layout.extents[1] = std::int64_t{1}
                                                                                << 49;
    a.statistics = {};
  });
}

TEST(Refused, Overflow) {
  expect_refused("attention: q: extents times strides overflow 64 bits (axis 1)",
                 [](auto& a) { a.q.layout.strides[1] = kMax / 2; });
  expect_refused("attention: q: extents times strides overflow 64 bits (axis 0)",
                 [](auto& a) { a.q.layout.strides[0] = std::numeric_limits<std::int64_t>::min(); });
  expect_refused("attention: k: extents times strides leave the address space",
                 [](auto& a) { a.k.layout.strides[1] = -(std::int64_t{1} << 58); });
  // A dense layout whose number of elements wraps round.
  expect_refused("attention: *", [](auto& a) {
    const std::int64_t huge = std::int64_t{1} << 40;
    a.q.layout = detail::Layout({huge, huge, std::int64_t{4}, std::int64_t{8}});
  });
}

TEST(Refused, Data) {
  expect_refused("attention: k: data is null, but the view has elements",
                 [](auto& a) { a.k.data = nullptr; });
  expect_refused("attention: lse: data is null, but the view has elements",
                 [](auto& a) { a.lse.data = nullptr; });
  expect_refused("attention: q: data is not aligned to its element type float32",
                 [](auto& a) { a.q.data = static_cast<const char*>(a.q.data) + 1; });
}

TEST(Refused, OutputsThatOverlapThemselves) {
  expect_refused("attention: out: its elements overlap each other",
                 [](auto& a) { a.out.layout.strides[0] = 0; });
  expect_refused("attention: out: its elements overlap each other",
                 [](auto& a) { a.out.layout.strides[2] = 5; });
  expect_refused("attention: lse: its elements overlap each other",
                 [](auto& a) { a.lse.layout.strides[2] = 0; });
  // Strides 2 and 3 with extents 4 and 3: element (3, 0) is (0, 2).
  expect_refused("attention: out: its elements overlap each other", [](auto& a) {
    a.out.layout.strides = {72, 24, 2, 3, 0};
  });
}

TEST(Refused, InterleavedButSeparateElementsAreFine) {
  // Heads 7 apart and dims 4 apart: 7 h + 4 d with h < 4, d < 6 names each element once (7 and 4
  // are coprime and h < 4), although the rows interleave.
  Sample sample;
  std::vector<float> memory(2 * 3 * 64);
  sample.arguments.out = {memory.data(), {2, 3, 4, 6}, {192, 64, 7, 4}};
  EXPECT_NO_THROW(attention(sample.arguments));
  // Backwards, too.
  sample.arguments.out = {memory.data() + 2 * 3 * 24 - 1, {2, 3, 4, 6}, {-72, -24, -6, -1}};
  EXPECT_NO_THROW(attention(sample.arguments));
}

TEST(Refused, OutputsThatOverlapOthers) {
  expect_refused("attention: out overlaps q (or cannot be shown not to)",
                 [](auto& a) { a.out.data = const_cast<void*>(a.q.data); });
  expect_refused("attention: lse overlaps v (or cannot be shown not to)",
                 [](auto& a) { a.lse.data = const_cast<void*>(a.v.data); });
  expect_refused("attention: lse overlaps out (or cannot be shown not to)",
                 [](auto& a) { a.lse.data = a.out.data; });
  expect_refused(
      "attention: statistics.max_weight overlaps statistics.entropy (or cannot be shown not to)",
      [](auto& a) { a.statistics.max_weight = a.statistics.entropy; });
  expect_refused("attention: lse overlaps modifiers.bias (or cannot be shown not to)", [](auto& a) {
    a.modifiers.bias = {static_cast<const float*>(a.lse.data), {1, 4, 1, 1}};
  });
  // One element too many: the last of q is the first of out.
  std::vector<float> memory(2 * 3 * 4 * (8 + 6));
  expect_refused("attention: out overlaps q (or cannot be shown not to)", [&](auto& a) {
    a.q = {memory.data(), {2, 3, 4, 8}};
    a.out = {memory.data() + 191, {2, 3, 4, 6}};
  });
}

TEST(Refused, SlicesOfOnePackedRowAreFine) {
  // [tokens, 2 batch-major, 4 + 2 + 2 + 4 heads of 8]: q, k, v and out side by side in every token.
  std::vector<float> memory(2 * 5 * 12 * 8, 0.5f);
  const std::int64_t token = 12 * 8, batch = 5 * token, head = 8, one = 1;
  AttentionArguments a;
  const auto slice = [&](std::int64_t first_head, std::int64_t heads) {
    return View(memory.data() + first_head * 8,
                {std::int64_t{2}, std::int64_t{5}, heads, std::int64_t{8}},
                {batch, token, head, one});
  };
  a.q = slice(0, 4);
  a.k = slice(4, 2);
  a.v = slice(6, 2);
  a.out = slice(8, 4);
  EXPECT_NO_THROW(attention(a));
  a.out = slice(7, 4);  // one head into v
  EXPECT_THROW(attention(a), InvalidArgument);
  // Per head instead: [tokens, heads, q k v out of 8 each].
  const auto part = [&](std::int64_t which) {
    return View(memory.data() + which * 8, {2, 5, 3, 8}, {batch, token, std::int64_t{32}, one});
  };
  a.q = part(0), a.k = part(1), a.v = part(2), a.out = part(3);
  EXPECT_NO_THROW(attention(a));
}

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
  expect_refused("attention: mask joins two masks of one kind that differ",
                 [](auto& a) { a.mask = prefix(1) & prefix(2); });
  expect_refused("attention: mask.left (-2) is less than -1 (unbounded)", [](auto& a) {
    a.mask = window(1, 1, Align::end);
    a.mask.left = -2;
  });
  expect_refused("attention: mask.right (-7) is less than -1 (unbounded)", [](auto& a) {
    a.mask = window(1, 1, Align::end);
    a.mask.right = -7;
  });
  expect_refused("attention: mask.prefix_length (-1) is negative",
                 [](auto& a) { a.mask = prefix(-1, Align::end); });
  expect_refused("attention: mask.prefix_length is given without mask.causal",
                 [](auto& a) { a.mask.prefix_length = 2; });
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
  expect_refused("attention: mask.visible: kv_len is 1, expected 5", [](auto& a) {
    a.mask = boolean({bytes, {1, 1, 3, 1}});
  });
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
  expect_refused("attention: modifiers.soft_cap (-1) is neither 0 (none) nor finite and positive",
                 [](auto& a) { a.modifiers.soft_cap = -1.0f; });
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
      "attention: modifiers.bias is boolean, expected float32, float16 or bfloat16 (a boolean mask "
      "is "
      "mask.visible)",
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

/// A good ragged call: two sequences of 2 and 1 queries, 3 and 2 keys.
struct Ragged {
  std::int32_t q_offsets[3] = {0, 2, 3}, kv_offsets[3] = {0, 3, 5};
  Tensor q{f32, {3, 4, 8}}, k{f32, {5, 2, 8}}, v{f32, {5, 2, 6}}, out{f32, {3, 4, 6}},
      lse{f32, {3, 4}};
  AttentionArguments arguments;
  Ragged() {
    Random random(1);
    for (Tensor* input : {&q, &k, &v}) input->fill_normal(random);
    arguments.q = q.view(), arguments.k = k.view(), arguments.v = v.view();
    arguments.out = out.view(), arguments.lse = lse.view();
    arguments.q_offsets = {q_offsets, {3}};
    arguments.kv_offsets = {kv_offsets, {3}};
  }
  std::string message() {
    const std::vector<std::byte> before = out.bytes();
    try {
      attention(arguments);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(out.bytes(), before);
      return error.what();
    }
    return "accepted";
  }
};

TEST(Refused, Offsets) {
  EXPECT_EQ(Ragged().message(), "accepted");
  Ragged one_sided;
  one_sided.arguments.kv_offsets = {};
  EXPECT_EQ(one_sided.message(),
            "attention: q_offsets is given without kv_offsets, expected both or neither");
  Ragged first;
  first.q_offsets[0] = 1;
  EXPECT_EQ(first.message(), "attention: q_offsets[0] is 1, expected 0");
  Ragged descending;
  descending.kv_offsets[1] = 6;
  EXPECT_EQ(descending.message(),
            "attention: kv_offsets[2] (5) is less than the entry before it (6)");
  Ragged beyond;
  beyond.kv_offsets[2] = 6;
  EXPECT_EQ(beyond.message(), "attention: kv_offsets ends at 6, beyond the 5 tokens of k");
  Ragged count;
  count.arguments.kv_offsets = {count.kv_offsets, {2}};
  EXPECT_EQ(count.message(), "attention: kv_offsets has 2 entries, expected 3 as q_offsets");
  Ragged empty;
  empty.arguments.q_offsets.layout.extents[0] = 0;
  EXPECT_EQ(empty.message(),
            "attention: q_offsets has 1 axes, expected one of batch + 1 entries, at least 1");
  Ragged axes;
  axes.arguments.out = Sample().out.view();
  EXPECT_EQ(axes.message(),
            "attention: out has 4 axes, expected 3: [q_tokens, q_heads, value_dim]");
  Ragged unstated;
  unstated.arguments.mask = causal();
  EXPECT_NE(unstated.message().find("mask.align is unstated"), std::string::npos);
  const std::int32_t lengths_given[] = {3, 3};
  Ragged lengths_beyond;
  lengths_beyond.arguments.mask = lengths({lengths_given, {2}});
  EXPECT_EQ(lengths_beyond.message(), "attention: mask.kv_lengths[1] (3) is not within 0 .. 2");
}

TEST(ZeroSizes, AreLegal) {
  const auto run = [](std::int64_t batch, std::int64_t q_len, std::int64_t kv_len,
                      std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                      std::int64_t value_dim) {
    Tensor q(f32, {batch, q_len, q_heads, head_dim}), k(f32, {batch, kv_len, kv_heads, head_dim}),
        v(f32, {batch, kv_len, kv_heads, value_dim}), out(f32, {batch, q_len, q_heads, value_dim}),
        lse(f32, {batch, q_len, q_heads});
    Random random(3);
    for (Tensor* input : {&q, &k, &v}) input->fill_normal(random);
    AttentionArguments a;
    a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = out.view(), a.lse = lse.view();
    // An array without elements may have no data.
    for (ConstView* view : {&a.q, &a.k, &a.v}) {
      for (int axis = 0; axis < 4; ++axis) {
        if (view->layout.extents[static_cast<std::size_t>(axis)] == 0) view->data = nullptr;
      }
    }
    attention(a);
    // What was written: the mean of v where all scores are 0, zeros and -inf where there is no key.
    for_each_index(lse.extents(), [&](const Index& at) {
      if (kv_len == 0)
        EXPECT_EQ(lse.get(at), -kInfinity);
      else if (head_dim == 0)
        EXPECT_NEAR(lse.get(at), std::log(static_cast<double>(kv_len)), 1e-6);
      else
        EXPECT_TRUE(std::isfinite(lse.get(at)));
    });
    for_each_index(out.extents(), [&](const Index& at) {
      double mean = 0;
      for (std::int64_t key = 0; key < kv_len; ++key) {
        mean +=
            v.get({at[0], key, at[2] * kv_heads / q_heads, at[3]}) / static_cast<double>(kv_len);
      }
      if (kv_len == 0 || head_dim == 0)
        EXPECT_NEAR(out.get(at), mean, 1e-6);
      else
        EXPECT_TRUE(std::isfinite(out.get(at)));
    });
  };
  run(2, 3, 5, 4, 2, 8, 6);
  run(0, 3, 5, 4, 2, 8, 6);
  run(2, 0, 5, 4, 2, 8, 6);
  run(2, 3, 0, 4, 2, 8, 6);
  run(2, 3, 5, 0, 0, 8, 6);
  run(2, 3, 5, 0, 2, 8, 6);
  run(2, 3, 5, 4, 2, 0, 6);
  run(2, 3, 5, 4, 2, 8, 0);
  run(2, 1, 5, 4, 2, 0, 6);
  run(2, 1, 0, 4, 2, 0, 0);
  run(0, 0, 0, 0, 0, 0, 0);
}

std::string merge_message(const std::function<void(MergeArguments&)>& change) {
  Tensor outs(f32, {3, 2, 4, 2, 6}), lses(f32, {3, 2, 4, 2}), out(f32, {2, 4, 2, 6}),
      lse(f32, {2, 4, 2});
  MergeArguments a{outs.view(), lses.view(), out.view(), lse.view(), {}};
  change(a);
  const std::vector<std::byte> before = out.bytes();
  try {
    merge_partials(a);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(out.bytes(), before);
    return error.what();
  }
  return "accepted";
}

TEST(Refused, Merge) {
  EXPECT_EQ(merge_message([](auto&) {}), "accepted");
  EXPECT_EQ(merge_message([](auto& a) { a.lses.layout.extents[0] = 2; }),
            "merge_partials: lses: parts is 2, expected 3");
  EXPECT_EQ(merge_message([](auto& a) { a.out.layout.extents[3] = 5; }),
            "merge_partials: out: dim is 5, expected 6");
  EXPECT_EQ(merge_message([](auto& a) { a.outs.type = ElementType::int64; }),
            "merge_partials: outs is int64, expected float32, float16 or bfloat16");
  EXPECT_EQ(merge_message([](auto& a) { a.out.layout.strides[0] = 0; }),
            "merge_partials: out: its elements overlap each other");
  EXPECT_EQ(merge_message([](auto& a) { a.out.data = const_cast<void*>(a.outs.data); }),
            "merge_partials: out overlaps outs (or cannot be shown not to)");
  EXPECT_EQ(merge_message([](auto& a) { a.outs = {}; }),
            "merge_partials: outs is not given, expected [parts, batch, tokens, heads, dim]");
  static const float sink[3] = {};
  EXPECT_EQ(merge_message([](auto& a) {
              a.sink = {sink, {3}};
            }),
            "merge_partials: sink: heads is 3, expected 2");
}

std::string inspect_message(
    const std::function<void(AttentionArguments&, InspectArguments&)>& change) {
  Sample sample;
  sample.lse.fill([](const Index&) { return 1.0; });
  Tensor weights(f32, {2, 4, 2, 5}), received(f32, {2, 4, 5}), pooled(f32, {2, 4, 2, 3});
  InspectArguments wanted;
  wanted.weights = weights.view(), wanted.received = received.view(), wanted.pooled = pooled.view();
  AttentionArguments call = sample.arguments;
  call.v = {}, call.out = {}, call.statistics = {};
  change(call, wanted);
  try {
    inspect(call, wanted);
  } catch (const InvalidArgument& error) {
    Tensor poisoned(f32, {2, 4, 2, 5});
    EXPECT_EQ(weights.bytes(), poisoned.bytes());
    return error.what();
  }
  return "accepted";
}

TEST(Refused, Inspect) {
  EXPECT_EQ(inspect_message([](auto&, auto&) {}), "accepted");
  EXPECT_EQ(inspect_message([](auto& call, auto&) { call.lse = {}; }),
            "inspect: lse is not given, expected the one attention() wrote");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.first_query = 2; }),
            "inspect: weights: queries (2) from first_query (2) reach beyond q_len (3)");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.first_query = -1; }),
            "inspect: first_query (-1) is not within 0 .. q_len (3)");
  static const std::int32_t heads[] = {0, 4};
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) {
              wanted.heads = {heads, {2}};
            }),
            "inspect: heads[1] (4) is not within 0 .. 3");
  EXPECT_EQ(inspect_message([](auto&, auto& wanted) { wanted.received.layout.extents[2] = 4; }),
            "inspect: received: kv_len is 4, expected 5");
  EXPECT_EQ(
      inspect_message([](auto&, auto& wanted) { wanted.pooled.type = ElementType::bfloat16; }),
      "inspect: pooled is bfloat16, expected float32");
  EXPECT_EQ(inspect_message([](auto& call, auto& wanted) { wanted.weights.data = call.lse.data; }),
            "inspect: weights overlaps lse (or cannot be shown not to)");
  EXPECT_EQ(inspect_message([](auto& call, auto&) { call.mask = causal(); }).substr(0, 33),
            "inspect: mask.align is unstated, ");
  static const std::int32_t offsets[] = {0, 3};
  EXPECT_EQ(inspect_message([](auto& call, auto&) {
              call.q_offsets = {offsets, {2}};
            }),
            "inspect: q_offsets is given, expected one sequence at a time");
}

}  // namespace
}  // namespace polyhead::test
