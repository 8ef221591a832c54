// The random numbers of dropout: a pure function of the pair's place, the same in every kernel and
// tiling.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace polyhead::inline v0::kernels {

using PhiloxWords = std::array<std::uint32_t, 4>;

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xd2511f53u, kPhiloxMultiplier1 = 0xcd9e8d57u;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9e3779b9u, kPhiloxWeyl1 = 0xbb67ae85u;

/// Philox4x32-10: four random words from a counter and a key. Source: Salmon et al. 2011, "Parallel
/// random numbers: as easy as 1, 2, 3", table 2 and section 3.3.
constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

/// The words of keys 4 * key_quad .. 4 * key_quad + 3, for one query of one head of one sequence.
///   counter: {key_quad, q_pos, head, sequence id}, the lower 32 bits of each
///   key:     {seed's lower half ^ key_quad's upper half, seed's upper half ^ q_pos's upper ^
///   sequence id's upper}
constexpr PhiloxWords dropout_words(std::uint64_t seed, std::int64_t sequence_id, std::int64_t head,
                                    std::int64_t q_pos, std::int64_t key_quad) {
  const auto lower = [](std::int64_t x) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x));
  };
  const auto upper = [](std::int64_t x) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) >> 32);
  };
  return philox4x32({lower(key_quad), lower(q_pos), lower(head), lower(sequence_id)},
                    static_cast<std::uint32_t>(seed) ^ upper(key_quad),
                    static_cast<std::uint32_t>(seed >> 32) ^ upper(q_pos) ^ upper(sequence_id));
}

/// Whether a weight with this word is kept: a uniform number of 24 bits in [0, 1) is not below the
/// probability.
constexpr bool dropout_keeps(std::uint32_t word, float probability) {
  return static_cast<float>(word >> 8) * 0x1p-24f >= probability;
}

/// Whether the weight of one pair is kept; kv_pos is not negative.
constexpr bool dropout_keeps_pair(std::uint64_t seed, std::int64_t sequence_id, std::int64_t head,
                                  std::int64_t q_pos, std::int64_t kv_pos, float probability) {
  const PhiloxWords words = dropout_words(seed, sequence_id, head, q_pos, kv_pos / 4);
  return dropout_keeps(words[static_cast<std::size_t>(kv_pos % 4)], probability);
}

}  // namespace polyhead::inline v0::kernels
