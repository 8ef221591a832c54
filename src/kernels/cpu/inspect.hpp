// The second pass: weights rebuilt from q, k and the LSE, stored, summed by key or pooled. One head
// at a time, lanes are queries; scores, modifiers and masks are prefill's own. Where nothing but
// the weights of whole blocks is wanted, lanes are keys instead, so that weights leave the
// registers for where they belong. Included inside an ISA namespace after prefill.hpp.

template <class Path>
struct Inspect {
  using Engine = Prefill<Path>;
  static constexpr std::int64_t kStretch =
      1024;  // keys summed at a time: their lane sums stay in L2

  static constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;  // a share of L3
  static constexpr std::int64_t kLine = 64;

  static std::int64_t sums_bytes(const AttendCall& call) {
    const std::int64_t keys = kKeyBlock * Path::steps(call.head_dim);
    return 4 * std::max(kStretch * kLanes, lanes_may_be_keys(call) ? keys : 0);
  }
  static std::int64_t scratch_bytes(const InspectCall& call) {
    return sums_bytes(call.attend) + Engine::scratch_bytes(call.attend);
  }

  /// The most rows of an item that stores weights: several tiles share a block of turned keys.
  static std::int64_t rows(const InspectCall& call) {
    return lanes_may_be_keys(call.attend) ? Engine::rows(call.attend) : kTile;
  }

  const InspectCall& call;
  const WorkItem item;
  Engine engine;
  float* sums;  // [key of the stretch][lane]; or a block of keys, [step][key]
  const std::int64_t head;
  int tile = 0;  // of the engine's, the one in hand
  alignas(64) float base[Engine::kMaxTiles][kTile];
  std::int64_t bin[kTile];    // row of the pooled map that a lane's query belongs to
  float hidden = 0.0f;        // weight of a hidden pair; -0 tells it from one that came out as 0
  const bool lanes_are_keys;  // where weights of whole blocks are stored
  const bool streams;         // whether weights go past the caches, in whole lines
  alignas(64) float turned[kTile * kKeyBlock];  // a block's rows
  std::byte* waiting_at = nullptr;              // where they go
  int waiting = 0, waiting_rows = 0;            // the rows that still have to
  int waiting_width = 0;
  Stream queries{};  // rows to fetch
  std::int64_t queries_left = 0;
  float* information = nullptr;  // where given: -sum w log2 w of each lane, key 0 left out

  Inspect(const InspectCall& c, std::int64_t batch, std::int64_t q_head, std::byte* scratch)
      : call(c),
        item{batch, q_head / c.attend.group(), 0, kTile, 0, 0},
        engine(c.attend, item, scratch + sums_bytes(c.attend)),
        sums(reinterpret_cast<float*>(scratch)),
        head(q_head),
        lanes_are_keys(lanes_may_be_keys(c.attend) && begin_on(c.weights, 4)),
        streams(begin_on(c.weights, kLine) && bytes_of_weights(c) >= kStreamBytes) {}

  /// The bin that holds item i of n: the last one whose first item is at or before it.
  static std::int64_t bin_of(std::int64_t i, std::int64_t bins, std::int64_t n) {
    return ((i + 1) * bins - 1) / n;
  }

  Lanes& lanes() { return engine.memory.lanes[tile]; }

  /// Queries first .. first + rows become the tile.
  void place(std::int64_t first, int rows) {
    Lanes& lanes = this->lanes();
    lanes.place(call.attend, engine.sequence, head, 1, first, rows);
    engine.pack_q(tile);
    for (int i = 0; i < kTile; ++i) {
      float lse;
      std::memcpy(&lse, row_address(call.attend.lse, engine.sequence, lanes.query[i], head), 4);
      const float finite = lse == -kInfinity ? 0.0f : lse;
      base[tile][i] = static_cast<float>(static_cast<double>(finite) / engine.rules.natural);
      bin[i] = bin_of(lanes.query[i], call.q_bins, call.attend.q_len);
    }
  }

  Sight& see(std::int64_t block, int keys) {
    look(*engine.memory.sight, call.attend, engine.sequence, lanes(), block, keys);
    return *engine.memory.sight;
  }

  KeyBlock load_keys(std::int64_t block, int keys) {
    KeyBlock rows;
    Path::load_keys(rows, call.attend, engine.sequence, item.kv_head, block, keys, engine.memory);
    return rows;
  }

