// Weights summed over queries by key (received mass), or pooled into a map. Included inside an ISA
// namespace after reweigh.hpp.

/// The bin that holds item i of n: the last one whose first item is at or before it.
inline std::int64_t bin_of(std::int64_t i, std::int64_t bins, std::int64_t n) {
  return ((i + 1) * bins - 1) / n;
}

template <class Path>
struct WeightSums {
  using Weigher = Reweigher<Path>;
  static constexpr std::int64_t kStretch =
      1024;  // keys summed at a time: their lane sums stay in L2

  using Bases = typename Weigher::Bases;

  static constexpr std::size_t sums_bytes() { return kStretch * kLanes * sizeof(float); }
  /// Of each tile of a head, so that they are found once.
  static std::size_t bases_bytes(const AttendCall& call) {
    return static_cast<std::size_t>((call.q_len + kTile - 1) / kTile) * sizeof(Bases);
  }
  static std::int64_t scratch_bytes(const InspectCall& call) {
    return static_cast<std::int64_t>(sums_bytes() + bases_bytes(call.attend)) +
           Weigher::scratch_bytes(call.attend);
  }

  const InspectCall& call;
  Weigher weigher;
  // What a map's bins divide: the call's tokens or, of a ragged side, those of the sequence.
  const std::int64_t q_extent, kv_extent;
  float* const sums;        // [key of the stretch][lane]
  Bases* const bases;       // [tile]
  std::int64_t bin[kTile];  // row of the pooled map that a lane's query belongs to

  WeightSums(const InspectCall& c, std::int64_t batch, std::int64_t q_head, std::byte* scratch)
      : call(c),
        weigher(c.attend, batch, q_head, scratch + sums_bytes() + bases_bytes(c.attend),
                {&fetch_aside, this}),
        q_extent(extent_of(c.attend.q_offsets, batch, c.attend.q_len)),
        kv_extent(extent_of(c.attend.kv_offsets, batch, c.attend.kv_len)),
        sums(reinterpret_cast<float*>(scratch)),
        bases(reinterpret_cast<Bases*>(scratch + sums_bytes())) {}

  static std::int64_t extent_of(const Integers& offsets, std::int64_t batch, std::int64_t all) {
    return offsets.given() ? offsets[batch + 1] - offsets[batch] : all;
  }

  /// `known`: the tile was placed before.
  void place(std::int64_t first, int rows, bool known) {
    weigher.place_lanes(first, rows);
    Bases& kept = bases[first / kTile];
    if (known) {
      weigher.bases[weigher.tile] = kept;
    } else {
      weigher.find_bases();
      kept = weigher.bases[weigher.tile];
    }
    for (int i = 0; i < kTile; ++i)
      bin[i] = bin_of(weigher.lanes().query[i], call.q_bins, q_extent);
  }

  /// Queries of the tile that comes next, some after every kRows keys.
  void fetch_queries(std::int64_t first, std::int64_t count) {
    const Operand& q = call.attend.q;
    weigher.plan_queries(weigher.engine.sequence.q + first * q.token + weigher.head * q.head,
                         q.token, count);
  }
  static void fetch_aside(void* self) {
    static_cast<WeightSums*>(self)->weigher.fetch_queries(kRowsAside);
  }

