// One call of attention() made of fuzz bytes: any shape, strides, types, mask and modifiers, over
// arrays or what a cache holds, and now and then one argument that must be refused. Arrays are
// allocated to the byte, so the address sanitizer sees any step over an edge.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "polyhead/attention.h"
#include "tests/fuzz/bytes.hpp"
#include "tests/fuzz/held_keys.hpp"

namespace polyhead::fuzz {

/// The bytes of one array, and where they are outputs also what they held before.
struct Buffer {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
};

class Case {
 public:
  Case(const std::uint8_t* data, std::size_t size) : from_(data, size) {
    random_.seed(from_.any<std::uint32_t>());
    corrupted_view_ = chance(8) ? from_.between(0, 12) : -1;
    take_sizes();
    take_tensors();
    take_mask();
    take_modifiers();
    take_outputs();
  }

  const AttentionArguments& arguments() const { return arguments_; }

  /// Fills every output with one byte and lists them.
  std::vector<Buffer*> poison(int byte) {
    std::vector<Buffer*> outputs;
    for (std::size_t i : outputs_) {
      std::memset(buffers_[i].bytes.get(), byte, buffers_[i].size);
      outputs.push_back(&buffers_[i]);
    }
    return outputs;
  }

 private:
  enum class Fill { normal, spiked, small_bias, slopes, bits };

  /// False when the bytes are used up.
  bool chance(int one_in) { return from_.between(1, one_in) == one_in; }
  /// Seldom 0: most calls are to have something to compute.
  std::int64_t size(std::int64_t most) {
    return chance(20) ? 0 : from_.between<std::int64_t>(1, most);
  }
  ElementType float_type() {
    return from_.pick({ElementType::float32, ElementType::float16, ElementType::bfloat16});
  }
  ElementType integer_type() { return from_.pick({ElementType::int32, ElementType::int64}); }

  void take_sizes() {
    batch_ = size(3);
    q_len_ = size(chance(4) ? 70 : 5);
    kv_len_ = size(chance(4) ? 200 : 20);
    kv_heads_ = size(3);
    q_heads_ = kv_heads_ * from_.between<std::int64_t>(1, 4);
    head_dim_ = size(chance(6) ? 130 : 20);
    value_dim_ = size(chance(6) ? 130 : 20);
    ragged_ = chance(3);
    held_keys_ = chance(3) && batch_ > 0 && kv_heads_ > 0 && head_dim_ > 0 && value_dim_ > 0;
    common_type_ = chance(2);
    type_ = float_type();
  }

  ElementType tensor_type() { return common_type_ ? type_ : float_type(); }

  float value(Fill fill) {
    const float uniform = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random_);
    switch (fill) {
      case Fill::spiked:
        if (random_() % 64 == 0) return std::numeric_limits<float>::quiet_NaN();
        return uniform;
      case Fill::small_bias:
        return random_() % 16 == 0 ? -std::numeric_limits<float>::infinity() : uniform;
      case Fill::slopes:
        return std::abs(uniform) * 0.1f;
      default:
        return uniform;
    }
  }

