// Changing one argument of a good call, and the message with which it is refused.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "support/tensor.h"

namespace polyhead::test {

inline constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
inline std::string message_of(const Change& change) {
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
inline void expect_refused(const std::string& expected, const Change& change) {
  const std::string message = message_of(change);
  if (expected.back() == '*') {
    EXPECT_EQ(message.substr(0, expected.size() - 1), expected.substr(0, expected.size() - 1))
        << message;
  } else {
    EXPECT_EQ(message, expected);
  }
}

inline void expect_accepted(const Change& change) { EXPECT_EQ(message_of(change), "accepted"); }

}  // namespace polyhead::test
