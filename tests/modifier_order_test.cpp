// All modifiers in one call, in the stated order, by the kernels of both many and few queries.
#include <gtest/gtest.h>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/difference.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

struct Bend : ScoreModifier<Bend> {
  float operator()(float score, ScoreAt at) const {
    return score * score + 0.01f * static_cast<float>(at.kv_pos % 7);
  }
};

/// The largest difference from the reference. Decoding has kernels of its own only without dropout
/// and custom modifiers, so both kinds of calls are made.
double worst_error(Isa isa, std::int64_t q_len, bool custom_too) {
  constexpr std::int64_t kHeads = 2, kDim = 16, kKeys = 70;
  Random random(static_cast<std::uint64_t>(q_len));
  const Bend bend;
  Tensor q(ElementType::float32, {1, q_len, kHeads, kDim}),
      k(ElementType::float32, {1, kKeys, 1, kDim});
  Tensor v(ElementType::float32, {1, kKeys, 1, kDim}),
      out(ElementType::float32, {1, q_len, kHeads, kDim});
  Tensor bias(ElementType::float32, {1, kHeads, 1, kKeys}), sink(ElementType::float32, {kHeads});
  for (Tensor* tensor : {&q, &k, &v, &bias, &sink}) {
    tensor->fill([&](const Index&) { return random.uniform(-1.0, 1.0); });
  }
  AttentionArguments arguments;
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.out = out.view();
  arguments.mask.align = Align::end;
  Modifiers& modifiers = arguments.modifiers;
  modifiers.scale = 0.7f;
  modifiers.soft_cap = 0.5f;
  modifiers.bias = bias.view();
  modifiers.alibi.use_default_slopes = true;
  modifiers.sink = sink.view();
  if (custom_too) {
    modifiers.custom[0] = &bend;
    modifiers.dropout = {0.25f, 7, {}};
  }
  attention(arguments, {.isa = isa});
  const kernels::reference::Result expected = kernels::reference::attend(door::resolve(arguments));
  return largest_difference(out, expected.out);
}

TEST(ModifierOrder, AllTogetherAgreeWithTheReference) {
  for (Isa isa : available_isas()) {
    for (std::int64_t q_len : {1, 3, 40}) {
      for (bool custom_too : {false, true}) {
        // Before the square, scores are below 0.5 + 1 + 69 / 16 < 6 and err by 24 roundings of
        // that; squared, by 12 times as much; a weight moves by twice its score's error and the few
        // ulp of exp, over 1 - dropout.
        EXPECT_LE(worst_error(isa, q_len, custom_too), (2 * 12 * 24 * 6 + 70) * 0x1p-24 / 0.75)
            << isa_name(isa) << " q_len " << q_len << " custom " << custom_too;
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
