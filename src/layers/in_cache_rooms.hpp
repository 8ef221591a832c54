// Where attention with positions in the cache keeps what it works on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/ceil_div.hpp"
#include "layers/rows.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0::layers {

/// What a call takes: tokens of q are counted over all sequences.
struct InCacheSizes {
  std::int64_t batch = 0, tokens = 0, q_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t q_bytes = 0;  ///< of an element, before or after rotation, whichever is more
  int workers = 1;

  /// Whether rooms for these do for `other` too.
  bool cover(const InCacheSizes& other) const {
    return batch >= other.batch && tokens >= other.tokens && q_heads >= other.q_heads &&
           head_dim >= other.head_dim && value_dim >= other.value_dim && q_bytes >= other.q_bytes &&
           workers >= other.workers;
  }
};

/// Memory of one call at a time: grows to the largest.
class InCacheRooms {
 public:
  struct Places {
    std::byte *window_q, *first_q;               // q twice, rotated
    std::int64_t *ends, *places;                 // [tokens]
    std::int64_t *first_lengths, *first_starts;  // [batch]
    float *outs, *lses;                          // of both parts
    float* slopes;                               // of ALiBi, [q_heads]
    double* turn;                                // what rotating takes, of each worker
  };

  Places need(const InCacheSizes& sizes) {
    const std::int64_t rows = sizes.tokens * sizes.q_heads;
    const std::int64_t turning =  // nobody turns who has no rows
        std::min<std::int64_t>(sizes.workers, base::ceil_div(sizes.tokens, kRowsPerItem));
    const std::int64_t q_bytes = sizes.head_dim * sizes.q_bytes;
    const auto integers = [](Buffer& of, std::int64_t count) {
      return reinterpret_cast<std::int64_t*>(of.need(count, 8));
    };
    return {window_q_.need(rows, q_bytes),
            first_q_.need(rows, q_bytes),
            integers(ends_, sizes.tokens),
            integers(places_, sizes.tokens),
            integers(first_lengths_, sizes.batch),
            integers(first_starts_, sizes.batch),
            reinterpret_cast<float*>(outs_.need(rows, 2 * 4 * sizes.value_dim)),
            reinterpret_cast<float*>(lses_.need(rows, 2 * 4)),
            reinterpret_cast<float*>(slopes_.need(sizes.q_heads, 4)),
            reinterpret_cast<double*>(
                turn_.need(turning, 8 * position::turning_doubles(sizes.head_dim / 2)))};
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Buffer* buffer : {&window_q_, &first_q_, &ends_, &places_, &first_lengths_,
                                 &first_starts_, &outs_, &lses_, &slopes_, &turn_})
      sum += buffer->bytes();
    return sum;
  }

 private:
  Buffer window_q_, first_q_, ends_, places_, first_lengths_, first_starts_, outs_, lses_, slopes_,
      turn_;
};

}  // namespace polyhead::inline v0::layers