  static void sum_head(const InspectCall& call, std::int64_t batch, std::int64_t q_head,
                       std::byte* scratch) {
    WeightSums self(call, batch, q_head, scratch);
    self.clear_sums();
    const std::int64_t q_len = self.weigher.engine.sequence.q_len,
                       kv_len = self.weigher.engine.sequence.kv_len;
    for (std::int64_t from = 0; from < kv_len; from += kStretch) {
      const std::int64_t to = std::min(kv_len, from + kStretch);
      std::memset(self.sums, 0, sums_bytes());
      for (std::int64_t first = 0; first < q_len; first += kTile) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kTile, q_len - first));
        self.place(first, rows, from > 0);
        const std::int64_t left = std::min<std::int64_t>(kTile, q_len - first - rows);
        self.fetch_queries(first + rows, left);
        for (std::int64_t block = from; block < to; block += kKeyBlock) {
          const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, kv_len - block));
          self.sum_block(block, from, keys, rows);
        }
      }
      if (call.received.data) self.store_received(from, to);
    }
  }

  void sum_block(std::int64_t block, std::int64_t stretch, int keys, int rows) {
    const Sight::Kind kind = weigher.see(block, keys).kind;
    if (kind == Sight::nothing) return;
    if (kind == Sight::everything && sums_scores(rows) && !weigher.bases[weigher.tile].aside) {
      weigher.prepare_scores(block, keys, weigher.load_keys(block, keys));
      return sum_scores(block, stretch, keys, rows);
    }
    weigher.weigh_seen(block, keys, weigher.load_keys(block, keys));
    clear_spare_lanes(rows, keys);
    if (call.received.data) add_received(block - stretch, keys);
    if (call.pooled.data) add_pooled(block, keys, rows);
  }

  std::byte* received_at(std::int64_t key) const {
    return call.received.data + weigher.item.batch * call.received.batch +
           weigher.head * call.received.head + key * call.received.key;
  }
  std::byte* pooled_at(std::int64_t row, std::int64_t column) const {
    return call.pooled.data + weigher.item.batch * call.pooled.batch +
           weigher.head * call.pooled.head + row * call.pooled.row + column * call.pooled.key;
  }

  void clear_sums() {
    const float zero = 0.0f;
    for (std::int64_t key = 0; call.received.data && key < call.attend.kv_len; ++key) {
      std::memcpy(received_at(key), &zero, 4);
    }
    for (std::int64_t r = 0; call.pooled.data && r < call.q_bins; ++r) {
      for (std::int64_t c = 0; c < call.kv_bins; ++c) std::memcpy(pooled_at(r, c), &zero, 4);
    }
  }

  /// Lanes past the last row repeat it and must not count.
  void clear_spare_lanes(int rows, int keys) {
    for (int key = 0; key < keys && rows < kTile; ++key) {
      for (int i = rows; i < kTile; ++i) weigher.engine.memory.scores[key * kTile + i] = 0.0f;
    }
  }

  void add_received(std::int64_t offset, int keys) {
    for (int key = 0; key < keys; ++key) {
      float* to = sums + (offset + key) * kLanes;
      const float* from = weigher.engine.memory.scores + key * kTile;
      Simd::V sum = Simd::load(to);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum = Simd::add(sum, Simd::load(from + v * kLanes));
      Simd::store(to, sum);
    }
  }

  void store_received(std::int64_t from, std::int64_t to) {
    for (std::int64_t key = from; key < to; ++key) {
      float total = 0.0f;
      for (int i = 0; i < kLanes; ++i) total += sums[(key - from) * kLanes + i];
      std::memcpy(received_at(key), &total, 4);
    }
  }

  /// Calls f(column, first, end) for the keys of the block that fall into each bin.
  template <class F>
  POLYHEAD_INLINE void for_bins(std::int64_t block, int keys, const F& f) const {
    for (int key = 0; key < keys;) {
      const std::int64_t column = bin_of(block + key, call.kv_bins, kv_extent);
      const std::int64_t bin_end = (column + 1) * kv_extent / call.kv_bins;
      const int end = static_cast<int>(std::min<std::int64_t>(keys, bin_end - block));
      f(column, key, end);
      key = end;
    }
  }

  void add_pooled(std::int64_t block, int keys, int rows) const {
    pool(block, keys, rows, [&](float* to, int first, int end) POLYHEAD_LAMBDA {
      for (int v = 0; v < kVectors; ++v) {
        Simd::V sum = Simd::zero();
        for (int key = first; key < end; ++key)
          sum = Simd::add(sum, Simd::load(weigher.engine.memory.scores + key * kTile + v * kLanes));
        Simd::store(to + v * kLanes, sum);
      }
    });
  }

  /// Columns of the map that a tile's sums wait for, to be added beside each other: a cell takes
  /// its queries one after the other.
  struct Columns {
    static constexpr int kMost = 4;
    alignas(64) float part[kMost][kTile];
    std::int64_t column[kMost];
    int count = 0;
  };

  /// Adds what `sum(to, first, end)` makes of keys [first, end), a lane each, to the cells of the
  /// column they fall into.
  template <class Sum>
  POLYHEAD_INLINE void pool(std::int64_t block, int keys, int rows, const Sum& sum) const {
    Columns columns;
    for_bins(block, keys, [&](std::int64_t column, int first, int end) POLYHEAD_LAMBDA {
      sum(columns.part[columns.count], first, end);
      columns.column[columns.count++] = column;
      if (columns.count == Columns::kMost) add_to_bins(columns, rows);
    });
    add_to_bins(columns, rows);
  }

  /// Whether weights of blocks seen in full are wanted for one sum alone, which then takes them as
  /// they come out of the scores.
  bool sums_scores(int rows) const {
    const bool pools = call.pooled.data != nullptr;
    return (call.received.data ? !pools && rows == kTile : pools) &&
           call.attend.score.dropout == 0.0f && weigher.engine.rules.exponent != Exponent::natural;
  }

  void sum_scores(std::int64_t block, std::int64_t stretch, int keys, int rows) {
    if (call.received.data) return receive_scores(block - stretch, keys);
    pool(block, keys, rows,
         [&](float* to, int first, int end) POLYHEAD_LAMBDA { pool_scores(to, first, end); });
  }

  /// Weights of one vector, whose base is `from`, for one key.
  POLYHEAD_INLINE Simd::V weight_of(int key, int v, Simd::V from, Simd::V unit) const {
    const Simd::V score = Simd::load(weigher.engine.memory.scores + key * kTile + v * kLanes);
    return Simd::exp2(exponent_of<Exponent::fused>(score, from, unit));
  }
  Simd::V base_of(int v, Simd::V unit) const {
    return exponent_base<Exponent::fused>(Simd::load(weigher.bases[weigher.tile].base + v * kLanes),
                                          unit);
  }

  /// As add_received.
  void receive_scores(std::int64_t offset, int keys) {
    const Simd::V unit = Simd::broadcast(weigher.engine.rules.unit);
    Simd::V from[kVectors];
    for (int v = 0; v < kVectors; ++v) from[v] = base_of(v, unit);
    for (int key = 0; key < keys; ++key) {
      float* to = sums + (offset + key) * kLanes;
      Simd::V sum = Simd::load(to);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum = Simd::add(sum, weight_of(key, v, from[v], unit));
      Simd::store(to, sum);
    }
  }

  /// The sums of the weights of keys [first, end).
  void pool_scores(float* to, int first, int end) const {
    const Simd::V unit = Simd::broadcast(weigher.engine.rules.unit);
    for (int v = 0; v < kVectors; ++v) {
      const Simd::V from = base_of(v, unit);
      Simd::V sum = Simd::zero();
      for (int key = first; key < end; ++key) sum = Simd::add(sum, weight_of(key, v, from, unit));
      Simd::store(to + v * kLanes, sum);
    }
  }

  void add_to_bins(Columns& columns, int rows) const {
    by_rows<Columns::kMost>(columns.count, [&](auto n, int first) POLYHEAD_LAMBDA {
      add_columns<n>(columns, first, rows);
    });
    columns.count = 0;
  }

  /// Adds the lanes of kN columns to their bins' cells, in query order; a bin's lanes lie side by
  /// side.
  template <int kN>
  void add_columns(const Columns& columns, int first, int rows) const {
    for (int i = 0; i < rows;) {
      const std::int64_t row = bin[i];
      std::byte* at[kN];
      float total[kN];
#pragma GCC unroll 4
      for (int c = 0; c < kN; ++c) {
        at[c] = pooled_at(row, columns.column[first + c]);
        std::memcpy(&total[c], at[c], sizeof total[c]);
      }
      for (; i < rows && bin[i] == row; ++i) {
#pragma GCC unroll 4
        for (int c = 0; c < kN; ++c) total[c] += columns.part[first + c][i];
      }
#pragma GCC unroll 4
      for (int c = 0; c < kN; ++c) std::memcpy(at[c], &total[c], sizeof total[c]);
    }
  }
};
