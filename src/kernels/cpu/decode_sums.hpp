// The weighted sum of a block's values for few rows: lanes are dims. Included inside an ISA
// namespace after decode_rows.hpp.

template <class Path>
struct DecodeSums {
  using Few = FewRows<Path>;
  Few& few;
  const AttendCall& call = few.call;
  const Sequence& sequence = few.sequence;
  static constexpr std::int64_t kPhase = Few::kPhase;
  static constexpr int kKeys = Path::kBfloat16 ? 2 : 1;  // of a step

  template <class Elements>
  void block(std::int64_t first, int b) {
    const int keys = few.keys_of(first);
    rescale(b);
    for (int at = 0; at < keys; at += few.values_together)
      piece<Elements>(runs_of(first, b, at, std::min(keys, at + few.values_together)));
  }

 protected:
  /// What block b does to the sums before it.
  void rescale(int b) {
    if (!few.rescaled[b]) return;
    const std::int64_t row_floats = Few::pad(call.value_dim);
    for (int r = 0; r < few.row_count; ++r) {
      const Simd::V f = Simd::broadcast(few.factor[b][r]);
      float* o = few.memory.added + r * row_floats;
      for (std::int64_t d = 0; d < row_floats; d += kLanes)
        Simd::store(o + d, Simd::mul(Simd::load(o + d), f));
    }
  }

  /// `keys` keys of a block, from its key `at` on, whose values lie one after the other.
  struct Run {
    KeyRows rows;
    int at, keys;
    const std::byte* ahead;  // rows to fetch while these are read,
    std::int64_t far;        // and bytes from them to those for L2
  };

  /// A piece of block b of a phase.
  struct Runs {
    int b, count = 0;
    Run each[kKeyBlock / 8];  // pages hold 8 tokens or more
  };

  /// What the rows of a column of a run fetch, one row after the other; with nothing to fetch, one
  /// line again and again, which costs less than to ask each time.
  template <std::int64_t kBytes>
  class ValuesAhead {
   public:
    ValuesAhead(const Run& run, std::int64_t token, bool dense, std::int64_t column, bool any)
        : at_(any ? Column::begin(run.ahead, run.keys, token, dense, column, 0) : run.rows.data),
          stride_(any ? Column::stride(dense, token) : 0),
          far_(any ? run.far : 0) {}

    /// What belongs to the next kRows rows, a multiple of those that share a line.
    template <int kRows>
    POLYHEAD_INLINE void fetch_next() {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; i += Column::kRowsALine) {
        Column::fetch(at_, far_);
        at_ = forget(at_ + Column::kRowsALine * stride_);
      }
    }

