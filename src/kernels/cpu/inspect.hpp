// The second pass: weights rebuilt from q, k and the LSE, stored, summed by key or pooled. One head
// at a time, lanes are queries; scores, modifiers and masks are prefill's own. Included inside an
// ISA namespace after prefill.hpp.

template <class Path>
struct Inspect {
  using Engine = Prefill<Path>;
  static constexpr std::int64_t kStretch =
      1024;  // keys summed at a time: their lane sums stay in L2

  static constexpr int kLineFloats = 16;  // of a cache line
  static constexpr int kRowFloats = kKeyBlock + kLineFloats;
  static constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;  // a share of L3

  static std::int64_t sums_bytes() { return kStretch * kLanes * 4; }
  static std::int64_t scratch_bytes(const InspectCall& call) {
    return sums_bytes() + Engine::scratch_bytes(call.attend);
  }

  const InspectCall& call;
  const WorkItem item;
  Engine engine;
  float* sums;  // [key of the stretch][lane]
  const std::int64_t head;
  alignas(64) float base[kTile];
  std::int64_t bin[kTile];  // row of the pooled map that a lane's query belongs to
  float hidden = 0.0f;      // weight of a hidden pair; -0 tells it from one that came out as 0
  const bool streams;       // whether weights go past the caches
  bool open[kTile] = {};    // of the rows that stream: whether a line waits
  alignas(64) float rest[kTile][kLineFloats] = {};
  alignas(64) float turned[kTile * kRowFloats];  // a block's rows, each with room for a line before
  std::byte* waiting_at = nullptr;               // where they go
  int waiting = 0, waiting_rows = 0;             // the rows that still have to
  std::int64_t fetched = 0, fetch_end = 0;       // queries
  float* information = nullptr;  // where given: -sum w log2 w of each lane, key 0 left out

  Inspect(const InspectCall& c, std::int64_t batch, std::int64_t q_head, std::byte* scratch)
      : call(c),
        item{batch, q_head / c.attend.group(), 0, kTile, 0, 0},
        engine(c.attend, item, scratch + sums_bytes()),
        sums(reinterpret_cast<float*>(scratch)),
        head(q_head),
        streams(streams_to(c)) {}

  /// The bin that holds item i of n: the last one whose first item is at or before it.
  static std::int64_t bin_of(std::int64_t i, std::int64_t bins, std::int64_t n) {
    return ((i + 1) * bins - 1) / n;
  }

  /// Queries first .. first + rows become the engine's tile 0.
  void place(std::int64_t first, int rows) {
    Lanes& lanes = engine.memory.lanes[0];
    lanes.place(call.attend, engine.sequence, head, 1, first, rows);
    engine.pack_q(0);
    for (int i = 0; i < kTile; ++i) {
      float lse;
      std::memcpy(&lse, row_address(call.attend.lse, engine.sequence, lanes.query[i], head), 4);
      const float finite = lse == -kInfinity ? 0.0f : lse;
      base[i] = static_cast<float>(static_cast<double>(finite) / engine.rules.natural);
      bin[i] = bin_of(lanes.query[i], call.q_bins, call.attend.q_len);
    }
  }

