// From the structs of polyhead_c.h to those of the C++ door. Nothing here allocates unless it
// throws.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "capi/status.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"

struct polyhead_executor;

namespace polyhead::inline v0::capi {

/// Refuses a null pointer: "polyhead_attention: arguments is null".
template <class T>
T* need(const char* call, const char* name, T* pointer) {
  if (pointer == nullptr) refuse("%s: %s is null, expected a pointer", call, name);
  return pointer;
}

/// Checks struct_bytes against [least, largest sensible] and that nothing past `known` is set.
void check_struct(const char* call, const char* name, const void* from, std::size_t bytes,
                  std::size_t least, std::size_t known);

/// A copy of a caller's struct, which may be older (shorter: the rest is zero) or newer (longer:
/// what this library does not know must be zero) than this library's.
template <class S>
S read_struct(const char* call, const char* name, const S* from, std::size_t least = sizeof(S)) {
  need(call, name, from);
  const std::size_t bytes = from->struct_bytes;
  check_struct(call, name, from, bytes, least, sizeof(S));
  S copy{};
  std::memcpy(&copy, from, bytes < sizeof(S) ? bytes : sizeof(S));
  return copy;
}

/// A struct that the library is to fill: null, or as read_struct() takes it.
template <class S>
void check_written(const char* call, const char* name, const S* to, std::size_t least = sizeof(S)) {
  if (to != nullptr) check_struct(call, name, to, to->struct_bytes, least, sizeof(S));
}

/// Fills a struct that was checked, as far as it reaches; it keeps its size.
template <class S>
void write_struct(S* to, S from) {
  from.struct_bytes = to->struct_bytes;
  std::memcpy(to, &from, from.struct_bytes < sizeof(S) ? from.struct_bytes : sizeof(S));
}

/// `count` entries at `data`, which may be null where there are none.
template <class T>
std::span<T> to_span(const char* call, const char* name, T* data, std::int64_t count) {
  if (count < 0)
    refuse("%s: the count of %s (%lld) is negative", call, name, static_cast<long long>(count));
  if (count > 0) need(call, name, data);
  return {data, static_cast<std::size_t>(count)};
}

/// A zero is "the default", which `unless_zero` replaces where the caller gave another number.
template <class T, class U>
void unless_zero(T& to, U from) {
  if (from != 0) to = from;
}

/// A number that has no default.
std::int64_t not_zero(const char* call, const char* name, std::int64_t number);

/// Throws unless a field that has no meaning yet is zero.
void check_reserved(const char* call, const char* name, std::int32_t reserved);

ElementType to_element(const char* call, const char* name, std::int32_t element_type);
/// The other way round.
std::int32_t to_c(ElementType type);
Isa to_isa(const char* call, std::int32_t isa);
bool to_bool(const char* call, const char* name, std::int32_t value);

/// A null pointer is a view that is not given.
View to_view(const char* call, const char* name, const polyhead_view* view);

/// Whether `view` is float32 whose extents and, where they matter, strides are those of `dense`.
bool is_dense_float32(const View& view, const detail::Layout& dense);

/// Null is not filled.
void fill_view(polyhead_view* view, const ConstView& from);

/// A null pointer, or views of no axes: not given.
KvView to_kv_view(const char* call, const polyhead_kv_view* view);

RowStatistics to_statistics(const char* call, const polyhead_view* entropy,
                            const polyhead_view* max_weight, const polyhead_view* max_key);
Mask to_mask(const char* call, const polyhead_mask* mask);
Options to_options(const char* call, const polyhead_options* options);
Limits to_limits(const char* call, const polyhead_limits* limits);

/// A caller's tile function as the library's TileModifier.
class CallbackModifier final : public TileModifier {
 public:
  void apply(const ScoreTile& tile) const override;
  polyhead_tile_modifier callback{};
};

/// A caller's modifiers with the callbacks they point to: stays where it was made.
class ModifierSet {
 public:
  ModifierSet(const char* call, const polyhead_modifiers* modifiers);
  ModifierSet(const ModifierSet&) = delete;
  ModifierSet& operator=(const ModifierSet&) = delete;
  const Modifiers& modifiers() const { return modifiers_; }

 private:
  Modifiers modifiers_;
  std::array<CallbackModifier, kMaxCustomModifiers> callbacks_;
};

/// One call's arguments and what they point to, on the stack of the exported function.
class AttentionCall {
 public:
  AttentionCall(const char* call, const polyhead_attention_arguments* arguments);
  const AttentionArguments& arguments() const { return arguments_; }

 private:
  AttentionCall(const char* call, const polyhead_attention_arguments& from);
  ModifierSet modifiers_;
  AttentionArguments arguments_;
};

/// The text functions' contract: as much of `whole` as fits, terminated, and the bytes all of it
/// takes.
void copy_text(const char* call, const std::string& whole, char* text, std::size_t text_bytes,
               std::size_t* needed);

}  // namespace polyhead::inline v0::capi
