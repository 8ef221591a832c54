// A small case for properties, and how far two computations of it may lie apart.
#pragma once

#include <cstdint>
#include <limits>

#include "support/difference.h"
#include "support/problem.h"

namespace polyhead::test {

inline constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double unit_of(ElementType type) {
  return type == f32 ? kEpsilon : type == f16 ? 0x1p-10 : 0x1p-7;
}

/// How far two computations of one exact result may lie apart. Scores of this file are of order 1
/// (deviation 1, at most about 6): each carries at most head_dim roundings, and the sums over keys
/// at most kv_len, each of eps/2 of its terms, for both sides; weights rounded to bfloat16 carry
/// 2^-9 each; and the output is rounded to its type.
inline double tolerance(const Case& c) {
  const double v_scale = 4.0;  // Random::normal() never exceeds 3.5
  const bool rounded_weights = c.types.q == bf16 && c.types.k == bf16 && c.types.v == bf16;
  return v_scale * (kEpsilon * static_cast<double>(c.head_dim + c.kv_len) +
                    (rounded_weights ? 0x1p-7 : 0.0) + unit_of(c.types.out));
}

inline Case small_case(const Types& types, std::int64_t q_len = 20, std::int64_t kv_len = 150) {
  Case c;
  c.q_len = q_len;
  c.kv_len = kv_len;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.value_dim = 20;
  c.types = types;
  return c;
}

template <class F>
void for_each_isa_and_type(F f) {
  for (const Types& types : kTypes) {
    for (Isa isa : isas()) f(isa, types);
  }
}

}  // namespace polyhead::test
