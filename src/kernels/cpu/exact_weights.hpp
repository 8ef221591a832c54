// Exact weights, stored as they are. Where nothing but the weights of whole blocks is wanted, lanes
// are keys instead of queries, so that weights leave the registers for where they belong. Included
// inside an ISA namespace after reweigh.hpp.

template <class Path>
struct ExactWeights {
  using Weigher = Reweigher<Path>;
  using Engine = typename Weigher::Engine;
  static constexpr std::int64_t kLine = Weigher::kLine;
  static constexpr Exponent kFused = Exponent::fused;
  // Whether a vector is a line: what goes past the caches in halves of one takes longer.
  static constexpr bool kStoresLines = kLanes * 4 == kLine;
  static constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;  // a share of L3

  static std::int64_t keys_bytes(const AttendCall& call) {
    return lanes_may_be_keys(call) ? 4 * kKeyBlock * Path::steps(call.head_dim) : 0;
  }
  static std::int64_t scratch_bytes(const InspectCall& call) {
    return keys_bytes(call.attend) + Weigher::scratch_bytes(call.attend);
  }

  /// The most rows of an item: several tiles share a block of turned keys.
  static std::int64_t rows(const InspectCall& call) {
    return lanes_may_be_keys(call.attend) ? Engine::rows(call.attend) : kTile;
  }

  const InspectCall& call;
  Weigher weigher;
  float* const turned_keys;   // a block of them, [step][key]
  const bool lanes_are_keys;  // where weights of whole blocks are stored
  const bool streams;         // whether weights go past the caches, in whole lines
  alignas(64) float turned[kTile * kKeyBlock];  // a block's rows
  std::byte* waiting_at = nullptr;              // where they go
  int waiting = 0, waiting_rows = 0;            // the rows that still have to
  int waiting_width = 0;

  ExactWeights(const InspectCall& c, const WeightRows& rows, std::byte* scratch)
      : call(c),
        weigher(c.attend, rows.batch, head_of(c, rows), scratch + keys_bytes(c.attend),
                {&work_aside, this}),
        turned_keys(reinterpret_cast<float*>(scratch)),
        lanes_are_keys(lanes_may_be_keys(c.attend) && begin_on(c.weights, 4)),
        streams(kStoresLines && begin_on(c.weights, kLine) && bytes_of_weights(c) >= kStreamBytes) {
  }

  static void store_weights(const InspectCall& call, const WeightRows& rows, const WeightRows& next,
                            std::byte* scratch) {
    ExactWeights self(call, rows, scratch);
    std::byte* const to = call.weights.data + rows.batch * call.weights.batch +
                          rows.head_index * call.weights.head +
                          (rows.first - call.first_query) * call.weights.row;
    self.place_tiles(rows);
    self.plan_fetches(next);
    const int tiles = static_cast<int>((rows.count + kTile - 1) / kTile);
    for (std::int64_t block = 0; block < call.attend.kv_len; block += kKeyBlock)
      self.store_block(to + block * call.weights.key, rows, tiles, block);
    self.finish_waiting();
    if (self.streams) Simd::fence();
  }

