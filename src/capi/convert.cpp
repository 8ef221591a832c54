#include "capi/convert.hpp"

#include <cstddef>
#include <utility>

#include "capi/handles.hpp"

namespace polyhead::inline v0::capi {
namespace {

constexpr std::size_t kLargestStruct =
    4096;  // a struct_bytes beyond this is garbage, not a newer program

}  // namespace

void check_struct(const char* call, const char* name, const void* from, std::size_t bytes,
                  std::size_t least, std::size_t known) {
  // Every struct begins with a size_t and so ends where one could begin: else a field is cut.
  if (bytes < least || bytes > kLargestStruct || bytes % sizeof(std::size_t) != 0) {
    refuse("%s: %s.struct_bytes (%zu) is not the size of its struct, expected sizeof (%zu)", call,
           name, bytes, known);
  }
  for (std::size_t at = known; at < bytes; ++at) {
    if (static_cast<const unsigned char*>(from)[at] != 0) {
      refuse(
          "%s: %s has a field at byte %zu that this library (%s) does not know, expected zeros "
          "past byte %zu",
          call, name, at, polyhead_version(), known);
    }
  }
}

std::int64_t not_zero(const char* call, const char* name, std::int64_t number) {
  if (number == 0) refuse("%s: %s is 0, expected at least 1: it has no default", call, name);
  return number;
}

void check_reserved(const char* call, const char* name, std::int32_t reserved) {
  if (reserved != 0) refuse("%s: %s (%d) is not 0", call, name, reserved);
}

ElementType to_element(const char* call, const char* name, std::int32_t element_type) {
  switch (element_type) {
    case POLYHEAD_FLOAT32:
      return ElementType::float32;
    case POLYHEAD_FLOAT16:
      return ElementType::float16;
    case POLYHEAD_BFLOAT16:
      return ElementType::bfloat16;
    case POLYHEAD_INT32:
      return ElementType::int32;
    case POLYHEAD_INT64:
      return ElementType::int64;
    case POLYHEAD_BOOLEAN:
      return ElementType::boolean;
    case POLYHEAD_BIT:
      return ElementType::bit;
    case POLYHEAD_INT8:
      return ElementType::int8;
    case POLYHEAD_INT4:
      return ElementType::int4;
    case POLYHEAD_FLOAT8_E4M3:
      return ElementType::float8_e4m3;
    case POLYHEAD_FLOAT8_E5M2:
      return ElementType::float8_e5m2;
  }
  refuse(
      "%s: %s (%d) is no element type, expected POLYHEAD_FLOAT32 (1) .. POLYHEAD_FLOAT8_E5M2 (11)",
      call, name, element_type);
}

std::int32_t to_c(ElementType type) {
  static_assert(
      static_cast<int>(ElementType::float32) + POLYHEAD_FLOAT32 == POLYHEAD_FLOAT32 &&
          static_cast<int>(ElementType::bit) + POLYHEAD_FLOAT32 == POLYHEAD_BIT &&
          static_cast<int>(ElementType::float8_e5m2) + POLYHEAD_FLOAT32 == POLYHEAD_FLOAT8_E5M2,
      "the two lists of element types run in parallel");
  return static_cast<std::int32_t>(type) + POLYHEAD_FLOAT32;
}

Isa to_isa(const char* call, std::int32_t isa) {
  switch (isa) {
    case POLYHEAD_ISA_AUTOMATIC:
      return Isa::automatic;
    case POLYHEAD_ISA_PORTABLE:
      return Isa::portable;
    case POLYHEAD_ISA_AVX2:
      return Isa::avx2;
    case POLYHEAD_ISA_AVX512:
      return Isa::avx512;
    case POLYHEAD_ISA_AVX512_BF16:
      return Isa::avx512_bf16;
    case POLYHEAD_ISA_AMX_BF16:
      return Isa::amx_bf16;
  }
  refuse(
      "%s: isa (%d) is no instruction set, expected POLYHEAD_ISA_AUTOMATIC (0) .. "
      "POLYHEAD_ISA_AMX_BF16 (5)",
      call, isa);
}

bool to_bool(const char* call, const char* name, std::int32_t value) {
  if (value != 0 && value != 1) refuse("%s: %s (%d) is neither 0 nor 1", call, name, value);
  return value == 1;
}

View to_view(const char* call, const char* name, const polyhead_view* view) {
  if (view == nullptr) return {};
  const polyhead_view from = read_struct(call, name, view);
  const ElementType element = to_element(call, name, from.element_type);
  if (from.axes < 1 || from.axes > kMaxAxes) {
    refuse("%s: %s has %d axes, expected 1 .. %d", call, name, from.axes, kMaxAxes);
  }
  View to;
  to.data = from.data;
  to.type = element;
  to.layout.axes = from.axes;
  for (int axis = 0; axis < from.axes; ++axis) {
    to.layout.extents[static_cast<std::size_t>(axis)] = from.extents[axis];
    to.layout.strides[static_cast<std::size_t>(axis)] = from.strides[axis];
  }
  return to;
}

bool is_dense_float32(const View& view, const detail::Layout& dense) {
  const detail::Layout& found = view.layout;
  if (view.type != ElementType::float32 || found.axes != dense.axes) return false;
  for (int axis = 0; axis < dense.axes; ++axis) {
    const std::int64_t extent = dense.extents[axis];
    if (found.extents[axis] != extent) return false;
    if (extent > 1 && found.strides[axis] != dense.strides[axis]) return false;
  }
  return true;
}

void fill_view(polyhead_view* view, const ConstView& from) {
  if (view == nullptr) return;
  const std::size_t bytes = view->struct_bytes;
  *view = polyhead_make_view(from.data, to_c(from.type), from.layout.axes,
                             from.layout.extents.data(), from.layout.strides.data());
  if (bytes > sizeof *view) view->struct_bytes = bytes;
}

Limits to_limits(const char* call, const polyhead_limits* limits) {
  const polyhead_limits from =
      read_struct(call, "limits", limits, offsetof(polyhead_limits, v_type));
  Limits to;
  to.batch = from.batch;
  to.q_len = from.q_len;
  to.kv_len = from.kv_len;
  to.q_heads = from.q_heads;
  to.kv_heads = from.kv_heads;
  to.head_dim = from.head_dim;
  to.value_dim = from.value_dim;
  to.q_type = to_element(call, "limits.q_type", from.q_type);
  to.kv_type = to_element(call, "limits.kv_type", from.kv_type);
  if (from.v_type != 0) to.v_type = to_element(call, "limits.v_type", from.v_type);
  return to;
}

KvView to_kv_view(const char* call, const polyhead_kv_view* view) {
  if (view == nullptr) return {};
  const polyhead_kv_view from = read_struct(call, "kv", view, offsetof(polyhead_kv_view, oldest));
  const auto part = [&](const char* name, const polyhead_view& of) -> ConstView {
    if (of.axes == 0 && of.data == nullptr) return {};
    return to_view(call, name, &of);
  };
  KvView to;
  to.k = part("kv.k", from.k);
  to.v = part("kv.v", from.v);
  to.k_scales = part("kv.k_scales", from.k_scales);
  to.v_scales = part("kv.v_scales", from.v_scales);
  to.page_table = part("kv.page_table", from.page_table);
  to.lengths = part("kv.lengths", from.lengths);
  to.oldest = part("kv.oldest", from.oldest);
  to.first_tokens = from.first_tokens;
  return to;
}

namespace {

/// Sides without a window; -1, unbounded, is none.
void refuse_stray_window(const char* call, const polyhead_mask& mask) {
  for (const auto& [name, value] : {std::pair{"first_tokens", mask.first_tokens},
                                    {"left", mask.left == -1 ? 0 : mask.left},
                                    {"right", mask.right == -1 ? 0 : mask.right}}) {
    if (value == 0) continue;
    refuse("%s: mask.%s (%lld) is of a window, expected mask.windowed or 0", call, name,
           static_cast<long long>(value));
  }
}

}  // namespace

Mask to_mask(const char* call, const polyhead_mask* mask) {
  Mask to;
  if (mask == nullptr) return to;
  const polyhead_mask from = read_struct(call, "mask", mask, offsetof(polyhead_mask, first_tokens));
  to.causal = to_bool(call, "mask.causal", from.causal);
  to.windowed = to_bool(call, "mask.windowed", from.windowed);
  if (to.windowed) {
    to.left = from.left;
    to.right = from.right;
    to.first_tokens = from.first_tokens;
  } else {
    refuse_stray_window(call, from);
  }
  switch (from.align) {
    case POLYHEAD_ALIGN_UNSTATED:
      to.align = Align::unstated;
      break;
    case POLYHEAD_ALIGN_START:
      to.align = Align::start;
      break;
    case POLYHEAD_ALIGN_END:
      to.align = Align::end;
      break;
    default:
      refuse(
          "%s: mask.align (%d) is no alignment, expected POLYHEAD_ALIGN_UNSTATED (0) .. "
          "POLYHEAD_ALIGN_END (2)",
          call, from.align);
  }
  check_reserved(call, "mask.reserved", from.reserved);
  to.prefix_length = from.prefix_length;
  to.prefix_lengths = to_view(call, "mask.prefix_lengths", from.prefix_lengths);
  to.kv_lengths = to_view(call, "mask.kv_lengths", from.kv_lengths);
  to.q_lengths = to_view(call, "mask.q_lengths", from.q_lengths);
  to.q_documents = to_view(call, "mask.q_documents", from.q_documents);
  to.kv_documents = to_view(call, "mask.kv_documents", from.kv_documents);
  to.visible = to_view(call, "mask.visible", from.visible);
  to.hidden = to_view(call, "mask.hidden", from.hidden);
  to.also_visible = to_view(call, "mask.also_visible", from.also_visible);
  to.also_hidden = to_view(call, "mask.also_hidden", from.also_hidden);
  return to;
}

Options to_options(const char* call, const polyhead_options* options) {
  Options to;
  if (options == nullptr) return to;
  const polyhead_options from = read_struct(call, "options", options);
  to.isa = to_isa(call, from.isa);
  to.threads = from.threads;
  if (from.executor != nullptr) to.executor = &from.executor->get();
  return to;
}

RowStatistics to_statistics(const char* call, const polyhead_view* entropy,
                            const polyhead_view* max_weight, const polyhead_view* max_key) {
  return {to_view(call, "entropy", entropy), to_view(call, "max_weight", max_weight),
          to_view(call, "max_key", max_key)};
}

void CallbackModifier::apply(const ScoreTile& tile) const {
  polyhead_score_tile to{};
  to.struct_bytes = sizeof to;
  to.scores = tile.scores;
  to.key_count = tile.key_count;
  to.lane_count = tile.lane_count;
  to.batch = tile.batch;
  to.first_kv_pos = tile.first_kv_pos;
  to.head = tile.head;
  to.query = tile.query;
  to.q_pos = tile.q_pos;
  const int code = callback.apply(callback.context, &to);
  if (code != 0) throw CallbackFailed("a score modifier", code);
}

ModifierSet::ModifierSet(const char* call, const polyhead_modifiers* modifiers) {
  if (modifiers == nullptr) return;
  Modifiers& to = modifiers_;
  const polyhead_modifiers from = read_struct(call, "modifiers", modifiers);
  if (to_bool(call, "modifiers.scale_given", from.scale_given)) {
    to.scale = from.scale;
  } else if (from.scale != 0.0f) {
    refuse("%s: modifiers.scale (%g) is given without modifiers.scale_given", call,
           static_cast<double>(from.scale));
  }
  to.soft_cap = from.soft_cap;
  to.bias = to_view(call, "modifiers.bias", from.bias);
  to.alibi.use_default_slopes = to_bool(call, "modifiers.alibi", from.alibi);
  to.alibi.slopes = to_view(call, "modifiers.alibi_slopes", from.alibi_slopes);
  for (std::size_t i = 0; i < callbacks_.size(); ++i) {
    if (from.custom[i] == nullptr) continue;
    callbacks_[i].callback = read_struct(call, "modifiers.custom", from.custom[i]);
    need(call, "modifiers.custom.apply", callbacks_[i].callback.apply);
    to.custom[i] = &callbacks_[i];
  }
  to.sink = to_view(call, "modifiers.sink", from.sink);
  check_reserved(call, "modifiers.reserved", from.reserved);
  to.dropout.probability = from.dropout;
  to.dropout.seed = from.dropout_seed;
  to.dropout.sequence_ids = to_view(call, "modifiers.sequence_ids", from.sequence_ids);
}

AttentionCall::AttentionCall(const char* call, const polyhead_attention_arguments* arguments)
    : AttentionCall(call, read_struct(call, "arguments", arguments,
                                      offsetof(polyhead_attention_arguments, kv))) {}

AttentionCall::AttentionCall(const char* call, const polyhead_attention_arguments& from)
    : modifiers_(call, from.modifiers) {
  arguments_.q = to_view(call, "q", from.q);
  arguments_.k = to_view(call, "k", from.k);
  arguments_.v = to_view(call, "v", from.v);
  arguments_.kv = to_kv_view(call, from.kv);
  arguments_.out = to_view(call, "out", from.out);
  arguments_.mask = to_mask(call, from.mask);
  arguments_.modifiers = modifiers_.modifiers();
  arguments_.q_offsets = to_view(call, "q_offsets", from.q_offsets);
  arguments_.kv_offsets = to_view(call, "kv_offsets", from.kv_offsets);
  arguments_.q_start = to_view(call, "q_start", from.q_start);
  arguments_.lse = to_view(call, "lse", from.lse);
  arguments_.statistics = to_statistics(call, from.entropy, from.max_weight, from.max_key);
}

void copy_text(const char* call, const std::string& whole, char* text, std::size_t text_bytes,
               std::size_t* needed) {
  if (text_bytes > 0) {
    need(call, "text", text);
    const std::size_t length = whole.size() < text_bytes ? whole.size() : text_bytes - 1;
    std::memcpy(text, whole.data(), length);
    text[length] = '\0';
  }
  if (needed != nullptr) *needed = whole.size() + 1;
}

}  // namespace polyhead::inline v0::capi
