// Prefill: lanes are (query, head of the group) pairs. S^T = K Q^T, softmax down the lanes, O^T +=
// V^T P^T; the scores of one tile and one key block are all that ever exists of the q_len x kv_len
// matrix. Included inside an ISA namespace after modify.hpp.

/// How a score becomes an exponent of 2: score - max (scale and log2(e) are in q), (score - max) *
/// unit as one fma (bfloat16: the scale cannot be in q), or the same in two steps (natural units,
/// after modifiers).
enum class Exponent { folded, fused, natural };

/// The rules of one element path and one call that prefill and decoding share: whatever is computed
/// from them is computed by the same operations in both.
struct Rules {
  Exponent exponent;
  float q_factor;      // multiplies q when it is packed
  float score_factor;  // multiplies a score before its modifiers
  float unit;          // score units to log2
  float rescale;       // kRescaleLog2 in score units
  double natural;      // score units to natural logarithm
  bool modified;

  Rules(const AttendCall& call, bool bfloat16_dot) {
    const float scale = call.score.scale;
    modified = call.score.modifies_scores() || (bfloat16_dot && !(scale > 0.0f));
    q_factor = score_factor = unit = 1.0f;
    natural = kLn2;
    exponent = Exponent::folded;
    if (modified) {
      exponent = Exponent::natural;
      (bfloat16_dot ? score_factor : q_factor) = scale;
      unit = kLog2E;
      natural = 1.0;
    } else if (bfloat16_dot) {
      exponent = Exponent::fused;
      unit = static_cast<float>(static_cast<double>(scale) * static_cast<double>(kLog2E));
      natural = static_cast<double>(unit) * kLn2;
    } else {
      q_factor = static_cast<float>(static_cast<double>(scale) * static_cast<double>(kLog2E));
    }
    rescale = kRescaleLog2 / unit;
  }
};

/// The exponent of one score given what `exponent_base` made of the row's maximum.
template <Exponent kForm>
POLYHEAD_INLINE Simd::V exponent_of(Simd::V score, Simd::V base, Simd::V unit) {
  if constexpr (kForm == Exponent::folded)
    return Simd::sub(score, base);
  else if constexpr (kForm == Exponent::fused)
    return Simd::fma(score, unit, base);
  else
    return Simd::mul(Simd::sub(score, base), unit);
}
template <Exponent kForm>
POLYHEAD_INLINE Simd::V exponent_base(Simd::V max, Simd::V unit) {
  // A row that has seen nothing keeps -inf; its exponents must not become inf - inf.
  const Simd::V finite =
      Simd::select(Simd::equal(max, Simd::broadcast(-kInfinity)), Simd::zero(), max);
  if constexpr (kForm == Exponent::fused)
    return Simd::mul(Simd::sub(Simd::zero(), finite), unit);
  else
    return finite;
}

/// What a new block maximum does to a row: the new reference and the factor for what has been
/// summed so far.
struct Rescale {
  Simd::V max, factor;
  bool needed;
};
POLYHEAD_INLINE Rescale rescale(Simd::V max, Simd::V block_max, const Rules& rules) {
  const Simd::M grows = Simd::greater(block_max, Simd::add(max, Simd::broadcast(rules.rescale)));
  if (!Simd::any(grows)) return {max, Simd::broadcast(1.0f), false};
  const Simd::V next = Simd::select(grows, block_max, max);
  const Simd::V factor =
      Simd::exp2(Simd::mul(Simd::sub(max, block_max), Simd::broadcast(rules.unit)));
  return {next, Simd::select(grows, factor, Simd::broadcast(1.0f)), true};
}

/// Folding one split's state into the running one: factors for both and the joint reference.
struct Fold {
  Simd::V max, running, added;
};
POLYHEAD_INLINE Fold fold(Simd::V running, Simd::V added, const Rules& rules) {
  const Simd::V max = Simd::select(Simd::greater(added, running), added, running);
  const Simd::V safe =
      Simd::select(Simd::equal(max, Simd::broadcast(-kInfinity)), Simd::zero(), max);
  const Simd::V unit = Simd::broadcast(rules.unit);
  return {max, Simd::exp2(Simd::mul(Simd::sub(running, safe), unit)),
          Simd::exp2(Simd::mul(Simd::sub(added, safe), unit))};
}

