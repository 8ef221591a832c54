// Decoding: few rows against many keys, bound by the bytes of K and V. Keys are lanes for the
// scores (groups of keys transposed in registers), dims are lanes for the weighted sum; every byte
// is read once for all rows of a KV head. Each operation is the one that prefill does for the same
// score, weight or sum, in the same order: the bits agree. Included inside an ISA namespace after
// prefill.hpp.

template <class Path>
struct Decode {
  static constexpr int kTogether = 8;   // rows whose queries lie beside each other
  static constexpr int kRowsMost = 16;  // above that prefill's lanes are full
  static constexpr std::int64_t kPhase =
      256;  // keys scored before their values are read: long runs for prefetching
  static constexpr int kBlocks = kPhase / kKeyBlock;
  static constexpr std::int64_t kAhead = 16384;  // bytes fetched ahead

  struct RowState {
    float max[kRowsMost], total[kRowsMost], exact_total[kRowsMost];
    void reset() {
      for (int r = 0; r < kRowsMost; ++r) max[r] = -kInfinity, total[r] = exact_total[r] = 0.0f;
    }
  };

  struct Memory {
    // q [row / kTogether][step][row % kTogether], one row of it, scores [row][kPhase], accumulators
    // [row][value_dim]
    float *q, *q_row, *scores, *added, *running;
    RowState *split, *whole;
  };