  /// The weights of the tile for one block, [key][lane] in the engine's scores; false where nothing
  /// is visible.
  bool weigh(std::int64_t block, int keys) {
    Sight& sight = see(block, keys);
    if (sight.kind == Sight::nothing) return false;
    weigh_seen(block, keys, load_keys(block, keys));
    return true;
  }

  void prepare_scores(std::int64_t block, int keys, KeyBlock rows) {
    engine.prepare_scores(tile, *engine.memory.sight, rows, block, keys, nullptr,
                          {&work_aside, this});
  }

  /// The same of what was seen.
  void weigh_seen(std::int64_t block, int keys, KeyBlock rows) {
    Sight& sight = *engine.memory.sight;
    prepare_scores(block, keys, rows);
    float* scores = engine.memory.scores;
    if (sight.kind == Sight::some) engine.clear_unseen(sight, keys, hidden);
    for (int i = 0; i < sight.segments; ++i) {
      switch (engine.rules.exponent) {
        case Exponent::folded:
          exponentiate<Exponent::folded>(sight, sight.segment[i], block);
          break;
        case Exponent::fused:
          exponentiate<Exponent::fused>(sight, sight.segment[i], block);
          break;
        case Exponent::natural:
          exponentiate<Exponent::natural>(sight, sight.segment[i], block);
          break;
      }
    }
    if (call.attend.score.dropout > 0.0f) drop(scores, block, keys);
  }

  template <Exponent kForm>
  void exponentiate(const Sight& sight, const Segment& part, std::int64_t block) {
    if (information != nullptr)
      exponentiate_part<kForm, true>(sight, part, block);
    else
      exponentiate_part<kForm, false>(sight, part, block);
  }

  template <Exponent kForm, bool kInformation>
  void exponentiate_part(const Sight& sight, const Segment& part, std::int64_t block) {
    const Simd::V unit = Simd::broadcast(engine.rules.unit), nothing = Simd::broadcast(hidden);
    // 2^-300 is 0 in float32, and 0 times a finite exponent is 0.
    const Simd::V least = Simd::broadcast(-300.0f);
    for (int v = part.first; v < part.last; ++v) {
      const Simd::V from = exponent_base<kForm>(Simd::load(base[tile] + v * kLanes), unit);
      Simd::V spent = kInformation ? Simd::load(information + v * kLanes) : Simd::zero();
      for (int key = part.key_begin; key < part.key_end; ++key) {
        float* at = engine.memory.scores + key * kTile + v * kLanes;
        Simd::V t = exponent_of<kForm>(Simd::load(at), from, unit);
        Simd::V p = Simd::exp2(t);
        if (!part.full) {
          const Simd::M seen = Simd::load_mask(sight.masks[key * kVectors + v]);
          p = Simd::select(seen, p, nothing);
          if constexpr (kInformation) t = Simd::select(seen, t, Simd::zero());
        }
        Simd::store(at, p);
        if constexpr (kInformation) {
          if (block + key > 0) spent = Simd::fnma(p, Simd::max(least, t), spent);
        }
      }
      if constexpr (kInformation) Simd::store(information + v * kLanes, spent);
    }
  }

  void drop(float* weights, std::int64_t block, int keys) {
    const ScoreSpec& spec = call.attend.score;
    const Lanes& lanes = this->lanes();
    const std::int64_t id = spec.sequence_ids.given() ? spec.sequence_ids[item.batch] : item.batch;
    const float kept = static_cast<float>(1.0 / (1.0 - static_cast<double>(spec.dropout)));
    for (int key = 0; key < keys; ++key) {
      for (int i = 0; i < lanes.vectors * kLanes; ++i) {
        const bool keeps =
            dropout_keeps_pair(spec.seed, id, head, lanes.q_pos[i], block + key, spec.dropout);
        weights[key * kTile + i] *= keeps ? kept : 0.0f;
      }
    }
  }

  // --- weights as they are ---

  static void store_weights(const InspectCall& call, const WeightRows& rows, const WeightRows& next,
                            std::byte* scratch) {
    Inspect self(call, rows.batch, head_of(call, rows), scratch);
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
    const auto valid = std::clamp<std::int64_t>(engine.sequence.q_len - first, 0, count);
    return {first, static_cast<int>(count), static_cast<int>(valid)};
  }

