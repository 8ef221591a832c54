#include "cache/first_sizes.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/codes.hpp"
#include "base/limits.hpp"
#include "cache/saved_bytes.hpp"
#include "cache/saved_sizes.hpp"
#include "cache/store.hpp"

namespace polyhead::inline v0::cache {
namespace {

using Kind = CacheFileInfo::Kind;

std::span<const SizeName> names_of(Kind kind) {
  if (kind == Kind::sequences) return kSequenceSizes;
  if (kind == Kind::sliding_caches) return kSlidingSizes;
  return kCacheSizes;
}

/// What is wrong with a size that a file has; empty: nothing.
std::string impossible_size(const SizeName& name, std::int64_t size) {
  if (name.kind == SizeKind::type) {
    if (is_storable(size)) return {};
    return std::string("its ") + name.name + " is " + shown_size(name.kind, size) + ", expected " +
           base::kTypesOfCaches;
  }
  if (name.kind != SizeKind::number) return impossible_length(name.name, size, 0, 1);
  return impossible_length(name.name, size, name.least, name.most);
}

/// The longest of the `count` lengths at the front of `from`.
std::string take_longest(std::span<const std::byte>& from, std::int64_t count,
                         std::int64_t& longest) {
  for (std::int64_t b = 0; b < count; ++b) {
    std::int64_t length = 0;
    if (!take(from, &length, sizeof length))
      return too_few_bytes("length", sizeof length, from.size());
    if (std::string wrong = impossible_length("length", length, 0, base::kMaxExtent);
        !wrong.empty())
      return wrong;
    longest = std::max(longest, length);
  }
  return {};
}

}  // namespace

std::string read_first_sizes(std::span<const std::byte> from, CacheFileInfo& info) {
  const std::span<const SizeName> names = names_of(info.kind);
  SavedSizes<kMostSizes> sizes{};
  const std::size_t bytes = names.size() * sizeof sizes[0];
  if (!take(from, sizes.data(), bytes)) return too_few_bytes("sizes", bytes, from.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::string wrong = impossible_size(names[i], sizes[i]); !wrong.empty()) return wrong;
  }
  if (sizes[kScalesAt] != 0 && !base::is_scaled(static_cast<ElementType>(sizes[kTypeAt])))
    return "its key_scales are by channel, expected a type of int8 or int4, found " +
           shown_size(SizeKind::type, sizes[kTypeAt]);
  const bool paged = info.kind == Kind::sequences;
  info.type = static_cast<ElementType>(sizes[kTypeAt]);
  info.layers = paged ? sizes[kManyAt] : 1;
  info.batch = paged ? 1 : sizes[kManyAt];
  info.kv_heads = sizes[kHeadsAt];
  info.head_dim = sizes[kHeadDimAt];
  info.value_dim = sizes[kValueDimAt];
  info.values_in_keys = sizes[kInKeysAt] != 0;
  info.keys_by_channel = sizes[kScalesAt] != 0;
  info.window = sizes[kWindowAt];
  info.first_tokens = sizes[kFirstTokensAt];
  info.chunk = sizes[kChunkAt];
  return take_longest(from, info.batch, info.tokens);
}

}  // namespace polyhead::inline v0::cache
