// Attention over a sliding cache with positions in the cache, as StreamingLLM has them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "polyhead/attention.h"
#include "polyhead/rope.h"
#include "polyhead/sliding_cache.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What attend_in_cache takes, which says what each of them is.
struct InCacheArguments {
  ConstView q{};          ///< [batch, q_len, q_heads, head_dim], NOT rotated
  View out{};             ///< [batch, q_len, q_heads, value_dim]
  View lse{};             ///< float32 [batch, q_len, q_heads], optional
  ConstView counts{};     ///< int32/int64 [batch], optional
  ConstView q_offsets{};  ///< int32/int64 [batch + 1], optional
  Modifiers modifiers{};
};

/// Attention over what a SlidingCache holds, with positions counted in the cache: a query at
/// position p of its sequence sees the window's keys w .. p (w = p - window + 1, at least 0) and
/// the first tokens before w. As RoPE and ALiBi see them, first token t stands at t, the window
/// follows the last of n first tokens without a gap (key j at j - w + n where w > n, else at j),
/// and the query is the window's last. So no distance exceeds first_tokens + window, however long
/// the sequence.
///
/// q    [batch, q_len, q_heads, head_dim]  float32, float16 or bfloat16, NOT rotated: the last
///                                         tokens appended to each sequence, at most `chunk`
/// out  [batch, q_len, q_heads, value_dim]
/// counts  int32/int64 [batch], optional: valid queries of each sequence; the rest give zeros
/// lse  float32 [batch, q_len, q_heads], optional: natural log of each row's softmax denominator, a
///      sink in it; -inf for queries past counts
/// q_offsets  int32/int64 [batch + 1], optional: a ragged batch. q, out and lse then have tokens in
///            place of batch and q_len; sequence b has those from q_offsets[b] to q_offsets[b + 1],
///            and there are no counts
///
/// After truncate() the windows of the last tokens may have been written over: fewer queries have
/// theirs then, which is refused (SlidingCache::oldest).
///
/// The cache holds keys as always, rotated by `rope` at their positions in the sequence. RoPE's
/// products depend on the distance alone, so instead of keys moving, q is rotated twice: by p for
/// the window, and by its place in the cache for the first tokens. Two passes over keys where they
/// lie are joined by their LSE; nothing of the cache is copied or rotated, and a query's result
/// does not depend on how the tokens came in chunks. Without first tokens it has the bits of
/// attention over view() with mask() and q rotated by p.
///
/// A model without RoPE has no `rope`, and keys and q as they are. Of `modifiers` scale, soft-cap,
/// ALiBi and sink are served; bias, dropout and custom ones go by positions in the sequence and are
/// refused. So is a cache of values_in_keys, whose values `rope` would turn too, unless there is
/// none.
///
/// Accuracy: as merge_partials; q of 16 bits is rounded to its type again when it has been turned.
/// Throws InvalidArgument; nothing is written then. Allocates copies of q and of partial results,
/// which InCachePlan does not. Source: Xiao et al. 2023
/// (StreamingLLM), section 3.2.
void attend_in_cache(const SlidingCache& cache, const std::optional<RopeConfig>& rope,
                     const InCacheArguments& arguments, const Options& options = {});

/// Scratch of one caller of an InCachePlan. Movable; used by one run at a time.
class InCacheWorkspace {
 public:
  InCacheWorkspace(InCacheWorkspace&&) noexcept;
  InCacheWorkspace& operator=(InCacheWorkspace&&) noexcept;
  ~InCacheWorkspace();
  std::size_t bytes() const;

 private:
  friend class InCachePlan;
  struct State;
  explicit InCacheWorkspace(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// attend_in_cache prepared once and run often, as Plan is for attention(): immutable, shared by
/// any number of threads, each with its own workspace, and by all caches within its limits.
class InCachePlan {
 public:
  /// `kv_len` of the limits counts all tokens that a sequence of a cache has seen, held or not;
  /// `q_len`, of a ragged batch, those of its longest sequence.
  /// Throws InvalidArgument for impossible limits or rope, or an instruction set this machine
  /// lacks.
  InCachePlan(const Limits& limits, const std::optional<RopeConfig>& rope,
              const Options& options = {});
  /// What was moved from may be assigned to or destroyed, no more.
  InCachePlan(InCachePlan&&) noexcept;
  InCachePlan& operator=(InCachePlan&&) noexcept;
  ~InCachePlan();

  /// Holds copies of q and of partial results for the largest call.
  InCacheWorkspace make_workspace() const;

  /// The bits of attend_in_cache. Validates as it does, and that sizes and types are within the
  /// limits. Never allocates (unless it throws).
  void run(const SlidingCache& cache, const InCacheArguments& arguments,
           InCacheWorkspace& workspace) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