  void place_tiles(const WeightRows& rows) {
    for (tile = 0; tile * kTile < rows.count; ++tile) {
      const TileRows mine = tile_rows(rows, tile);
      if (mine.valid > 0) place(mine.first, mine.valid);
    }
  }

  /// A block of keys for all tiles: `to` is its first weight of the first row.
  void store_block(std::byte* to, const WeightRows& rows, int tiles, std::int64_t block) {
    const int width = static_cast<int>(std::min(kKeyBlock, call.attend.kv_len - block));
    const int keys =
        static_cast<int>(std::clamp<std::int64_t>(engine.sequence.kv_len - block, 0, width));
    KeyBlock loaded;
    if (keys > 0) loaded = load_keys(block, keys);
    if (lanes_are_keys) fetch_keys(block + kKeyBlock);
    bool keys_turned = false;
    for (tile = 0; tile < tiles; ++tile, to += kTile * call.weights.row) {
      const TileRows mine = tile_rows(rows, tile);
      const bool any = mine.valid > 0 && keys > 0;
      const Sight::Kind kind = any ? see(block, keys).kind : Sight::nothing;
      if (lanes_are_keys && kind == Sight::everything && keys == kKeyBlock &&
          mine.valid == mine.count) {
        if (!keys_turned) turn_keys(loaded.k);
        keys_turned = true;
        store_by_keys(to, mine.count);
        continue;
      }
      if (kind != Sight::nothing) weigh_seen(block, keys, loaded);
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
      if (keys > 0 && whole > 0) turn_over(block, kKeyBlock, engine.memory.scores + first, keys);
      for (int i = 0; i < kLanes && first + i < rows.count; ++i) {
        float* const row = block + i * kKeyBlock;
        const int known = i < whole ? keys : 0;  // beyond, a vector's rest may hold anything
        std::memset(row + known, 0, static_cast<std::size_t>(kKeyBlock - known) * sizeof(float));
      }
    }
    waiting_at = to, waiting = 0, waiting_rows = rows.count, waiting_width = width;
  }

  static constexpr int kRowsAside = (kTile * Simd::kRows + kKeyBlock - 1) / kKeyBlock;

