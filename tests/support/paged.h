// The keys and values of a problem scattered over the pages of a pool, and caches filled with them.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "polyhead/paged_cache.h"
#include "support/problem.h"
#include "support/random.h"

namespace polyhead::test {

/// A problem's k and v on shuffled pages, poison wherever no valid token lies.
struct Scattered {
  Tensor k, v, table, lengths;

  Scattered(Problem& p, std::int64_t page_tokens, LayoutKind layout = LayoutKind::heads_first) {
    const Case& c = p.description();
    const std::int64_t most = (c.kv_len + page_tokens - 1) / page_tokens, spare = 3;
    const std::int64_t pages = c.batch * most + spare;
    const std::vector<int> order =
        layout == LayoutKind::heads_first ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{};
    const std::int64_t gap = layout == LayoutKind::gaps ? 3 : 0;
    k = Tensor(p.k.type(), {pages, page_tokens, c.kv_heads, c.head_dim}, order, gap);
    v = Tensor(p.v.type(), {pages, page_tokens, c.kv_heads, c.value_dim}, order, gap);
    table = Tensor(ElementType::int32, {c.batch, most});
    lengths = Tensor(ElementType::int64, {c.batch});
    Random random(c.seed + 77);
    std::vector<std::int64_t> place(static_cast<std::size_t>(pages));
    std::iota(place.begin(), place.end(), 0);
    for (std::size_t i = place.size(); i > 1; --i)
      std::swap(place[i - 1], place[static_cast<std::size_t>(random.below(static_cast<long>(i)))]);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      lengths.set({b}, static_cast<double>(length_of(p, b)));
      for (std::int64_t page = 0; page < most; ++page) {
        const std::int64_t at = place[static_cast<std::size_t>(b * most + page)];
        // What lies past a sequence's length may be anything.
        const bool used = page * page_tokens < length_of(p, b);
        table.set({b, page}, used ? static_cast<double>(at) : -1e9);
      }
      for (std::int64_t t = 0; t < length_of(p, b); ++t) {
        const std::int64_t at = place[static_cast<std::size_t>(b * most + t / page_tokens)];
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          copy_row(k, p.k, {at, t % page_tokens, h, 0}, {b, t, h, 0}, c.head_dim);
          copy_row(v, p.v, {at, t % page_tokens, h, 0}, {b, t, h, 0}, c.value_dim);
        }
      }
    }
  }

  static std::int64_t length_of(const Problem& p, std::int64_t b) {
    const ConstView& lengths = p.mask.kv_lengths;
    if (!lengths.given()) return p.description().kv_len;
    return lengths.type == ElementType::int32 ? static_cast<const std::int32_t*>(lengths.data)[b]
                                              : static_cast<const std::int64_t*>(lengths.data)[b];
  }

  static void copy_row(Tensor& to, const Tensor& from, Index to_at, Index from_at,
                       std::int64_t dim) {
    for (std::int64_t d = 0; d < dim; ++d) {
      to_at[3] = from_at[3] = d;
      std::memcpy(to.address(to_at), from.address(from_at),
                  static_cast<std::size_t>(element_bytes(to.type())));
    }
  }

  KvView view() const {
    KvView view;
    view.k = k.const_view();
    view.v = v.const_view();
    view.page_table = table.const_view();
    view.lengths = lengths.const_view();
    return view;
  }

  /// The problem's call with this instead of its k and v.
  AttentionArguments arguments(Problem& p) const {
    AttentionArguments a = p.arguments();
    a.k = a.v = {};
    a.mask.kv_lengths = {};
    a.kv = view();
    return a;
  }
};

/// Types a cache holds that are no element type of a problem.
inline constexpr ElementType kCodeTypes[] = {ElementType::int8, ElementType::int4,
                                             ElementType::float8_e4m3, ElementType::float8_e5m2};

}  // namespace polyhead::test
