// The sizes at the front of a saved cache, and what is said where they are not those of the cache
// that is to be filled.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/number_text.hpp"
#include "cache/key_scales.hpp"
#include "cache/saved_bytes.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0::cache {

/// What a size is, and so how it is shown: a number, an element type, 0 or 1, or by channel (1) or
/// by token (0).
enum class SizeKind : std::uint8_t { number, type, flag, scales };
struct SizeName {
  const char* name;
  SizeKind kind = SizeKind::number;
  std::int64_t least = 0, most = base::kMaxExtent;  ///< of a number
};

/// What must agree before rows can be taken over: the sizes at the front of each. `many` are a
/// sequence's layers, else the batch.
constexpr std::array<SizeName, 7> common_sizes(const char* many) {
  return {{{"type", SizeKind::type},
           {many},
           {"kv_heads"},
           {"head_dim", SizeKind::number, 0, base::kMaxDim},
           {"value_dim", SizeKind::number, 0, base::kMaxDim},
           {"values_in_keys", SizeKind::flag},
           {"key_scales", SizeKind::scales}}};
}
inline constexpr auto kSequenceSizes = common_sizes("layers");
inline constexpr auto kCacheSizes = common_sizes("batch");
inline constexpr auto kSlidingSizes = [] {  // whose last three say which token lies where
  std::array<SizeName, kCacheSizes.size() + 3> all{};
  std::ranges::copy(kCacheSizes, all.begin());
  all[kCacheSizes.size()] = {"window", SizeKind::number, 1};
  all[kCacheSizes.size() + 1] = {"first_tokens"};
  all[kCacheSizes.size() + 2] = {"chunk", SizeKind::number, 1};
  return all;
}();

/// Where each of them is.
enum SizePlace : std::size_t {
  kTypeAt,
  kManyAt,
  kHeadsAt,
  kHeadDimAt,
  kValueDimAt,
  kInKeysAt,
  kScalesAt,
  kWindowAt,  ///< of sliding caches, as what follows
  kFirstTokensAt,
  kChunkAt,
  kMostSizes
};

template <std::size_t count>
using SavedSizes = std::array<std::int64_t, count>;

inline std::string shown_size(SizeKind kind, std::int64_t size) {
  if (kind == SizeKind::scales && (size == 0 || size == 1)) return size ? "by channel" : "by token";
  // Of a damaged file they may be anything.
  if (kind == SizeKind::type && size == static_cast<std::uint8_t>(size))
    return element_name(static_cast<ElementType>(size));
  return std::to_string(size);
}

/// "its head_dim is 64, expected 128" of the first size that differs; empty: none does.
template <std::size_t count>
std::string first_difference(const std::array<SizeName, count>& names,
                             const SavedSizes<count>& found, const SavedSizes<count>& expected) {
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] == expected[i]) continue;
    const SizeName& size = names[i];
    return std::string("its ") + size.name + " is " + shown_size(size.kind, found[i]) +
           ", expected " + shown_size(size.kind, expected[i]);
  }
  return {};
}

/// What is wrong where `what` takes more bytes than are left.
inline std::string too_few_bytes(const char* what, std::size_t needed, std::size_t left) {
  return std::string(kCutShort) + ": expected " + std::to_string(needed) + " bytes of " + what +
         ", found " + std::to_string(left);
}

/// Moves the sizes at the front of `from` on; empty where they are `expected`, else what is wrong.
template <std::size_t count>
std::string take_sizes(std::span<const std::byte>& from, const std::array<SizeName, count>& names,
                       const SavedSizes<count>& expected) {
  SavedSizes<count> found{};
  if (!take(from, &found, sizeof found)) return too_few_bytes("sizes", sizeof found, from.size());
  return first_difference(names, found, expected);
}

/// What is wrong with a length that a file has for `field`; empty: nothing.
inline std::string impossible_length(const std::string& field, std::int64_t found,
                                     std::int64_t least, std::int64_t most) {
  if (found >= least && found <= most) return {};
  return "its " + field + " is " + std::to_string(found) + ", expected " + std::to_string(least) +
         " .. " + std::to_string(most);
}

/// "lengths[1]".
inline std::string of_sequence(const char* field, std::size_t b) {
  return std::string(field) + "[" + std::to_string(b) + "]";
}

/// What is wrong where a length promises more rows than are left; empty: nothing.
inline std::string too_few_rows(const std::string& field, std::int64_t found, std::int64_t left) {
  if (found <= left) return {};
  return std::string(kCutShort) + ": its " + field + " is " + std::to_string(found) +
         ", expected at most the " + std::to_string(left) + " tokens whose rows are there";
}

/// Moves the front of `from` to a vector; empty, or what is wrong where there is not enough.
template <class T>
std::string take_all(std::span<const std::byte>& from, const char* what, std::vector<T>& to) {
  const std::size_t bytes = to.size() * sizeof(T);
  if (take(from, to.data(), bytes)) return {};
  return too_few_bytes(what, bytes, from.size());
}

/// What is wrong with keys' scales by channel that no cache is made with; empty: nothing.
inline std::string impossible_scale(const std::vector<float>& scales) {
  const auto found = std::ranges::find_if_not(scales, is_key_scale);
  if (found == scales.end()) return {};
  return "its key_scales has " + base::number_text(*found) + ", expected " + kKeyScales;
}

/// The same for keys' scales by channel, [layers][kv_heads][head_dim] of the cache.
inline std::string first_difference(const std::vector<float>& found,
                                    const std::vector<float>& expected, std::int64_t kv_heads,
                                    std::int64_t head_dim) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Bits: what is NaN is equal to itself here.
    if (std::bit_cast<std::uint32_t>(found[i]) == std::bit_cast<std::uint32_t>(expected[i]))
      continue;
    const auto at = static_cast<std::int64_t>(i);
    std::ostringstream text;
    text << "its key_scales[" << at / (kv_heads * head_dim) << ", " << at / head_dim % kv_heads
         << ", " << at % head_dim << "] is " << base::number_text(found[i]) << ", expected "
         << base::number_text(expected[i]);
    return text.str();
  }
  return {};
}

}  // namespace polyhead::inline v0::cache
