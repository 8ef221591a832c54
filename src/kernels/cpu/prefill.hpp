// Prefill: lanes are (query, head of the group) pairs. S^T = K Q^T, softmax down the lanes, O^T +=
// V^T P^T; the scores of one tile and one key block are all that ever exists of the q_len x kv_len
// matrix. Included inside an ISA namespace after modify.hpp, item_fetcher.hpp, tile_scores.hpp,
// tile_softmax.hpp and tile_values.hpp.

template <class Path>
struct Prefill {
  static constexpr int kMaxTiles = kLanes == 16 ? 8 : 16;

  static std::int64_t align(std::int64_t bytes) { return (bytes + 63) & ~std::int64_t{63}; }
  static std::int64_t pad(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

  /// Tiles of one item: they share a key block's trip from L2, and its packing, as far as their
  /// queries and accumulators leave it room there.
  static int tiles(const AttendCall& call) {
    const std::int64_t widest = std::max(call.head_dim, call.value_dim);
    const int parts = widest <= 64 ? 1 : widest <= 128 ? 2 : widest <= 256 ? 4 : 8;
    return kMaxTiles / parts;
  }

  static std::int64_t rows(const AttendCall& call) { return std::int64_t{tiles(call)} * kTile; }

  static std::int64_t lay_out(const AttendCall& call, std::byte* base, Scratch* scratch) {
    std::int64_t at = 0;
    const int n = tiles(call);
    const auto take = [&](auto*& pointer, std::int64_t bytes) {
      if (base) pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
      at += align(bytes);
    };
    Scratch unused;
    Scratch& s = scratch ? *scratch : unused;
    take(s.q, n * Path::q_steps(call.head_dim) * kTile * 4);
    take(s.o, 2 * n * call.value_dim * kTile * 4);
    take(s.scores, kKeyBlock * kTile * 4);
    take(s.bias, call.score.bias.data ? kKeyBlock * kTile * 4 : 0);
    const std::int64_t row_floats = std::max(Path::q_steps(call.head_dim), call.value_dim);
    take(s.rows, kLanes * (pad(row_floats) + kLanes) * 4);
    take(s.k, kKeyBlock * packed_row_floats(Path::k_steps(call.head_dim)) * 4);
    take(s.v, Path::steps(kKeyBlock) * packed_row_floats(Path::padded(call.value_dim)) * 4);
    if constexpr (Path::kInteger) {
      take(s.v_scales, Path::blocks(call.value_dim) * kKeyBlock * 4);
      take(s.rounded, Path::steps(kKeyBlock) * kTile * 4);
    }
    if constexpr (Path::kMatrix)
      take(s.value_rows, kKeyBlock * static_cast<std::int64_t>(sizeof(void*)));
    take(s.sight, static_cast<std::int64_t>(sizeof(Sight)));
    take(s.lanes, n * static_cast<std::int64_t>(sizeof(Lanes)));
    take(s.states, 2 * n * static_cast<std::int64_t>(sizeof(State)));
    return at;
  }

  static std::int64_t scratch_bytes(const AttendCall& call) {
    return lay_out(call, nullptr, nullptr);
  }

  /// A partial: the states of an item's tiles and their accumulators.
  static std::int64_t partial_bytes(const AttendCall& call) {
    return align(tiles(call) *
                 (static_cast<std::int64_t>(sizeof(State)) + call.value_dim * kTile * 4));
  }

  [[no_unique_address]] typename Path::Unit matrix_unit;
  const AttendCall& call;
  const WorkItem& item;
  const Rules rules;
  const Detail detail;
  const Sequence sequence;
  Scratch memory;
  int tile_count;
  State *split_states[kMaxTiles], *running_states[kMaxTiles];
  bool folded[kMaxTiles] = {};  // whether the running state holds anything
  ItemFetcher fetcher{call, item, sequence};

  Prefill(const AttendCall& c, const WorkItem& i, std::byte* base)
      : matrix_unit(i.rows),
        call(c),
        item(i),
        rules(c, Path::kBfloat16),
        detail(detail_of(c)),
        sequence(sequence_of(c, i.batch)),
        tile_count(static_cast<int>((i.rows + kTile - 1) / kTile)) {
    lay_out(call, base, &memory);
    memory.fetcher = &fetcher;
    memory.lone_tile = tile_count == 1;
  }

  Prefill(const Prefill&) = delete;  // memory knows where the fetcher is
  Prefill& operator=(const Prefill&) = delete;

  static Detail detail_of(const AttendCall& call) {
    if (call.entropy.data || call.max_weight.data || call.max_key.data) return Detail::statistics;
    return call.lse.data ? Detail::lse : Detail::output;
  }

  using Softmax = TileSoftmax<Path>;
  Softmax softmax() { return {rules, detail, call.value_dim, memory.scores}; }

  State& split_state(int tile) { return *split_states[tile]; }
  State& running_state(int tile) { return *running_states[tile]; }

  static void attend(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                     std::byte* partial) {
    Prefill self(call, item, scratch);
    self.place_tiles();
    self.fetcher.plan();
    self.run_splits();
    if (partial)
      self.save(partial);
    else
      self.finish_tiles();
  }

  static void proceed(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                      std::byte* running) {
    Prefill self(call, item, scratch);
    self.place_tiles();
    for (int t = 0; t < self.tile_count; ++t) {
      self.running_states[t] = &partial_state(call, running, t);
      self.folded[t] = true;
    }
    self.fetcher.plan();
    self.run_splits();
  }

  void place_tiles() {
    for (int t = 0; t < tile_count; ++t) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(kTile, item.rows - std::int64_t{t} * kTile));
      Lanes& lanes = memory.lanes[t];
      lanes.place(call, sequence, item.kv_head * call.group(), call.group(),
                  item.first_row + std::int64_t{t} * kTile, rows);
      split_states[t] = memory.states + 2 * t;
      running_states[t] = memory.states + 2 * t + 1;
      split_state(t).o = memory.o + (2 * t) * call.value_dim * kTile;
      running_state(t).o = memory.o + (2 * t + 1) * call.value_dim * kTile;
      running_state(t).reset();
      pack_q(t);
    }
  }

  /// While a tile works, dense tables of what comes next: the next tile's, or the first one's of
  /// the next block.
  void plan_tables(int t, std::int64_t block) {
    const bool last = t + 1 == tile_count;
    fetcher.plan_tables(memory.lanes[last ? 0 : t + 1], last ? block + kKeyBlock : block);
  }

  void pack_q(int t) {
    const Lanes& lanes = memory.lanes[t];
    const std::int64_t steps = Path::q_steps(call.head_dim), row_floats = pad(steps) + kLanes;
    const bool direct = Path::direct_q(call.q, call.head_dim);
    float* to = memory.q + t * steps * kTile;
    for (int v = 0; v < lanes.vectors; ++v) {
      const float* rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int lane = v * kLanes + i;
        const std::byte* from =
            sequence.q + lanes.query[lane] * call.q.token + lanes.head[lane] * call.q.head;
        rows[i] = direct ? reinterpret_cast<const float*>(from) : memory.rows + i * row_floats;
        if (!direct) {
          Path::widen_q(memory.rows + i * row_floats, from, call, item.kv_head, rules.q_factor);
        }
      }
      Path::transpose_q(to + v * kLanes, rows, steps, rules.q_factor);
    }
  }

  void run_splits() {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    for (int t = 0; t < tile_count; ++t) {
      first = std::min(first, memory.lanes[t].min_begin);
      last = std::max(last, memory.lanes[t].max_end);
    }
    first = std::max(first, item.first_split * kSplitKeys);
    last = std::min(last, item.end_split * kSplitKeys);
    std::int64_t window = std::numeric_limits<std::int64_t>::max();
    for (int t = 0; t < tile_count; ++t) window = std::min(window, memory.lanes[t].window_begin);
    for (std::int64_t split = first / kSplitKeys; split * kSplitKeys < last; ++split) {
      if (between(call.mask, window, split)) continue;
      bool touched[kMaxTiles] = {};
      const std::int64_t end = std::min(last, (split + 1) * kSplitKeys);
      const std::int64_t begin = std::max(first / kKeyBlock * kKeyBlock, split * kSplitKeys);
      for (std::int64_t block = begin; block < end; block += kKeyBlock) run_block(block, touched);
      for (int t = 0; t < tile_count; ++t) {
        if (touched[t]) fold_tile(t);
      }
    }
  }

  void run_block(std::int64_t block, bool* touched) {
    const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, sequence.kv_len - block));
    KeyBlock rows;
    for (int t = 0; t < tile_count; ++t) {
      Sight& sight = *memory.sight;
      look(sight, call, sequence, memory.lanes[t], block, keys);
      if (sight.kind == Sight::nothing) continue;
      if (!rows.ready) {
        fetcher.plan_block(block + kKeyBlock);
        Path::load_keys(rows, call, sequence, item.kv_head, block, keys, memory);
        Path::load_values(rows, call, sequence, item.kv_head, block, keys, memory);
        rows.ready = true;
      }
      if (!touched[t]) split_state(t).reset();
      attend_block(t, sight, rows, block, keys, !touched[t]);
      touched[t] = true;
    }
  }

  /// One tile against one block: scores, modifiers, softmax, weighted sum.
  void attend_block(int t, Sight& sight, KeyBlock& rows, std::int64_t block, int keys, bool first) {
    const Lanes& lanes = memory.lanes[t];
    State& state = split_state(t);
    BlockBest best;
    plan_tables(t, block);
    prepare_scores(t, sight, rows, block, keys, best.max);
    softmax().move_reference(state, best.max, lanes.vectors, first);
    softmax().exponentiate(sight, state, best);
    if (detail == Detail::statistics) Softmax::track_best(state, best, lanes.vectors, block);
    if constexpr (Path::kInteger) sum_block(sight, state, keys, lanes.vectors);
    if (call.score.dropout > 0.0f) drop(sight, lanes, block);
    TileValues<Path>{call, memory, fetcher}.add(sight, state, rows, keys, lanes.vectors, first);
  }

  /// The final scores of what the tile sees, the masks of what it sees in part, and the maxima
  /// where wanted.
  void prepare_scores(int t, Sight& sight, KeyBlock& rows, std::int64_t block, int keys,
                      float* block_max, Aside aside = {}) {
    const Lanes& lanes = memory.lanes[t];
    if (sight.kind == Sight::everything) {
      sight.segments = 1;
      sight.segment[0] = {0, keys, 0, lanes.vectors, true};
    }
    const bool biased = call.score.bias.data != nullptr, only_bias = biased && rules.only_bias;
    if (biased) bias_tile(memory.bias, call.score.bias, lanes, block, keys);
    const float* q = memory.q + t * Path::q_steps(call.head_dim) * kTile;
    const TileScores<Path> scores{memory.scores, call.head_dim, rules.score_factor};
    alignas(64) float least[kLanes] = {};
    if constexpr (Path::kMatrix)
      typename Path::Products{call, memory, lanes.vectors}.scores(sight, q);
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      ScoreEnd end;
      end.aside = aside;
      if (only_bias) {
        end.bias = memory.bias;
        end.least = least;
      }
      if (!rules.modified || only_bias) end.max = block_max;
      if (!rules.modified && !part.full) {
        end.sight = &sight;
      } else if (!part.full) {
        end.max = nullptr;
      }
      scores.of(part, rows.k, q, end);
    }
    if (rules.modified) finish_modified(sight, lanes, block, keys, only_bias, least, block_max);
  }

  /// Modifiers that the products did not take along, and what scores of -inf hide.
  void finish_modified(Sight& sight, const Lanes& lanes, std::int64_t block, int keys, bool applied,
                       const float* least, float* block_max) {
    const Modifier modifier{call, sequence, rules.score_factor};
    for (int i = 0; i < sight.segments && !applied; ++i) {
      modifier.apply(memory.scores, memory.bias, lanes, sight.segment[i], block, keys);
    }
    if constexpr (Path::kMatrix) {  // user code may have used it
      if (call.score.custom_count > 0) matrix_unit.shape_for_item(item.rows);
    }
    bool reduced = applied;  // whether the maxima of full segments are known
    if (lanes.hide && sight.kind == Sight::everything) {
      const Simd::V hidden = Simd::broadcast(-kInfinity);
      if (applied ? Simd::any(Simd::equal(Simd::load(least), hidden))
                  : softmax().hides_any(sight.segment[0])) {
        sight.see_by_score(keys, lanes.vectors);
        reduced = false;
      }
    }
    alignas(64) float unwanted[kTile] = {};
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      if (!part.full)
        softmax().masked_max(sight, part, applied ? memory.bias : nullptr,
                             block_max ? block_max : unwanted);
      else if (!reduced && block_max)
        softmax().plain_max(part, block_max);
    }
  }

  /// Zeroes dropped weights in P, after they were counted in the sums.
  void drop(const Sight& sight, const Lanes& lanes, std::int64_t block) {
    const TileDropout dropout(call, lanes, sequence.batch);
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      dropout.each(block, part.key_begin, part.key_end, part.first, part.last,
                   [&](int key, int v, const TileDropout::Kept& kept)
                       POLYHEAD_LAMBDA { Path::keep(memory.scores + v * kLanes, key, kept); });
    }
  }

  // --- weights without a segment ---

  /// On the integer path a block of keys is one sum, however it is cut into segments: what no
  /// segment covers has a weight of 0.
  void sum_block(const Sight& sight, State& state, int keys, int vectors) {
    if (sight.kind == Sight::some) clear_unseen(sight, keys, 0.0f);
    Path::sum_tile(memory.scores, keys, vectors, state.total);
    std::memcpy(state.exact_total, state.total, sizeof state.total);
  }

  /// Weights that no segment covers become `hidden`.
  void clear_unseen(const Sight& sight, int keys, float hidden) {
    for (int key = 0, i = 0; key < keys; ++key) {
      while (i < sight.segments && key >= sight.segment[i].key_end) ++i;
      const bool within = i < sight.segments && key >= sight.segment[i].key_begin;
      for (int v = 0; v < kVectors; ++v) {
        if (within && v >= sight.segment[i].first && v < sight.segment[i].last) continue;
        Simd::store(memory.scores + key * kTile + v * kLanes, Simd::broadcast(hidden));
      }
    }
  }

  // --- splits and the end ---

  /// running = running + split, in split order. The first split is the sum so far: folding it into
  /// nothing would multiply it by exactly 1.
  void fold_tile(int t) {
    if constexpr (Path::kMatrix)
      typename Path::Products{call, memory, memory.lanes[t].vectors}.turn_rows_back(split_state(t));
    if (folded[t])
      Softmax::fold_state(rules, call.value_dim, running_state(t), split_state(t));
    else
      std::swap(split_states[t], running_states[t]);
    folded[t] = true;
  }

  void finish_tiles() {
    for (int t = 0; t < tile_count; ++t) finish_tile(memory.lanes[t], running_state(t));
  }

  void finish_tile(const Lanes& lanes, const State& state) {
    alignas(64) float factor[kTile];
    const bool plain = detail == Detail::output && !call.score.sink && call.score.dropout == 0.0f;
    if (plain) plain_factors(state, factor);
    for (int i = 0; i < lanes.count && !plain; ++i) {
      const RowEnd end = end_row(call, rules, lanes.head[i], state.max[i], state.total[i],
                                 state.exact_total[i], state.spread[i], state.best[i]);
      factor[i] = end.factor;
      write_row_values(call, sequence, lanes.query[i], lanes.head[i], end, state.best_key[i]);
    }
    for (int i = lanes.count; i < kTile; ++i) factor[i] = 0.0f;
    for (int v = 0; v < lanes.vectors; ++v) {
      const int count = std::min(kLanes, lanes.count - v * kLanes);
      std::byte* rows[kLanes];
      for (int i = 0; i < count; ++i) {
        const int lane = v * kLanes + i;
        rows[i] =
            sequence.out + lanes.query[lane] * call.out.token + lanes.head[lane] * call.out.head;
      }
      write_rows(rows, count, state.o + v * kLanes, factor + v * kLanes);
      for (int i = 0; i < count; ++i) {
        if (state.total[v * kLanes + i] == 0.0f) zero_row(rows[i]);
      }
    }
  }

  /// What end_row would give for the output alone, in a loop that becomes vectors.
  static void plain_factors(const State& state, float* factor) {
    for (int i = 0; i < kTile; ++i) {
      const double inverse = 1.0 / static_cast<double>(state.total[i]);
      factor[i] = state.total[i] == 0.0f ? 0.0f : static_cast<float>(inverse);
    }
  }

  void write_rows(std::byte* const* rows, int count, const float* o, const float* factor) {
    const Operand& out = call.out;
    if (out.dim == element_bytes(out.type) && call.value_dim % kLanes == 0) {
      switch (out.type) {
        case ElementType::float16:
          return transpose_out_to<ElementType::float16>(rows, count, o, factor, call.value_dim);
        case ElementType::bfloat16:
          return transpose_out_to<ElementType::bfloat16>(rows, count, o, factor, call.value_dim);
        default:
          return transpose_out_to<ElementType::float32>(rows, count, o, factor, call.value_dim);
      }
    }
    const std::int64_t row_floats = pad(call.value_dim) + kLanes;
    transpose_out(memory.rows, row_floats, o, factor, call.value_dim);
    for (int i = 0; i < count; ++i) {
      narrow_row(rows[i], memory.rows + i * row_floats, out.type, out.dim, call.value_dim);
    }
  }

  /// A row that saw no key: its accumulators may hold anything.
  void zero_row(std::byte* to) {
    const std::int64_t bytes = element_bytes(call.out.type);
    const std::int64_t run = call.out.dim == bytes ? call.value_dim : 1;
    for (std::int64_t d = 0; d < call.value_dim; d += run) {
      std::memset(to + d * call.out.dim, 0, static_cast<std::size_t>(run * bytes));
    }
  }

  void save(std::byte* partial) {
    for (int t = 0; t < tile_count; ++t) {
      State& to = partial_state(call, partial, t);
      float* o = to.o;
      to = running_state(t);
      to.o = o;
      std::memcpy(o, running_state(t).o, static_cast<std::size_t>(call.value_dim * kTile) * 4);
    }
  }

  static State& partial_state(const AttendCall& call, std::byte* partial, int t) {
    State* states = reinterpret_cast<State*>(partial);
    states[t].o =
        reinterpret_cast<float*>(partial + tiles(call) * static_cast<std::int64_t>(sizeof(State))) +
        t * call.value_dim * kTile;
    return states[t];
  }

  static PartialRow row(const AttendCall& call, std::byte* partial, std::int64_t row) {
    State& state = partial_state(call, partial, static_cast<int>(row / kTile));
    const std::int64_t lane = row % kTile;
    return {
        state.max + lane,    state.total + lane, state.exact_total + lane, state.o + lane, kTile,
        state.spread + lane, state.best + lane,  state.best_key + lane};
  }

  static void merge(const AttendCall& call, const WorkItem& item, std::byte* running,
                    const std::byte* added) {
    const Rules rules(call, Path::kBfloat16);
    for (int t = 0; t * kTile < item.rows; ++t) {
      Softmax::fold_state(rules, call.value_dim, partial_state(call, running, t),
                          partial_state(call, const_cast<std::byte*>(added), t));
    }
  }

  static void finish(const AttendCall& call, const WorkItem& item, std::byte* running,
                     std::byte* scratch) {
    Prefill self(call, item, scratch);
    for (int t = 0; t < self.tile_count; ++t) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(kTile, item.rows - std::int64_t{t} * kTile));
      self.memory.lanes[t].place(call, self.sequence, item.kv_head * call.group(), call.group(),
                                 item.first_row + std::int64_t{t} * kTile, rows);
      self.finish_tile(self.memory.lanes[t], partial_state(call, running, t));
    }
  }
};
