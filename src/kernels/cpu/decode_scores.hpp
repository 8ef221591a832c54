// Scores of few rows against a block of keys: lanes are keys, groups of them transposed in
// registers. Included inside an ISA namespace after decode_rows.hpp.

template <class Path>
struct DecodeScores {
  using Few = FewRows<Path>;
  const Few& few;
  const AttendCall& call = few.call;
  static constexpr int kTogether = Few::kTogether, kPair = Few::kPair;
  static constexpr std::int64_t kPhase = Few::kPhase;
  using KeyGroup = typename Few::KeyGroup;

  /// How many keys groups() takes at once.
  int keys_at_once() const { return few.keys_together > kLanes ? few.keys_together : kKeyBlock; }

  /// scores[row][0 .. keys) for up to keys_at_once() keys from `first`; one chain over dims a
  /// score.
  template <class Elements>
  void groups(std::int64_t first, int keys, float* scores) const {
    switch (few.keys_lie) {
      case KeysLie::dense:
        return groups_as<Elements, KeysLie::dense>(first, keys, scores);
      case KeysLie::apart:
        return groups_as<Elements, KeysLie::apart>(first, keys, scores);
      case KeysLie::parted:
        return groups_as<Elements, KeysLie::parted>(first, keys, scores);
    }
  }

 private:
  template <class Elements, KeysLie kLie>
  void groups_as(std::int64_t first, int keys, float* scores) const {
    const bool whole = whole_steps() == Path::steps(call.head_dim);
    const auto pass = [&](int n) { keys -= n, first += n, scores += n; };
    if (whole && few.keys_together > kLanes && few.row_count <= Few::kRowsPaired) {
      for (; keys >= kPair * kLanes; pass(kPair * kLanes)) {
        if (few.row_count == 1)
          score_groups<Elements, kLie, 1, kPair>(first, scores);
        else
          score_groups<Elements, kLie, 2, kPair>(first, scores);
      }
    }
    if (few.keys_together == kLanes) {
      for (; whole && keys >= kLanes; pass(kLanes)) score_group_of<Elements, kLie>(first, scores);
      for (; keys > 0; pass(kLanes))
        groups_beside<Elements, kLie>(first, std::min(keys, kLanes), scores);
    }
    if (keys > 0) groups_beside<Elements, kLie>(first, keys, scores);
  }

  /// One group of keys for as many rows as are computed: up to kRowsShare.
  template <class Elements, KeysLie kLie>
  void score_group_of(std::int64_t first, float* scores) const {
    if (few.rows_computed == 1) return score_groups<Elements, kLie, 1, 1>(first, scores);
    if (few.rows_computed == 2) return score_groups<Elements, kLie, 2, 1>(first, scores);
    if (few.rows_computed == 4) return score_groups<Elements, kLie, 4, 1>(first, scores);
    score_groups<Elements, kLie, kRowsShare, 1>(first, scores);
  }

  /// Groups scored beside each other.
  template <class Elements, KeysLie kLie>
  void groups_beside(std::int64_t first, int keys, float* scores) const {
    const std::int64_t steps = Path::steps(call.head_dim);
    const int groups = (keys + kLanes - 1) / kLanes;
    KeyGroup rows[kPair];
    for (int g = 0; g < groups; ++g)
      rows[g] = few.group_at(first + g * kLanes, std::min(kLanes, keys - g * kLanes));
    for (int r = 0; r < few.row_count; ++r) {
      for (int g = 0; g < groups; ++g) Simd::store(scores + r * kPhase + g * kLanes, Simd::zero());
    }
    const std::int64_t whole = keys == groups * kLanes ? whole_steps() : 0;
    for (std::int64_t s = 0; s < whole; s += kLanes) {
      for (int g = 0; g < groups; ++g) {
        Simd::V lane[kLanes];
        load_tile<Elements, kLie>(lane, rows[g], s);
        score_all_rows(lane, s, scores + g * kLanes);
      }
    }
    for (std::int64_t s = whole; s < steps; s += kLanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
      for (int g = 0; g < groups; ++g)
        score_part<Elements>(rows[g], std::min(kLanes, keys - g * kLanes), s, n,
                             scores + g * kLanes);
    }
  }

  /// The steps that make up whole tiles of a group.
  std::int64_t whole_steps() const {
    const std::int64_t steps = Path::steps(call.head_dim) / kLanes * kLanes;
    return steps > 0 && !Path::whole(call.head_dim, steps - kLanes) ? steps - kLanes : steps;
  }

  /// kLanes steps from s on of a group's keys, transposed; lines ahead are fetched.
  template <class Elements, KeysLie kLie>
  POLYHEAD_INLINE void load_tile(Simd::V (&lane)[kLanes], const KeyGroup& rows,
                                 std::int64_t s) const {
    few.template read_column<Elements::byte_of(kLanes), kLie>(
        lane, rows, Elements::byte_of(s), [](Simd::V& to, const std::byte* from) POLYHEAD_LAMBDA {
          to = Elements::load(from, 0, kLanes);
        });
    Simd::transpose(lane);
  }

  /// Scores of kR rows of kN groups that are read whole, tile by tile in turns; their sums stay in
  /// registers.
  template <class Elements, KeysLie kLie, int kR, int kN>
  POLYHEAD_INLINE void score_groups(std::int64_t first, float* scores) const {
    KeyGroup rows[kN];
    Simd::V sum[kN][kR];
#pragma GCC unroll 2
    for (int g = 0; g < kN; ++g) {
      rows[g] = few.group_at(first + g * kLanes, kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) sum[g][r] = Simd::zero();
    }
    const std::int64_t steps = Path::steps(call.head_dim);
    const float* q = few.q_of(0, 0);
    for (std::int64_t s = 0; s < steps; s += kLanes, q += kLanes * kTogether) {
#pragma GCC unroll 2
      for (int g = 0; g < kN; ++g) {
        Simd::V lane[kLanes];
        load_tile<Elements, kLie>(lane, rows[g], s);
        add_tile<kR>(lane, q, 0, sum[g]);
      }
    }
#pragma GCC unroll 2
    for (int g = 0; g < kN; ++g) {
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) Simd::store(scores + r * kPhase + g * kLanes, sum[g][r]);
    }
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

  POLYHEAD_INLINE void score_all_rows(const Simd::V (&lane)[kLanes], std::int64_t s,
                                      float* scores) const {
    const std::int64_t q_rows = Few::pad(Path::q_steps(call.head_dim));
    by_rows<kLanes == 16 ? 16 : 4>(few.row_count, [&](auto n, int r) POLYHEAD_LAMBDA {
      score_rows<n>(lane, few.q_of(r, s), scores + r * kPhase, q_rows);
    });
  }

  /// Adds kLanes steps of kLanes keys to the scores of kR rows.
  template <int kR>
  POLYHEAD_INLINE static void score_rows(const Simd::V (&lane)[kLanes], const float* q,
                                         float* scores, std::int64_t q_rows) {
    Simd::V sum[kR];
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) sum[r] = Simd::load(scores + r * kPhase);
    add_tile<kR>(lane, q, q_rows, sum);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) Simd::store(scores + r * kPhase, sum[r]);
  }

  template <int kR>
  POLYHEAD_INLINE static void add_tile(const Simd::V (&lane)[kLanes], const float* q,
                                       std::int64_t q_rows, Simd::V (&sum)[kR]) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kR; ++r)
        sum[r] = Path::Dot::dot(
            lane[i],
            Simd::broadcast_at(q + (r / kTogether * q_rows + i) * kTogether + r % kTogether),
            sum[r]);
    }
  }
};