  /// What is done beside the scores, after every kRows keys: see Aside.
  static void work_aside(void* self) {
    auto* const me = static_cast<Inspect*>(self);
    me->write_waiting(kRowsAside);
    me->fetch_queries(kRowsAside);
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
    return !Path::kInteger && call.score.dropout == 0.0f && Engine::tiles(call) > 1 &&
           !Rules(call, Path::kBfloat16).modified;
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
        for (int i = 0; i < n; ++i) Simd::store(sums + (s + i) * kKeyBlock + key, lane[i]);
      }
    }
  }

  void store_by_keys(std::byte* to, int rows) {
    finish_waiting();
    if (engine.rules.exponent == Exponent::fused)
      store_by_keys_as<Exponent::fused>(to, rows);
    else
      store_by_keys_as<Exponent::folded>(to, rows);
  }

  template <Exponent kForm>
  void store_by_keys_as(std::byte* to, int rows) {
    constexpr int kR = 6;  // divides a tile
    int row = 0;
    for (; row + kR <= rows; row += kR) store_rows<kForm, kR>(to + row * call.weights.row, row);
    for (; row < rows; ++row) store_rows<kForm, 1>(to + row * call.weights.row, row);
  }

  template <Exponent kForm, int kR>
  POLYHEAD_INLINE void store_rows(std::byte* to, int row) {
    constexpr int kV = kLanes == 16 ? 4 : 2;  // as many accumulators as registers take
    const std::int64_t steps = Path::steps(call.attend.head_dim);
    const float* q = engine.memory.q + tile * Path::q_steps(call.attend.head_dim) * kTile + row;
    const auto* at = reinterpret_cast<const std::byte*>(q);
    for (int key = 0; key < kKeyBlock; key += kV * kLanes, to += kV * kLanes * 4) {
      Simd::V acc[kR][kV];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
      }
      outer_product<typename Path::Dot, kR, kV, true>(
          acc, {at, 4, kTile * 4}, sums + key, kKeyBlock, steps, engine.fetcher.take(at, steps));
      if (streams)
        exponentiate_to<kForm, kR, kV, true>(to, acc, row);
      else
        exponentiate_to<kForm, kR, kV, false>(to, acc, row);
    }
  }

  template <Exponent kForm, int kR, int kV, bool kStream>
  POLYHEAD_INLINE void exponentiate_to(std::byte* to, const Simd::V (&scores)[kR][kV], int row) {
    const Simd::V unit = Simd::broadcast(engine.rules.unit);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Simd::V from = exponent_base<kForm>(Simd::broadcast(base[tile][row + r]), unit);
      float* const weights = reinterpret_cast<float*>(to + r * call.weights.row);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const Simd::V p = Simd::exp2(exponent_of<kForm>(scores[r][v], from, unit));
        if constexpr (kStream)
          Simd::stream(weights + v * kLanes, p);
        else
          Simd::store(weights + v * kLanes, p);
      }
    }
  }

  // --- what comes next ---

  void plan_queries(const std::byte* first, std::int64_t stride, std::int64_t count) {
    queries = {first, stride};
    queries_left = count;
  }

  /// The queries that the worker takes up next, and their first keys where these are others.
  void plan_fetches(const WeightRows& next) {
    if (next.count == 0) return;
    const AttendCall& of = call.attend;
    const Sequence s = sequence_of(of, next.batch);
    const std::int64_t q_head = head_of(call, next), kv_head = q_head / of.group();
    const std::int64_t count = std::clamp<std::int64_t>(s.q_len - next.first, 0, next.count);
    const std::byte* const q = s.q + next.first * of.q.token + q_head * of.q.head;
    if (!lanes_are_keys) return plan_queries(q, of.q.token, count);
    engine.fetcher.add(q, of.q.token, count, 0, 1, row_bytes(of.q, of.head_dim));
    if ((next.batch == item.batch && kv_head == item.kv_head) || s.kv_len == 0) return;
    const std::int64_t keys = std::min({kKeyBlock, s.kv_len, run_of(of, s, 0)});
    engine.fetcher.add(key_rows(of, s, of.k, s.k, kv_head, 0).data, of.k.token, keys, 0, 1,
                       row_bytes(of.k, of.head_dim));
  }

  std::byte const* query_at(std::int64_t query) const {
    return engine.sequence.q + query * call.attend.q.token + head * call.attend.q.head;
  }

  /// The keys of the block that comes next.
  void fetch_keys(std::int64_t block) {
    const AttendCall& of = call.attend;
    const Sequence& s = engine.sequence;
    engine.fetcher.drop_block();
    const std::int64_t end = std::min(block + kKeyBlock, s.kv_len);
    for (std::int64_t key = block; key < end;) {
      const std::int64_t keys = std::min(run_of(of, s, key), end - key);
      const std::byte* const rows = key_rows(of, s, of.k, s.k, item.kv_head, key).data;
      engine.fetcher.add_to_block({rows, of.k.token}, row_bytes(of.k, of.head_dim), keys);
      key += keys;
    }
  }

  void fetch_queries(int count) {
    const std::int64_t row = row_bytes(call.attend.q, call.attend.head_dim);
    for (; count > 0 && queries_left > 0; --count, --queries_left, queries.at += queries.stride) {
      for (std::int64_t line = 0; line < row; line += kLine)
        __builtin_prefetch(queries.at + line, 0, 2);
    }
  }

  // --- sums over queries ---

  static void sum_head(const InspectCall& call, std::int64_t batch, std::int64_t q_head,
                       std::byte* scratch) {
    Inspect self(call, batch, q_head, scratch);
    self.clear_sums();
    const std::int64_t q_len = self.engine.sequence.q_len, kv_len = self.engine.sequence.kv_len;
    for (std::int64_t from = 0; from < kv_len; from += kStretch) {
      const std::int64_t to = std::min(kv_len, from + kStretch);
      std::memset(self.sums, 0, kStretch * kLanes * sizeof(float));
      for (std::int64_t first = 0; first < q_len; first += kTile) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kTile, q_len - first));
        self.place(first, rows);
        const std::int64_t left = std::min<std::int64_t>(kTile, q_len - first - rows);
        self.plan_queries(self.query_at(first + rows), call.attend.q.token, left);
        for (std::int64_t block = from; block < to; block += kKeyBlock) {
          const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, kv_len - block));
          self.sum_block(block, from, keys, rows);
        }
      }
      if (call.received.data) self.store_received(from, to);
    }
  }

  void sum_block(std::int64_t block, std::int64_t stretch, int keys, int rows) {
    const Sight::Kind kind = see(block, keys).kind;
    if (kind == Sight::nothing) return;
    if (kind == Sight::everything && sums_scores()) {
      prepare_scores(block, keys, load_keys(block, keys));
      for_bins(block, keys, [&](std::int64_t column, int first, int end) POLYHEAD_LAMBDA {
        alignas(64) float part[kTile];
        sum_weights_of(part, first, end);
        add_to_bins(part, rows, column);
      });
      return;
    }
    weigh_seen(block, keys, load_keys(block, keys));
    clear_spare_lanes(rows, keys);
    if (call.received.data) add_received(block - stretch, keys);
    if (call.pooled.data) add_pooled(block, keys, rows);
  }

  std::byte* received_at(std::int64_t key) const {
    return call.received.data + item.batch * call.received.batch + head * call.received.head +
           key * call.received.key;
  }
  std::byte* pooled_at(std::int64_t row, std::int64_t column) const {
    return call.pooled.data + item.batch * call.pooled.batch + head * call.pooled.head +
           row * call.pooled.row + column * call.pooled.key;
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
      for (int i = rows; i < kTile; ++i) engine.memory.scores[key * kTile + i] = 0.0f;
    }
  }

  void add_received(std::int64_t offset, int keys) {
    for (int key = 0; key < keys; ++key) {
      float* to = sums + (offset + key) * kLanes;
      const float* from = engine.memory.scores + key * kTile;
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
      const std::int64_t column = bin_of(block + key, call.kv_bins, call.attend.kv_len);
      const std::int64_t bin_end = (column + 1) * call.attend.kv_len / call.kv_bins;
      const int end = static_cast<int>(std::min<std::int64_t>(keys, bin_end - block));
      f(column, key, end);
      key = end;
    }
  }

  void add_pooled(std::int64_t block, int keys, int rows) const {
    for_bins(block, keys, [&](std::int64_t column, int first, int end) {
      alignas(64) float part[kTile];
      for (int v = 0; v < kVectors; ++v) {
        Simd::V sum = Simd::zero();
        for (int key = first; key < end; ++key)
          sum = Simd::add(sum, Simd::load(engine.memory.scores + key * kTile + v * kLanes));
        Simd::store(part + v * kLanes, sum);
      }
      add_to_bins(part, rows, column);
    });
  }

  /// Whether weights of blocks seen in full are wanted for nothing but the pooled map.
  bool sums_scores() const {
    return !call.received.data && call.attend.score.dropout == 0.0f &&
           engine.rules.exponent != Exponent::natural;
  }

  /// The sums of the weights of keys [first, end), which are still scores.
  void sum_weights_of(float* to, int first, int end) const {
    if (engine.rules.exponent == Exponent::fused)
      sum_weights_as<Exponent::fused>(to, first, end);
    else
      sum_weights_as<Exponent::folded>(to, first, end);
  }
  template <Exponent kForm>
  void sum_weights_as(float* to, int first, int end) const {
    const Simd::V unit = Simd::broadcast(engine.rules.unit);
    for (int v = 0; v < kVectors; ++v) {
      const Simd::V from = exponent_base<kForm>(Simd::load(base[tile] + v * kLanes), unit);
      Simd::V sum = Simd::zero();
      for (int key = first; key < end; ++key) {
        const Simd::V score = Simd::load(engine.memory.scores + key * kTile + v * kLanes);
        sum = Simd::add(sum, Simd::exp2(exponent_of<kForm>(score, from, unit)));
      }
      Simd::store(to + v * kLanes, sum);
    }
  }

  /// Adds lanes to their bins' cells of a column, in query order; a bin's lanes lie side by side.
  void add_to_bins(const float* part, int rows, std::int64_t column) const {
    for (int i = 0; i < rows;) {
      const std::int64_t row = bin[i];
      std::byte* const at = pooled_at(row, column);
      float total;
      std::memcpy(&total, at, sizeof total);
      for (; i < rows && bin[i] == row; ++i) total += part[i];
      std::memcpy(at, &total, sizeof total);
    }
  }
};
