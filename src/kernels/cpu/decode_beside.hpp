// Scores of several groups of keys beside each other. Where registers are too few for the tiles of
// two groups, tiles go by way of L1: while one is multiplied from there, the next one is made.
// Included inside an ISA namespace after decode_tiles.hpp and decode_turned.hpp.

template <class Path>
struct DecodeBeside {
  using Few = FewRows<Path>;
  using Turned = TurnedKeys<Path>;
  static constexpr int kTogether = Few::kTogether;
  static constexpr std::int64_t kPhase = Few::kPhase;
  const Few& few;

  /// Groups whose sums are under way at once. Two multiply-adds begin in a cycle, and the next one
  /// of a sum waits four: fewer than eight sums leave some of them idle. Tiles whose words are
  /// single steps are too short for what they cost here (docs/kernel-notes.md).
  template <class Elements, int kR>
  static constexpr int groups() {
    if (kLanes != 8 || Elements::kSteps || (Elements::kWordSteps == 1 && kR > 1)) return 1;
    return std::min(Few::kMostBeside, 8 / kR);
  }

  /// As DecodeScores::score_groups, for `sets` sets of groups() groups each. With kLeaves there is
  /// one.
  template <class Elements, int kR, bool kLeaves>
  void score(std::int64_t first, int sets, std::int64_t steps, int first_row, float* scores) const {
    constexpr int kG = groups<Elements, kR>();
    using Tiles = Beside<Elements, kG, kLeaves ? Turned::kKeys : kG * kLanes>;
    Tiles tiles{few, first_row == 0};
    float* tile = few.memory.turned;
    tiles.begin_set(first);
    tiles.make(tile);
    for (int set = 1; set <= sets; ++set, scores += kG * kLanes) {
      Simd::V sum[kR][kG];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
        for (int g = 0; g < kG; ++g) sum[r][g] = Simd::zero();
      }
      const float* q = few.q_of(first_row, 0);
      for (std::int64_t s = Tiles::kSteps; s <= steps; s += Tiles::kSteps) {
        const bool last = s == steps;  // of the last set: once more, for nothing
        if (last && set < sets) tiles.begin_set(first + set * kG * kLanes);
        float* const next = kLeaves ? few.memory.turned + (last ? 0 : s) * Turned::kKeys
                                    : Tiles::other(few.memory.turned, tile);
        tiles.multiply(tile, q, last ? 0 : Elements::byte_of(s), next, sum);
        tile = next;
        q += Tiles::kSteps * kTogether;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
        for (int g = 0; g < kG; ++g) Simd::store(scores + r * kPhase + g * kLanes, sum[r][g]);
      }
    }
  }

 private:
  /// A set of kG groups, whose tiles lie in L1 as [step][kStride].
  template <class Elements, int kG, int kStride>
  struct Beside {
    static constexpr int kSteps = kTileSteps * Elements::kWordSteps;
    static_assert(2 * kSteps * kG * kLanes <= Few::kLeastTurned);
    const Few& few;
    const bool fetches;
    TiledGroup<Few, Elements> group[kG] = {};

    // Not inline: g++ would leave the sums in memory.
    __attribute__((noinline)) void begin_set(std::int64_t first) {
      for (int g = 0; g < kG; ++g)
        group[g] = {few, few.group_at(first + g * kLanes, kLanes), fetches};
    }

    /// Of two tiles that lie one after the other, the one that is not `tile`.
    static float* other(float* both, const float* tile) {
      return tile == both ? both + kSteps * kStride : both;
    }

    /// The set's first tile.
    POLYHEAD_INLINE void make(float* to) const {
      for (int g = 0; g < kG; ++g) {
        auto tile = group[g].tile(0);
        tile.advance_to_end();
        leave(tile.steps, to + g * kLanes);
      }
    }

    POLYHEAD_INLINE static void leave(const Simd::V (&words)[kTileSteps], float* to) {
#pragma GCC unroll 16
      for (int i = 0; i < kSteps; ++i) Simd::store(to + i * kStride, Elements::step(words, i));
    }

    /// Adds a tile to the sums; the one that begins `column` bytes into the rows goes to `next`, a
    /// few parts of it with every step.
    template <int kR>
    POLYHEAD_INLINE void multiply(const float* tile, const float* q, std::int64_t column,
                                  float* next, Simd::V (&sum)[kR][kG]) const {
      constexpr int kParts = kG * kTileSteps / kSteps;
      auto made = group[0].tile(column);
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        Simd::V key[kG];
#pragma GCC unroll 4
        for (int g = 0; g < kG; ++g) key[g] = Simd::load(tile + i * kStride + g * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
          const Simd::V x = Simd::broadcast_at(q + i * kTogether + r);
#pragma GCC unroll 4
          for (int g = 0; g < kG; ++g) sum[r][g] = Path::Dot::dot(key[g], x, sum[r][g]);
        }
        Simd::settle(sum[0][0]);
#pragma GCC unroll 4
        for (int part = i * kParts; part < (i + 1) * kParts; ++part) {
          if (part > 0 && part % kTileSteps == 0) made = group[part / kTileSteps].tile(column);
          made.advance(part % kTileSteps);
          if (part % kTileSteps == kTileSteps - 1)
            leave(made.steps, next + part / kTileSteps * kLanes);
        }
      }
    }
  };
};
