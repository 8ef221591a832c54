// Head statistics: one sweep over a tile's weights feeds every measure. Row sums run down the
// lanes; what belongs to keys or single rows is taken from the same block turned into rows.
// Included inside an ISA namespace after weight_sums.hpp.

template <class Path>
struct HeadSweeper {
  using Weights = Reweigher<Path>;
  static constexpr std::int64_t kRowsBytes = std::int64_t{4} * kTile * kKeyBlock;
  static_assert(kTile <= kMostTileRows);

  static std::int64_t scratch_bytes(const HeadSweep& sweep) {
    return kRowsBytes + Weights::scratch_bytes(sweep.attend);
  }

  /// Queries [first, first + rows) of the call for one query head.
  static void run(const HeadSweep& sweep, std::int64_t head, std::int64_t first, int rows,
                  const HeadTile& to, std::byte* scratch) {
    HeadSweeper self(sweep, head, first, rows, to, scratch);
    self.walk();
  }

 private:
  const HeadSweep& sweep;
  const HeadTile& to;
  Weights weights;
  const int rows;
  const float* tile;  // [key][lane]: weights of the block at hand
  float* by_row;      // [lane][key]: the same turned over
  alignas(64) float position[kTile];
  alignas(64) float own_class[kTile];

  /// A map's open column: each lane's pool so far. A column may reach over several blocks, and is
  /// added to the map in query order once it is complete.
  struct Column {
    std::int64_t index = -1, end = 0;
    alignas(64) float pool[kTile];
  };
  Column columns[4];
  std::int64_t map_row[4][kTile];

  HeadSweeper(const HeadSweep& s, std::int64_t head, std::int64_t first, int count,
              const HeadTile& t, std::byte* scratch)
      : sweep(s), to(t), weights(s.attend, 0, head, scratch + kRowsBytes), rows(count) {
    tile = weights.engine.memory.scores;
    by_row = reinterpret_cast<float*>(scratch);
    weights.hidden = -0.0f;
    weights.place(first, rows);
    clear_sums();
    weights.information = to.sums->information;
    const Lanes& lanes = this->lanes();
    for (int i = 0; i < kTile; ++i) {
      const std::int64_t q_pos = lanes.q_pos[i];
      const bool known = !sweep.cross && q_pos >= 0 && q_pos < sweep.kv_total;
      position[i] = sweep.cross ? -1.0f : static_cast<float>(q_pos);
      own_class[i] = known && sweep.classes ? sweep.classes[q_pos + 1] : -1.0f;
      for (int m = 0; m < sweep.map_count; ++m) {
        map_row[m][i] =
            bin_of(sweep.first_query + lanes.query[i], sweep.maps[m].q_bins, sweep.q_total);
      }
    }
  }

  Lanes& lanes() { return weights.lanes(); }

  void clear_sums() {
    std::memset(to.sums, 0, sizeof *to.sums);
    for (int i = 0; i < kTile; ++i) to.sums->largest_key[i] = -1;
  }

