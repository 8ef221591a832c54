// Scores of as many rows as a vector has lanes: lanes are rows, and keys are broadcast from where
// they lie. Included inside an ISA namespace after decode_rows.hpp.

template <class Path>
struct DecodeLanes {
  using Few = FewRows<Path>;
  const Few& few;
  const AttendCall& call = few.call;
  static constexpr std::int64_t kPhase = Few::kPhase;
  using KeyGroup = typename Few::KeyGroup;

  /// scores[row][0 .. keys) for up to kLanes keys from `first`; one chain over dims a score. What
  /// stands behind the last key means nothing.
  void group(std::int64_t first, int keys, float* scores) const {
    const KeyGroup rows = few.group_at(first, keys);
    Simd::V sum[kLanes];
    if (keys == kLanes)
      add_keys(rows, first, sum);
    else
      add_some_keys(rows, keys, sum);
    Simd::transpose(sum);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) Simd::store(scores + r * kPhase, sum[r]);
  }

 private:
  /// Of a whole group.
  POLYHEAD_INLINE void add_keys(const KeyGroup& rows, std::int64_t first,
                                Simd::V (&sum)[kLanes]) const {
    const std::int64_t token = call.k.token, steps = Path::steps(call.head_dim);
    const std::byte* next =
        few.values_in_keys ? few.lines_with_scores(static_cast<int>(first % kKeyBlock)) : nullptr;
    const std::byte* base[4] = {rows.low.data, rows.low.data + 4 * token,
                                rows.high.data + 8 * token, rows.high.data + 12 * token};
    const typename Few::template KeysAhead<Few::kLine> ahead(few, rows, true);
    const float* q = few.memory.q;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sum[i] = Simd::zero();
    for (std::int64_t s = 0; s < steps; s += kLanes) {
      if (next != nullptr) {
#pragma GCC unroll 16
        for (int i = 0; i < Few::kFetched; ++i) __builtin_prefetch(next + i * Few::kLine, 0, 3);
        next += Few::kFetched * Few::kLine;
      } else {
        auto lines = ahead.column(4 * s);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) lines.fetch(i);
      }
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
      for (int j = 0; j < n; ++j, q += kLanes) {
        const Simd::V x = Simd::load(q);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          sum[i] = Path::Dot::dot(Simd::broadcast_at(base[i / 4] + i % 4 * token), x, sum[i]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) base[i] += 4;
      }
    }
  }

  /// By way of memory: clang keeps no array in registers that is indexed by what it does not know.
  void add_some_keys(const KeyGroup& rows, int keys, Simd::V (&sum)[kLanes]) const {
    alignas(64) float each[kLanes][kLanes] = {};
    for (int i = 0; i < keys; ++i) Simd::store(each[i], sum_of(rows.row(i, call.k.token)));
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sum[i] = Simd::load(each[i]);
  }

  Simd::V sum_of(const std::byte* row) const {
    const std::int64_t steps = Path::steps(call.head_dim);
    Simd::V sum = Simd::zero();
    for (std::int64_t s = 0; s < steps; ++s)
      sum = Path::Dot::dot(Simd::broadcast_at(row + 4 * s), Simd::load(few.memory.q + s * kLanes),
                           sum);
    return sum;
  }
};