/// One row's end: the sink joins the denominator; the factor for its output, its LSE and
/// statistics.
struct RowEnd {
  float factor = 0.0f, lse = -kInfinity, entropy = 0.0f, max_weight = 0.0f;
};
/// ln(exp(a) + exp(b)); b may be -inf.
inline double join_logs(double a, double b) {
  if (b == -std::numeric_limits<double>::infinity() || a != a) return a;
  const double high = std::max(a, b), low = std::min(a, b);
  return high + std::log1p(std::exp(low - high));
}

inline RowEnd end_row(const AttendCall& call, const Rules& rules, std::int64_t head, float max,
                      float total, float exact_total, float spread, float best) {
  RowEnd end;
  if (total == 0.0f)
    return end;  // nothing visible: the largest visible score always adds a weight of 1
  const double reference = static_cast<double>(max) * rules.natural;
  double sink = 0.0, logit = -std::numeric_limits<double>::infinity();
  if (call.score.sink) {
    logit = static_cast<double>(call.score.sink[head * call.score.sink_stride]);
    sink = std::exp(logit - reference);
  }
  const double keep = 1.0 - static_cast<double>(call.score.dropout);
  end.factor = static_cast<float>(1.0 / ((static_cast<double>(total) + sink) * keep));
  if (call.lse.data) end.lse = static_cast<float>(join_logs(reference + std::log(static_cast<double>(exact_total)), logit));
  if (call.entropy.data || call.max_weight.data) {
    // w = p / z: -sum w ln w = (sum p) ln z / z - (sum p ln p) / z, with p relative to the
    // reference.
    const double z = static_cast<double>(exact_total) + sink;
    end.entropy = static_cast<float>(std::max(0.0, (static_cast<double>(exact_total) * std::log(z) -
                                                    static_cast<double>(spread) * rules.natural) /
                                                       z));
    end.max_weight = static_cast<float>(
        std::exp((static_cast<double>(best) - static_cast<double>(max)) * rules.natural) / z);
  }
  return end;
}

inline void write_row_values(const AttendCall& call, const Sequence& s, std::int64_t query,
                             std::int64_t head, const RowEnd& end, std::int64_t max_key) {
  if (call.lse.data) std::memcpy(row_address(call.lse, s, query, head), &end.lse, 4);
  if (call.entropy.data) std::memcpy(row_address(call.entropy, s, query, head), &end.entropy, 4);
  if (call.max_weight.data)
    std::memcpy(row_address(call.max_weight, s, query, head), &end.max_weight, 4);
  if (call.max_key.data) std::memcpy(row_address(call.max_key, s, query, head), &max_key, 8);
}

/// K and V of one block as the microkernel reads them: 4-byte elements (floats or bfloat16 pairs).
struct KeyBlock {
  BroadcastOperand k;  // row = key, step = dim or pair of dims
  BroadcastOperand v;  // row = dim, step = key or pair of keys
  bool ready = false;
  bool finite = true;  // no NaN or Inf in V: bfloat16 pairs need it
};

/// A worker's memory, laid out once for each item.
struct Scratch {
  float *q, *k, *v, *scores, *bias, *rows, *o;
  Sight* sight;
  Lanes* lanes;
  State* states;  // per sub-tile: the split's, then the running one
};

