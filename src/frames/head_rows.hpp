// Rows of heads in a checked view, read and written one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "polyhead/types.h"

namespace polyhead::inline v0::frames {

/// A view's axes, from the last, of [batch?, tokens, heads, dim].
inline std::int64_t from_last(const ConstView& view, int axis) {
  return view.layout.extents[static_cast<std::size_t>(view.layout.axes - 1 - axis)];
}
inline std::int64_t dim_of(const ConstView& view) { return from_last(view, 0); }
inline std::int64_t heads_of(const ConstView& view) { return from_last(view, 1); }
inline std::int64_t tokens_of(const ConstView& view) { return from_last(view, 2); }

/// The rows [batch?, tokens, heads, dim] of a checked view. None where it is not given or holds
/// nothing.
class HeadRows {
 public:
  explicit HeadRows(const ConstView& view);

  std::int64_t sequences() const { return batch_; }
  std::int64_t tokens() const { return tokens_; }  ///< of a sequence
  std::int64_t heads() const { return heads_; }
  std::int64_t dim() const { return dim_; }

  /// Bytes from the view's first element to a row's.
  std::int64_t at(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    return sequence * batch_stride_ + token * token_stride_ + head * head_stride_;
  }
  /// A row's elements in float32, and back, rounded to nearest.
  void load(const std::byte* row, float* to) const;
  void store(const float* from, std::byte* row) const;

 private:
  ElementType type_;
  std::int64_t batch_ = 0, tokens_ = 0, heads_ = 0, dim_ = 0;
  std::int64_t batch_stride_ = 0, token_stride_ = 0, head_stride_ = 0, dim_stride_ = 0;  // bytes
};

/// Whether no number is a NaN or an infinity.
bool all_finite(std::span<const float> numbers);

}  // namespace polyhead::inline v0::frames
