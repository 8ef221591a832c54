// The door's check of what a cache gives: rows, codes and their scales, page tables and lengths.
#include <algorithm>
#include <bit>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "base/limits.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {
namespace {

using kernels::AttendCall;
using kernels::Operand;

class ViewDoor {
 public:
  ViewDoor(const char* name, const KvView& view, AttendCall& call, Inputs& inputs)
      : name_(name), view_(view), call_(call), inputs_(inputs), paged_(view.page_table.given()) {}

  void open(bool with_values) {
    check_rows("kv.k", view_.k);
    slots_ = view_.k.layout.extents[0];
    tokens_ = view_.k.layout.extents[1];
    call_.kv_heads = view_.k.layout.extents[2];
    call_.k = rows("kv.k", view_.k, "head_dim", call_.head_dim);
    call_.k.scales = scales("kv.k_scales", view_.k_scales, view_.k.type, call_.head_dim, true);
    if (with_values) {
      check_rows("kv.v", view_.v);
      call_.value_dim = view_.v.layout.extents[3];
      call_.v = rows("kv.v", view_.v, "value_dim", call_.value_dim);
      call_.v.scales = scales("kv.v_scales", view_.v_scales, view_.v.type, call_.value_dim, false);
      if (view_.k.type != view_.v.type &&
          (base::is_code(view_.k.type) || base::is_code(view_.v.type))) {
        refuse("kv.v is ", element_name(view_.v.type), ", expected ", element_name(view_.k.type),
               " as kv.k: codes are of one type");
      }
    }
    if (!paged_ && slots_ != call_.batch)
      refuse("kv.k: batch is ", slots_, ", expected ", call_.batch);
    take_lengths();
    check_oldest();
    if (paged_) take_table();
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    base::refuse(name_, parts...);
  }

  void check_rows(const char* name, const ConstView& rows) const {
    check_axes(name_, name, rows,
               {{paged_ ? "pages" : "batch", 0, Axis::at_least},
                {paged_ ? "page_tokens" : "tokens", 0, Axis::at_least},
                {"kv_heads", 0, Axis::at_least},
                {"dim", 0, Axis::at_least}});
    if (!base::is_code(rows.type)) check_floating(name_, name, rows);
  }

  Operand rows(const char* name, const ConstView& view, const char* dim_name, std::int64_t dim) {
    check_axes(name_, name, view,
               {{paged_ ? "pages" : "batch", slots_},
                {paged_ ? "page_tokens" : "tokens", tokens_},
                {"kv_heads", call_.kv_heads},
                {dim_name, dim}});
    ConstView bytes = view;
    if (base::is_code(view.type)) bytes = bytes_of_codes(name, view);
    inputs_.add(footprint_of(name_, name, bytes));
    auto* const data = const_cast<std::byte*>(static_cast<const std::byte*>(bytes.data));
    if (data == nullptr) return {nullptr, view.type};
    Operand operand{data,
                    view.type,
                    kernel_stride(bytes, 0),
                    kernel_stride(bytes, 1),
                    kernel_stride(bytes, 2),
                    base::is_code(view.type) ? 0 : kernel_stride(bytes, 3)};
    return operand;
  }

  /// Rows of codes as rows of bytes.
  ConstView bytes_of_codes(const char* name, const ConstView& codes) const {
    const detail::Layout& from = codes.layout;
    if (from.extents[3] > 1 && from.strides[3] != 1) {
      refuse(name, ": stride of the dim axis is ", from.strides[3], ", expected 1 for ",
             element_name(codes.type));
    }
    if (from.extents[3] > kMaxExtent)
      refuse(name, ": extent ", from.extents[3], " of axis 3 is more than 2^48");
    ConstView bytes(codes.data, ElementType::boolean, from);
    bytes.layout.extents[3] = base::code_row_bytes(codes.type, from.extents[3]);
    bytes.layout.strides[3] = 1;
    for (int axis = 0; axis < 3; ++axis) {
      if (from.extents[axis] > 1 && from.strides[axis] % base::kCodeBlock != 0) {
        refuse(name, ": stride of axis ", axis, " is ", from.strides[axis],
               " elements, expected a multiple of ", base::kCodeBlock, " for ",
               element_name(codes.type));
      }
      if (codes.type == ElementType::int4) bytes.layout.strides[axis] /= 2;
    }
    return bytes;
  }

