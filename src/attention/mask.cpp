#include "polyhead/mask.h"

#include <algorithm>
#include <array>

#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

bool same_view(const ConstView& a, const ConstView& b) {
  return a.data == b.data && a.type == b.type && a.layout.axes == b.layout.axes &&
         a.layout.extents == b.layout.extents && a.layout.strides == b.layout.strides &&
         a.layout.too_many_axes == b.layout.too_many_axes;
}

// The given one of two views; of two given ones they must be the same.
ConstView join(const ConstView& a, const ConstView& b, const char* kind, const char*& conflict) {
  if (!a.given()) return b;
  if (b.given() && !same_view(a, b)) conflict = kind;
  return a;
}

// Sides without a window: refused at the door, so they must come through a join.
bool has_stray_window(const Mask& mask) {
  return !mask.windowed && (mask.left != -1 || mask.right != -1 || mask.first_tokens != 0);
}

// The narrower of two window sides, -1 being unbounded. Less is refused at the door: it must come
// through.
std::int64_t narrower(std::int64_t a, std::int64_t b) {
  if (a == -1) return b;
  if (b == -1) return a;
  return a < b ? a : b;
}

}  // namespace

Mask causal(Align align) {
  Mask mask;
  mask.causal = true;
  mask.align = align;
  return mask;
}

Mask window(std::int64_t left, std::int64_t right, Align align) {
  if (left < -1) base::refuse("window", "left (", left, ") is less than -1 (unbounded)");
  if (right < -1) base::refuse("window", "right (", right, ") is less than -1 (unbounded)");
  Mask mask;
  mask.windowed = true;
  mask.left = left;
  mask.right = right;
  mask.align = align;
  return mask;
}

Mask window_and_first(std::int64_t left, std::int64_t right, std::int64_t first_tokens,
                      Align align) {
  if (first_tokens < 0)
    base::refuse("window_and_first", "first_tokens (", first_tokens, ") is negative");
  Mask mask = window(left, right, align);
  mask.first_tokens = first_tokens;
  return mask;
}

Mask lengths(ConstView kv_lengths, ConstView q_lengths) {
  Mask mask;
  mask.kv_lengths = kv_lengths;
  mask.q_lengths = q_lengths;
  return mask;
}

Mask prefix(std::int64_t length, Align align) {
  Mask mask = causal(align);
  mask.prefix_length = length;
  return mask;
}

Mask prefix(ConstView lengths, Align align) {
  Mask mask = causal(align);
  mask.prefix_lengths = lengths;
  return mask;
}

Mask documents(ConstView q_documents, ConstView kv_documents) {
  Mask mask;
  mask.q_documents = q_documents;
  mask.kv_documents = kv_documents;
  return mask;
}

Mask boolean(ConstView visible) {
  Mask mask;
  mask.visible = visible;
  return mask;
}

Mask hidden(ConstView hidden) {
  Mask mask;
  mask.hidden = hidden;
  return mask;
}

namespace {

void join_prefixes(const Mask& a, const Mask& b, Mask& both) {
  constexpr const char* kKind = "prefix";
  both.prefix_lengths = join(a.prefix_lengths, b.prefix_lengths, kKind, both.conflict);
  if (a.prefix_length == 0)
    both.prefix_length = b.prefix_length;
  else if (b.prefix_length != 0 && b.prefix_length != a.prefix_length)
    both.conflict = kKind;
  if (both.prefix_length != 0 && both.prefix_lengths.given()) both.conflict = kKind;
}

/// Puts `more` where there is room, unless they are there already.
void join_booleans(const std::array<ConstView*, 2>& to, const std::array<const ConstView*, 2>& more,
                   const char* kind, const char*& conflict) {
  for (const ConstView* view : more) {
    if (!view->given()) continue;
    const auto place = std::ranges::find_if(
        to, [&](const ConstView* had) { return !had->given() || same_view(*had, *view); });
    if (place == to.end())
      conflict = kind;
    else
      **place = *view;
  }
}

void join_windows(const Mask& a, const Mask& b, Mask& both) {
  if (a.windowed && b.windowed) {
    both.left = narrower(a.left, b.left);
    both.right = narrower(a.right, b.right);
    if (a.first_tokens != b.first_tokens) both.conflict = "window (first_tokens)";
  } else if (has_stray_window(a) || b.windowed || has_stray_window(b)) {
    const Mask& from = has_stray_window(a) ? a : b;
    both.windowed = from.windowed;
    both.left = from.left;
    both.right = from.right;
    both.first_tokens = from.first_tokens;
  }
}

}  // namespace

Mask operator&(const Mask& a, const Mask& b) {
  Mask both = a;
  if (both.conflict == nullptr) both.conflict = b.conflict;
  both.causal = a.causal || b.causal;
  join_prefixes(a, b, both);
  join_windows(a, b, both);
  if (a.align == Align::unstated)
    both.align = b.align;
  else if (b.align != Align::unstated && b.align != a.align)
    both.conflict = "alignment";
  both.kv_lengths = join(a.kv_lengths, b.kv_lengths, "kv_lengths", both.conflict);
  both.q_lengths = join(a.q_lengths, b.q_lengths, "q_lengths", both.conflict);
  both.q_documents = join(a.q_documents, b.q_documents, "q_documents", both.conflict);
  both.kv_documents = join(a.kv_documents, b.kv_documents, "kv_documents", both.conflict);
  join_booleans({&both.visible, &both.also_visible}, {&b.visible, &b.also_visible},
                "boolean (more than two)", both.conflict);
  join_booleans({&both.hidden, &both.also_hidden}, {&b.hidden, &b.also_hidden},
                "hidden (more than two)", both.conflict);
  return both;
}

}  // namespace polyhead::inline v0
