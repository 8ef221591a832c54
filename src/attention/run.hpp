// How the memory of a run is laid out: rooms that take a partial, or the rows of q that several
// sequences bring to keys they share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::inline v0 {

inline std::size_t aligned(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + 63) & ~std::int64_t{63});
}

/// In front of all workers' memory where keys are split: the result so far of the rows in turn and,
/// where keys are shared, of all rows of a turn.
constexpr int rooms_in_front(bool share) { return share ? 2 : 1; }

/// A worker's beside its scratch. Keys split: a partial being computed, one waiting for its
/// predecessors, and rows of q. Not split: what all rows of a turn have so far, what those of one
/// stretch have, and rows of q.
constexpr int rooms_a_worker(bool share) { return share ? 3 : 2; }

/// Where items go split by split, one room a head stands in front, behind the number of splits that
/// are in it; one line each, so that workers do not write to each other's.
constexpr std::size_t kCounterBytes = 64;
constexpr std::size_t head_room(std::size_t room) { return kCounterBytes + room; }

}  // namespace polyhead::inline v0