   private:
    using Column = ColumnAhead<kBytes>;
    const std::byte* at_;
    const std::int64_t stride_, far_;
  };

  Runs runs_of(std::int64_t first, int b, int at, int end) const {
    Runs runs;
    runs.b = b;
    while (at < end) {  // pages shorter than a piece are runs of it
      const int keys =
          static_cast<int>(std::min<std::int64_t>(end - at, run_of(call, sequence, first + at)));
      runs.each[runs.count++] = run_at(first + at, at, keys);
      at += keys;
    }
    return runs;
  }

  Run run_at(std::int64_t first, int at, int keys) const {
    const KeyRows rows = key_rows(call, sequence, call.v, sequence.v, few.item.kv_head, first);
    const KeyRows here{rows.data, nullptr};
    const KeyRows ahead = few.rows_ahead(call.v, sequence.v, here, first, few.values_ahead);
    const KeyRows far = few.rows_ahead(call.v, sequence.v, here, first, few.values_far);
    few.fetch_scales(ahead.scales, call.v.scales, call.value_dim, keys);
    return {rows, at, keys, ahead.data, far.data - ahead.data};
  }

 private:
  /// All rows' sums over a piece of a block.
  template <class Elements>
  void piece(const Runs& runs) {
    if (!few.full[runs.b]) {
      for (int r = 0; r < few.row_count; ++r) sum_row_masked<Elements>(runs, r);
      return;
    }
    if (few.row_count == 2 * kRowsShare) {  // both halves while the values are in L1
      constexpr int kC = kRowsShare == 8 ? 2 : kLanes / 4;
      for (std::int64_t d = 0; d < call.value_dim; d += kC * kLanes) {
        const std::int64_t end = std::min<std::int64_t>(call.value_dim, d + kC * kLanes);
        sum_rows<Elements, kRowsShare, kC>(runs, 0, d, end);
        sum_rows<Elements, kRowsShare, kC>(runs, kRowsShare, d, end);
      }
      return;
    }
    by_rows<kRowsShare>(few.rows_computed, [&](auto n, int r) {
      constexpr int kC = n <= 2 && Elements::kCodes ? 4 : Few::vectors_of(n);
      sum_rows<Elements, n, kC>(runs, r, 0, call.value_dim);
    });
  }

  /// Rows [first_row, first_row + kR), kC vectors of dims at a time and what is left by fewer:
  /// their accumulators stay in registers for all keys of the piece.
  template <class Elements, int kR, int kC>
  void sum_rows(const Runs& runs, int first_row, std::int64_t d, std::int64_t end) {
    for (; d + kC * kLanes <= end; d += kC * kLanes)
      sum_dims<Elements, kR, kC>(runs, d, kLanes, first_row);
    if constexpr (kC > 2) return sum_rows<Elements, kR, kC / 2>(runs, first_row, d, end);
    for (; d < end; d += kLanes) {
      const auto n = static_cast<int>(std::min<std::int64_t>(kLanes, end - d));
      sum_dims<Elements, kR, 1>(runs, d, n, first_row);
    }
  }

  template <class Elements, int kR, int kC>
  void sum_dims(const Runs& runs, std::int64_t d, int n, int first_row) {
    if constexpr (kFillLanes && Elements::kSteps && kR == kRowsShare) {
      if (few.values_in_keys && first_row == 0)
        return sum_dims_fetching<Elements, kR, kC, true>(runs, d, n, first_row);
    }
    sum_dims_fetching<Elements, kR, kC, false>(runs, d, n, first_row);
  }

  template <class Elements, int kR, int kC, bool kBoth>
  void sum_dims_fetching(const Runs& runs, std::int64_t d, int n, int first_row) {
    if constexpr (Few::kTotalsBeside && kR >= Few::kLateRows && kC == Few::vectors_of(kR)) {
      if (d == 0 && few.totals_beside_values(runs.b))
        return sum_dims_as<Elements, kR, kC, kBoth, true>(runs, d, n, first_row);
    }
    sum_dims_as<Elements, kR, kC, kBoth, false>(runs, d, n, first_row);
  }

  /// With kBoth, lines of the next block's keys are fetched meanwhile, else of its values. With
  /// kTotals, the rows' weights are summed as well, a chain each in order (add_chains).
  template <class Elements, int kR, int kC, bool kBoth, bool kTotals>
  POLYHEAD_INLINE void sum_dims_as(const Runs& runs, std::int64_t d, int n, int first_row) {
    const std::int64_t row_floats = Few::pad(call.value_dim);
    float* o = few.memory.added + first_row * row_floats + d;
    constexpr int kTogether = 4;  // keys of steps unrolled
    // Half a block of int4 has its bytes from the other half.
    constexpr std::int64_t kColumn =
        std::max<std::int64_t>(16, Elements::byte_of_values(kC * kLanes));
    // Lines are fetched with each step, as few at once as there can be.
    constexpr int kFetched = std::max(kKeys, ColumnAhead<kColumn>::kRowsALine);
    const bool apart = first_row == 0 && !few.values_in_keys;
    float* const totals = few.memory.split->total + first_row;
    [[maybe_unused]] Simd::V total[kR];
#pragma GCC unroll 8
    for (int r = 0; kTotals && r < kR; ++r) total[r] = Simd::broadcast_at(totals + r);
    Simd::V acc[kR][kC];
    const float* from = o;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r, from = forget(from + row_floats)) {
#pragma GCC unroll 8
      for (int c = 0; c < kC; ++c) acc[r][c] = Simd::load(from + c * kLanes);
    }
    for (int i = 0; i < runs.count; ++i) {
      const Run& run = runs.each[i];
      ValuesAhead<kColumn> ahead(run, call.v.token, few.dense_values, Elements::byte_of_values(d),
                                 apart);
      const float* p = weights_of(first_row, runs.b, run);
      const std::byte* lines = nullptr;
      if constexpr (kBoth) lines = few.lines_with_sums(d) + Path::steps(run.at) * Few::kLine;
      typename Path::template Values<Elements> values(run.rows, call.v, d, n);
      const auto add_step = [&](auto whole) POLYHEAD_LAMBDA {
        Simd::V value[kC];
        values.template read<whole>(value);
        values.advance();
        if constexpr (kBoth) {
          __builtin_prefetch(lines, 0, 3);
          lines += Few::kLine;
        }
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
          const Simd::V x = Simd::broadcast_at(p + r * kPhase);
          if constexpr (kTotals) {
            total[r] = Simd::add(total[r], x);
            Simd::settle(total[r]);  // here, or g++ 12 keeps all weights for sums at the end
          }
#pragma GCC unroll 8
          for (int c = 0; c < kC; ++c) acc[r][c] = Path::Dot::dot(value[c], x, acc[r][c]);
        }
        ++p;
      };
      int key = 0;
      for (; key + kTogether <= run.keys; key += kTogether) {
#pragma GCC unroll 4
        for (int next = 0; next < kTogether; next += kKeys) {
          if (!kBoth && next % kFetched == 0) ahead.template fetch_next<kFetched>();
          add_step(std::true_type{});
        }
      }
      for (; key + kKeys <= run.keys; key += kKeys) add_step(std::true_type{});
      if (key < run.keys) add_step(std::false_type{});
    }
