// What a cache holds, in plain arrays.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "support/difference.h"
#include "support/half_step.h"
#include "support/held.h"

namespace polyhead::test {

/// Most that a stored value differs from what was appended, which Random::normal() keeps below 3.5.
inline double most_rounding(ElementType type) { return half_step(type, 3.5, 3.5); }

/// What a cache holds, as the definition reads its view, in dense float32 arrays; NaN where nothing
/// was appended.
class Plain {
 public:
  explicit Plain(const Held& held)
      : k_(f32, held.k.extents()), v_(f32, held.v.extents()), lengths_(held.lengths) {
    Tensor q(f32, {held.batch(), 1, held.kv_heads, held.head_dim}),
        out(f32, {held.batch(), 1, held.kv_heads, held.value_dim});
    AttentionArguments a;
    a.q = q.const_view();
    a.kv = held.view();
    a.out = out.view();
    a.mask = held.mask();
    const kernels::AttendCall call = door::resolve(a);
    for (std::int64_t b = 0; b < held.batch(); ++b) {
      const kernels::Sequence s = kernels::sequence_of(call, b);
      EXPECT_EQ(s.kv_len, lengths_[static_cast<std::size_t>(b)]);
      read(held.k, call, s, call.k, s.k, k_);
      read(held.v, call, s, call.v, s.v, v_);
    }
  }

  KvView view() const {
    KvView view;
    view.k = k_.const_view();
    view.v = v_.const_view();
    view.lengths = ConstView(lengths_.data(), {static_cast<std::int64_t>(lengths_.size())});
    return view;
  }
  const Tensor& keys() const { return k_; }
  const Tensor& values() const { return v_; }
  double furthest() const { return furthest_.value(); }  ///< from what was appended

 private:
  void read(const Tensor& appended, const kernels::AttendCall& call, const kernels::Sequence& s,
            const kernels::Operand& operand, const std::byte* first, Tensor& to) {
    for (std::int64_t t = 0; t < s.kv_len; ++t) {
      for (std::int64_t h = 0; h < to.extents()[2]; ++h) {
        for (std::int64_t d = 0; d < to.extents()[3]; ++d) {
          const Index at{s.batch, t, h, d};
          if (std::isnan(appended.get(at))) continue;
          const double value = kernels::reference::key_element(call, s, operand, first, h, t, d);
          to.set(at, value);
          furthest_.add(value, appended.get(at));
        }
      }
    }
  }

  Tensor k_, v_;
  std::vector<std::int64_t> lengths_;
  LargestDifference furthest_;
};

}  // namespace polyhead::test