  kernels::Scales scales(const char* name, const ConstView& view, ElementType type,
                         std::int64_t dim, bool by_channel_too) {
    if (!base::is_scaled(type)) {
      if (view.given()) {
        refuse(name, " is given, but ", element_name(type), " has no scales");
      }
      return {};
    }
    const bool by_channel = by_channel_too && view.layout.axes == 2;
    if (by_channel) {
      check_axes(name_, name, view, {{"kv_heads", call_.kv_heads}, {"head_dim", dim}});
    } else {
      check_axes(name_, name, view,
                 {{paged_ ? "pages" : "batch", slots_},
                  {paged_ ? "page_tokens" : "tokens", tokens_},
                  {"kv_heads", call_.kv_heads},
                  {"blocks", base::code_blocks(dim)}});
    }
    check_type(name_, name, view, ElementType::float32);
    inputs_.add(footprint_of(name_, name, view));
    const auto stride = [&](int axis) { return kernel_stride(view, axis) / 4; };
    const auto* const data = static_cast<const float*>(view.data);
    if (by_channel) return {data, 0, 0, stride(0), stride(1), 0};
    return {data, stride(0), stride(1), stride(2), stride(3), 5};
  }

  void take_lengths() {
    call_.kv_len = tokens_;
    const ConstView& lengths = view_.lengths;
    if (!lengths.given()) {
      if (paged_) refuse("kv.lengths is not given, expected [batch] beside kv.page_table");
      return;
    }
    check_axes(name_, "kv.lengths", lengths, {{"batch", call_.batch}});
    check_integer(name_, "kv.lengths", lengths);
    inputs_.add(footprint_of(name_, "kv.lengths", lengths));
    call_.kv_lengths = integers_of(lengths);
    call_.kv_len = 0;
    for (std::int64_t b = 0; b < call_.batch; ++b) {
      const std::int64_t length = call_.kv_lengths[b];
      if (length < 0) refuse("kv.lengths[", b, "] (", length, ") is negative");
      if (!paged_ && length > tokens_)
        refuse("kv.lengths[", b, "] (", length, ") is not within 0 .. ", tokens_);
      call_.kv_len = std::max(call_.kv_len, length);
    }
  }

  /// Whether a query sees what a ring has written over is checked where positions are known.
  void check_oldest() {
    const ConstView& oldest = view_.oldest;
    if (view_.first_tokens < 0) refuse("kv.first_tokens (", view_.first_tokens, ") is negative");
    if (!oldest.given()) {
      if (view_.first_tokens != 0) refuse("kv.first_tokens is given without kv.oldest");
      return;
    }
    check_axes(name_, "kv.oldest", oldest, {{"batch", call_.batch}});
    check_integer(name_, "kv.oldest", oldest);
    inputs_.add(footprint_of(name_, "kv.oldest", oldest));
  }

  void take_table() {
    if (!base::is_page_size(tokens_)) {
      refuse("kv.k: page_tokens is ", tokens_, ", expected a power of two from ", base::kLeastPage,
             " to ", base::kMostPage);
    }
    const ConstView& table = view_.page_table;
    check_axes(name_, "kv.page_table", table,
               {{"batch", call_.batch}, {"pages", 0, Axis::at_least}});
    check_type(name_, "kv.page_table", table, ElementType::int32);
    const std::int64_t most = table.layout.extents[1];
    if (most > 1 && table.layout.strides[1] != 1) {
      refuse("kv.page_table: stride of the page axis is ", table.layout.strides[1], ", expected 1");
    }
    inputs_.add(footprint_of(name_, "kv.page_table", table));
    static constexpr std::int32_t kNone[1] = {};  // for a table without entries
    call_.pages.data = table.data ? static_cast<const std::int32_t*>(table.data) : kNone;
    call_.pages.stride = kernel_stride(table, 0) / 4;
    call_.pages.shift = std::countr_zero(static_cast<std::uint64_t>(tokens_));
    for (std::int64_t b = 0; b < call_.batch; ++b) check_pages(b, most);
  }

  /// The table's entries for the keys that sequence b has.
  void check_pages(std::int64_t b, std::int64_t most) const {
    const std::int64_t length = call_.kv_lengths[b];
    const std::int64_t pages = length / tokens_ + (length % tokens_ != 0 ? 1 : 0);
    if (pages > most) {
      refuse("kv.lengths[", b, "] (", length, ") needs ", pages, " pages, but kv.page_table has ",
             most, " a sequence");
    }
    const std::int32_t* const table = call_.pages.data + b * call_.pages.stride;
    for (std::int64_t i = 0; i < pages; ++i) {
      if (table[i] < 0 || table[i] >= slots_) {
        refuse("kv.page_table[", b, ", ", i, "] (", table[i], ") is not within the pool's 0 .. ",
               slots_ - 1);
      }
    }
  }

  const char* name_;
  const KvView& view_;
  AttendCall& call_;
  Inputs& inputs_;
  const bool paged_;
  std::int64_t slots_ = 0, tokens_ = 0;
};

}  // namespace

void resolve_view(const char* call_name, const KvView& view, bool with_values, AttendCall& call,
                  Inputs& inputs) {
  ViewDoor(call_name, view, call, inputs).open(with_values);
}

}  // namespace polyhead::inline v0::door