  /// A view of these extents with its own array: axes in any memory order, gaps between them, some
  /// reversed, inputs with broadcast axes.
  View make(std::vector<std::int64_t> extents, ElementType type, bool output, Fill fill) {
    const int axes = static_cast<int>(extents.size());
    std::vector<std::int64_t> strides(axes);
    std::vector<int> order(axes);
    for (int axis = 0; axis < axes; ++axis) order[axis] = axes - 1 - axis;
    const bool packed_bits = type == ElementType::bit;
    if (chance(3)) std::shuffle(order.begin() + (packed_bits ? 1 : 0), order.end(), random_);
    std::int64_t span = 1, first = 0;
    for (int axis : order) {
      strides[axis] = span;
      if (!output && chance(8) && !(packed_bits && axis == axes - 1)) {
        strides[axis] = 0;
        continue;
      }
      std::int64_t next = std::max<std::int64_t>(extents[axis], 1) * span;
      if (chance(4)) next += span * from_.between(1, 3);
      if (packed_bits) next = (next + 7) / 8 * 8;  // rows of bits begin at whole bytes
      if (!packed_bits && chance(10)) {
        first += span * std::max<std::int64_t>(extents[axis] - 1, 0);
        strides[axis] = -span;
      }
      span = next;
    }
    bool empty = false;
    for (std::int64_t extent : extents) empty = empty || extent == 0;
    std::int64_t last = first;
    for (int axis = 0; axis < axes && !empty; ++axis) {
      if (strides[axis] > 0) last += (extents[axis] - 1) * strides[axis];
    }
    const std::int64_t elements = empty ? 0 : last + 1;
    std::byte* data = allocate(elements, type, output, fill);
    detail::Layout layout;
    layout.axes = axes;
    for (int axis = 0; axis < axes; ++axis) {
      layout.extents[axis] = extents[axis];
      layout.strides[axis] = strides[axis];
    }
    View view{empty ? data : data + first * element_bytes(type), type, layout};
    if (view_count_++ == corrupted_view_) corrupt(view, output);
    return view;
  }