  void walk() {
    const std::int64_t kv_len = weights.engine.sequence.kv_len;
    const std::int64_t begin = lanes().min_begin / kKeyBlock * kKeyBlock;
    const std::int64_t end = std::min(kv_len, lanes().max_end);
    for (std::int64_t block = begin; block < end; block += kKeyBlock) {
      const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, kv_len - block));
      if (weights.weigh(block, keys)) take_block(block, keys);
    }
    for (int m = 0; m < sweep.map_count; ++m) close_column(m);
  }

  void take_block(std::int64_t block, int keys) {
    const int vectors = lanes().vectors;
    if (block == 0) take_first();
    for (int v = 0; v < vectors; ++v) {
      take_largest(v, block, keys);
      if (sweep.classes)
        take_lanes<true>(v, block, keys);
      else
        take_lanes<false>(v, block, keys);
    }
    if (!sweep.cross) take_near(block, keys);
    if (sweep.delimiters) take_delimiters(block, keys);
    for (int m = 0; m < sweep.map_count; ++m) pool(m, block, keys);
    if (!to.received && !to.entries && !to.full) return;
    turn_over(keys);
    if (to.received) add_received(block, keys);
    if (to.full) store_full(block, keys);
    if (to.entries) take_entries(block, keys);
  }

  // --- sums down the lanes ---

  /// Hidden weights are -0; a NaN, whose sign may be any, is a visible one's.
  static POLYHEAD_INLINE Simd::M hidden(Simd::V w) {
    const Simd::M sign =
        Simd::test(Simd::bits(w), Simd::broadcast_int(std::numeric_limits<std::int32_t>::min()));
    return Simd::mask_and(sign, Simd::equal(w, Simd::zero()));
  }

  static bool is_hidden(float w) { return w == 0.0f && std::signbit(w); }

  void take_first() {
    for (int i = 0; i < rows; ++i) {
      to.sums->first[i] = tile[i] + 0.0f;
      to.sums->first_seen[i] = is_hidden(tile[i]) ? 0.0f : 1.0f;
    }
  }

  void take_largest(int v, std::int64_t block, int keys) {
    const int at = v * kLanes;
    Simd::V best = Simd::load(to.sums->largest + at);
    Simd::I best_key = Simd::load_int(to.sums->largest_key + at);
    for (int key = 0; key < keys; ++key) {
      const Simd::V w = Simd::load(tile + key * kTile + at);
      const Simd::M better = Simd::greater(w, best);
      best = Simd::select(better, w, best);
      best_key = Simd::select(better, Simd::broadcast_int(static_cast<std::int32_t>(block + key)),
                              best_key);
    }
    Simd::store(to.sums->largest + at, best);
    Simd::store_int(to.sums->largest_key + at, best_key);
  }

  /// Mass, visible keys and distance; and what falls on earlier copies of the query's token and on
  /// the keys after them. Copies are found by comparing classes, so that a token with hundreds of
  /// copies costs what a rare one does.
  template <bool kClasses>
  void take_lanes(int v, std::int64_t block, int keys) {
    using V = Simd::V;
    TileSums& s = *to.sums;
    const int at = v * kLanes;
    const V where = Simd::load(position + at), own = Simd::load(own_class + at);
    const V zero = Simd::zero(), one = Simd::broadcast(1.0f);
    V rest = Simd::load(s.rest + at), rest_seen = Simd::load(s.rest_seen + at);
    V distance = Simd::load(s.distance + at);
    V copies = Simd::load(s.target[duplicate] + at);
    V copies_seen = Simd::load(s.target_seen[duplicate] + at);
    V after = Simd::load(s.target[induction] + at);
    V after_seen = Simd::load(s.target_seen[induction] + at);
    for (int key = block == 0 ? 1 : 0; key < keys; ++key) {
      const V w = Simd::load(tile + key * kTile + at);
      const V seen = Simd::select(hidden(w), zero, one);
      const V away = Simd::sub(where, Simd::broadcast(static_cast<float>(block + key)));
      rest = Simd::add(rest, w);
      rest_seen = Simd::add(rest_seen, seen);
      distance = Simd::fma(w, Simd::abs(away), distance);
      if constexpr (kClasses) {
        const float* classes = sweep.classes + block + key;
        const Simd::M earlier = Simd::greater(away, zero);
        const Simd::M copy = Simd::mask_and(earlier, Simd::equal(own, Simd::broadcast(classes[1])));
        const Simd::M next = Simd::mask_and(earlier, Simd::equal(own, Simd::broadcast(classes[0])));
        copies = Simd::add(copies, Simd::select(copy, w, zero));
        copies_seen = Simd::add(copies_seen, Simd::select(copy, seen, zero));
        after = Simd::add(after, Simd::select(next, w, zero));
        after_seen = Simd::add(after_seen, Simd::select(next, seen, zero));
      }
    }
    Simd::store(s.rest + at, rest);
    Simd::store(s.rest_seen + at, rest_seen);
    Simd::store(s.distance + at, distance);
    Simd::store(s.target[duplicate] + at, copies);
    Simd::store(s.target_seen[duplicate] + at, copies_seen);
    Simd::store(s.target[induction] + at, after);
    Simd::store(s.target_seen[induction] + at, after_seen);
  }

  /// The query itself and the keys just before it: at most nine a row.
  void take_near(std::int64_t block, int keys) {
    TileSums& s = *to.sums;
    for (int i = 0; i < rows; ++i) {
      const std::int64_t q_pos = lanes().q_pos[i];
      const std::int64_t from = std::max({block, q_pos - kLocalWindow, std::int64_t{1}});
      const std::int64_t last = std::min(block + keys - 1, q_pos);
      for (std::int64_t key = from; key <= last; ++key) {
        const float w = tile[(key - block) * kTile + i];
        if (is_hidden(w)) continue;
        if (key == q_pos) {
          s.target[self][i] = w;
          s.target_seen[self][i] = 1.0f;
          continue;
        }
        s.target[local][i] += w;
        s.target_seen[local][i] += 1.0f;
        if (key == q_pos - 1) {
          s.target[previous][i] = w;
          s.target_seen[previous][i] = 1.0f;
        }
      }
    }
  }

  void take_delimiters(std::int64_t block, int keys) {
    float* const mass = to.sums->target[delimiter];
    float* const count = to.sums->target_seen[delimiter];
    for (int key = block == 0 ? 1 : 0; key < keys; ++key) {
      if (sweep.delimiters[block + key] == 0) continue;
      for (int at = 0; at < lanes().vectors * kLanes; at += kLanes) {
        const Simd::V w = Simd::load(tile + key * kTile + at);
        const Simd::V seen = Simd::select(hidden(w), Simd::zero(), Simd::broadcast(1.0f));
        Simd::store(mass + at, Simd::add(Simd::load(mass + at), w));
        Simd::store(count + at, Simd::add(Simd::load(count + at), seen));
      }
    }
  }

  // --- maps ---

  void close_column(int m) {
    Column& column = columns[m];
    if (column.index < 0) return;
    const HeadMap& map = sweep.maps[m];
    for (int i = 0; i < rows; ++i) {
      float& cell = to.maps[m][map_row[m][i] * map.kv_bins + column.index];
      const float pooled = column.pool[i];
      if (!map.maximum)
        cell += pooled;
      else if (pooled > cell || pooled != pooled)  // NaN stays
        cell = pooled;
    }
    column.index = -1;
  }

  void open_column(int m, std::int64_t key) {
    Column& column = columns[m];
    column.index = bin_of(key, sweep.maps[m].kv_bins, sweep.kv_total);
    // The first key of the next bin: the smallest k with bin_of(k) > index.
    const std::int64_t bins = sweep.maps[m].kv_bins;
    column.end = (column.index + 1) * sweep.kv_total / bins;
    for (float& x : column.pool) x = 0.0f;
  }

  void pool(int m, std::int64_t block, int keys) {
    Column& column = columns[m];
    const int width = lanes().vectors * kLanes;
    for (int key = 0; key < keys;) {
      if (column.index < 0 || block + key >= column.end) {
        close_column(m);
        open_column(m, block + key);
      }
      const int stop = static_cast<int>(std::min<std::int64_t>(keys, column.end - block));
      for (int at = 0; at < width; at += kLanes) {
        Simd::V sum = Simd::load(column.pool + at);
        if (sweep.maps[m].maximum) {
          Simd::V any = sum;  // NaN where a weight is, which a maximum forgets
          for (int k = key; k < stop; ++k) {
            const Simd::V weight = Simd::load(tile + k * kTile + at);
            sum = Simd::max(sum, weight);
            any = Simd::add(any, weight);
          }
          sum = Simd::select(Simd::not_equal(any, any), any, sum);
        } else {
          for (int k = key; k < stop; ++k) sum = Simd::add(sum, Simd::load(tile + k * kTile + at));
        }
        Simd::store(column.pool + at, sum);
      }
      key = stop;
    }
  }

  // --- by rows ---

  /// Rows of kKeyBlock weights; hidden pairs become plain zeros, and so does what lies past `keys`.
  void turn_over(int keys) {
    alignas(64) float factor[kLanes];
    for (float& x : factor) x = 1.0f;
    for (int v = 0; v * kLanes < rows; ++v) {
      transpose_out(by_row + v * kLanes * kKeyBlock, kKeyBlock, tile + v * kLanes, factor, keys);
    }
    if (keys == kKeyBlock) return;
    for (int i = 0; i < rows; ++i) {
      std::memset(by_row + i * kKeyBlock + keys, 0,
                  static_cast<std::size_t>(kKeyBlock - keys) * sizeof(float));
    }
  }

  void add_received(std::int64_t block, int keys) {
    float* const sums = to.received + block;
    int key = 0;
    for (; key + kLanes <= keys; key += kLanes) {
      Simd::V sum = Simd::load(sums + key);
      for (int i = 0; i < rows; ++i) sum = Simd::add(sum, Simd::load(by_row + i * kKeyBlock + key));
      Simd::store(sums + key, sum);
    }
    for (; key < keys; ++key) {
      for (int i = 0; i < rows; ++i) sums[key] += by_row[i * kKeyBlock + key];
    }
  }

  void store_full(std::int64_t block, int keys) {
    for (int i = 0; i < rows; ++i) {
      std::memcpy(to.full + i * sweep.attend.kv_len + block, by_row + i * kKeyBlock,
                  static_cast<std::size_t>(keys) * sizeof(float));
    }
  }

  void take_entries(std::int64_t block, int keys) {
    for (int i = 0; i < rows; ++i) {
      const float* row = by_row + i * kKeyBlock;
      for (int key = 0; key < keys; key += kLanes) {
        const Simd::V floor = Simd::broadcast(to.entries[i].floor);
        if (!Simd::any(Simd::greater(Simd::load(row + key), floor))) continue;
        for (int k = key; k < key + kLanes; ++k) {
          if (row[k] > to.entries[i].floor)
            take_entry(i, static_cast<std::int32_t>(block + k), row[k]);
        }
      }
    }
  }

  void take_entry(int i, std::int32_t key, float w) {
    RowEntries& entries = to.entries[i];
    const std::int64_t row = i * (sweep.capacity + sweep.least);
    if (w >= sweep.threshold && entries.count < sweep.capacity) {
      to.keys[row + entries.count] = key;
      to.weights[row + entries.count] = w;
      ++entries.count;
    }
    // Once that many weights reach the threshold, the largest are among them.
    if (entries.count >= sweep.least) {
      entries.floor = sweep.below_threshold;
      return;
    }
    std::int32_t* const keys = to.keys + row + sweep.capacity;
    float* const weight = to.weights + row + sweep.capacity;
    int at = entries.most < sweep.least ? entries.most++ : entries.most - 1;
    for (; at > 0 && weight[at - 1] < w; --at) {
      weight[at] = weight[at - 1];
      keys[at] = keys[at - 1];
    }
    weight[at] = w;
    keys[at] = key;
    if (entries.most == sweep.least)
      entries.floor = std::min(weight[sweep.least - 1], sweep.below_threshold);
  }
};
