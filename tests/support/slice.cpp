#include "support/slice.h"

#include <algorithm>

#include "attention/validate.hpp"

namespace polyhead::test {
namespace {

std::int64_t byte_offset(const ConstView& view, int axis, std::int64_t begin) {
  const std::int64_t elements = begin * view.layout.strides[static_cast<std::size_t>(axis)];
  return view.type == ElementType::bit ? elements / 8 : elements * element_bytes(view.type);
}

}  // namespace

ConstView slice(ConstView view, int axis, std::int64_t begin, std::int64_t end) {
  std::int64_t& extent = view.layout.extents[static_cast<std::size_t>(axis)];
  if (!view.given() || extent == 1) return view;
  view.data = static_cast<const std::byte*>(view.data) + byte_offset(view, axis, begin);
  extent = end - begin;
  return view;
}

View slice(View view, int axis, std::int64_t begin, std::int64_t end) {
  const ConstView part = slice(ConstView(view), axis, begin, end);
  return {const_cast<void*>(part.data), part.type, part.layout};
}

ConstView drop_first_axis(ConstView view) {
  detail::Layout& layout = view.layout;
  std::copy(layout.extents.begin() + 1, layout.extents.end(), layout.extents.begin());
  std::copy(layout.strides.begin() + 1, layout.strides.end(), layout.strides.begin());
  --layout.axes;
  return view;
}

View drop_first_axis(View view) {
  const ConstView part = drop_first_axis(ConstView(view));
  return {const_cast<void*>(part.data), part.type, part.layout};
}

AttentionArguments part_of(Problem& problem, const Part& part) {
  const Case& c = problem.description();
  const std::int64_t b0 = part.first_batch, b1 = part.end_batch < 0 ? c.batch : part.end_batch;
  const std::int64_t q0 = part.first_query, q1 = part.end_query < 0 ? c.q_len : part.end_query;
  const std::int64_t k1 = part.end_key < 0 ? c.kv_len : part.end_key;
  AttentionArguments a = problem.arguments();
  const kernels::AttendCall whole = door::resolve(a);

  for (ConstView* view : {&a.q, &a.mask.visible, &a.mask.hidden, &a.mask.also_visible,
                          &a.mask.also_hidden, &a.modifiers.bias})
    *view = slice(*view, 0, b0, b1);
  for (ConstView* view : {&a.k, &a.v}) *view = slice(slice(*view, 0, b0, b1), 1, 0, k1);
  a.q = slice(a.q, 1, q0, q1);
  for (ConstView* view : {&a.mask.visible, &a.mask.hidden, &a.mask.also_visible,
                          &a.mask.also_hidden, &a.modifiers.bias}) {
    *view = slice(slice(*view, 2, q0, q1), 3, 0, k1);
  }
  for (View* view :
       {&a.out, &a.lse, &a.statistics.entropy, &a.statistics.max_weight, &a.statistics.max_key}) {
    *view = slice(slice(*view, 0, b0, b1), 1, q0, q1);
  }
  a.mask.q_documents = slice(slice(a.mask.q_documents, 0, b0, b1), 1, q0, q1);
  a.mask.kv_documents = slice(slice(a.mask.kv_documents, 0, b0, b1), 1, 0, k1);
  a.mask.prefix_lengths = slice(a.mask.prefix_lengths, 0, b0, b1);

  // Positions, lengths and sequence ids become explicit.
  const auto per_sequence = [&](auto value) {
    Tensor& tensor = problem.keep(Tensor(ElementType::int64, {b1 - b0}));
    tensor.fill([&](const Index& at) {
      return static_cast<double>(value(kernels::sequence_of(whole, b0 + at[0])));
    });
    return tensor.const_view();
  };
  a.q_start = per_sequence([&](const kernels::Sequence& s) { return s.q_pos0 + q0; });
  a.mask.align = Align::unstated;
  if (a.mask.kv_lengths.given()) {
    a.mask.kv_lengths =
        per_sequence([&](const kernels::Sequence& s) { return std::min(s.kv_len, k1); });
  }
  if (a.mask.q_lengths.given()) {
    a.mask.q_lengths = per_sequence([&](const kernels::Sequence& s) {
      return std::clamp<std::int64_t>(s.q_len - q0, 0, q1 - q0);
    });
  }
  if (a.modifiers.dropout.probability > 0.0f) {
    const kernels::Integers ids = whole.score.sequence_ids;
    a.modifiers.dropout.sequence_ids = per_sequence(
        [&](const kernels::Sequence& s) { return ids.given() ? ids[s.batch] : s.batch; });
  }
  return a;
}

std::int64_t differing_bits(const Outputs& a, const Outputs& b) {
  return differing_bits(a.out, b.out) + differing_bits(a.lse, b.lse) +
         differing_bits(a.entropy, b.entropy) + differing_bits(a.max_weight, b.max_weight) +
         differing_bits(a.max_key, b.max_key);
}

}  // namespace polyhead::test