/// What an item fetches while it computes: lines of the next key block first, then its own output
/// rows and the next item's queries. Prefetching is a hint: it never faults and changes no result.
class Fetcher {
 public:
  /// Lines of `count` tokens from `base` of `heads` heads.
  void add(const std::byte* base, std::int64_t token, std::int64_t count, std::int64_t head,
           std::int64_t heads, std::int64_t bytes) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t line = 0; line < bytes; line += kLine) {
        if (count_ == kMost) return;
        runs_[count_++] = {{base + h * head + line, token}, count};
      }
    }
  }
  /// Puts the lines of a block of keys and values before all else; what was left of the last one is dropped.
  void next_block(Stream k, std::int64_t k_bytes, Stream v, std::int64_t v_bytes, std::int64_t keys) {
    block_count_ = block_taken_ = 0;
    for (std::int64_t line = 0; line < k_bytes; line += kLine) push_block({k.at + line, k.stride}, keys);
    for (std::int64_t line = 0; line < v_bytes; line += kLine) push_block({v.at + line, v.stride}, keys);
  }
  /// The next `steps` lines, or a stream that stays at `idle`.
  Stream take(const std::byte* idle, std::int64_t steps) {
    if (block_taken_ < block_count_) return advance(block_, block_taken_, steps);
    if (taken_ < count_) return advance(runs_, taken_, steps);
    return {idle, 0};
  }

 private:
  struct Run {
    Stream stream;
    std::int64_t left;
  };
  static Stream advance(Run* runs, int& at, std::int64_t steps) {
    Run& run = runs[at];
    const Stream result = run.stream;
    run.stream.at += steps * run.stream.stride;
    run.left -= steps;
    if (run.left <= 0) ++at;
    return result;
  }
  void push_block(Stream stream, std::int64_t keys) {
    if (block_count_ < kMost) block_[block_count_++] = {stream, keys};
  }

  static constexpr int kMost = 64;
  static constexpr std::int64_t kLine = 64;
  int block_count_ = 0, block_taken_ = 0, count_ = 0, taken_ = 0;
  Run block_[kMost], runs_[kMost];
};

template <class Path>
struct Prefill {
  static constexpr int kMaxTiles = 4;

  static std::int64_t align(std::int64_t bytes) { return (bytes + 63) & ~std::int64_t{63}; }
  static std::int64_t pad(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

  /// Tiles of one item. Packing K and V is shared by them; without packing one tile keeps the most
  /// in L1.
  static int tiles(const AttendCall& call) {
    const std::int64_t widest = std::max(call.head_dim, call.value_dim);
    if (widest <= 128) return kMaxTiles;
    return widest <= 256 ? 2 : 1;
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
    take(s.q, n * Path::steps(call.head_dim) * kTile * 4);
    take(s.o, 2 * n * call.value_dim * kTile * 4);
    take(s.scores, kKeyBlock * kTile * 4);
    take(s.bias, call.score.bias.data ? kKeyBlock * kTile * 4 : 0);
    take(s.rows, kLanes * (pad(std::max(call.head_dim, call.value_dim)) + kLanes) * 4);
    take(s.k, kKeyBlock * packed_row_floats(Path::steps(call.head_dim)) * 4);
    take(s.v, Path::steps(kKeyBlock) * packed_row_floats(call.value_dim) * 4);
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

  const AttendCall& call;
  const WorkItem& item;
  const Rules rules;
  const Sequence sequence;
  Scratch memory;
  const bool statistics;
  int tile_count;
  State *split_states[kMaxTiles], *running_states[kMaxTiles];
  bool folded[kMaxTiles] = {};  // whether the running state holds anything
  Fetcher fetcher;

  Prefill(const AttendCall& c, const WorkItem& i, std::byte* base)
      : call(c),
        item(i),
        rules(c, Path::kBfloat16),
        sequence(sequence_of(c, i.batch)),
        statistics(c.entropy.data || c.max_weight.data || c.max_key.data),
        tile_count(static_cast<int>((i.rows + kTile - 1) / kTile)) {
    lay_out(call, base, &memory);
  }

  State& split_state(int tile) { return *split_states[tile]; }
  State& running_state(int tile) { return *running_states[tile]; }

  static void attend(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                     std::byte* partial) {
    Prefill self(call, item, scratch);
    self.place_tiles();
    self.plan_fetches();
    self.run_splits();
    if (partial)
      self.save(partial);
    else
      self.finish_tiles();
  }

  void place_tiles() {
    for (int t = 0; t < tile_count; ++t) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(kTile, item.rows - std::int64_t{t} * kTile));
      Lanes& lanes = memory.lanes[t];
      lanes.place(call, sequence, item.kv_head * call.group(), call.group(), item.first_row + std::int64_t{t} * kTile, rows);
      split_states[t] = memory.states + 2 * t;
      running_states[t] = memory.states + 2 * t + 1;
      split_state(t).o = memory.o + (2 * t) * call.value_dim * kTile;
      running_state(t).o = memory.o + (2 * t + 1) * call.value_dim * kTile;
      running_state(t).reset();
      pack_q(t);
    }
  }

