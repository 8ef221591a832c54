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
  int keys_at_once() const {
    const bool two = few.row_count == 1 && few.keys_together == kLanes &&
                     Path::steps(call.head_dim) <= kStepsWaiting;
    return two ? 2 * kLanes : few.keys_together;
  }

  /// scores[row][0 .. keys) for up to keys_at_once() keys from `first`; one chain over dims a
  /// score.
  template <class Elements>
  void groups(std::int64_t first, int keys, float* scores) const {
    if (few.dense_keys)
      groups_as<Elements, true>(first, keys, scores);
    else
      groups_as<Elements, false>(first, keys, scores);
  }

 private:
  static constexpr std::int64_t kStepsWaiting = 128;

  template <class Elements, bool kDense>
  void groups_as(std::int64_t first, int keys, float* scores) const {
    const std::int64_t steps = Path::steps(call.head_dim);
    if (keys > few.keys_together) {
      if (keys == 2 * kLanes && steps % kLanes == 0 && Path::whole(call.head_dim, steps - kLanes))
        return two_groups<Elements, kDense>(first, scores);
      groups_as<Elements, kDense>(first, kLanes, scores);
      return groups_as<Elements, kDense>(first + kLanes, keys - kLanes, scores + kLanes);
    }
    const int groups = (keys + kLanes - 1) / kLanes;
    KeyGroup rows[kPair];
    for (int g = 0; g < groups; ++g)
      rows[g] = few.group_at(first + g * kLanes, std::min(kLanes, keys - g * kLanes));
    for (int r = 0; r < few.row_count; ++r) {
      for (int g = 0; g < groups; ++g) Simd::store(scores + r * kPhase + g * kLanes, Simd::zero());
    }
    for (std::int64_t s = 0; s < steps; s += kLanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
      for (int g = 0; g < groups; ++g) {
        score_tile<Elements, kDense>(rows[g], std::min(kLanes, keys - g * kLanes), s, n,
                                     scores + g * kLanes);
      }
    }
  }

  template <class Elements, bool kDense>
  POLYHEAD_INLINE void score_tile(const KeyGroup& rows, int keys, std::int64_t s, int n,
                                  float* scores) const {
    if (keys == kLanes && n == kLanes && Path::whole(call.head_dim, s)) {
      Simd::V lane[kLanes];
      load_tile<Elements, kDense>(lane, rows, s);
      score_all_rows(lane, s, scores);
      return;
    }
    score_part<Elements>(rows, keys, s, n, scores);
  }

  /// kLanes steps from s on of a group's keys, transposed; lines ahead are fetched.
  template <class Elements, bool kDense>
  POLYHEAD_INLINE void load_tile(Simd::V (&lane)[kLanes], const KeyGroup& rows,
                                 std::int64_t s) const {
    const std::int64_t at = Elements::byte_of(s), token = call.k.token;
    const std::byte *low = rows.low.data + at, *high = rows.high.data + at + kLanes / 2 * token;
    const auto ahead = few.template ahead_of<Elements::byte_of(kLanes), kDense>(rows, at);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const std::byte* half = i < kLanes / 2 ? low : high;
      lane[i] = Elements::load(half + i % (kLanes / 2) * token, 0, kLanes);
      ahead.fetch(i);
    }
    Simd::transpose(lane);
  }

  /// One row's scores of two groups that are read one after the other: the first one's keys wait,
  /// transposed, so that the chains of both run beside each other.
  template <class Elements, bool kDense>
  void two_groups(std::int64_t first, float* scores) const {
    const std::int64_t steps = Path::steps(call.head_dim);
    alignas(64) float waiting[kStepsWaiting * kLanes];
    Simd::V lane[kLanes];
    const KeyGroup early = few.group_at(first, kLanes);
    for (std::int64_t s = 0; s < steps; s += kLanes) {
      load_tile<Elements, kDense>(lane, early, s);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Simd::store(waiting + (s + i) * kLanes, lane[i]);
    }
    const KeyGroup late = few.group_at(first + kLanes, kLanes);
    Simd::V sum[2] = {Simd::zero(), Simd::zero()};
    for (std::int64_t s = 0; s < steps; s += kLanes) {
      load_tile<Elements, kDense>(lane, late, s);
      const float *q = few.q_of(0, s), *keys = waiting + s * kLanes;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const Simd::V x = Simd::broadcast(q[i * kTogether]);
        sum[0] = Path::Dot::dot(Simd::load(keys + i * kLanes), x, sum[0]);
        sum[1] = Path::Dot::dot(lane[i], x, sum[1]);
      }
    }
    Simd::store(scores, sum[0]);
    Simd::store(scores + kLanes, sum[1]);
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
        sum = Path::Dot::dot(lane[i], Simd::broadcast(q[i * kTogether]), sum);
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
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kR; ++r)
        sum[r] = Path::Dot::dot(
            lane[i], Simd::broadcast(q[(r / kTogether * q_rows + i) * kTogether + r % kTogether]),
            sum[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) Simd::store(scores + r * kPhase, sum[r]);
  }
};
