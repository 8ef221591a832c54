// What is decided and made once, before any kernel runs, is the same in a thread that rounds
// otherwise, reads subnormal numbers as zeros and traps.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "polyhead/code_frame.h"
#include "polyhead/heads.h"
#include "polyhead/kv_cache.h"
#include "polyhead/latent.h"
#include "polyhead/layer.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_attention.h"
#include "support/latent_model.h"
#include "support/odd_floats.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr float kSmall = 1e-40f;

/// What `call` is refused for in such a thread.
template <class Call>
std::string refusal_among_odd_floats(const Call& call) {
  const OddFloats floats;
  std::string said = refusal_of(call);
  if (!floats.unchanged()) said += " (and the environment was changed)";
  return said;
}

template <class Make>
auto made_among_odd_floats(const Make& make) {
  const OddFloats floats;
  return make();
}

/// What a layer gives for some rows.
template <class Layer>
std::vector<std::byte> outputs(const Layer& layer, std::int64_t model_dim) {
  Tensor x(f32, {1, 3, model_dim}), y(f32, {1, 3, model_dim});
  Random random(5);
  x.fill_normal(random);
  layer.forward(x.const_view(), y.view());
  return y.bytes();
}

TEST(OddFloats, ALayersWeightsAreWhatTheyAreElsewhere) {
  constexpr std::int64_t kDim = 12;
  Tensor weights(f16, {kDim, kDim});
  Random random(6);
  weights.fill_normal(random);
  for (std::int64_t i = 0; i < kDim; ++i) weights.set({i, i}, 3e-5);  // subnormal float16
  const ConstView w = weights.const_view();
  for (const ElementType type : {f32, f16, bf16}) {
    for (const Isa isa : available_isas()) {
      LayerConfig config;
      config.model_dim = kDim;
      config.q_heads = 2;
      config.weight_type = type;
      const LayerWeights given{.w_q = w, .w_k = w, .w_v = w, .w_o = w};
      const auto made = [&] { return MultiHeadAttention(config, given, {.isa = isa}); };
      const std::vector<std::byte> expected = outputs(made(), kDim);
      EXPECT_EQ(outputs(made_among_odd_floats(made), kDim), expected)
          << element_name(type) << ", " << isa_name(isa);
    }
  }
}

TEST(OddFloats, ADefaultScaleIsWhatItIsElsewhere) {
  LatentConfig config = small_latent();
  config.nope_dim = 10 - config.rope_dim;  // 1 / sqrt(10) is rounded down
  const LatentModel model(config);
  const auto made = [&] { return LatentAttention(config, model.weights()); };
  EXPECT_EQ(outputs(made_among_odd_floats(made), config.model_dim),
            outputs(made(), config.model_dim));
}

TEST(OddFloats, SmallNumbersAreNotZero) {
  const std::vector<float> scales(64, kSmall);
  const ConstView of_head(scales.data(), {1, 64});
  EXPECT_EQ(refusal_among_odd_floats(
                [&] { KvCache({.type = ElementType::int8, .key_scales = of_head}); }),
            "accepted");
  EXPECT_EQ(refusal_among_odd_floats([&] {
              PagedCache({.pages = 1,
                          .type = ElementType::int8,
                          .key_scales = ConstView(scales.data(), {1, 1, 64})});
            }),
            "accepted");
  RopeConfig rope;
  rope.pairing = RopePairing::half_split;
  rope.frequency_divisors = {kSmall, 1.0f};
  EXPECT_EQ(refusal_among_odd_floats([&] { rope_frequencies(rope, 4); }), "accepted");

  Tensor rows(f32, {1, 1, 4});
  LayerFrames frames;
  frames.keys.centre.assign(4, 0.0f);
  frames.keys.stretch.assign(4, kSmall);
  EXPECT_EQ(refusal_among_odd_floats([&] { enter_frames(frames, {}, rows.view(), {}); }),
            "accepted");
}

TEST(OddFloats, SmallDropoutIsDropout) {
  SlidingCache ring({.head_dim = 4, .window = 4, .chunk = 4});
  Tensor rows(f32, {1, 2, 1, 4}), out(f32, {1, 2, 1, 4}), lse(f32, {1, 2, 1});
  ring.append(rows.const_view(), rows.const_view());
  RopeConfig rope;
  rope.pairing = RopePairing::half_split;
  Modifiers dropout;
  dropout.dropout.probability = kSmall;
  EXPECT_EQ(
      refusal_among_odd_floats([&] {
        attend_in_cache(ring, rope,
                        {.q = rows.const_view(), .out = out.view(), .modifiers = dropout});
      }),
      "attend_in_cache: modifiers has dropout, expected scale, soft_cap, alibi and sink alone: the "
      "others go by positions in the sequence");
  AttentionArguments call;
  call.q = call.k = call.v = rows.const_view();
  call.out = out.view();
  call.lse = lse.view();
  call.mask = causal();
  call.modifiers = dropout;
  attention(call);
  HeadStatistics statistics({.q_heads = 1, .q_len = 2, .kv_len = 2});
  EXPECT_EQ(refusal_among_odd_floats([&] { statistics.add(call); }),
            "HeadStatistics: modifiers.dropout (9.99995e-41) is not 0");
}

}  // namespace
}  // namespace polyhead::test