  static std::int64_t align(std::int64_t bytes) { return (bytes + 63) & ~std::int64_t{63}; }
  static std::int64_t pad(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

  static std::int64_t lay_out(const AttendCall& call, std::byte* base, Memory* memory) {
    std::int64_t at = 0;
    const auto take = [&](auto*& pointer, std::int64_t bytes) {
      if (base) pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
      at += align(bytes);
    };
    Memory unused;
    Memory& m = memory ? *memory : unused;
    take(m.q, kRowsMost * pad(Path::steps(call.head_dim)) * 4);
    take(m.q_row, pad(Path::steps(call.head_dim)) * 4);
    take(m.scores, kRowsMost * kPhase * 4);
    take(m.added, kRowsMost * pad(call.value_dim) * 4);
    take(m.running, kRowsMost * pad(call.value_dim) * 4);
    take(m.split, static_cast<std::int64_t>(sizeof(RowState)));
    take(m.whole, static_cast<std::int64_t>(sizeof(RowState)));
    return at;
  }

  static std::int64_t rows(const AttendCall& call) {
    const bool codes = element_bytes(call.k.type) < 2;
    const bool dense =
        call.k.type == call.v.type && (codes || (call.k.dim == element_bytes(call.k.type) &&
                                                 call.v.dim == element_bytes(call.v.type)));
    // A vector of queries that is nearly full asks for no transposing (docs/performance.md).
    const bool fill_lanes = kLanes == kRowsMost && call.k.type == ElementType::float32;
    return !dense ? 0 : fill_lanes ? kRowsMost - 4 : kRowsMost;
  }
  static std::int64_t scratch_bytes(const AttendCall& call) {
    return lay_out(call, nullptr, nullptr);
  }
  static std::int64_t partial_bytes(const AttendCall& call) {
    return align(static_cast<std::int64_t>(sizeof(RowState))) + kRowsMost * pad(call.value_dim) * 4;
  }

  const AttendCall& call;
  const WorkItem& item;
  const Rules rules;
  const Sequence sequence;
  Memory memory;
  const int row_count;
  std::int64_t query[kRowsMost], head[kRowsMost], begin[kRowsMost], end[kRowsMost];
  float slope[kRowsMost];
  std::uint64_t words[kBlocks][kRowsMost];       // what each row sees of each block of a phase
  alignas(64) float factor[kBlocks][kRowsMost];  // what each block does to the sums before it
  bool rescaled[kBlocks], seen[kBlocks], full[kBlocks];

  Decode(const AttendCall& c, const WorkItem& i, std::byte* base)
      : call(c),
        item(i),
        rules(c, Path::kBfloat16),
        sequence(sequence_of(c, i.batch)),
        row_count(static_cast<int>(i.rows)) {
    lay_out(call, base, &memory);
    const std::int64_t group = call.group();
    for (int r = 0; r < row_count; ++r) {
      const std::int64_t row = item.first_row + r;
      query[r] = row / group;
      head[r] = item.kv_head * group + row % group;
      const KeyRange range = structural_range(call.mask, sequence, sequence.q_pos0 + query[r]);
      begin[r] = range.begin;
      end[r] = range.end;
      slope[r] = !call.score.alibi ? 0.0f
                 : call.score.alibi_slopes
                     ? call.score.alibi_slopes[head[r] * call.score.alibi_stride]
                     : alibi_slope(head[r], call.q_heads);
    }
  }

  static void attend(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                     std::byte* partial) {
    Decode self(call, item, scratch);
    self.pack_q();
    Path::visit_elements(call, [&](auto elements) { self.template run<decltype(elements)>(); });
    if (partial)
      self.save(partial);
    else
      self.finish_rows(*self.memory.whole, self.memory.running);
  }

  void pack_q() {
    const std::int64_t steps = Path::steps(call.head_dim);
    for (int r = 0; r < row_count; ++r) {
      const std::byte* from = sequence.q + query[r] * call.q.token + head[r] * call.q.head;
      Path::q_row(memory.q_row, from, call.q, call.head_dim, rules.q_factor);
      float* to = q_of(r, 0);
      for (std::int64_t s = 0; s < steps; ++s) to[s * kTogether] = memory.q_row[s];
    }
  }

  /// Step s of row r's query; the next rows' follow, the next step's is kTogether on.
  float* q_of(int r, std::int64_t s) const {
    return memory.q + (r / kTogether * pad(Path::steps(call.head_dim)) + s) * kTogether +
           r % kTogether;
  }

  template <class Elements>
  void run() {
    memory.whole->reset();
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    for (int r = 0; r < row_count; ++r)
      first = std::min(first, begin[r]), last = std::max(last, end[r]);
    const std::int64_t window = first;
    if (call.mask.kept > 0) first = 0;
    first = std::max(first, item.first_split * kSplitKeys);
    last = std::min(last, item.end_split * kSplitKeys);
    for (std::int64_t split = first / kSplitKeys; split * kSplitKeys < last; ++split) {
      if (between(call.mask, window, split)) continue;
      bool touched = false;
      const std::int64_t stop = std::min(last, (split + 1) * kSplitKeys);
      std::int64_t at = std::max(first / kKeyBlock * kKeyBlock, split * kSplitKeys);
      for (; at < stop; at += kPhase) phase<Elements>(at, std::min(stop, at + kPhase), touched);
      if (touched)
        fold_rows(call, rules, row_count, *memory.whole, memory.running, *memory.split,
                  memory.added);
    }
  }

  int keys_of(std::int64_t block) const {
    return static_cast<int>(std::min<std::int64_t>(kKeyBlock, sequence.kv_len - block));
  }

  template <class Elements>
  void phase(std::int64_t from, std::int64_t to, bool& touched) {
    int blocks = 0;
    for (std::int64_t block = from; block < to; block += kKeyBlock, ++blocks) {
      seen[blocks] = look_block(block, blocks);
      if (!seen[blocks]) continue;
      if (!touched) {
        memory.split->reset();
        std::memset(memory.added, 0, static_cast<std::size_t>(row_count * pad(call.value_dim)) * 4);
        touched = true;
      }
      score_block<Elements>(block, blocks);
      weigh_scores(block, blocks);
    }
    for (int b = 0; b < blocks; ++b) {
      if (seen[b]) sum_block<Elements>(from + b * kKeyBlock, b);
    }
  }

  bool look_block(std::int64_t block, int b) {
    const int keys = keys_of(block);
    const std::uint64_t whole = ~std::uint64_t{0} >> (kKeyBlock - keys);
    std::uint64_t any = 0;
    full[b] = true;
    for (int r = 0; r < row_count; ++r) {
      words[b][r] = table_word(call, sequence, head[r], query[r],
                               structural_word(call.mask, begin[r], end[r], block), block, keys) &
                    whole;
      any |= words[b][r];
      full[b] = full[b] && words[b][r] == whole;
    }
    return any != 0;
  }

  // --- scores: lanes are keys ---

  template <class Elements>
  void score_block(std::int64_t block, int b) {
    const int keys = keys_of(block);
    float* scores = memory.scores + b * kKeyBlock;
    for (int group = 0; group < keys; group += kPair * kLanes) {
      const int count = std::min(kPair * kLanes, keys - group);
      if constexpr (Elements::kCodes)
        score_codes<Elements>(block + group, count, scores + group);
      else
        score_groups<Elements>(block + group, count, scores + group);
    }
  }

  /// The keys of a group of lanes: row i lies at i * token past the one of its half. Only pages of
  /// 8 tokens part a group.
  struct Group {
    KeyRows low, high;
    std::int64_t ahead;         // bytes from a row to the one to fetch while it is read
    const float* scales_ahead;  // of that row; null: none to fetch
    const std::byte* row(int i, std::int64_t token) const {
      return (i < kLanes / 2 ? low : high).data + i * token;
    }
  };

  Group group_at(std::int64_t first, int keys) const {
    const Operand& x = call.k;
    Group group;
    group.low = group.high = key_rows(call, sequence, x, sequence.k, item.kv_head, first);
    const std::int64_t bytes = std::max<std::int64_t>(1, row_bytes(x, call.head_dim));
    const std::int64_t tokens = std::max<std::int64_t>(kPair * kLanes, kAhead / bytes);
    group.ahead = tokens * x.token;
    group.scales_ahead = scales_of(x, sequence.k, first + tokens);
    if (!sequence.pages) return group;
    group.ahead = distance_ahead(x, sequence.k, group.low.data, first, tokens);
    if (const int half = kLanes / 2; keys > half && run_of(call, sequence, first) <= half) {
      group.high = key_rows(call, sequence, x, sequence.k, item.kv_head, first + half);
      group.high.data -= half * x.token;
      if (group.high.scales) group.high.scales -= half * x.scales.token;
    }
    return group;
  }

  /// The scales of row `key`; null where there are none a token, and past the end.
  const float* scales_of(const Operand& x, const std::byte* first, std::int64_t key) const {
    if (!x.scales.data || x.scales.shift == 0 || key >= sequence.kv_len) return nullptr;
    return key_rows(call, sequence, x, first, item.kv_head, key).scales;
  }

  /// Fetches the scales of `keys` rows from the one whose scales are `from`.
  static void fetch_scales(const float* from, const Scales& step, std::int64_t dims, int keys) {
    for (std::int64_t block = 0; from && block * 32 < dims; ++block) {
      for (int key = 0; key < keys; key += 16)
        __builtin_prefetch(from + block * step.block + key * step.token, 0, 3);
    }
  }

  /// Bytes from the row of `key`, which lies at `row`, to the one `tokens` later; 0 past the end.
  std::int64_t distance_ahead(const Operand& x, const std::byte* first, const std::byte* row,
                              std::int64_t key, std::int64_t tokens) const {
    if (key + tokens >= sequence.kv_len) return 0;
    return key_rows(call, sequence, x, first, item.kv_head, key + tokens).data - row;
  }

  static constexpr int kPair = 2;  // groups scored beside each other: their chains overlap

  /// scores[row][0 .. keys) for up to kPair * kLanes keys from `first`; one chain over dims a
  /// score.
  template <class Elements>
  void score_groups(std::int64_t first, int keys, float* scores) {
    const std::int64_t steps = Path::steps(call.head_dim);
    const int groups = (keys + kLanes - 1) / kLanes;
    Group rows[kPair];
    for (int g = 0; g < groups; ++g)
      rows[g] = group_at(first + g * kLanes, std::min(kLanes, keys - g * kLanes));
    for (int r = 0; r < row_count; ++r) {
      for (int g = 0; g < groups; ++g) Simd::store(scores + r * kPhase + g * kLanes, Simd::zero());
    }
    for (std::int64_t s = 0; s < steps; s += kLanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, steps - s));
      for (int g = 0; g < groups; ++g) {
        score_tile<Elements>(rows[g], std::min(kLanes, keys - g * kLanes), s, n,
                             scores + g * kLanes);
      }
    }
  }

  template <class Elements>
  POLYHEAD_INLINE void score_tile(const Group& rows, int keys, std::int64_t s, int n,
                                  float* scores) {
    Simd::V lane[kLanes];
    if (keys == kLanes && n == kLanes && Path::whole(call.head_dim, s)) {
      const std::byte *low = rows.low.data + Elements::byte_of(s),
                      *high = rows.high.data + Elements::byte_of(s);
      const std::int64_t token = call.k.token, ahead = rows.ahead;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const std::byte* row = (i < kLanes / 2 ? low : high) + i * token;
        lane[i] = Elements::load(row, 0, kLanes);
        __builtin_prefetch(row + ahead, 0, 3);
      }
      Simd::transpose(lane);
      score_all_rows(lane, s, scores);
      return;
    }
    score_part<Elements>(rows, keys, s, n, scores);
  }

  template <class Elements>
  __attribute__((noinline)) void score_part(const Group& rows, int keys, std::int64_t s, int n,
                                            float* scores) {
    Simd::V lane[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      lane[i] = i < keys ? Path::template load_steps<Elements>(rows.row(i, call.k.token), s, n,
                                                               call.head_dim)
                         : Simd::zero();
    }
    Simd::transpose(lane);
    for (int r = 0; r < row_count; ++r) {
      const float* q = q_of(r, s);
      Simd::V sum = Simd::load(scores + r * kPhase);
      for (int i = 0; i < n; ++i)
        sum = Path::Dot::dot(lane[i], Simd::broadcast(q[i * kTogether]), sum);
      Simd::store(scores + r * kPhase, sum);
    }
  }

  POLYHEAD_INLINE void score_all_rows(const Simd::V (&lane)[kLanes], std::int64_t s,
                                      float* scores) {
    int r = 0;
    if constexpr (kLanes == 16) {
      for (; r + 16 <= row_count; r += 16)
        score_rows<16>(lane, q_of(r, s), scores + r * kPhase, pad(Path::steps(call.head_dim)));
      for (; r + 8 <= row_count; r += 8) score_rows<8>(lane, q_of(r, s), scores + r * kPhase);
    }
    for (; r + 4 <= row_count; r += 4) score_rows<4>(lane, q_of(r, s), scores + r * kPhase);
    for (; r + 2 <= row_count; r += 2) score_rows<2>(lane, q_of(r, s), scores + r * kPhase);
    for (; r < row_count; ++r) score_rows<1>(lane, q_of(r, s), scores + r * kPhase);
  }

  /// Adds kLanes steps of kLanes keys to the scores of kR rows.
  template <int kR>
  POLYHEAD_INLINE static void score_rows(const Simd::V (&lane)[kLanes], const float* q,
                                         float* scores, std::int64_t q_rows = 0) {
    Simd::V sum[kR];
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) sum[r] = Simd::load(scores + r * kPhase);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kR; ++r)
        sum[r] = Path::Dot::dot(
            lane[i], Simd::broadcast(q[(r / kTogether * q_rows + i) * kTogether + r % kTogether]),
            sum[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) Simd::store(scores + r * kPhase, sum[r]);
  }

  /// The same from codes: a row's kLanes words of four bytes are transposed at once, so that a lane
  /// holds four dims of its key (eight of int4), which become float32 times scale one dim at a
  /// time.
  template <class Elements>
  void score_codes(std::int64_t first, int keys, float* scores) {
    constexpr int kDimsAByte = Elements::kNibbles ? 2 : 1;
    const std::int64_t dims = call.head_dim;
    const std::int64_t bytes = Elements::byte_of((dims + 31) / 32 * 32);
    CodeTile tile;
    for (int g = 0; g < kPair; ++g) {
      tile.keys[g] = std::clamp(keys - g * kLanes, 0, kLanes);
      if (tile.keys[g] == 0) continue;
      tile.rows[g] = group_at(first + g * kLanes, tile.keys[g]);
      fetch_scales(tile.rows[g].scales_ahead, call.k.scales, dims, kLanes);
    }
    for (std::int64_t at = 0; at < bytes; at += 4 * kLanes) {
      const int count = static_cast<int>(std::min<std::int64_t>(kLanes, (bytes - at) / 4));
      for (int g = 0; g < kPair; ++g) stage_codes<Elements>(tile, g, at, count);
      tile.begin = at * kDimsAByte;
      tile.end = std::min(dims, (at + 4 * count) * kDimsAByte);
      if (Elements::kScaled && call.k.scales.shift == 0)
        score_code_rows<Elements, true>(tile, scores);
      else
        score_code_rows<Elements, false>(tile, scores);
    }
  }

  /// Some dims of kPair groups of keys: [word][group][lane].
  struct CodeTile {
    Group rows[kPair];
    int keys[kPair];
    std::int64_t begin, end;  // dims
    bool special[kPair];      // whether there are codes that are no finite number
    alignas(64) float words[kLanes * kPair * kLanes];
  };

  template <class Elements>
  POLYHEAD_INLINE void stage_codes(CodeTile& tile, int g, std::int64_t at, int count) const {
    const Group& rows = tile.rows[g];
    const int keys = tile.keys[g];
    Simd::V lane[kLanes];
    if (keys == kLanes && count == kLanes) {
      const std::byte *low = rows.low.data + at, *high = rows.high.data + at;
      const std::int64_t token = call.k.token;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const std::byte* row = (i < kLanes / 2 ? low : high) + i * token;
        lane[i] = Simd::load(reinterpret_cast<const float*>(row));
        __builtin_prefetch(row + rows.ahead, 0, 3);
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        lane[i] = Simd::zero();
        if (i < keys)
          lane[i] = Simd::load_first(reinterpret_cast<const float*>(rows.row(i, call.k.token) + at),
                                     count);
      }
    }
    tile.special[g] = Elements::special(lane);
    Simd::transpose(lane);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Simd::store(tile.words + (i * kPair + g) * kLanes, lane[i]);
  }

  template <class Elements, bool kByChannel>
  void score_code_rows(const CodeTile& tile, float* scores) {
    bool special = false;
    for (int g = 0; g < kPair; ++g) special = special || tile.special[g];
    const auto score = [&](auto together, int r) {
      if (special)
        score_dims<Elements, kByChannel, true, together>(tile, r, scores + r * kPhase);
      else
        score_dims<Elements, kByChannel, false, together>(tile, r, scores + r * kPhase);
    };
    int r = 0;
    if constexpr (kLanes == 16) {
      for (; r + 8 <= row_count; r += 8) score(std::integral_constant<int, 8>{}, r);
    }
    for (; r + 4 <= row_count; r += 4) score(std::integral_constant<int, 4>{}, r);
    for (; r + 2 <= row_count; r += 2) score(std::integral_constant<int, 2>{}, r);
    for (; r < row_count; ++r) score(std::integral_constant<int, 1>{}, r);
  }

  /// Adds the tile's dims to the scores of kR rows from first_row on; dim 0 begins them.
  template <class Elements, bool kByChannel, bool kSpecial, int kR>
  POLYHEAD_INLINE void score_dims(const CodeTile& tile, int first_row, float* scores) const {
    Simd::V sum[kR][kPair], scale[kPair];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) {
        sum[r][g] = tile.begin == 0 ? Simd::zero() : Simd::load(scores + r * kPhase + g * kLanes);
      }
    }
    const float* q = q_of(first_row, tile.begin);
    const float* channel = kByChannel ? tile.rows[0].low.scales : nullptr;
    const auto add_dim = [&](std::int64_t d, auto shift, const float* word) POLYHEAD_LAMBDA {
      Simd::V value[kPair];
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) {
        value[g] = Elements::template lane<shift, kSpecial>(Simd::load_int(word + g * kLanes));
        if constexpr (kByChannel)
          value[g] = Simd::mul(value[g], Simd::broadcast(channel[d * call.k.scales.block]));
        else if constexpr (Elements::kScaled)
          value[g] = Simd::mul(value[g], scale[g]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Simd::V x = Simd::broadcast(q[(d - tile.begin) * kTogether + r]);
#pragma GCC unroll 2
        for (int g = 0; g < kPair; ++g) sum[r][g] = Simd::fma(value[g], x, sum[r][g]);
      }
    };
    // Four dims of a word, in order; kShift is where the first one's code begins, kApart from the
    // next.
    const auto add_word = [&](std::int64_t d, auto shift, const float* word) POLYHEAD_LAMBDA {
      constexpr int kFirst = shift;
      if (d < tile.end) add_dim(d, std::integral_constant<int, kFirst>{}, word);
      if (d + 1 < tile.end) add_dim(d + 1, std::integral_constant<int, kFirst + 8>{}, word);
      if (d + 2 < tile.end) add_dim(d + 2, std::integral_constant<int, kFirst + 16>{}, word);
      if (d + 3 < tile.end) add_dim(d + 3, std::integral_constant<int, kFirst + 24>{}, word);
    };
    constexpr int kWords = Elements::kNibbles ? 4 : 8;  // of a block of 32 dims
    const float* word = tile.words;
    for (std::int64_t d = tile.begin; d < tile.end; d += 32, word += kWords * kPair * kLanes) {
      if constexpr (Elements::kScaled && !kByChannel) {
#pragma GCC unroll 2
        for (int g = 0; g < kPair; ++g) scale[g] = group_scales(tile.rows[g], tile.keys[g], d / 32);
      }
      for (int w = 0; w < kWords; ++w)
        add_word(d + 4 * w, std::integral_constant<int, 0>{}, word + w * kPair * kLanes);
      if constexpr (Elements::kNibbles) {
        for (int w = 0; w < kWords; ++w)
          add_word(d + 16 + 4 * w, std::integral_constant<int, 4>{}, word + w * kPair * kLanes);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) Simd::store(scores + r * kPhase + g * kLanes, sum[r][g]);
    }
  }

  /// The scales of a group's keys for one block of dims, a lane each.
  POLYHEAD_INLINE Simd::V group_scales(const Group& rows, int keys, std::int64_t block) const {
    const Scales& step = call.k.scales;
    const std::int64_t at = block * step.block;
    if (step.token == 1 && keys == kLanes && rows.low.scales == rows.high.scales)
      return Simd::load(rows.low.scales + at);
    alignas(64) float scale[kLanes] = {};
    for (int i = 0; i < keys; ++i)
      scale[i] = (i < kLanes / 2 ? rows.low : rows.high).scales[at + i * step.token];
    return Simd::load(scale);
  }

  Simd::M visible(std::uint64_t word, int key) const {
    alignas(64) std::int32_t bit[kLanes];
    for (int i = 0; i < kLanes; ++i) bit[i] = static_cast<std::int32_t>(word >> (key + i) & 1);
    return Simd::test(Simd::load_int(bit), Simd::broadcast_int(1));
  }

  /// Modifiers, the rows' new references, and the weights in place of the scores.
  void weigh_scores(std::int64_t block, int b) {
    const int keys = keys_of(block);
    const std::uint64_t whole = ~std::uint64_t{0} >> (kKeyBlock - keys);
    const auto all = [&](int r) { return words[b][r] == whole && keys % kLanes == 0; };
    alignas(64) float most[kRowsMost][kLanes];
    for (int r = 0; r < row_count; ++r) {
      float* s = memory.scores + r * kPhase + b * kKeyBlock;
      if (rules.modified) modify(s, r, b, block, keys);
      Simd::V row_most = Simd::broadcast(-kInfinity);
      for (int key = 0; key < keys; key += kLanes) {
        Simd::V x = Simd::load(s + key);
        if (!all(r)) x = Simd::select(visible(words[b][r], key), x, Simd::broadcast(-kInfinity));
        row_most = Simd::max(row_most, x);
      }
      Simd::store(most[r], row_most);
    }
    move_references(most, b);
    for (int r = 0; r < row_count; ++r) {
      float* s = memory.scores + r * kPhase + b * kKeyBlock;
      switch (rules.exponent) {
        case Exponent::folded:
          exponentiate<Exponent::folded>(s, r, b, keys, all(r));
          break;
        case Exponent::fused:
          exponentiate<Exponent::fused>(s, r, b, keys, all(r));
          break;
        case Exponent::natural:
          exponentiate<Exponent::natural>(s, r, b, keys, all(r));
          break;
      }
    }
    sum_weights(b, keys);
  }

  /// Moves the references of rows that a block exceeds by far. Lanes are rows; `most` holds each
  /// row's largest scores, a lane each.
  void move_references(float (&most)[kRowsMost][kLanes], int b) {
    RowState& state = *memory.split;
    rescaled[b] = false;
    for (int first = 0; first < row_count; first += kLanes) {
      Simd::V lane[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        lane[i] = first + i < row_count ? Simd::load(most[first + i]) : Simd::broadcast(-kInfinity);
      }
      Simd::transpose(lane);
      Simd::V block_max = lane[0];
      for (int i = 1; i < kLanes; ++i) block_max = Simd::max(block_max, lane[i]);
      const Rescale step = rescale(Simd::load(state.max + first), block_max, rules);
      Simd::store(factor[b] + first, step.factor);
      if (!step.needed) continue;
      rescaled[b] = true;
      Simd::store(state.max + first, step.max);
      for (float* total : {state.total, state.exact_total})
        Simd::store(total + first, Simd::mul(Simd::load(total + first), step.factor));
    }
  }

  void sum_weights(int b, int keys) {
    RowState& state = *memory.split;
    const bool exact = call.lse.data != nullptr;
    const auto sum = [&](auto together, int r) {
      Path::template sum_weights<together>(memory.scores + r * kPhase + b * kKeyBlock, kPhase, keys,
                                           state.total + r, state.exact_total + r, exact);
    };
    int r = 0;
    for (; r + 8 <= row_count; r += 8) sum(std::integral_constant<int, 8>{}, r);
    for (; r + 4 <= row_count; r += 4) sum(std::integral_constant<int, 4>{}, r);
    for (; r < row_count; ++r) sum(std::integral_constant<int, 1>{}, r);
  }

  void modify(float* s, int r, int b, std::int64_t block, int keys) {
    const ScoreSpec& spec = call.score;
    const SoftCap cap{spec.soft_cap, spec.soft_cap != 0.0f ? 1.0f / spec.soft_cap : 0.0f};
    alignas(64) float bias[kKeyBlock + kLanes] = {};
    if (spec.bias.data) {
      widen_row(bias,
                spec.bias.data + sequence.batch * spec.bias.batch + head[r] * spec.bias.head +
                    query[r] * spec.bias.query + block * spec.bias.key,
                spec.bias.type, spec.bias.key, keys);
    }
    const Simd::V from = Simd::broadcast(static_cast<float>(sequence.q_pos0 + query[r] - block));
    for (int key = 0; key < keys; key += kLanes) {
      Simd::V x = Simd::load(s + key);
      if (rules.score_factor != 1.0f || spec.soft_cap != 0.0f)
        x = Simd::mul(x, Simd::broadcast(rules.score_factor));
      if (spec.soft_cap != 0.0f) x = cap(x);
      if (spec.bias.data) x = Simd::add(x, Simd::load(bias + key));
      if (spec.alibi) {
        alignas(64) float at[kLanes];
        for (int i = 0; i < kLanes; ++i) at[i] = static_cast<float>(key + i);
        x = alibi(x, Simd::broadcast(slope[r]), from, Simd::load(at));
      }
      Simd::store(s + key, x);
    }
    // A score of -inf hides its pair.
    for (int key = 0; key < keys; ++key) {
      if (s[key] == -kInfinity) words[b][r] &= ~(std::uint64_t{1} << key), full[b] = false;
    }
  }

  template <Exponent kForm>
  void exponentiate(float* s, int r, int b, int keys, bool all) {
    const Simd::V unit = Simd::broadcast(rules.unit);
    const Simd::V base = exponent_base<kForm>(Simd::broadcast(memory.split->max[r]), unit);
    for (int key = 0; key < keys; key += kLanes) {
      Simd::V p = Simd::exp2(exponent_of<kForm>(Simd::load(s + key), base, unit));
      if (!all) p = Simd::select(visible(words[b][r], key), p, Simd::zero());
      Simd::store(s + key, p);
    }
  }

  // --- weighted sum: lanes are dims ---

  template <class Elements>
  void sum_block(std::int64_t block, int b) {
    const int keys = keys_of(block);
    const std::int64_t row_floats = pad(call.value_dim);
    if (rescaled[b]) {
      for (int r = 0; r < row_count; ++r) {
        const Simd::V f = Simd::broadcast(factor[b][r]);
        float* o = memory.added + r * row_floats;
        for (std::int64_t d = 0; d < row_floats; d += kLanes)
          Simd::store(o + d, Simd::mul(Simd::load(o + d), f));
      }
    }
    for (int key = 0; key < keys;) {  // pages shorter than a block are pieces of it
      const int piece =
          static_cast<int>(std::min<std::int64_t>(keys - key, run_of(call, sequence, block + key)));
      sum_piece<Elements>(block + key, key, piece, b);
      key += piece;
    }
  }

  /// Keys [at, at + keys) of block b, `first` being the first of them.
  template <class Elements>
  void sum_piece(std::int64_t first, int at, int keys, int b) {
    const KeyRows rows = key_rows(call, sequence, call.v, sequence.v, item.kv_head, first);
    if (!full[b]) {
      for (int r = 0; r < row_count; ++r) sum_row_masked<Elements>(rows, at, keys, r, b);
      return;
    }
    const Piece piece{rows, at, keys, b, fetch_distance(rows.data, first)};
    fetch_scales(scales_of(call.v, sequence.v, first + kKeyBlock), call.v.scales, call.value_dim,
                 keys);
    int r = 0;
    if constexpr (kLanes == 16) {
      for (; r + 8 <= row_count; r += 8) sum_rows<Elements, 8, 2>(piece, r);
    }
    for (; r + 4 <= row_count; r += 4) sum_rows<Elements, 4, kLanes / 4>(piece, r);
    for (; r + 2 <= row_count; r += 2) sum_rows<Elements, 2, 4>(piece, r);
    for (; r < row_count; ++r) sum_rows<Elements, 1, 4>(piece, r);
  }

  /// Bytes from a row of values to the one fetched while it is read: the same row of the next
  /// block, since each pass over a block reads some of its columns only.
  std::int64_t fetch_distance(const std::byte* row, std::int64_t key) const {
    const std::int64_t bytes = std::max<std::int64_t>(1, row_bytes(call.v, call.value_dim));
    const std::int64_t tokens = std::max<std::int64_t>(kKeyBlock, kAhead / bytes);
    return sequence.pages ? distance_ahead(call.v, sequence.v, row, key, tokens)
                          : tokens * call.v.token;
  }

  /// A run of a block's values: `keys` of them from key `at` of block `b` on.
  struct Piece {
    KeyRows rows;
    int at, keys, b;
    std::int64_t ahead;  // bytes from a row to the one to fetch while it is read
  };

  /// Rows [first_row, first_row + kR), kC vectors of dims at a time: their accumulators stay in
  /// registers for all keys of the piece.
  template <class Elements, int kR, int kC>
  void sum_rows(const Piece& piece, int first_row) {
    std::int64_t d = 0;
    for (; d + kC * kLanes <= call.value_dim; d += kC * kLanes)
      sum_dims<Elements, kR, kC>(piece, d, kLanes, first_row);
    for (; d < call.value_dim; d += kLanes) {
      const auto n = static_cast<int>(std::min<std::int64_t>(kLanes, call.value_dim - d));
      sum_dims<Elements, kR, 1>(piece, d, n, first_row);
    }
  }

  template <class Elements, int kR, int kC>
  void sum_dims(const Piece& piece, std::int64_t d, int n, int first_row) {
    const std::int64_t row_floats = pad(call.value_dim);
    float* o = memory.added + first_row * row_floats + d;
    Simd::V acc[kR][kC];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kC; ++c) acc[r][c] = Simd::load(o + r * row_floats + c * kLanes);
    }
    const std::int64_t ahead = first_row == 0 ? piece.ahead : 0;
    const float* p =
        memory.scores + first_row * kPhase + piece.b * kKeyBlock + Path::steps(piece.at);
    const int steps = static_cast<int>(Path::steps(piece.keys));
    for (int s = 0; s < steps; ++s) {
      Simd::V value[kC];
      Path::template values<Elements>(value, piece.rows, call.v, s, piece.keys, d, n, ahead);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Simd::V x = Simd::broadcast(p[r * kPhase + s]);
#pragma GCC unroll 4
        for (int c = 0; c < kC; ++c) acc[r][c] = Path::Dot::dot(value[c], x, acc[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kC; ++c) Simd::store(o + r * row_floats + c * kLanes, acc[r][c]);
    }
  }

  /// One row of a block that it sees in part: what it does not see is not read into the sum.
  template <class Elements>
  void sum_row_masked(const KeyRows& rows, int at, int keys, int r, int b) {
    float* o = memory.added + r * pad(call.value_dim);
    const float* p = memory.scores + r * kPhase + b * kKeyBlock + Path::steps(at);
    const std::uint64_t word = words[b][r] >> at;
    for (std::int64_t d = 0; d < call.value_dim; d += kLanes) {
      const int n = static_cast<int>(std::min<std::int64_t>(kLanes, call.value_dim - d));
      Simd::V sum = Simd::load(o + d);
      for (int s = 0; s < static_cast<int>(Path::steps(keys)); ++s) {
        if (!Path::step_visible(word, s)) continue;
        Simd::V value[1];
        Path::template values<Elements>(value, rows, call.v, s, keys, d, n, 0);
        sum = Path::Dot::dot(Path::visible_part(value[0], word, s), Simd::broadcast(p[s]), sum);
      }
      Simd::store(o + d, sum);
    }
  }

  // --- splits and the end ---

  static void fold_rows(const AttendCall& call, const Rules& rules, int rows, RowState& whole,
                        float* running, const RowState& split, const float* added) {
    alignas(64) float keep[kRowsMost], take[kRowsMost];
    float total[kRowsMost];
    for (int r = 0; r < kRowsMost; ++r) total[r] = whole.total[r];
    for (int r = 0; r < kRowsMost; r += kLanes) {
      const Fold f = fold(Simd::load(whole.max + r), Simd::load(split.max + r), rules);
      Simd::store(keep + r, f.running);
      Simd::store(take + r, f.added);
      const auto join = [&](float* to, const float* from) {
        Simd::store(to + r, Simd::fma(Simd::load(to + r), f.running,
                                      Simd::mul(Simd::load(from + r), f.added)));
      };
      join(whole.total, split.total);
      join(whole.exact_total, split.exact_total);
      Simd::store(whole.max + r, f.max);
    }
    const std::int64_t row_floats = pad(call.value_dim);
    for (int r = 0; r < rows; ++r) {
      if (split.total[r] == 0.0f) {  // nothing seen: as prefill, leave what there is
        if (total[r] == 0.0f)
          std::memset(running + r * row_floats, 0, static_cast<std::size_t>(row_floats) * 4);
        continue;
      }
      const Simd::V a = Simd::broadcast(keep[r]), b = Simd::broadcast(take[r]);
      for (std::int64_t d = 0; d < row_floats; d += kLanes) {
        float* to = running + r * row_floats + d;
        const Simd::V more = Simd::mul(Simd::load(added + r * row_floats + d), b);
        Simd::store(to, total[r] == 0.0f ? more : Simd::fma(Simd::load(to), a, more));
      }
    }
  }

  void finish_rows(const RowState& state, float* o) {
    const std::int64_t row_floats = pad(call.value_dim);
    for (int r = 0; r < row_count; ++r) {
      const RowEnd row = end_row(call, rules, head[r], state.max[r], state.total[r],
                                 state.exact_total[r], 0.0f, 0.0f);
      write_row_values(call, sequence, query[r], head[r], row, -1);
      float* values = o + r * row_floats;
      const Simd::V f = Simd::broadcast(row.factor);
      for (std::int64_t d = 0; d < row_floats; d += kLanes) {
        Simd::store(values + d, Simd::add(Simd::mul(Simd::load(values + d), f), Simd::zero()));
      }
      if (state.total[r] == 0.0f) std::memset(values, 0, static_cast<std::size_t>(row_floats) * 4);
      std::byte* to = sequence.out + query[r] * call.out.token + head[r] * call.out.head;
      narrow_row(to, values, call.out.type, call.out.dim, call.value_dim);
    }
  }

  static RowState& partial_state(std::byte* partial) {
    return *reinterpret_cast<RowState*>(partial);
  }
  static float* partial_sums(std::byte* partial) {
    return reinterpret_cast<float*>(partial + align(static_cast<std::int64_t>(sizeof(RowState))));
  }

  void save(std::byte* partial) {
    partial_state(partial) = *memory.whole;
    std::memcpy(partial_sums(partial), memory.running,
                static_cast<std::size_t>(row_count * pad(call.value_dim)) * 4);
  }

  static void merge(const AttendCall& call, const WorkItem& item, std::byte* running,
                    const std::byte* added) {
    const Rules rules(call, Path::kBfloat16);
    std::byte* from = const_cast<std::byte*>(added);
    fold_rows(call, rules, static_cast<int>(item.rows), partial_state(running),
              partial_sums(running), partial_state(from), partial_sums(from));
  }

  static void finish(const AttendCall& call, const WorkItem& item, std::byte* running,
                     std::byte* scratch) {
    Decode self(call, item, scratch);
    self.finish_rows(partial_state(running), partial_sums(running));
  }
};
