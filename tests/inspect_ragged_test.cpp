// The second pass over ragged batches: each sequence's part is what a call of its own gives.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "polyhead/inspect.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kBatch = 4, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr std::int64_t kQBins = 3, kKvBins = 5;
// A tile and a part of one, a sequence without queries, one without keys, one query.
constexpr std::array<std::int64_t, kBatch + 1> kQOffsets = {0, 60, 60, 70, 71};
constexpr std::array<std::int64_t, kBatch + 1> kKvOffsets = {0, 130, 137, 137, 1237};
constexpr std::int64_t kLongestQ = 60, kLongestKv = 1100;
constexpr std::array<std::int64_t, kBatch> kIds = {7, 3, 9, 4};

ConstView tokens(const Tensor& of, std::int64_t begin, std::int64_t end) {
  ConstView view = of.const_view();
  view.data = of.address({begin, 0, 0});
  view.layout.extents[0] = end - begin;
  return view;
}

/// The same with a batch of one in front.
ConstView as_batch(ConstView view) {
  detail::Layout& layout = view.layout;
  for (int axis = layout.axes++; axis > 0; --axis) {
    layout.extents[axis] = layout.extents[axis - 1];
    layout.strides[axis] = layout.strides[axis - 1];
  }
  layout.extents[0] = 1;
  return view;
}

View writable(const ConstView& view) {
  return {const_cast<void*>(view.data), view.type, view.layout};
}

struct Maps {
  Tensor weights, received, pooled;
  Maps(std::int64_t batch, std::int64_t heads, std::int64_t q_len, std::int64_t kv_len)
      : weights(f32, {batch, heads, q_len, kv_len}, {}, 3),
        received(f32, {batch, kHeads, kv_len}),
        pooled(f32, {batch, kHeads, kQBins, kKvBins}) {}
};

class Ragged {
 public:
  explicit Ragged(ElementType type)
      : q_(type, {kQOffsets.back(), kHeads, kDim}),
        k_(type, {kKvOffsets.back(), kKvHeads, kDim}),
        v_(type, {kKvOffsets.back(), kKvHeads, kDim}),
        out_(f32, {kQOffsets.back(), kHeads, kDim}),
        lse_(f32, {kQOffsets.back(), kHeads}) {
    Random random(11);
    for (Tensor* tensor : {&q_, &k_, &v_}) tensor->fill_normal(random);
  }

  AttentionArguments whole() {
    AttentionArguments a = modified();
    a.q = q_.const_view();
    a.k = k_.const_view();
    a.v = v_.const_view();
    a.out = out_.view();
    a.lse = lse_.view();
    a.q_offsets = {kQOffsets.data(), {kBatch + 1}};
    a.kv_offsets = {kKvOffsets.data(), {kBatch + 1}};
    a.modifiers.dropout.sequence_ids = {kIds.data(), {kBatch}};
    return a;
  }

  AttentionArguments alone(std::size_t b) {
    AttentionArguments a = modified();
    const std::int64_t first = kQOffsets[b], end = kQOffsets[b + 1];
    a.q = as_batch(tokens(q_, first, end));
    a.k = as_batch(tokens(k_, kKvOffsets[b], kKvOffsets[b + 1]));
    a.v = as_batch(tokens(v_, kKvOffsets[b], kKvOffsets[b + 1]));
    a.out = writable(as_batch(tokens(out_, first, end)));
    ConstView lse = lse_.const_view();
    lse.data = lse_.address({first, 0});
    lse.layout.extents[0] = end - first;
    a.lse = writable(as_batch(lse));
    a.modifiers.dropout.sequence_ids = {kIds.data() + b, {1}};
    return a;
  }

 private:
  AttentionArguments modified() const {
    AttentionArguments a;
    a.mask = causal(Align::end);
    a.modifiers.alibi.use_default_slopes = true;
    a.modifiers.dropout = {.probability = 0.25f, .seed = 5};
    return a;
  }

  Tensor q_, k_, v_, out_, lse_;
};

/// How many elements of `of`, filled up with 0, are not the bits of sequence b of `whole`.
std::int64_t differing(const Tensor& whole, const Tensor& of, std::int64_t b) {
  std::int64_t count = 0;
  for_each_index(whole.extents(), [&](const Index& at) {
    if (at[0] != b) return;
    Index own = at;
    own[0] = 0;
    bool within = true;
    for (std::size_t axis = 1; axis < own.size(); ++axis)
      within = within && own[axis] < of.extents()[axis];
    const float zero = 0.0f;
    count += std::memcmp(whole.address(at),
                         within ? of.address(own) : static_cast<const void*>(&zero), 4) != 0;
  });
  return count;
}