  void plan_fetches() {
    const std::int64_t group = call.group();
    const auto add = [&](const Operand& x, const std::byte* base, std::int64_t kv_head,
                         std::int64_t first_row, std::int64_t rows, std::int64_t dim) {
      const std::int64_t token = first_row / group;
      const std::int64_t tokens = (first_row + rows - 1) / group - token + 1;
      fetcher.add(base + token * x.token + kv_head * group * x.head, x.token, tokens, x.head, group,
                  dim * element_bytes(x.type));
    };
    add(call.out, sequence.out, item.kv_head, item.first_row, item.rows, call.value_dim);
    if (item.next_rows == 0) return;
    const bool same = item.next_batch == item.batch;
    const Sequence next = same ? sequence : sequence_of(call, item.next_batch);
    add(call.q, next.q, item.next_kv_head, item.next_first_row, item.next_rows, call.head_dim);
    if (same && item.next_kv_head == item.kv_head) return;
    const std::int64_t keys = std::min(kKeyBlock, next.kv_len);
    fetcher.add(next.k + item.next_kv_head * call.k.head, call.k.token, keys, 0, 1,
                call.head_dim * element_bytes(call.k.type));
    fetcher.add(next.v + item.next_kv_head * call.v.head, call.v.token, keys, 0, 1,
                call.value_dim * element_bytes(call.v.type));
  }

  /// While the first tile works on a block, the next one comes closer.
  void fetch_block(std::int64_t block) {
    if (block >= sequence.kv_len) return;
    const std::byte* k = sequence.k + item.kv_head * call.k.head + block * call.k.token;
    const std::byte* v = sequence.v + item.kv_head * call.v.head + block * call.v.token;
    fetcher.next_block({k, call.k.token}, call.head_dim * element_bytes(call.k.type),
                       {v, call.v.token}, call.value_dim * element_bytes(call.v.type),
                       std::min(kKeyBlock, sequence.kv_len - block));
  }

