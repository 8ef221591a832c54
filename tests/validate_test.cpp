// Bad input: everything refused names the argument, what was found and what was expected, and
// writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "polyhead/attention.h"
#include "support/refused.h"

namespace polyhead::test {
namespace {

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

TEST(Refused, SizesWhoseProductsOverflow) {
  // No element in any of them, but more heads of sequences than there are numbers.
  expect_refused("attention: batch (281474976710656) times tokens (1) times heads overflow 64 bits",
                 [](auto& a) {
                   const std::int64_t huge = std::int64_t{1} << 48, none = 0;
                   a.lse = {}, a.statistics = {};
                   for (ConstView* view : {&a.q, &a.k, &a.v})
                     view->layout = {{huge, none, huge, std::int64_t{4}}, {none, none, none, none}};
                   a.out.layout = a.q.layout;
                 });
  expect_refused("attention: out: extents times strides overflow 64 bits (axis 0)",
                 [](auto& a) { a.out.layout.strides[0] = kMax; });
  // Key indices of statistics have 32 bits inside.
  expect_refused("attention: statistics.max_key is given with kv_len 2147483654*", [](auto& a) {
    for (ConstView* view : {&a.k, &a.v}) {
      view->layout.extents[1] = (std::int64_t{1} << 31) + 6;
      view->layout.strides[1] = 0;
    }
  });
}

TEST(Refused, PartsOfAViewWithoutItsKeys) {
  static const std::int64_t lengths[2] = {1, 1};
  expect_refused("attention: kv.lengths is given without kv.k and kv.v",
                 [](auto& a) { a.kv.lengths = ConstView(lengths, {2}); });
  expect_refused("attention: kv.oldest is given without kv.k and kv.v",
                 [](auto& a) { a.kv.oldest = ConstView(lengths, {2}); });
  expect_refused("attention: kv.first_tokens is given without kv.k and kv.v",
                 [](auto& a) { a.kv.first_tokens = 1; });
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

}  // namespace
}  // namespace polyhead::test
