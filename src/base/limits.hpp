// The largest sizes that anything here takes.
#pragma once

#include <bit>
#include <cstdint>

namespace polyhead::inline v0::base {

/// Extents beyond this are refused, so that positions and tile arithmetic in 64 bits cannot
/// overflow.
inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;

/// head_dim and value_dim: kernels' scratch stays under 2 MiB a thread (up to 256 under 1 MiB).
/// Latent attention has 576 and 512.
inline constexpr std::int64_t kMaxDim = 768;

/// Tokens of a page: a power of two from kLeastPage to kMostPage.
inline constexpr std::int64_t kLeastPage = 8, kMostPage = 256;
constexpr bool is_page_size(std::int64_t tokens) {
  return tokens >= kLeastPage && tokens <= kMostPage &&
         std::has_single_bit(static_cast<std::uint64_t>(tokens));
}

}  // namespace polyhead::inline v0::base
