// What caches of a batch take: rows [batch, tokens, kv_heads, dim] and how many of them each
// sequence gets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0 {
class KvCache;
class SlidingCache;
}  // namespace polyhead::inline v0

namespace polyhead::inline v0::cache {

/// "[2, 1, 4]": what messages say that a view is.
std::string shown_shape(const ConstView& view);

/// Refuses an index that is not within 0 .. count - 1.
void check_index(const char* call, const char* name, std::int64_t index, std::int64_t count);

struct RowsShape {
  std::int64_t batch, tokens, heads, dim;
};

/// The tokens of a view of rows, 0 where it has not four axes (check_rows then refuses it).
inline std::int64_t tokens_of(const ConstView& rows) {
  return rows.layout.axes == 4 ? rows.layout.extents[1] : 0;
}

/// Throws InvalidArgument, beginning with `call` and naming the view, where it is not of this shape
/// and a floating type.
void check_rows(const char* call, const char* name, const ConstView& rows, const RowsShape& shape);

/// `counts` is not given, or int32/int64 [batch] within 0 .. tokens.
void check_counts(const char* call, const ConstView& counts, std::int64_t batch,
                  std::int64_t tokens);
/// `counts`, or what they are now, in `copy`, where they lie in `array`, which an append changes.
ConstView counts_apart(const ConstView& counts, std::span<const std::int64_t> array,
                       std::vector<std::int64_t>& copy);
std::int64_t count_at(const ConstView& counts, std::int64_t sequence, std::int64_t tokens);

/// One row of checked rows.
SourceRow source_row(const ConstView& rows, std::int64_t sequence, std::int64_t token,
                     std::int64_t head);

/// Checked rows to append: of each sequence the same number, or `counts` of them, [batch, tokens,
/// heads, dim]; with `offsets` those of all one after the other, [1, tokens, heads, dim].
struct Fresh {
  ConstView k, v, counts, offsets;

  std::int64_t count(std::int64_t sequence) const {
    if (!offsets.given()) return count_at(counts, sequence, tokens_of(k));
    return count_at(offsets, sequence + 1, 0) - count_at(offsets, sequence, 0);
  }
  /// Of k or v.
  SourceRow row(const ConstView& rows, std::int64_t sequence, std::int64_t token,
                std::int64_t head) const {
    if (!offsets.given()) return source_row(rows, sequence, token, head);
    return source_row(rows, 0, count_at(offsets, sequence, 0) + token, head);
  }
};

/// Appends checked rows [tokens, heads, dim] (no v with values_in_keys): to sequence b those from
/// offsets[b] to offsets[b + 1]. As append() does, with its refusals.
struct Ragged {
  static void append(KvCache& cache, const ConstView& k, const ConstView& v,
                     const ConstView& offsets);
  static void append(SlidingCache& cache, const ConstView& k, const ConstView& v,
                     const ConstView& offsets);

  /// Such rows as those of one sequence.
  static Fresh fresh(const ConstView& k, const ConstView& v, const ConstView& offsets);
};

}  // namespace polyhead::inline v0::cache
