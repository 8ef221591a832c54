// What truncate() and keep() of a cache are asked to leave of a sequence.
#pragma once

#include <cstdint>
#include <span>

#include "base/refuse.hpp"

namespace polyhead::inline v0::cache {

/// Throws unless a sequence of `held` tokens can be left with the first `length` of them.
inline void check_left(const char* call, const char* name, std::int64_t length, std::int64_t held,
                       std::int64_t sequence) {
  if (length < 0 || length > held) {
    base::refuse(call, name, " (", length, ") is not within 0 .. ", held,
                 ", the length of sequence ", sequence);
  }
}

/// Throws unless `places` are tokens of a sequence of `length`, ascending from `first` on.
inline void check_places(const char* call, std::int64_t sequence, std::int64_t length,
                         std::int64_t first, std::span<const std::int64_t> places) {
  check_left(call, "first", first, length, sequence);
  std::int64_t least = first;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] < least || places[i] >= length) {
      base::refuse(call, "places[", i, "] (", places[i], ") is not within ", least, " .. ",
                   length - 1, ", ascending from first (", first, ") among the ", length,
                   " tokens of sequence ", sequence);
    }
    least = places[i] + 1;
  }
}

/// Calls move(to, from) for each of the checked `places` that is not where it comes to lie, such
/// that no row is written that is yet to be read. How many tokens the sequence has then.
template <class Move>
std::int64_t move_places(std::int64_t first, std::span<const std::int64_t> places,
                         const Move& move) {
  std::int64_t to = first;
  for (const std::int64_t place : places) {
    if (place != to) move(to, place);
    ++to;
  }
  return to;
}

}  // namespace polyhead::inline v0::cache