  std::byte* allocate(std::int64_t elements, ElementType type, bool output, Fill fill) {
    const std::size_t bytes = type == ElementType::bit
                                  ? static_cast<std::size_t>(elements + 7) / 8
                                  : static_cast<std::size_t>(elements * element_bytes(type));
    if (output) outputs_.push_back(buffers_.size());
    buffers_.push_back({std::make_unique<std::byte[]>(bytes), bytes});
    std::byte* data = buffers_.back().bytes.get();
    if (output) return data;
    for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random_());
    for (std::int64_t i = 0; i < elements; ++i) {
      if (type == ElementType::float32) reinterpret_cast<float*>(data)[i] = value(fill);
      if (type == ElementType::float16)
        reinterpret_cast<float16*>(data)[i] = to_float16(value(fill));
      if (type == ElementType::bfloat16)
        reinterpret_cast<bfloat16*>(data)[i] = to_bfloat16(value(fill));
      if (type == ElementType::boolean) data[i] = static_cast<std::byte>(random_() % 3);
    }
    return data;
  }

  /// Something that is either refused or harmless. Strides are either so large that their bytes
  /// overflow or, for outputs, 0: nothing in between, which would be legal and point outside the
  /// array.
  void corrupt(View& view, bool output) {
    const int axis = from_.between(0, std::max(0, view.layout.axes - 1));
    std::int64_t& extent = view.layout.extents[axis];
    std::int64_t& stride = view.layout.strides[axis];
    switch (from_.between(0, 5)) {
      case 0:
        --extent;
        break;
      case 1:
        extent = from_.pick<std::int64_t>({INT64_MIN, -1, INT64_MAX});
        break;
      case 2:
        if (element_bytes(view.type) > 1)
          stride = from_.pick<std::int64_t>({INT64_MAX, INT64_MIN, INT64_MIN + 1});
        break;
      case 3:
        if (output) stride = 0;
        break;
      case 4:
        view.layout.axes = from_.between(0, view.layout.axes);
        break;
      default:
        view.layout.too_many_axes = true;
    }
  }

  /// One integer a sequence within 0 .. most(b); sometimes one that is not.
  template <class Most>
  View integers(std::int64_t count, Most most) {
    const ElementType type = integer_type();
    View view = make({count}, type, false, Fill::normal);
    const int corrupted = chance(30) ? 1 : 0;
    if (view.layout.axes != 1 || view.layout.extents[0] != count || count == 0) return view;
    const std::int64_t stride = view.layout.strides[0];
    if (count > 1 && (stride > 100 || stride < -100)) return view;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t number = from_.between<std::int64_t>(0, most(i)) - corrupted;
      std::byte* at = static_cast<std::byte*>(view.data) + i * stride * element_bytes(type);
      if (type == ElementType::int32) {
        const auto narrow = static_cast<std::int32_t>(number);
        std::memcpy(at, &narrow, sizeof narrow);
      } else {
        std::memcpy(at, &number, sizeof number);
      }
    }
    return view;
  }

  /// Ascending offsets from 0 to at most `tokens`; `longest` becomes that of a sequence.
  View offsets(std::int64_t tokens, std::int64_t& longest) {
    std::vector<std::int64_t> values(1, 0);
    longest = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      values.push_back(from_.between<std::int64_t>(values.back(), tokens));
      longest = std::max(longest, values.back() - values[values.size() - 2]);
    }
    buffers_.push_back({std::make_unique<std::byte[]>(values.size() * 8), values.size() * 8});
    std::memcpy(buffers_.back().bytes.get(), values.data(), values.size() * 8);
    auto* data = reinterpret_cast<std::int64_t*>(buffers_.back().bytes.get());
    if (batch_ > 0 && chance(30)) data[batch_] = from_.pick<std::int64_t>({-1, tokens + 1});
    return {data, {batch_ + 1}};
  }

  std::vector<std::int64_t> shape(std::int64_t tokens, std::int64_t heads, std::int64_t dim) const {
    if (ragged_) return {tokens, heads, dim};
    return {batch_, tokens, heads, dim};
  }

  void take_tensors() {
    arguments_.q = make(shape(q_len_, q_heads_, head_dim_), tensor_type(), false,
                        chance(8) ? Fill::spiked : Fill::normal);
    const Fill kv_fill = chance(3) ? Fill::spiked : Fill::normal;
    if (held_keys_)
      take_held_keys(kv_fill);
    else
      take_keys(kv_fill);
    longest_q_ = q_len_;
    longest_kv_ = kv_len_;
    if (!ragged_) return;
    arguments_.q_offsets = offsets(q_len_, longest_q_);
    if (!held_keys_) arguments_.kv_offsets = offsets(kv_len_, longest_kv_);
  }

  void take_keys(Fill fill) {
    const ElementType k_type = tensor_type();
    arguments_.k = make(shape(kv_len_, kv_heads_, head_dim_), k_type, false, fill);
    arguments_.v =
        make(shape(kv_len_, kv_heads_, value_dim_), chance(8) ? float_type() : k_type, false, fill);
  }

  void take_held_keys(Fill fill) {
    held_.emplace(from_, HeldKeys::Sizes{batch_, kv_len_, kv_heads_, head_dim_, value_dim_},
                  [this, fill] { return value(fill); });
    arguments_.kv = held_->view();
    kv_len_ = held_->longest();
  }

  std::vector<std::int64_t> pairs(bool key_may_be_one) {
    return {chance(2) ? 1 : batch_, chance(2) ? 1 : q_heads_, chance(4) ? 1 : longest_q_,
            key_may_be_one && chance(8) ? 1 : longest_kv_};
  }

  void take_mask() {
    Mask& mask = arguments_.mask;
    mask.align = chance(10) ? Align::unstated : from_.pick({Align::end, Align::start});
    mask.causal = chance(2);
    mask.windowed = chance(3);
    if (mask.windowed) {
      mask.left = from_.between<std::int64_t>(-1, 40);
      mask.right = chance(8) ? INT64_MAX : from_.between<std::int64_t>(-1, 40);
    }
    const bool prefixed = mask.causal || chance(20);
    if (prefixed && chance(6)) mask.prefix_length = size(30);
    if (prefixed && chance(mask.prefix_length > 0 ? 20 : 8))
      mask.prefix_lengths = integers(batch_, [](std::int64_t) { return 30; });
    if (chance(3) && !ragged_) {
      if (!held_keys_) mask.kv_lengths = integers(batch_, [&](std::int64_t) { return kv_len_; });
      if (chance(2)) mask.q_lengths = integers(batch_, [&](std::int64_t) { return q_len_; });
    }
    if (chance(6)) {
      const std::int64_t rows = ragged_ || chance(2) ? 1 : batch_;
      mask.q_documents = make_documents(rows, q_len_);
      mask.kv_documents = make_documents(rows, kv_len_);
    }
    if (chance(4)) {
      const ElementType type = from_.pick({ElementType::boolean, ElementType::bit});
      mask.visible = make(pairs(type == ElementType::boolean), type, false, Fill::bits);
    }
    if (chance(8)) {
      const ElementType type = from_.pick({ElementType::boolean, ElementType::bit});
      mask.hidden = make(pairs(type == ElementType::boolean), type, false, Fill::bits);
    }
    if (chance(16)) {
      const ElementType type = from_.pick({ElementType::boolean, ElementType::bit});
      ConstView& also = from_.pick({true, false}) ? mask.also_visible : mask.also_hidden;
      also = make(pairs(type == ElementType::boolean), type, false, Fill::bits);
    }
    if (chance(6)) {
      mask.align = chance(8) ? mask.align : Align::unstated;
      arguments_.q_start = integers(batch_, [&](std::int64_t) { return kv_len_ + 5; });
    }
  }

  View make_documents(std::int64_t rows, std::int64_t tokens) {
    const std::size_t bytes = static_cast<std::size_t>(rows * tokens) * sizeof(std::int32_t);
    buffers_.push_back({std::make_unique<std::byte[]>(bytes), bytes});
    auto* ids = reinterpret_cast<std::int32_t*>(buffers_.back().bytes.get());
    for (std::int64_t i = 0; i < rows * tokens; ++i)
      ids[i] = static_cast<std::int32_t>(random_() % 3);
    return {ids, {rows, tokens}};
  }

  void take_modifiers() {
    Modifiers& modifiers = arguments_.modifiers;
    if (chance(3)) {
      modifiers.scale =
          chance(20) ? std::numeric_limits<float>::quiet_NaN() : from_.between(-0.5f, 0.5f);
    }
    if (chance(4)) modifiers.soft_cap = from_.between(-0.2f, 20.0f);
    if (chance(4)) modifiers.bias = make(pairs(true), float_type(), false, Fill::small_bias);
    modifiers.alibi.use_default_slopes = chance(6);
    if (chance(modifiers.alibi.use_default_slopes ? 20 : 8))
      modifiers.alibi.slopes = make({q_heads_}, ElementType::float32, false, Fill::slopes);
    if (chance(5)) modifiers.sink = make({q_heads_}, ElementType::float32, false, Fill::normal);
    if (chance(5)) {
      modifiers.dropout.probability = from_.between(-0.05f, 0.9f);
      modifiers.dropout.seed = from_.any<std::uint64_t>();
      if (chance(2))
        modifiers.dropout.sequence_ids = integers(batch_, [](std::int64_t) { return 1000; });
    }
  }

  void take_outputs() {
    std::vector<std::int64_t> rows = shape(q_len_, q_heads_, 0);
    rows.pop_back();
    arguments_.out = make(shape(q_len_, q_heads_, value_dim_), tensor_type(), true, Fill::normal);
    if (chance(2)) arguments_.lse = make(rows, ElementType::float32, true, Fill::normal);
    if (chance(4)) {
      arguments_.statistics.entropy = make(rows, ElementType::float32, true, Fill::normal);
      arguments_.statistics.max_weight = make(rows, ElementType::float32, true, Fill::normal);
      arguments_.statistics.max_key = make(rows, ElementType::int64, true, Fill::normal);
    }
  }

  Bytes from_;
  std::mt19937 random_;
  AttentionArguments arguments_;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> outputs_;
  std::int64_t batch_ = 0, q_len_ = 0, kv_len_ = 0, q_heads_ = 0, kv_heads_ = 0, head_dim_ = 0,
               value_dim_ = 0;
  std::int64_t longest_q_ = 0, longest_kv_ = 0;
  bool ragged_ = false, common_type_ = true, held_keys_ = false;
  std::optional<HeldKeys> held_;
  ElementType type_ = ElementType::float32;
  int corrupted_view_ = -1, view_count_ = 0;
};

}  // namespace polyhead::fuzz