#pragma GCC unroll 8
    for (int r = 0; kTotals && r < kR; ++r) Simd::store_first(totals + r, total[r], 1);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r, o = forget(o + row_floats)) {
#pragma GCC unroll 8
      for (int c = 0; c < kC; ++c) Simd::store(o + c * kLanes, acc[r][c]);
    }
  }

  /// Row r's weights of a run, a step each.
  const float* weights_of(int r, int b, const Run& run) const {
    return few.memory.scores + r * kPhase + b * kKeyBlock + Path::steps(run.at);
  }

  /// One row of a block that it sees in part: what it does not see is not read into the sum.
  template <class Elements>
  void sum_row_masked(const Runs& runs, int r) {
    float* o = few.memory.added + r * Few::pad(call.value_dim);
    for (std::int64_t d = 0; d < call.value_dim; d += kLanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, call.value_dim - d));
      Simd::V sum = Simd::load(o + d);
      for (int i = 0; i < runs.count; ++i) {
        const Run& run = runs.each[i];
        const float* p = weights_of(r, runs.b, run);
        const std::uint64_t word = few.words[runs.b][r] >> run.at;
        typename Path::template Values<Elements> values(run.rows, call.v, d, n);
        const int steps = static_cast<int>(Path::steps(run.keys));
        for (int s = 0; s < steps; ++s, values.advance()) {
          if (!Path::step_visible(word, s)) continue;
          Simd::V value[1];
          if (s * kKeys + kKeys <= run.keys)
            values.template read<true>(value);
          else
            values.template read<false>(value);
          sum =
              Path::Dot::dot(Path::visible_part(value[0], word, s), Simd::broadcast_at(p + s), sum);
        }
      }
      Simd::store(o + d, sum);
    }
  }
};
