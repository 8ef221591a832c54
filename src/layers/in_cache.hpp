// Attention over a sliding cache with positions in the cache: two passes, one rotation of q each.
#pragma once

#include "layers/in_cache_rooms.hpp"
#include "polyhead/attention.h"
#include "polyhead/sliding_cache.h"

namespace polyhead::inline v0::layers {

/// What one call is about: attend_in_cache's arguments, and a layer's.
struct InCacheCall {
  const char* name;
  const SlidingCache& cache;
  ConstView q;       ///< not rotated; [batch, q_len, q_heads, head_dim], ragged [tokens, ..]
  ElementType type;  ///< of q when attention reads it, rotated
  View out;          ///< as q
  View lse{};        ///< optional
  const Modifiers& modifiers;
  ConstView counts{};   ///< [batch]: valid queries
  ConstView offsets{};  ///< ragged
};

/// Refuses modifiers that depend on positions.
void check_in_cache(const char* name, const Modifiers& modifiers);

/// Refuses more rows of q than 64 bits count.
void check_in_cache_rows(const char* name, std::int64_t batch, std::int64_t q_len,
                         std::int64_t q_heads);

/// One checked call.
class InCache {
 public:
  explicit InCache(const InCacheCall& call);

  /// `attend` runs attention over its arguments; `options` are for the join.
  template <class Attend>
  void run(const position::Rotation& rotation, InCacheRooms& memory, const Attend& attend,
           const Options& options) const {
    const InCacheRooms::Places rooms = open(memory);
    AttentionArguments window = window_part(rotation, rooms);
    if (config_.first_tokens == 0) {
      window.out = call_.out;
      window.lse = call_.lse;
      return attend(window);
    }
    const AttentionArguments first = first_part(window, rotation, rooms);
    attend(as_part(window, rooms, 0));
    attend(as_part(first, rooms, 1));
    join(rooms, options);
  }

 private:
  void check() const;
  void check_resolved() const;
  std::int64_t count_of(std::int64_t b) const;
  std::int64_t first_token(std::int64_t b) const;
  std::int64_t tokens() const;
  std::int64_t rows() const { return tokens() * q_heads_; }

  InCacheRooms::Places open(InCacheRooms& memory) const;
  AttentionArguments window_part(const position::Rotation& rotation,
                                 const InCacheRooms::Places& rooms) const;
  AttentionArguments first_part(const AttentionArguments& window,
                                const position::Rotation& rotation,
                                const InCacheRooms::Places& rooms) const;
  AttentionArguments as_part(AttentionArguments call, const InCacheRooms::Places& rooms,
                             std::int64_t part) const;
  ConstView rotated(const position::Rotation& rotation, const std::int64_t* positions,
                    std::byte* to, double* turn) const;
  void join(const InCacheRooms::Places& rooms, const Options& options) const;

  const InCacheCall call_;
  const SlidingCacheConfig& config_;
  const bool ragged_;
  const std::int64_t q_len_, q_heads_;  // q_len: ragged, all tokens of q
};

}  // namespace polyhead::inline v0::layers