  /// The weights of the tile for one block, [key][lane] in the engine's scores; false where nothing
  /// is visible.
  bool weigh(std::int64_t block, int keys) {
    Lanes& lanes = engine.memory.lanes[0];
    Sight& sight = *engine.memory.sight;
    look(sight, call.attend, engine.sequence, lanes, block, keys);
    if (sight.kind == Sight::nothing) return false;
    KeyBlock rows;
    Path::load_keys(rows, call.attend, engine.sequence, item.kv_head, block, keys, engine.memory);
    engine.prepare_scores(0, sight, rows, block, keys, nullptr, {&work_aside, this});
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
    return true;
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
      const Simd::V from = exponent_base<kForm>(Simd::load(base + v * kLanes), unit);
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
    const Lanes& lanes = engine.memory.lanes[0];
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

  static void store_weights(const InspectCall& call, std::int64_t batch, std::int64_t head_index,
                            std::int64_t first, int rows, std::int64_t next, std::byte* scratch) {
    const std::int64_t q_head = call.heads.given() ? call.heads[head_index] : head_index;
    Inspect self(call, batch, q_head, scratch);
    std::byte* to = call.weights.data + batch * call.weights.batch +
                    head_index * call.weights.head + (first - call.first_query) * call.weights.row;
    const std::int64_t valid =
        std::clamp<std::int64_t>(self.engine.sequence.q_len - first, 0, rows);
    if (valid > 0) self.place(first, static_cast<int>(valid));
    self.plan_fetches(next);
    for (std::int64_t block = 0; block < call.attend.kv_len; block += kKeyBlock) {
      const std::int64_t width = std::min(kKeyBlock, call.attend.kv_len - block);
      const int keys =
          static_cast<int>(std::clamp<std::int64_t>(self.engine.sequence.kv_len - block, 0, width));
      const bool seen = valid > 0 && keys > 0 && self.weigh(block, keys);
      self.store_block(to + block * call.weights.key, rows, static_cast<int>(valid),
                       static_cast<int>(width), seen ? keys : 0);
    }
    self.finish_streaming();
    for (int i = 0; i < rows; ++i)
      self.close_stream(i, to + i * call.weights.row + call.attend.kv_len * call.weights.key);
    if (self.streams) Simd::fence();
  }

  /// `rows` rows of `width` weights: the first `valid` rows and `keys` keys from the tile, zeros
  /// elsewhere.
  void store_block(std::byte* to, int rows, int valid, int width, int keys) {
    finish_streaming();
    const bool streamed = streams && width == kKeyBlock;
    for (int first = 0; first < rows; first += kLanes) {
      float* const block = turned + first * kRowFloats;
      const int whole = std::clamp(valid - first, 0, kLanes);  // rows that have weights
      if (keys > 0 && whole > 0) {
        turn_over(block + kLineFloats, kRowFloats, engine.memory.scores + first, keys);
      }
      for (int i = 0; i < kLanes && first + i < rows; ++i) {
        float* const row = block + i * kRowFloats + kLineFloats;
        const int known = i < whole ? keys : 0;  // beyond, a vector's rest may hold anything
        std::memset(row + known, 0, static_cast<std::size_t>(kKeyBlock - known) * sizeof(float));
        if (streamed) continue;
        std::byte* const at = to + (first + i) * call.weights.row;
        close_stream(first + i, at);
        narrow_row(at, row, ElementType::float32, call.weights.key, width);
      }
    }
    if (streamed) waiting_at = to, waiting = 0, waiting_rows = rows;
  }

  // Rows too large for the caches are streamed past them in whole lines, a few at a time beside the
  // next block's scores: all at once they would fill the store queue. What a block leaves of a line
  // waits for the next one.

  static constexpr int kRowsAside = (kTile * Simd::kRows + kKeyBlock - 1) / kKeyBlock;

  /// What is done beside the scores, after every kRows keys: see Aside.
  static void work_aside(void* self) {
    auto* const me = static_cast<Inspect*>(self);
    me->stream_rows(kRowsAside);
    me->fetch_queries(kRowsAside);
  }

  void stream_rows(int count) {
    const int end = std::min(waiting + count, waiting_rows);
    for (; waiting < end; ++waiting) {
      stream(waiting, waiting_at + waiting * call.weights.row,
             turned + waiting * kRowFloats + kLineFloats);
    }
  }
  void finish_streaming() { stream_rows(waiting_rows - waiting); }

  /// Lines of the queries of the tile that comes next.
  void fetch_queries(int count) {
    const Operand& q = call.attend.q;
    const std::int64_t row = row_bytes(q, call.attend.head_dim);
    for (; count > 0 && fetched < fetch_end; --count) {
      const std::byte* at = engine.sequence.q + fetched * q.token + head * q.head;
      for (std::int64_t line = 0; line < row; line += 64) __builtin_prefetch(at + line, 0, 2);
      ++fetched;
    }
  }
  /// From now on the rows of the tile at query `first` are fetched, as far as it exists.
  void plan_fetches(std::int64_t first) {
    fetched = first;
    fetch_end = std::min<std::int64_t>(first + kTile, engine.sequence.q_len);
  }

  static bool streams_to(const InspectCall& call) {
    const WeightMap& to = call.weights;
    const std::int64_t rows = call.attend.batch * call.head_count * call.query_count;
    return to.data && to.key == 4 && reinterpret_cast<std::uintptr_t>(to.data) % 4 == 0 &&
           rows * call.attend.kv_len * 4 >= kStreamBytes;
  }

  /// Floats from the line's beginning to `at`.
  static std::int64_t past_line(const std::byte* at) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at) / 4 % kLineFloats);
  }

  /// Writes a block of row `lane`, all but the line it ends in; there is room for a line before it.
  void stream(int lane, std::byte* at, float* block) {
    float* const to = reinterpret_cast<float*>(at);
    const std::int64_t before = past_line(at);
    int line = 0;
    if (before > 0 && !open[lane]) {
      std::memcpy(to, block, static_cast<std::size_t>(kLineFloats - before) * sizeof(float));
      line = 1;
    }
    std::memcpy(block - kLineFloats, rest[lane], sizeof rest[lane]);
    for (; line * kLineFloats < kKeyBlock; ++line) {
      for (int i = line * kLineFloats; i < (line + 1) * kLineFloats; i += kLanes)
        Simd::stream(to - before + i, Simd::load(block - before + i));
    }
    std::memcpy(rest[lane], block + kKeyBlock - kLineFloats, sizeof rest[lane]);
    open[lane] = before > 0;
  }

  /// Writes what waits of the line before `at`.
  void close_stream(int lane, std::byte* at) {
    if (!open[lane]) return;
    open[lane] = false;
    const auto bytes = static_cast<std::size_t>(past_line(at)) * sizeof(float);
    std::memcpy(at - bytes, reinterpret_cast<const std::byte*>(rest[lane] + kLineFloats) - bytes,
                bytes);
  }

  // --- sums over queries ---

  static void sum_head(const InspectCall& call, std::int64_t batch, std::int64_t q_head,
                       std::byte* scratch) {
    Inspect self(call, batch, q_head, scratch);
    self.clear_sums();
    const std::int64_t q_len = self.engine.sequence.q_len, kv_len = self.engine.sequence.kv_len;
    for (std::int64_t from = 0; from < kv_len; from += kStretch) {
      const std::int64_t to = std::min(kv_len, from + kStretch);
      std::memset(self.sums, 0, static_cast<std::size_t>(sums_bytes()));
      for (std::int64_t first = 0; first < q_len; first += kTile) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kTile, q_len - first));
        self.place(first, rows);
        self.plan_fetches(first + kTile);
        for (std::int64_t block = from; block < to; block += kKeyBlock) {
          const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, kv_len - block));
          if (!self.weigh(block, keys)) continue;
          self.clear_spare_lanes(rows, keys);
          if (call.received.data) self.add_received(block - from, keys);
          if (call.pooled.data) self.add_pooled(block, keys, rows);
        }
      }
      if (call.received.data) self.store_received(from, to);
    }
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

  void add_pooled(std::int64_t block, int keys, int rows) {
    for (int key = 0; key < keys;) {
      const std::int64_t column = bin_of(block + key, call.kv_bins, call.attend.kv_len);
      const std::int64_t bin_end = (column + 1) * call.attend.kv_len / call.kv_bins;
      const int end = static_cast<int>(std::min<std::int64_t>(keys, bin_end - block));
      alignas(64) float part[kTile];
      for (int v = 0; v < kVectors; ++v) {
        Simd::V sum = Simd::zero();
        for (int k = key; k < end; ++k)
          sum = Simd::add(sum, Simd::load(engine.memory.scores + k * kTile + v * kLanes));
        Simd::store(part + v * kLanes, sum);
      }
      add_to_bins(part, rows, column);
      key = end;
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