  /// Whether rows are dense and begin on multiples of so many bytes.
  static bool begin_on(const WeightMap& to, std::int64_t bytes) {
    const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to.data));
    return to.data && to.key == 4 && (at | to.row | to.head | to.batch) % bytes == 0;
  }
  static std::int64_t bytes_of_weights(const InspectCall& call) {
    return 4 * call.attend.batch * call.head_count * call.query_count * call.attend.kv_len;
  }

  static std::int64_t head_of(const InspectCall& call, const WeightRows& rows) {
    return call.heads.given() ? call.heads[rows.head_index] : rows.head_index;
  }

  /// Of tile t of the rows those that there are, and of them those of valid queries.
  struct TileRows {
    std::int64_t first;
    int count, valid;
  };
  TileRows tile_rows(const WeightRows& rows, int t) const {
    const std::int64_t offset = std::int64_t{t} * kTile, first = rows.first + offset;
    const auto count = std::min<std::int64_t>(kTile, rows.count - offset);
    const auto valid = std::clamp<std::int64_t>(weigher.engine.sequence.q_len - first, 0, count);
    return {first, static_cast<int>(count), static_cast<int>(valid)};
  }

  void place_tiles(const WeightRows& rows) {
    for (int t = 0; t * kTile < rows.count; ++t) {
      const TileRows mine = tile_rows(rows, t);
      weigher.tile = t;
      if (mine.valid > 0) weigher.place(mine.first, mine.valid);
    }
  }

  /// A block of keys for all tiles: `to` is its first weight of the first row.
  void store_block(std::byte* to, const WeightRows& rows, int tiles, std::int64_t block) {
    const int width = static_cast<int>(std::min(kKeyBlock, call.attend.kv_len - block));
    const int keys = static_cast<int>(
        std::clamp<std::int64_t>(weigher.engine.sequence.kv_len - block, 0, width));
    KeyBlock loaded;
    if (keys > 0) loaded = weigher.load_keys(block, keys);
    if (lanes_are_keys) fetch_keys(block + kKeyBlock);
    bool keys_turned = false;
    for (int t = 0; t < tiles; ++t, to += kTile * call.weights.row) {
      const TileRows mine = tile_rows(rows, t);
      weigher.tile = t;
      const bool any = mine.valid > 0 && keys > 0;
      const Sight::Kind kind = any ? weigher.see(block, keys).kind : Sight::nothing;
      if (lanes_are_keys && kind == Sight::everything && keys == kKeyBlock &&
          mine.valid == mine.count && !weigher.bases[t].aside) {
        if (!keys_turned) turn_keys(loaded.k);
        keys_turned = true;
        store_by_keys(to, mine.count);
        continue;
      }
      if (kind != Sight::nothing) weigher.weigh_seen(block, keys, loaded);
      store_by_queries(to, mine, width, kind != Sight::nothing ? keys : 0);
    }
  }

  // Lanes are queries: a tile's rows are turned over and leave a few at a time beside the next
  // tile's scores, since all at once they would fill the store queue.

  /// The rows of a tile, `width` weights each: those of valid queries and `keys` keys from the
  /// engine's scores, zeros elsewhere.
  void store_by_queries(std::byte* to, const TileRows& rows, int width, int keys) {
    finish_waiting();
    for (int first = 0; first < rows.count; first += kLanes) {
      float* const block = turned + first * kKeyBlock;
      const int whole = std::clamp(rows.valid - first, 0, kLanes);  // rows that have weights
      if (keys > 0 && whole > 0)
        turn_over(block, kKeyBlock, weigher.engine.memory.scores + first, keys);
      for (int i = 0; i < kLanes && first + i < rows.count; ++i) {
        float* const row = block + i * kKeyBlock;
        const int known = i < whole ? keys : 0;  // beyond, a vector's rest may hold anything
        std::memset(row + known, 0, static_cast<std::size_t>(kKeyBlock - known) * sizeof(float));
      }
    }
    waiting_at = to, waiting = 0, waiting_rows = rows.count, waiting_width = width;
  }

  /// What is done beside the scores, after every kRows keys: see Aside.
  static void work_aside(void* self) {
    auto* const me = static_cast<ExactWeights*>(self);
    me->write_waiting(kRowsAside);
    me->weigher.fetch_queries(kRowsAside);
  }

  void write_waiting(int count) {
    const int end = std::min(waiting + count, waiting_rows);
    for (; waiting < end; ++waiting) {
      std::byte* const to = waiting_at + waiting * call.weights.row;
      const float* const row = turned + waiting * kKeyBlock;
      if (streams && waiting_width == kKeyBlock) {
        for (int i = 0; i < kKeyBlock; i += kLanes)
          Simd::stream(reinterpret_cast<float*>(to) + i, Simd::load(row + i));
      } else {
        narrow_row(to, row, ElementType::float32, call.weights.key, waiting_width);
      }
    }
  }
  void finish_waiting() { write_waiting(waiting_rows - waiting); }

  // Lanes are keys. Each product joins its score as where lanes are queries: the same bits.

  static bool lanes_may_be_keys(const AttendCall& call) {
    return !Path::kInteger && !Path::kMatrix && call.score.dropout == 0.0f &&
           Engine::tiles(call) > 1 && !Rules(call, Path::kBfloat16).modified;
  }

  /// [step][key] of a whole block.
  void turn_keys(const BroadcastOperand& k) {
    const std::int64_t steps = Path::steps(call.attend.head_dim);
    for (int key = 0; key < kKeyBlock; key += kLanes) {
      for (std::int64_t s = 0; s < steps; s += kLanes) {
        const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
        Simd::V lane[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const float* from = reinterpret_cast<const float*>(k.data + (key + i) * k.row_bytes) + s;
          lane[i] = n == kLanes ? Simd::load(from) : Simd::load_first(from, n);
        }
        Simd::transpose(lane);
        for (int i = 0; i < n; ++i) Simd::store(turned_keys + (s + i) * kKeyBlock + key, lane[i]);
      }
    }
  }

  void store_by_keys(std::byte* to, int rows) {
    finish_waiting();
    constexpr int kR = 6;  // divides a tile
    int row = 0;
    for (; row + kR <= rows; row += kR) store_rows<kR>(to + row * call.weights.row, row);
    for (; row < rows; ++row) store_rows<1>(to + row * call.weights.row, row);
  }

  template <int kR>
  POLYHEAD_INLINE void store_rows(std::byte* to, int row) {
    constexpr int kV = kLanes == 16 ? 4 : 2;  // as many accumulators as registers take
    const std::int64_t steps = Path::steps(call.attend.head_dim);
    const float* q =
        weigher.engine.memory.q + weigher.tile * Path::q_steps(call.attend.head_dim) * kTile + row;
    const auto* at = reinterpret_cast<const std::byte*>(q);
    for (int key = 0; key < kKeyBlock; key += kV * kLanes, to += kV * kLanes * 4) {
      Simd::V acc[kR][kV];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
      }
      outer_product<typename Path::Dot, kR, kV, true>(acc, {at, 4, kTile * 4}, turned_keys + key,
                                                      kKeyBlock, steps,
                                                      weigher.engine.fetcher.take(at, steps));
      if (kStoresLines && streams)
        exponentiate_to<kR, kV, kStoresLines>(to, acc, row);
      else
        exponentiate_to<kR, kV, false>(to, acc, row);
    }
  }

  template <int kR, int kV, bool kStream>
  POLYHEAD_INLINE void exponentiate_to(std::byte* to, const Simd::V (&scores)[kR][kV], int row) {
    const Simd::V unit = Simd::broadcast(weigher.engine.rules.unit);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Simd::V from =
          exponent_base<kFused>(Simd::broadcast(weigher.bases[weigher.tile].base[row + r]), unit);
      float* const weights = reinterpret_cast<float*>(to + r * call.weights.row);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const Simd::V p = Simd::exp2(exponent_of<kFused>(scores[r][v], from, unit));
        if constexpr (kStream)
          Simd::stream(weights + v * kLanes, p);
        else
          Simd::store(weights + v * kLanes, p);
      }
    }
  }

  /// The queries that the worker takes up next, and their first keys where these are others.
  void plan_fetches(const WeightRows& next) {
    if (next.count == 0) return;
    const AttendCall& of = call.attend;
    const Sequence s = sequence_of(of, next.batch);
    const std::int64_t q_head = head_of(call, next), kv_head = q_head / of.group();
    const std::int64_t count = std::clamp<std::int64_t>(s.q_len - next.first, 0, next.count);
    const std::byte* const q = s.q + next.first * of.q.token + q_head * of.q.head;
    if (!lanes_are_keys) return weigher.plan_queries(q, of.q.token, count);
    weigher.engine.fetcher.add(q, of.q.token, count, 0, 1, row_bytes(of.q, of.head_dim));
    if ((next.batch == weigher.item.batch && kv_head == weigher.item.kv_head) || s.kv_len == 0)
      return;
    const std::int64_t keys = std::min({kKeyBlock, s.kv_len, run_of(of, s, 0)});
    weigher.engine.fetcher.add(key_rows(of, s, of.k, s.k, kv_head, 0).data, of.k.token, keys, 0, 1,
                               row_bytes(of.k, of.head_dim));
  }

  /// The keys of the block that comes next.
  void fetch_keys(std::int64_t block) {
    weigher.engine.fetcher.drop_block();
    weigher.engine.fetcher.plan_rows(call.attend.k, weigher.engine.sequence.k, call.attend.head_dim,
                                     block);
  }
};
