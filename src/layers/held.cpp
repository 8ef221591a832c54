#include "layers/held.hpp"

#include <iterator>
#include <span>
#include <utility>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/footprint.hpp"

namespace polyhead::inline v0::layers {

HeldSizes held_sizes(const Layer& layer) {
  const LayerConfig& c = layer.config;
  return {c.kv_heads, c.head_dim, c.value_dim};
}

void refuse_key_lengths(const char* name, const Mask& mask, const char* what) {
  if (!mask.kv_lengths.given()) return;
  base::refuse(name, "mask.kv_lengths are given, but ", what, " has lengths of its own");
}

kernels::AttendCall resolve_held(const Input& input, const KvView& kv, const HeldSizes& sizes,
                                 door::Inputs& read) {
  kernels::AttendCall held;
  held.batch = input.sequences;
  held.head_dim = sizes.head_dim;
  door::resolve_view(input.name, kv, true, held, read);
  const struct {
    const char* name;
    std::int64_t found, expected;
  } each[] = {{"kv.k: kv_heads", held.kv_heads, sizes.kv_heads},
              {"kv.v: value_dim", held.value_dim, sizes.value_dim}};
  for (const auto& size : each) {
    if (size.found != size.expected)
      base::refuse(input.name, size.name, " is ", size.found, ", expected ", size.expected);
  }
  return held;
}

const std::int64_t* starts_in(const Input& input, const kernels::AttendCall& held,
                              const ConstView& lengths, Buffer& memory) {
  auto* const starts = reinterpret_cast<std::int64_t*>(memory.need(input.sequences, 8));
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    const std::int64_t count = tokens_of(input, lengths, b);
    starts[b] = tokens_held(held, b) - count;
    if (starts[b] < 0) {
      base::refuse(input.name, "kv has ", tokens_held(held, b), " tokens of sequence ", b,
                   ", expected at least the ", count, " of x: they are its last");
    }
  }
  return starts;
}

KvView room_of(const KvCache& cache) {
  KvView room = cache.view();
  for (ConstView* part : {&room.k, &room.v, &room.k_scales, &room.v_scales}) {
    if (part->layout.axes == 4) part->layout.extents[1] = cache.capacity();
  }
  return room;
}

namespace {

/// From the first byte of a cache's rows or scales to the last.
ConstView bytes_of(const ConstView& rows) {
  const detail::Layout& layout = rows.layout;
  std::int64_t elements = 1;
  for (int axis = 0; axis < layout.axes; ++axis) {
    if (layout.extents[axis] == 0) return {};
    elements += (layout.extents[axis] - 1) * layout.strides[axis];
  }
  const std::int64_t bytes = base::is_code(rows.type) ? base::code_row_bytes(rows.type, elements)
                                                      : elements * element_bytes(rows.type);
  return {rows.data, ElementType::boolean, {bytes}};
}

/// No output of the call touches a cache's rows.
void check_apart(const Input& input, const View& y, const LayerCall& call, const KvView& room) {
  door::Inputs read;
  for (const auto& [name, rows] : {std::pair{"the cache's keys", room.k},
                                   {"the cache's values", room.v},
                                   {"the cache's scales of keys", room.k_scales},
                                   {"the cache's scales of values", room.v_scales}}) {
    if (!rows.given()) continue;
    const ConstView bytes = bytes_of(rows);
    if (bytes.given()) read.add(door::footprint_of(input.name, name, bytes));
  }
  check_outputs(input.name, "y", y, call, read);
}

}  // namespace

Rows check_after_cache(const Layer& layer, const Input& input, const ConstView& x, const View& y,
                       const LayerCall& call, const KvView& room) {
  check_positions(layer, input, call.positions, x.layout.axes == 2);
  const Rows to = output_of(layer, input, y, call);
  check_apart(input, y, call, room);
  return to;
}

Held held_by(const SlidingCache& cache) {
  const KvView view = cache.view();
  Held held{cache.mask(), view.lengths, view.oldest};
  held.mask.align = Align::unstated;  // positions are the cache's
  return held;
}

