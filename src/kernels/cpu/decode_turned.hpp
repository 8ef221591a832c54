// Keys that lie transposed in L1 for the rows after the first few. Where registers hold the sums of
// no more than four rows beside a tile of keys, these rows make the tile and leave it here; the
// others multiply it where it lies. Lanes are keys. Included inside an ISA namespace after
// decode_rows.hpp.

template <class Path>
struct TurnedKeys {
  using Few = FewRows<Path>;
  static constexpr int kKeys = Few::kTurned, kGroups = kKeys / kLanes;
  const Few& few;

  /// Whether some of the rows have theirs from here.
  bool wanted() const { return few.row_count > kRowsShare; }

  /// Adds steps [first, end) of `groups` groups to the scores of all rows but the first kRowsShare;
  /// step 0 begins them.
  void add(int groups, std::int64_t first, std::int64_t end, float* scores) const {
    for (int r = kRowsShare; r < few.row_count; r += kRowsShare) {
      by_rows<kGroups>(groups, [&](auto n, int group) {
        add_rows<n>(r, group, first, end, scores + r * Few::kPhase + group * kLanes);
      });
    }
  }

 private:
  template <int kG>
  void add_rows(int row, int group, std::int64_t first, std::int64_t end, float* scores) const {
    Simd::V sum[kRowsShare][kG];
#pragma GCC unroll 8
    for (int r = 0; r < kRowsShare; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kG; ++g)
        sum[r][g] = first == 0 ? Simd::zero() : Simd::load(scores + r * Few::kPhase + g * kLanes);
    }
    const BroadcastOperand q{reinterpret_cast<const std::byte*>(few.q_of(row, first)), 4,
                             4 * Few::kTogether};
    const float* const keys = few.memory.turned + first * kKeys + group * kLanes;
    outer_product<typename Path::Dot, kRowsShare, kG>(sum, q, keys, kKeys, end - first);
#pragma GCC unroll 8
    for (int r = 0; r < kRowsShare; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kG; ++g) Simd::store(scores + r * Few::kPhase + g * kLanes, sum[r][g]);
    }
  }
};