  void pack_q(int t) {
    const Lanes& lanes = memory.lanes[t];
    const std::int64_t steps = Path::steps(call.head_dim), row_floats = pad(steps) + kLanes;
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
          Path::widen_q(memory.rows + i * row_floats, from, call.q, call.head_dim);
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
    for (std::int64_t split = first / kSplitKeys; split * kSplitKeys < last; ++split) {
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
        Path::load_keys(rows, call, sequence, item.kv_head, block, keys, memory);
        Path::load_values(rows, call, sequence, item.kv_head, block, keys, memory);
        rows.ready = true;
        fetch_block(block + kKeyBlock);
      }
      if (!touched[t]) split_state(t).reset();
      attend_block(t, sight, rows, block, keys, !touched[t]);
      touched[t] = true;
    }
  }

  /// One tile against one block: scores, modifiers, softmax, weighted sum.
  void attend_block(int t, Sight& sight, const KeyBlock& rows, std::int64_t block, int keys,
                    bool first) {
    const Lanes& lanes = memory.lanes[t];
    State& state = split_state(t);
    alignas(64) float block_max[kTile];
    for (int i = 0; i < kTile; ++i) block_max[i] = -kInfinity;
    prepare_scores(t, sight, rows, block, keys, rules.modified ? nullptr : block_max);
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      if (!part.full)
        masked_max(sight, part, block_max);
      else if (rules.modified)
        plain_max(part, block_max);
    }
    move_reference(state, block_max, lanes.vectors, first);
    exponentiate(sight, state, block);
    if (call.score.dropout > 0.0f) drop(sight, lanes, block);
    weigh(sight, state, rows, lanes.vectors, first);
  }

  /// The final scores of what the tile sees, before masking; the maxima of full segments where wanted.
  void prepare_scores(int t, Sight& sight, const KeyBlock& rows, std::int64_t block, int keys,
                      float* block_max) {
    const Lanes& lanes = memory.lanes[t];
    if (sight.kind == Sight::everything) {
      sight.segments = 1;
      sight.segment[0] = {0, keys, 0, lanes.vectors, true};
    }
    const float* q = memory.q + t * Path::steps(call.head_dim) * kTile;
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      scores(part, rows.k, q, part.full ? block_max : nullptr);
    }
    if (!rules.modified) return;
    if (call.score.bias.data) {
      bias_tile(memory.bias, call.score.bias, sequence.batch, lanes, block, keys);
    }
    const Modifier modifier{call, sequence, rules.score_factor};
    for (int i = 0; i < sight.segments; ++i) {
      modifier.apply(memory.scores, memory.bias, lanes, sight.segment[i], block, keys);
    }
  }

  // --- scores ---

  template <int kV>
  void scores_of(const Segment& part, const BroadcastOperand& k, const float* q, float* block_max) {
    constexpr int kR = Simd::kRows;
    int key = part.key_begin;
    for (; key + kR <= part.key_end; key += kR) score_rows<kR, kV>(part, key, k, q, block_max);
    for (; key + 4 <= part.key_end; key += 4) score_rows<4, kV>(part, key, k, q, block_max);
    for (; key < part.key_end; ++key) score_rows<1, kV>(part, key, k, q, block_max);
  }

  template <int kR, int kV>
  POLYHEAD_INLINE void score_rows(const Segment& part, int key, const BroadcastOperand& k,
                                  const float* q, float* block_max) {
    using V = Simd::V;
    V acc[kR][kV];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
    }
    const BroadcastOperand at{k.data + key * k.row_bytes, k.row_bytes, 4};
    outer_product<typename Path::Dot, kR, kV>(acc, at, q + part.first * kLanes, kTile,
                                              Path::steps(call.head_dim));
    float* to = memory.scores + key * kTile + part.first * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Simd::store(to + r * kTile + v * kLanes, acc[r][v]);
    }
    if (!block_max) return;
    float* max = block_max + part.first * kLanes;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      V m = Simd::load(max + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) m = Simd::max(m, acc[r][v]);
      Simd::store(max + v * kLanes, m);
    }
  }

  void scores(const Segment& part, const BroadcastOperand& k, const float* q, float* block_max) {
    switch (part.last - part.first) {
      case 1:
        return scores_of<1>(part, k, q, block_max);
      case 2:
        return scores_of<2>(part, k, q, block_max);
      default:
        return scores_of<3>(part, k, q, block_max);
    }
  }

  // --- softmax ---

  void plain_max(const Segment& part, float* block_max) {
    for (int v = part.first; v < part.last; ++v) {
      Simd::V m = Simd::load(block_max + v * kLanes);
      for (int key = part.key_begin; key < part.key_end; ++key) {
        m = Simd::max(m, Simd::load(memory.scores + key * kTile + v * kLanes));
      }
      Simd::store(block_max + v * kLanes, m);
    }
  }

  /// Also stores the masks of the segment: visible by word, and not hidden by a score of -inf.
  void masked_max(Sight& sight, const Segment& part, float* block_max) {
    const Simd::V hidden = Simd::broadcast(-kInfinity);
    for (int v = part.first; v < part.last; ++v) {
      Simd::V m = Simd::load(block_max + v * kLanes);
      for (int key = part.key_begin; key < part.key_end; ++key) {
        const Simd::V s = Simd::load(memory.scores + key * kTile + v * kLanes);
        const Simd::I words = Simd::load_int(sight.words[key / 32] + v * kLanes);
        const Simd::I bit =
            Simd::broadcast_int(static_cast<std::int32_t>(std::uint32_t{1} << (key % 32)));
        Simd::M visible = Simd::test(words, bit);
        if (rules.modified) visible = Simd::mask_and(visible, Simd::not_equal(s, hidden));
        sight.masks[key * kVectors + v] = Simd::store_mask(visible);
        m = Simd::max(m, Simd::select(visible, s, hidden));
      }
      if (part.key_end % 2 != 0) {  // a pair's missing second key
        sight.masks[part.key_end * kVectors + v] = Simd::store_mask(Simd::greater(hidden, hidden));
      }
      Simd::store(block_max + v * kLanes, m);
    }
  }

  /// Moves each row's reference maximum where the block asks for it, and rescales its sums.
  void move_reference(State& state, const float* block_max, int vectors, bool first) {
    for (int v = 0; v < vectors; ++v) {
      const int at = v * kLanes;
      const Simd::V old = Simd::load(state.max + at);
      const Rescale step = rescale(old, Simd::load(block_max + at), rules);
      if (!step.needed) continue;
      Simd::store(state.max + at, step.max);
      if (first) continue;
      const Simd::V total = Simd::load(state.exact_total + at);
      if (statistics) {
        // With nothing summed yet, the old reference is -inf and its change must not become a NaN.
        const Simd::V change =
            Simd::select(Simd::equal(total, Simd::zero()), Simd::zero(), Simd::sub(old, step.max));
        Simd::store(
            state.spread + at,
            Simd::mul(step.factor, Simd::fma(change, total, Simd::load(state.spread + at))));
      }
      Simd::store(state.total + at, Simd::mul(Simd::load(state.total + at), step.factor));
      Simd::store(state.exact_total + at, Simd::mul(total, step.factor));
      for (std::int64_t d = 0; d < call.value_dim; ++d) {
        float* o = state.o + d * kTile + at;
        Simd::store(o, Simd::mul(Simd::load(o), step.factor));
      }
    }
  }

  void exponentiate(const Sight& sight, State& state, std::int64_t block) {
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      switch (rules.exponent) {
        case Exponent::folded:
          exponentiate_as<Exponent::folded>(sight, part, state, block);
          break;
        case Exponent::fused:
          exponentiate_as<Exponent::fused>(sight, part, state, block);
          break;
        case Exponent::natural:
          exponentiate_as<Exponent::natural>(sight, part, state, block);
          break;
      }
    }
  }

  template <Exponent kForm>
  void exponentiate_as(const Sight& sight, const Segment& part, State& state, std::int64_t block) {
    if (statistics) {
      if (part.full)
        exponentiate_part<kForm, false, true>(sight, part, state, block);
      else
        exponentiate_part<kForm, true, true>(sight, part, state, block);
    } else {
      if (part.full)
        exponentiate_part<kForm, false, false>(sight, part, state, block);
      else
        exponentiate_part<kForm, true, false>(sight, part, state, block);
    }
  }

  /// p = 2^(score - max) for a segment, summed in key order; P replaces the scores (pairs of keys
  /// for bfloat16).
  template <Exponent kForm, bool kMasked, bool kStatistics>
  void exponentiate_part(const Sight& sight, const Segment& part, State& state,
                         std::int64_t block) {
    using V = Simd::V;
    const V unit = Simd::broadcast(rules.unit);
    for (int v = part.first; v < part.last; ++v) {
      const int at = v * kLanes;
      const V base = exponent_base<kForm>(Simd::load(state.max + at), unit);
      V total = Simd::load(state.total + at), exact = Simd::load(state.exact_total + at);
      V spread = Simd::load(state.spread + at), best = Simd::load(state.best + at);
      Simd::I best_key = Simd::load_int(state.best_key + at);
      const V reference = exponent_base<Exponent::folded>(Simd::load(state.max + at), unit);
      const auto weight = [&](int key) __attribute__((always_inline)) {
        const V s = Simd::load(memory.scores + key * kTile + at);
        V p = Simd::exp2(exponent_of<kForm>(s, base, unit));
        if constexpr (kMasked)
          p = Simd::select(Simd::load_mask(sight.masks[key * kVectors + v]), p, Simd::zero());
        if constexpr (kStatistics) {
          V term = Simd::sub(s, reference);
          Simd::M better = Simd::greater(s, best);
          if constexpr (kMasked) {
            const Simd::M seen = Simd::load_mask(sight.masks[key * kVectors + v]);
            term = Simd::select(seen, term, Simd::zero());
            better = Simd::mask_and(better, seen);
          }
          spread = Simd::fma(p, term, spread);
          best = Simd::select(better, s, best);
          best_key = Simd::select(
              better, Simd::broadcast_int(static_cast<std::int32_t>(block + key)), best_key);
        }
        return p;
      };
      Path::weights(weight, memory.scores + at, part.key_begin, part.key_end, total, exact);
      Simd::store(state.total + at, total);
      Simd::store(state.exact_total + at, exact);
      if constexpr (kStatistics) {
        Simd::store(state.spread + at, spread);
        Simd::store(state.best + at, best);
        Simd::store_int(state.best_key + at, best_key);
      }
    }
  }

  /// Zeroes dropped weights in P, after they were counted in the sums.
  void drop(const Sight& sight, const Lanes& lanes, std::int64_t block) {
    const Integers& ids = call.score.sequence_ids;
    const std::int64_t id = ids.given() ? ids[sequence.batch] : sequence.batch;
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      for (int key = part.key_begin; key < part.key_end; ++key) {
        for (int lane = part.first * kLanes; lane < part.last * kLanes; ++lane) {
          if (dropout_keeps_pair(call.score.seed, id, lanes.head[lane], lanes.q_pos[lane],
                                 block + key, call.score.dropout)) {
            continue;
          }
          Path::drop(memory.scores + lane, key);
        }
      }
    }
  }

  // --- weighted sum ---

  void weigh(const Sight& sight, State& state, const KeyBlock& rows, int vectors, bool first) {
    const bool whole =
        sight.segments == 1 && sight.segment[0].first == 0 && sight.segment[0].last == vectors;
    if (first && !whole)
      std::memset(state.o, 0, static_cast<std::size_t>(call.value_dim * kTile) * sizeof(float));
    for (int i = 0; i < sight.segments; ++i) {
      const Segment& part = sight.segment[i];
      const bool fresh = first && whole;
      switch (part.last - part.first) {
        case 1:
          weigh_part<1>(sight, part, state, rows, fresh);
          break;
        case 2:
          weigh_part<2>(sight, part, state, rows, fresh);
          break;
        default:
          weigh_part<3>(sight, part, state, rows, fresh);
          break;
      }
    }
  }

  template <int kV>
  void weigh_part(const Sight& sight, const Segment& part, State& state, const KeyBlock& rows,
                  bool fresh) {
    constexpr int kR = Simd::kRows;
    std::int64_t d = 0;
    for (; d + kR <= call.value_dim; d += kR)
      weigh_rows<kR, kV>(sight, part, state, rows, d, fresh);
    for (; d + 4 <= call.value_dim; d += 4) weigh_rows<4, kV>(sight, part, state, rows, d, fresh);
    for (; d < call.value_dim; ++d) weigh_rows<1, kV>(sight, part, state, rows, d, fresh);
  }

  template <int kR, int kV>
  POLYHEAD_INLINE void weigh_rows(const Sight& sight, const Segment& part, State& state,
                                  const KeyBlock& rows, std::int64_t d, bool fresh) {
    using V = Simd::V;
    V acc[kR][kV];
    float* o = state.o + d * kTile + part.first * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v)
        acc[r][v] = fresh ? Simd::zero() : Simd::load(o + r * kTile + v * kLanes);
    }
    const std::int64_t step = Path::steps(part.key_begin), steps = Path::steps(part.key_end) - step;
    const BroadcastOperand at{rows.v.data + d * 4 + step * rows.v.step_bytes, 4, rows.v.step_bytes};
    const float* p = memory.scores + step * kTile + part.first * kLanes;
    if (part.full) {
      const std::byte* idle = reinterpret_cast<const std::byte*>(p);
      const Stream stream = kR > 1 ? fetcher.take(idle, steps) : Stream{idle, 0};
      outer_product<typename Path::Dot, kR, kV, true>(acc, at, p, kTile, steps, stream);
    } else {
      Path::template weigh_masked<kR, kV>(acc, at, p, sight.masks + part.first, part.key_begin,
                                          steps, rows.finite);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Simd::store(o + r * kTile + v * kLanes, acc[r][v]);
    }
  }

  // --- splits and the end ---

  /// running = running + split, in split order. The first split is the sum so far: folding it into nothing would
  /// multiply it by exactly 1.
  void fold_tile(int t) {
    if (folded[t]) fold_state(call, rules, running_state(t), split_state(t));
    else std::swap(split_states[t], running_states[t]);
    folded[t] = true;
  }

  static void fold_state(const AttendCall& call, const Rules& rules, State& running,
                         const State& added) {
    for (int v = 0; v < kVectors; ++v) {
      const int at = v * kLanes;
      // What has seen nothing has no accumulators: they may hold anything.
      if (!Simd::any(Simd::not_equal(Simd::load(added.total + at), Simd::zero()))) continue;
      const Simd::V old = Simd::load(running.max + at), fresh = Simd::load(added.max + at);
      const Fold f = fold(old, fresh, rules);
      const auto join = [&](float* to, const float* from) {
        Simd::store(to, Simd::fma(Simd::load(to), f.running, Simd::mul(Simd::load(from), f.added)));
      };
      const auto moved = [&](const float* spread, const float* total, Simd::V from) {
        const Simd::V sum = Simd::load(total);
        const Simd::V change =
            Simd::select(Simd::equal(sum, Simd::zero()), Simd::zero(), Simd::sub(from, f.max));
        return Simd::fma(change, sum, Simd::load(spread));
      };
      const Simd::V spread =
          Simd::fma(moved(running.spread + at, running.exact_total + at, old), f.running,
                    Simd::mul(moved(added.spread + at, added.exact_total + at, fresh), f.added));
      Simd::store(running.spread + at, spread);
      const Simd::M better =
          Simd::greater(Simd::load(added.best + at), Simd::load(running.best + at));
      Simd::store(running.best + at,
                  Simd::select(better, Simd::load(added.best + at), Simd::load(running.best + at)));
      Simd::store_int(running.best_key + at,
                      Simd::select(better, Simd::load_int(added.best_key + at),
                                   Simd::load_int(running.best_key + at)));
      const bool empty = !Simd::any(Simd::not_equal(Simd::load(running.total + at), Simd::zero()));
      join(running.total + at, added.total + at);
      join(running.exact_total + at, added.exact_total + at);
      for (std::int64_t d = 0; d < call.value_dim; ++d) {
        float* to = running.o + d * kTile + at;
        // 0 * 0 + o * factor is what the general case would give.
        if (empty)
          Simd::store(to, Simd::mul(Simd::load(added.o + d * kTile + at), f.added));
        else
          join(to, added.o + d * kTile + at);
      }
      Simd::store(running.max + at, f.max);
    }
  }

  void finish_tiles() {
    for (int t = 0; t < tile_count; ++t) finish_tile(memory.lanes[t], running_state(t));
  }

  void finish_tile(const Lanes& lanes, const State& state) {
    alignas(64) float factor[kTile];
    for (int i = 0; i < lanes.count; ++i) {
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

  static void merge(const AttendCall& call, const WorkItem& item, std::byte* running,
                    const std::byte* added) {
    const Rules rules(call, Path::kBfloat16);
    for (int t = 0; t * kTile < item.rows; ++t) {
      fold_state(call, rules, partial_state(call, running, t),
                 partial_state(call, const_cast<std::byte*>(added), t));
    }
  }

  static void finish(const AttendCall& call, const WorkItem& item, std::byte* running,
                     std::byte* scratch) {
    Prefill self(call, item, scratch);
    for (int t = 0; t < self.tile_count; ++t) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(kTile, item.rows - std::int64_t{t} * kTile));
      self.memory.lanes[t].place(call, self.sequence, item.kv_head * call.group(), call.group(), item.first_row + std::int64_t{t} * kTile, rows);
      self.finish_tile(self.memory.lanes[t], partial_state(call, running, t));
    }
  }
};