namespace {

/// Whether a view is a number of each sequence, or one for all, as attention takes it.
bool is_of_sequences(const ConstView& view, std::int64_t sequences) {
  const detail::Layout& layout = view.layout;
  return view.given() && base::is_integer(view.type) && layout.axes == 1 && !layout.too_many_axes &&
         (layout.extents[0] == sequences || layout.extents[0] == 1);
}

/// The numbers that a cache shows of its sequences; none of a view that is not given.
std::span<const std::int64_t> numbers_of(const ConstView& shown) {
  if (!shown.given()) return {};
  return {static_cast<const std::int64_t*>(shown.data),
          static_cast<std::size_t>(shown.layout.extents[0])};
}

/// Copies what a call has for each sequence and lies where a cache has its own numbers, which the
/// call changes. What attention will refuse stays as it is.
void set_apart(const Input& input, const Held& held, Buffer& memory,
               AttentionArguments& arguments) {
  if (!held.lengths.given()) return;
  ConstView* const views[] = {&arguments.mask.prefix_lengths, &arguments.mask.q_lengths,
                              &arguments.modifiers.dropout.sequence_ids};
  auto* copy = reinterpret_cast<std::int64_t*>(memory.need(std::ssize(views) * input.sequences, 8));
  for (ConstView* view : views) {
    const bool own = base::begins_in(*view, numbers_of(held.lengths)) ||
                     base::begins_in(*view, numbers_of(held.oldest));
    if (!own || !is_of_sequences(*view, input.sequences)) continue;
    const kernels::Integers numbers = door::integers_of(*view);
    for (std::int64_t b = 0; b < view->layout.extents[0]; ++b) copy[b] = numbers[b];
    *view = ConstView(copy, {view->layout.extents[0]});
    copy += input.sequences;
  }
}

}  // namespace

AttentionArguments arguments_after_cache(const Layer& layer, const Input& input,
                                         const LayerCall& call, const Held& held,
                                         const Growth& growth, Buffer& memory) {
  AttentionArguments arguments = arguments_of(layer, input.name, call);
  refuse_key_lengths(input.name, arguments.mask, "the cache");
  arguments.mask.align = Align::unstated;  // positions are the cache's
  arguments.mask = arguments.mask & held.mask & padding({}, call.lengths);
  set_apart(input, held, memory, arguments);
  arguments.q_offsets = call.offsets;
  arguments.q_start = ConstView(growth.starts, {input.sequences});
  return arguments;
}

void foresee(const Layer& layer, const Input& input, AttentionArguments arguments,
             const std::int64_t* ends) {
  static constexpr float kRow = 0.0f;  // all keys and values are this one: only sizes are looked at
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < input.sequences; ++b) longest = std::max(longest, ends[b]);
  const LayerConfig& c = layer.config;
  const detail::Layout nowhere(0, 0, 0, 0);
  arguments.k = arguments.v = {};
  arguments.kv = {};
  arguments.kv.k = {&kRow, {input.sequences, longest, c.kv_heads, c.head_dim}, nowhere};
  arguments.kv.v = {&kRow, {input.sequences, longest, c.kv_heads, c.value_dim}, nowhere};
  arguments.kv.lengths = ConstView(ends, {input.sequences});
  door::resolve(arguments, {input.name, "y"});
}

ConstView token_rows(const ConstView& rows, std::int64_t first, std::int64_t count) {
  if (!rows.given()) return rows;
  ConstView part = rows;
  part.layout.extents[0] = count;
  part.data = static_cast<const std::byte*>(rows.data) +
              first * rows.layout.strides[0] * float_bytes(rows.type);
  return part;
}

void check_room(const Input& input, const KvCache& cache, const Growth& growth) {
  if (cache.config().growing) return;
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    if (growth.ends[b] <= cache.capacity()) continue;
    base::refuse(input.name, "sequence ", b, " holds ", growth.starts[b], " tokens; ",
                 growth.ends[b] - growth.starts[b], " more exceed the capacity (", cache.capacity(),
                 ")");
  }
}

void check_chunk(const Input& input, const SlidingCache& cache, const ConstView& lengths) {
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    const std::int64_t count = tokens_of(input, lengths, b);
    if (count > cache.config().chunk) {
      base::refuse(input.name, "sequence ", b, " gets ", count, " tokens, expected at most the ",
                   "cache's chunk (", cache.config().chunk, ")");
    }
  }
}

}  // namespace polyhead::inline v0::layers