TEST(Inspect, RaggedBatchesAreTheirSequences) {
  constexpr std::array<std::int32_t, 2> kChosen = {3, 1};
  for (const ElementType type : {f32, bf16}) {
    for (Isa isa : isas()) {
      Ragged ragged(type);
      attention(ragged.whole(), {.isa = isa});
      Maps all(kBatch, 2, kLongestQ, kLongestKv);
      inspect(ragged.whole(),
              {.weights = all.weights.view(),
               .heads = {kChosen.data(), {2}},
               .received = all.received.view(),
               .pooled = all.pooled.view()},
              {.isa = isa});
      for (std::size_t b = 0; b < kBatch; ++b) {
        const std::string what = std::string(isa_name(isa)) + " sequence " + std::to_string(b);
        const std::int64_t sequence = static_cast<std::int64_t>(b);
        const std::int64_t q_len = kQOffsets[b + 1] - kQOffsets[b];
        Maps one(1, 2, q_len, kKvOffsets[b + 1] - kKvOffsets[b]);
        inspect(ragged.alone(b),
                {.weights = one.weights.view(),
                 .heads = {kChosen.data(), {2}},
                 .received = one.received.view(),
                 .pooled = one.pooled.view()},
                {.isa = isa});
        EXPECT_EQ(differing(all.weights, one.weights, sequence), 0) << what;
        EXPECT_EQ(differing(all.received, one.received, sequence), 0) << what;
        EXPECT_EQ(differing(all.pooled, one.pooled, sequence), 0) << what;
      }
    }
  }
}

// Ragged queries over a cache's view, whose keys are padded, are padded queries over it.
TEST(Inspect, RaggedQueriesOverAView) {
  constexpr std::array<std::int64_t, 3> kOffsets = {0, 3, 53};
  constexpr std::array<std::int32_t, 2> kQLengths = {3, 50}, kKvLengths = {70, 130};
  Random random(3);
  Tensor k(bf16, {2, 140, kKvHeads, kDim}), v(bf16, {2, 140, kKvHeads, kDim});
  Tensor padded(f32, {2, 50, kHeads, kDim}), joined(f32, {53, kHeads, kDim});
  for (Tensor* tensor : {&k, &v, &padded}) tensor->fill_normal(random);
  joined.fill([&](const Index& at) {
    return at[0] < 3 ? padded.get({0, at[0], at[1], at[2]})
                     : padded.get({1, at[0] - 3, at[1], at[2]});
  });
  for (Isa isa : isas()) {
    Tensor out(f32, {53, kHeads, kDim}), lse(f32, {53, kHeads});
    Tensor padded_out(f32, {2, 50, kHeads, kDim}), padded_lse(f32, {2, 50, kHeads});
    AttentionArguments a;
    a.kv.k = k.const_view();
    a.kv.v = v.const_view();
    a.kv.lengths = {kKvLengths.data(), {2}};
    a.mask = causal(Align::end);
    AttentionArguments ragged = a;
    ragged.q = joined.const_view();
    ragged.out = out.view();
    ragged.lse = lse.view();
    ragged.q_offsets = {kOffsets.data(), {3}};
    a.q = padded.const_view();
    a.out = padded_out.view();
    a.lse = padded_lse.view();
    a.mask.q_lengths = {kQLengths.data(), {2}};
    Tensor weights[2], received[2];
    for (int i = 0; i < 2; ++i) {
      weights[i] = Tensor(f32, {2, kHeads, 50, 130});
      received[i] = Tensor(f32, {2, kHeads, 130});
      const AttentionArguments& call = i == 0 ? ragged : a;
      attention(call, {.isa = isa});
      inspect(call, {.weights = weights[i].view(), .received = received[i].view()}, {.isa = isa});
    }
    EXPECT_EQ(differing_bits(weights[0], weights[1]), 0) << isa_name(isa);
    EXPECT_EQ(differing_bits(received[0], received[1]), 0) << isa_name(isa);
  }
}

// Some of the queries, where other sequences have none of them.
TEST(Inspect, RaggedBatchesFromAFirstQueryOn) {
  Ragged ragged(f32);
  attention(ragged.whole());
  Tensor all(f32, {kBatch, kHeads, kLongestQ, kLongestKv}),
      some(f32, {kBatch, kHeads, 7, kLongestKv});
  inspect(ragged.whole(), {.weights = all.view()});
  inspect(ragged.whole(), {.weights = some.view(), .first_query = 5});
  for_each_index(some.extents(), [&](const Index& at) {
    ASSERT_EQ(some.get(at), all.get({at[0], at[1], at[2] + 5, at[3]}));
  });
}

}  // namespace
}  // namespace polyhead::test
