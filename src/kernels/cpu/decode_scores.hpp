// Scores of few rows against a block of keys: lanes are keys, groups of them transposed in
// registers. Included inside an ISA namespace after decode_beside.hpp.

template <class Path>
struct DecodeScores {
  using Few = FewRows<Path>;
  const Few& few;
  const AttendCall& call = few.call;
  static constexpr int kTogether = Few::kTogether;
  static constexpr std::int64_t kPhase = Few::kPhase;
  using KeyGroup = typename Few::KeyGroup;
  using Turned = TurnedKeys<Path>;

  /// scores[row][0 .. keys) for a block's keys from `first`; one chain over dims a score.
  template <class Elements>
  void groups(std::int64_t first, int keys, float* scores) const {
    const std::int64_t steps = Path::steps(call.head_dim), tiled = tiled_steps<Elements>();
    const int whole = tiled > 0 ? keys / kLanes : 0;
    bool turned = false;
    if constexpr (Turned::kKeys > 0) {
      turned = Turned{few}.wanted();
      if (turned) score_turned<Elements>(first, whole, tiled, scores);
    }
    if (whole > 0 && !turned) {
      by_rows<kRowsShare>(few.rows_computed, [&](auto n, int r) {
        score_whole<Elements, n, false>(first, whole, tiled, r, scores + r * kPhase);
      });
    }
    for (int at = tiled == steps ? whole * kLanes : 0; at < keys; at += kLanes)
      score_rest<Elements>(first + at, std::min(kLanes, keys - at), at < whole * kLanes ? tiled : 0,
                           scores + at);
  }

 private:
  /// The steps of a whole group that tiles take: of a row's end only what lies within it.
  template <class Elements>
  std::int64_t tiled_steps() const {
    constexpr int kSteps = kTileSteps * Elements::kWordSteps;
    const std::int64_t steps = Path::steps(call.head_dim) / kSteps * kSteps;
    return Path::whole(call.head_dim, steps) ? steps : steps - kSteps;
  }

  /// The first `steps` steps of all rows against `groups` whole groups, each transposed once.
  template <class Elements>
  void score_turned(std::int64_t first, int groups, std::int64_t steps, float* scores) const {
    for (int g = 0; g < groups; g += Turned::kGroups) {
      const int count = std::min(Turned::kGroups, groups - g);
      score_whole<Elements, kRowsShare, true>(first + g * kLanes, count, steps, 0,
                                              scores + g * kLanes);
      Turned{few}.add(count, 0, steps, scores + g * kLanes);
    }
  }

  /// The first `steps` steps of kR rows from first_row on against `groups` whole groups. With
  /// kLeaves the tiles are left as turned keys.
  template <class Elements, int kR, bool kLeaves>
  void score_whole(std::int64_t first, int groups, std::int64_t steps, int first_row,
                   float* scores) const {
    constexpr int kSet = DecodeBeside<Path>::template groups<Elements, kR>();
    const int sets = kSet > 1 ? groups / kSet : 0, done = sets * kSet;
    if constexpr (kSet > 1) {
      if (sets > 0)
        DecodeBeside<Path>{few}.template score<Elements, kR, kLeaves>(first, sets, steps, first_row,
                                                                      scores);
    }
    if (done < groups)
      score_groups<Elements, kR, kLeaves>(first + done * kLanes, groups - done, steps, first_row,
                                          scores + done * kLanes);
  }

  /// The same one group after the other. While one tile is multiplied the next one is made, which
  /// may be the next group's first; sums and tiles stay in registers.
  template <class Elements, int kR, bool kLeaves>
  void score_groups(std::int64_t first, int groups, std::int64_t steps, int first_row,
                    float* scores) const {
    using Group = TiledGroup<Few, Elements>;
    constexpr int kSteps = kTileSteps * Elements::kWordSteps;
    const bool fetches = first_row == 0;
    [[maybe_unused]] float* const turned = few.memory.turned;
    Group group(few, few.group_at(first, kLanes), fetches);
    auto tile = group.tile(0);
    tile.advance_to_end();
    for (int g = 1; g <= groups; ++g, scores += kLanes) {
      Simd::V sum[kR];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) sum[r] = Simd::zero();
      const float* q = few.q_of(first_row, 0);
      for (std::int64_t s = kSteps; s <= steps; s += kSteps, q += kSteps * kTogether) {
        const bool last = s == steps;  // of the block's last group: once more, for nothing
        if (last && g < groups) group = {few, few.group_at(first + g * kLanes, kLanes), fetches};
        auto next = group.tile(last ? 0 : Elements::byte_of(s));
        float* const to =
            kLeaves ? turned + (s - kSteps) * Turned::kKeys + (g - 1) * kLanes : nullptr;
        multiply<Elements, kLeaves>(tile.steps, q, next, sum, to);
        tile = next;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) Simd::store(scores + r * kPhase, sum[r]);
    }
  }

  template <class Elements, bool kLeaves, class Tile, int kR>
  POLYHEAD_INLINE static void multiply(const Simd::V (&words)[kTileSteps], const float* q,
                                       Tile& next, Simd::V (&sum)[kR], float* turned) {
    const auto add_step = [&](int i, Simd::V step) POLYHEAD_LAMBDA {
      if constexpr (kLeaves) Simd::store(turned + i * Turned::kKeys, step);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r)
        sum[r] = Path::Dot::dot(step, Simd::broadcast_at(q + i * kTogether + r), sum[r]);
      Simd::settle(sum[0]);
    };
#pragma GCC unroll 16
    for (int i = 0; i < kTileSteps * Elements::kWordSteps; ++i) {
      if (i % Elements::kWordSteps == 0) next.advance(i / Elements::kWordSteps);
      add_step(i, Elements::step(words, i));
    }
  }

  /// Steps from `done` on of up to a group's keys, for all rows.
  template <class Elements>
  void score_rest(std::int64_t first, int keys, std::int64_t done, float* scores) const {
    const std::int64_t steps = Path::steps(call.head_dim);
    const KeyGroup rows = few.group_at(first, keys);
    for (int r = 0; done == 0 && r < few.row_count; ++r)
      Simd::store(scores + r * kPhase, Simd::zero());
    for (std::int64_t s = done; s < steps; s += kLanes)
      score_part<Elements>(rows, keys, s,
                           static_cast<int>(std::min<std::int64_t>(kLanes, steps - s)), scores);
  }

  template <class Elements>
  __attribute__((noinline)) void score_part(const KeyGroup& rows, int keys, std::int64_t s, int n,
                                            float* scores) const {
    Simd::V lane[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      lane[i] = i < keys ? Path::template load_steps<Elements>(rows.row(i, call.k.token), s, n,
                                                               call.head_dim)
                         : Simd::zero();
    }
    Simd::transpose(lane);
    for (int r = 0; r < few.row_count; ++r) {
      const float* q = few.q_of(r, s);
      Simd::V sum = Simd::load(scores + r * kPhase);
      for (int i = 0; i < n; ++i)
        sum = Path::Dot::dot(lane[i], Simd::broadcast_at(q + i * kTogether), sum);
      Simd::store(scores + r * kPhase, sum);
    }
  }
};
