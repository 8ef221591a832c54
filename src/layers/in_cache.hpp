// Attention over a sliding cache with positions in the cache: two passes, one rotation of q each.
#pragma once

#include "base/check.hpp"
#include "base/crew.hpp"
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
  bool turned = true;              ///< whether keys are, and q is to be
  ConstView counts{};              ///< [batch]: valid queries
  ConstView offsets{};             ///< ragged: [batch + 1] of q's tokens, then no counts
  const Limits* limits = nullptr;  ///< of the plan that runs it, if one does
};

/// Refuses modifiers that depend on positions in another way than ALiBi does.
void check_in_cache_modifiers(const char* name, const Modifiers& modifiers);

/// Refuses more rows of q than 64 bits count.
void check_in_cache_rows(const char* name, std::int64_t batch, std::int64_t q_len,
                         std::int64_t q_heads);

/// ALiBi between queries and first tokens, by their places in the cache. A query's place grows with
/// its position until the window has moved past the first tokens, and stays then.
class AlibiOfFirst final : public TileModifier {
 public:
  void apply(const ScoreTile& tile) const override;
  const float* slopes = nullptr;  ///< [q_heads]
  std::int64_t window = 0;        ///< what the part's q_pos are less than positions (first_part)
  std::int64_t last_place = 0;    ///< where queries stay
};

/// One checked call.
class InCache {
 public:
  explicit InCache(const InCacheCall& call);

  /// Of q, all sequences together; ragged, those that belong to one.
  std::int64_t tokens() const;

  /// `attend` runs attention over its arguments; `crew` turns q, by `rotation` if it is to be
  /// turned, and joins the parts.
  template <class Attend>
  void run(const position::Rotation* rotation, InCacheRooms& memory, const Attend& attend,
           const Crew& crew) const {
    POLYHEAD_DCHECK((rotation != nullptr) == call_.turned);
    const InCacheRooms::Places rooms = open(memory, crew.workers);
    const Turning turning{rotation, rooms.turn, crew};
    AttentionArguments window = window_part(turning, rooms);
    if (config_.first_tokens == 0) {
      window.out = call_.out;
      window.lse = call_.lse;
      return attend(window);
    }
    AlibiOfFirst alibi;
    const AttentionArguments first = first_part(window, turning, rooms, alibi);
    attend(as_part(window, rooms, 0));
    attend(as_part(first, rooms, 1));
    join(rooms, {.executor = crew.executor, .threads = crew.workers});
  }

 private:
  void check() const;
  void check_sequence(std::int64_t b) const;
  void check_resolved() const;
  std::int64_t count_of(std::int64_t b) const;
  std::int64_t first_token(std::int64_t b) const;
  std::int64_t rows() const { return tokens() * q_heads_; }

  /// How q is turned, and by whom: `memory` is turning_doubles() of each worker.
  struct Turning {
    const position::Rotation* rotation;
    double* memory;
    const Crew& crew;
  };

  InCacheRooms::Places open(InCacheRooms& memory, int workers) const;
  AttentionArguments window_part(const Turning& turning, const InCacheRooms::Places& rooms) const;
  AttentionArguments first_part(const AttentionArguments& window, const Turning& turning,
                                const InCacheRooms::Places& rooms, AlibiOfFirst& alibi) const;
  AttentionArguments as_part(AttentionArguments call, const InCacheRooms::Places& rooms,
                             std::int64_t part) const;
  void copy_token(std::int64_t token, std::byte* to) const;
  void narrow_token(std::byte* row) const;
  ConstView copied_q(const Turning& turning, const std::int64_t* positions, std::byte* to) const;
  void join(const InCacheRooms::Places& rooms, const Options& options) const;

  const InCacheCall call_;
  const SlidingCacheConfig& config_;
  const bool ragged_;
  const std::int64_t q_len_, q_heads_;  // q_len: ragged, all tokens of q
};

}  // namespace polyhead::inline v0::layers
