// Pages as the pools of other engines have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "polyhead/kv_view.h"
#include "support/tensor.h"

namespace polyhead::test {

/// A copy of the pages that a PagedCache's view shows, in which the heads of a page lie beside each
/// other: [page][head][token][dim].
class PageMajor {
 public:
  explicit PageMajor(const KvView& from) : view(from) {
    move(view.k, rows_[0]);
    move(view.v, rows_[1]);
    if (view.k_scales.given() && view.k_scales.layout.axes == 4) move(view.k_scales, rows_[2]);
    if (view.v_scales.given()) move(view.v_scales, rows_[3]);
  }
  PageMajor(const PageMajor&) = delete;  // the view points into it
  PageMajor& operator=(const PageMajor&) = delete;

  KvView view;

 private:
  static void move(ConstView& part, std::vector<std::byte>& to) {
    const auto bytes = [&](std::int64_t elements) { return bytes_apart(part.type, elements); };
    auto& [axes, extents, strides, too_many] = part.layout;
    const std::int64_t pages = extents[0], heads = extents[2];
    const std::int64_t share = strides[0], head_stride = strides[2];  // a head's share of a page
    to.resize(static_cast<std::size_t>(bytes(pages * heads * share)));
    for (std::int64_t page = 0; page < pages; ++page) {
      for (std::int64_t head = 0; head < heads; ++head) {
        std::memcpy(
            to.data() + bytes((page * heads + head) * share),
            static_cast<const std::byte*>(part.data) + bytes(head * head_stride + page * share),
            static_cast<std::size_t>(bytes(share)));
      }
    }
    part.data = to.data();
    strides[0] = heads * share;
    strides[2] = share;
  }

  std::vector<std::byte> rows_[4];
};

}  // namespace polyhead::test
