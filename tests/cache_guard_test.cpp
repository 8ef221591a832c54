// Attention touches no byte of a cache outside what its sequences hold: rows, codes, scales and
// page table entries of every kind of cache are copied beside memory that may not be touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "base/codes.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/effort.h"
#include "support/guarded.h"
#include "support/held.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

/// The bytes of a view that are read, from its data on.
struct Hull {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  void add(std::int64_t first, std::int64_t bytes) {
    begin = std::min(begin, first);
    end = std::max(end, first + bytes);
  }
};

/// A view of a cache whose parts are copied, each up to its edges: nothing lies before or after
/// what the sequences hold.
class GuardedView {
 public:
  GuardedView(const KvView& from, const std::vector<std::int64_t>& lengths, bool at_end)
      : view(from), lengths_(lengths), at_end_(at_end) {
    const bool latents = from.v.data == from.k.data;
    move(view.k, rows_of(from.k));
    if (latents) {
      view.v.data = view.k.data;
    } else {
      move(view.v, rows_of(from.v));
    }
    const bool shared = from.v_scales.given() && from.v_scales.data == from.k_scales.data;
    if (from.k_scales.given()) {
      move(view.k_scales,
           from.k_scales.layout.axes == 4 ? rows_of(from.k_scales) : all_of(from.k_scales));
    }
    if (shared) {
      view.v_scales.data = view.k_scales.data;
    } else if (from.v_scales.given()) {
      move(view.v_scales, rows_of(from.v_scales));
    }
    // After the rows, which are found by it.
    if (from.page_table.given()) move(view.page_table, entries());
    for (ConstView* const part : {&view.lengths, &view.oldest}) {
      if (part->given()) move(*part, all_of(*part));
    }
  }

  KvView view;

 private:
  /// Every row of a token that a sequence holds.
  Hull rows_of(const ConstView& rows) const {
    const auto& [axes, extents, strides, too_many] = rows.layout;
    const std::int64_t row =
        base::is_code(rows.type)
            ? base::code_row_bytes(rows.type, extents[3])
            : (extents[3] - 1) * strides[3] * element_bytes(rows.type) + element_bytes(rows.type);
    Hull hull;
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      for (std::int64_t t = 0; t < lengths_[b]; ++t) {
        for (std::int64_t head = 0; head < extents[2]; ++head) {
          const std::int64_t at =
              slot(b, t) * strides[0] + token(t) * strides[1] + head * strides[2];
          hull.add(bytes_apart(rows.type, at), row);
        }
      }
    }
    return hull;
  }
  /// The table's entries that are in use.
  Hull entries() const {
    Hull hull;
    const auto& table = view.page_table.layout;
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      const std::int64_t pages = (lengths_[b] + page_tokens() - 1) / page_tokens();
      if (pages > 0) hull.add(static_cast<std::int64_t>(b) * table.strides[0] * 4, pages * 4);
    }
    return hull;
  }
  static Hull all_of(const ConstView& view) {
    Hull hull;
    std::int64_t last = 0;
    for (int axis = 0; axis < view.layout.axes; ++axis)
      last += (view.layout.extents[axis] - 1) * view.layout.strides[axis];
    hull.add(0, (last + 1) * element_bytes(view.type));
    return hull;
  }

  std::int64_t page_tokens() const { return view.k.layout.extents[1]; }
  std::int64_t slot(std::size_t b, std::int64_t t) const {
    const auto sequence = static_cast<std::int64_t>(b);
    if (!view.page_table.given()) return sequence;
    return static_cast<const std::int32_t*>(
        view.page_table.data)[sequence * view.page_table.layout.strides[0] + t / page_tokens()];
  }
  std::int64_t token(std::int64_t t) const {
    return view.page_table.given() ? t % page_tokens() : t;
  }

  void move(ConstView& part, const Hull& hull) {
    const auto* const from = static_cast<const std::byte*>(part.data);
    memory_.emplace_back(std::span(from + hull.begin, from + hull.end), at_end_);
    part.data = memory_.back().data() - hull.begin;
  }

  const std::vector<std::int64_t>& lengths_;
  bool at_end_;
  std::deque<Guarded> memory_;
};

/// A call of a cache's last tokens, with everything that reads keys.
struct Call {
  Call(const Held& held, ElementType q_type, std::uint64_t seed) {
    Random random(seed);
    for (const std::int64_t count : held.queries) offsets.push_back(offsets.back() + count);
    Index rows = {held.batch(), held.most_queries()};
    if (held.ragged) rows = {offsets.back()};
    const auto made = [&](ElementType type, const Index& more) {
      return Tensor(type, joined(rows, more));
    };
    const std::int64_t heads = 3 * held.kv_heads;
    q = made(q_type, {heads, held.head_dim});
    q.fill_normal(random);
    out = made(f32, {heads, held.value_dim});
    for (Tensor* row : {&lse, &entropy, &max_weight}) *row = made(f32, {heads});
    max_key = made(ElementType::int64, {heads});
    arguments.q = q.const_view();
    arguments.out = out.view();
    arguments.lse = lse.view();
    arguments.statistics = {entropy.view(), max_weight.view(), max_key.view()};
    arguments.mask = held.mask();
    if (held.ragged) {
      arguments.q_offsets = ConstView(offsets.data(), {held.batch() + 1});
    } else {
      arguments.mask.q_lengths = ConstView(held.queries.data(), {held.batch()});
    }
    if (!held.ragged) received = Tensor(f32, {held.batch(), heads, held.longest()});
  }

  void run(const KvView& view, Isa isa) {
    for (Tensor* output : {&out, &lse, &entropy, &max_weight, &max_key, &received})
      output->poison();
    arguments.kv = view;
    const Options options{.isa = isa, .executor = &Executor::serial()};
    attention(arguments, options);
    if (received.given()) inspect(arguments, {.received = received.view()}, options);
  }
  std::vector<std::vector<std::byte>> results() const {
    return {out.bytes(),        lse.bytes(),     entropy.bytes(),
            max_weight.bytes(), max_key.bytes(), received.bytes()};
  }

  std::vector<std::int64_t> offsets{0};
  Tensor q, out, lse, entropy, max_weight, max_key, received;
  AttentionArguments arguments;
};

TEST(CacheGuards, NothingIsTouchedButWhatSequencesHold) {
  std::uint64_t seed = 0;
  for (int kind = 0; kind < kCacheKinds; ++kind) {
    for (const StoredForm& form : kStoredForms) {
      if (!holds(static_cast<CacheKind>(kind), form)) continue;
      for (const bool decoding : {false, true}) {
        if (effort() == Effort::smoke && ++seed % 3 != 0) continue;
        const auto held = Held::make(static_cast<CacheKind>(kind), form, decoding, ++seed);
        for (const ElementType q_type : {f32, bf16}) {
          Call call(*held, q_type, seed);
          for (const Isa isa : available_isas()) {
            call.run(held->view(), isa);
            const auto expected = call.results();
            for (const bool at_end : {true, false}) {
              const GuardedView guarded(held->view(), held->lengths, at_end);
              call.run(guarded.view, isa);  // a touch beyond an edge ends the test here
              EXPECT_EQ(call.results(), expected)
                  << name_of(static_cast<CacheKind>(kind)) << " " << name_of(form) << " under "
                  << element_name(q_type) << ", " << isa_name(isa);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
