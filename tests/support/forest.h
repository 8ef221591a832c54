// Sequences over one pool of pages that begin on the same pages.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "polyhead/attention.h"
#include "polyhead/paged_cache.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {

inline constexpr std::int64_t kSplit = kernels::cpu::kSplitKeys;

/// A sequence: forked from another one after `shared` of its tokens, then `own` tokens more.
struct Branch {
  int from;  // -1: a new one
  std::int64_t shared, own, q_len;
};

struct Shape {
  std::int64_t q_heads = 4, kv_heads = 2, head_dim = 24, value_dim = 20, page_tokens = 64;
  ElementType q = f32, kv = f32;
  bool values_in_keys = false;
};

/// A ragged call over a paged cache whose sequences branch off each other.
class Forest {
 public:
  Forest(const Shape& shape, const std::vector<Branch>& branches)
      : shape_(shape), random_(7), cache_(config_of(shape, branches)) {
    offsets_.push_back(0);
    for (const Branch& branch : branches) {
      std::int64_t sequence = -1;
      if (branch.from < 0) {
        sequence = cache_.create();
      } else {
        sequence = cache_.fork(sequences_[static_cast<std::size_t>(branch.from)]);
        cache_.truncate(sequence, branch.shared);
      }
      if (branch.own > 0) append(sequence, branch.own);
      sequences_.push_back(sequence);
      offsets_.push_back(offsets_.back() + branch.q_len);
    }
    cache_.batch(sequences_, batch_);
    q_ = Tensor(shape.q, {offsets_.back(), shape.q_heads, shape.head_dim});
    out_ = Tensor(shape.q, {offsets_.back(), shape.q_heads, shape.value_dim});
    lse_ = Tensor(f32, {offsets_.back(), shape.q_heads});
    fill(q_);
    arguments.q = q_.const_view();
    arguments.kv = cache_.view(0, batch_);
    arguments.out = out_.view();
    arguments.lse = lse_.view();
    arguments.mask = causal(Align::end);
    arguments.q_offsets = ConstView(offsets_.data(), {std::ssize(offsets_)});
  }

  void want_statistics() {
    const Index rows = {offsets_.back(), shape_.q_heads};
    entropy_ = Tensor(f32, rows);
    max_weight_ = Tensor(f32, rows);
    max_key_ = Tensor(ElementType::int64, rows);
    arguments.statistics = {entropy_.view(), max_weight_.view(), max_key_.view()};
  }

  /// The call of one sequence alone: nothing to share.
  AttentionArguments alone(std::size_t b) {
    AttentionArguments a = arguments;
    const std::int64_t first = offsets_[b], count = offsets_[b + 1] - first;
    one_[1] = count;
    const auto part = [&](auto view) {
      view.data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                  first * view.layout.strides[0] * element_bytes(view.type);
      view.layout.extents[0] = count;
      return view;
    };
    a.q = part(a.q);
    a.out = part(a.out);
    const auto part_where_given = [&](auto& view) {
      if (view.given()) view = part(view);
    };
    part_where_given(a.lse);
    part_where_given(a.statistics.entropy);
    part_where_given(a.statistics.max_weight);
    part_where_given(a.statistics.max_key);
    part_where_given(a.mask.q_documents);
    a.q_offsets = ConstView(one_, {2});
    const auto at = static_cast<std::int64_t>(b);
    a.kv.page_table = ConstView(batch_.table.data() + at * batch_.pages_a_sequence,
                                {std::int64_t{1}, batch_.pages_a_sequence});
    a.kv.lengths = ConstView(batch_.lengths.data() + at, {1});
    const auto of_sequence = [&](ConstView& view) {
      if (!view.given() || view.layout.extents[0] == 1) return;
      const std::int64_t bits =
          view.type == ElementType::bit ? 1 : 8 * std::int64_t{element_bytes(view.type)};
      view.data = static_cast<const std::byte*>(view.data) + at * view.layout.strides[0] * bits / 8;
      view.layout.extents[0] = 1;
    };
    for (ConstView* table : {&a.mask.visible, &a.mask.hidden, &a.mask.also_visible,
                             &a.mask.also_hidden, &a.mask.kv_documents, &a.modifiers.bias})
      of_sequence(*table);
    of_sequence(a.modifiers.dropout.sequence_ids);
    return a;
  }

  template <class Call>
    requires std::invocable<Call>
  std::vector<std::vector<std::byte>> run(const Call& call) {
    Tensor* const outputs[] = {&out_, &lse_, &entropy_, &max_weight_, &max_key_};
    for (Tensor* output : outputs) output->poison();
    call();
    std::vector<std::vector<std::byte>> bytes;
    for (const Tensor* output : outputs) bytes.push_back(output->bytes());
    return bytes;
  }
  std::vector<std::vector<std::byte>> run(const Options& options) {
    return run([&] { attention(arguments, options); });
  }
  std::vector<std::vector<std::byte>> run_alone(Isa isa) {
    return run([&] {
      for (std::size_t b = 0; b < sequences_.size(); ++b)
        attention(alone(b), {.isa = isa, .executor = &Executor::serial()});
    });
  }

  KeysRead keys(Isa isa, int workers = 1) const {
    const kernels::AttendCall call = door::resolve(arguments);
    std::vector<std::byte> room(Turns::room_bytes(call));
    return keys_read(call, make_schedule(call, kernels::cpu::backend(isa), workers, room.data()));
  }

  AttentionArguments arguments;

 private:
  static PagedCacheConfig config_of(const Shape& shape, const std::vector<Branch>& branches) {
    PagedCacheConfig config;
    config.page_tokens = shape.page_tokens;
    config.kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.value_dim = shape.value_dim;
    config.type = shape.kv;
    config.values_in_keys = shape.values_in_keys;
    for (const Branch& branch : branches) config.pages += branch.own / shape.page_tokens + 2;
    return config;
  }

  void fill(Tensor& tensor) {
    for_each_index(tensor.extents(), [&](const Index& at) { tensor.set(at, random_.normal()); });
  }

  void append(std::int64_t sequence, std::int64_t tokens) {
    Tensor k(f32, {tokens, shape_.kv_heads, shape_.head_dim});
    Tensor v(f32, {tokens, shape_.kv_heads, shape_.value_dim});
    fill(k);
    fill(v);
    const ConstView values = shape_.values_in_keys ? ConstView() : v.const_view();
    ASSERT_EQ(cache_.append(sequence, k.const_view(), values), PagedCache::Status::ok);
  }

  Shape shape_;
  Random random_;
  PagedCache cache_;
  std::vector<std::int64_t> sequences_, offsets_;
  PagedBatch batch_;
  Tensor q_, out_, lse_, entropy_, max_weight_, max_key_;
  std::int64_t one_[2] = {};
};

}  // namespace polyhead::test
