// What decoding knows of its few rows: their queries, what each may see, their running sums, where
// their keys lie and which lines to fetch. Included inside an ISA namespace after softmax.hpp and
// decode_ahead.hpp.

/// Whether rows may be lanes: as many as a vector has.
inline constexpr bool kFillLanes = kLanes == 16;

/// The most rows that share what is loaded: as many accumulators stay in registers.
inline constexpr int kRowsShare = kLanes == 16 ? 8 : 4;

template <class Path>
struct FewRows {
  static constexpr int kTogether = 8;   // rows whose queries lie beside each other
  static constexpr int kRowsMost = 16;  // above that prefill's lanes are full
  // From how many rows on they are lanes, and keys are not transposed (docs/kernel-notes.md).
  static constexpr int kRowsFillLanes = 13;
  // Keys scored before their values are read, long runs of both for memory; fewer where the rows'
  // scores would fill L1.
  static constexpr std::int64_t kLongPhase = 1024, kShortPhase = 256;
  static constexpr std::int64_t kPhase =
      kLongPhase + 16;  // floats of a row of scores: a line more, or all rows share sets of L1
  static constexpr int kBlocks = kPhase / kKeyBlock;
  static constexpr int kPair = 2;  // groups of codes scored beside each other: their chains overlap
  // Keys that lie transposed for the rows after the first kRowsShare (TurnedKeys), where these are
  // four; eight are all rows of most models.
  static constexpr int kTurned = kRowsShare < 8 ? kPair * kLanes : 0;
  // Groups whose scores are computed beside each other (DecodeBeside); floats of two tiles of them,
  // of two steps a word.
  static constexpr int kMostBeside = 4, kLeastTurned = 2 * 2 * kTileSteps * kMostBeside * kLanes;
  static constexpr int kShortestPiece = kLanes == 16 ? 4 : 8;
  // How far ahead lines are fetched, in whole groups of keys and pieces of values but for those
  // that need not be (too_early, values_fetched; docs/kernel-notes.md).
  static constexpr std::int64_t kBytesAhead = 4096, kBlockBytesAhead = 16384;
  static constexpr std::int64_t kFarBytes = 8192;   // from what goes to L1 to what goes to L2
  static constexpr std::int64_t kLongGroup = 8192;  // bytes; longer groups stay whole

  static constexpr int kGroups = kKeyBlock / kLanes;
  static constexpr std::int64_t kLine = 64;
  static constexpr int kFetched = 9;  // of kLanes: a little more than half, the sums take the rest

  static constexpr int kLateRows = 4;  // rows in fours have totals that wait (late_totals)
  static constexpr bool kTotalsBeside = kFillLanes && !Path::kBfloat16 && !Path::kInteger;

  struct RowState {
    float max[kRowsMost], total[kRowsMost], exact_total[kRowsMost];
    void reset() {
      for (int r = 0; r < kRowsMost; ++r) max[r] = -kInfinity, total[r] = exact_total[r] = 0.0f;
    }
  };

  struct Memory {
    // q [row / kTogether][step][row % kTogether], or [step][kLanes] where rows are lanes; its rows
    // on the way there; scores [row][kPhase], accumulators [row][value_dim]
    float *q, *q_rows, *scores, *added, *running;
    RowState *split, *whole;
    float* turned;  // keys of kPair groups, [step][kTurned], or tiles of groups beside each other
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
    take(m.q, kRowsMost * pad(Path::q_steps(call.head_dim)) * 4);
    take(m.q_rows, (kFillLanes ? kLanes : 1) * pad(Path::q_steps(call.head_dim)) * 4);
    if (kTurned > 0)
      take(m.turned,
           std::max<std::int64_t>(kLeastTurned, kTurned * pad(Path::q_steps(call.head_dim))) * 4);
    take(m.scores, kRowsMost * kPhase * 4);
    take(m.added, kRowsMost * pad(call.value_dim) * 4);
    take(m.running, kRowsMost * pad(call.value_dim) * 4);
    take(m.split, static_cast<std::int64_t>(sizeof(RowState)));
    take(m.whole, static_cast<std::int64_t>(sizeof(RowState)));
    return at;
  }

  const AttendCall& call;
  const WorkItem& item;
  const Rules rules;
  const Sequence sequence;
  Memory memory;
  const int row_count;
  const int rows_computed;  // those and more, whose queries are 0, so that 1, 2, 4 or 8 share loads
  const bool rows_are_lanes;
  const bool values_in_keys;  // both are fetched together, a block ahead
  const std::int64_t phase_keys;
  const int keys_together;                  // of groups scored beside each other
  const std::int64_t keys_run;              // of them, on one page
  const bool parted_keys;                   // whether a group's halves are on pages of their own
  const std::int64_t keys_ahead, keys_far;  // tokens from a row to those to fetch
  const int values_together;                // a piece of a block
  const std::int64_t values_ahead, values_far;
  const bool dense_keys, dense_values;  // rows touch, and are not long
  // Bytes by which keys_ahead and the way from there to keys_far are more than is wanted
  // (too_early).
  const std::int64_t keys_early, keys_far_early;
  std::int64_t query[kRowsMost], head[kRowsMost], position[kRowsMost];
  std::int64_t begin[kRowsMost], end[kRowsMost];
  float slope[kRowsMost];
  std::uint64_t words[kBlocks][kRowsMost];       // what each row sees of each block of a phase
  alignas(64) float factor[kBlocks][kRowsMost];  // what each block does to the sums before it
  bool rescaled[kBlocks], seen[kBlocks], full[kBlocks];
  const std::byte* next[kGroups] = {};  // rows of the next block, a group of lanes each

  FewRows(const AttendCall& c, const WorkItem& i, std::byte* base)
      : call(c),
        item(i),
        rules(c, Path::kBfloat16),
        // What is fetched ahead of the item's end may be other keys than those that come.
        sequence(without_pages(c, sequence_of(c, i.batch), i.first_split * kSplitKeys,
                               i.end_split * kSplitKeys)),
        row_count(static_cast<int>(i.rows)),
        rows_computed(row_count > kRowsShare
                          ? row_count
                          : static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(i.rows)))),
        rows_are_lanes(kFillLanes && i.rows >= kRowsFillLanes && Path::broadcasts(c)),
        values_in_keys(rows_are_lanes && c.v.data == c.k.data && c.v.batch == c.k.batch &&
                       c.v.token == c.k.token && c.v.head == c.k.head &&
                       c.k.token <= row_bytes(c.k, c.head_dim) + kLine),
        phase_keys(values_in_keys           ? kKeyBlock
                   : row_count <= kTogether ? kLongPhase
                                            : kShortPhase),
        keys_together(in_pairs() ? kPair * kLanes : kLanes),
        keys_run(std::min<std::int64_t>(keys_together,
                                        sequence.pages ? c.pages.page_tokens() : keys_together)),
        parted_keys(keys_run < kLanes),
        keys_ahead(whole(keys_together, bytes_ahead() / some_bytes(c.k, c.head_dim))),
        keys_far(keys_ahead + whole(keys_together, kFarBytes / some_bytes(c.k, c.head_dim))),
        values_together(in_one_piece() ? kKeyBlock : keys_of_piece()),
        values_ahead(whole(values_fetched(),
                           (values_fetched() == kKeyBlock ? kBlockBytesAhead : bytes_ahead()) /
                               some_bytes(c.v, c.value_dim))),
        values_far(values_ahead +
                   (values_fetched() == kKeyBlock && in_one_stream()
                        ? 0
                        : whole(values_fetched(), kFarBytes / some_bytes(c.v, c.value_dim)))),
        dense_keys(!parted_keys && !rows_are_lanes && touch(c.k, c.head_dim, keys_together)),
        dense_values(touch(c.v, c.value_dim, values_together)),
        keys_early(too_early(keys_ahead, kBytesAhead)),
        keys_far_early(too_early(keys_far - keys_ahead, kFarBytes)) {
    lay_out(call, base, &memory);
    const std::int64_t group = call.group();
    for (int r = 0; r < row_count; ++r) {
      const std::int64_t row = item.first_row + r;
      query[r] = row / group;
      head[r] = item.kv_head * group + row % group;
      position[r] = call.q_positions ? call.q_positions[query[r]] : sequence.q_pos0 + query[r];
      const KeyRange range = structural_range(call.mask, sequence, position[r]);
      begin[r] = range.begin;
      end[r] = range.end;
      slope[r] = !call.score.alibi ? 0.0f
                 : call.score.alibi_slopes
                     ? call.score.alibi_slopes[head[r] * call.score.alibi_stride]
                     : alibi_slope(head[r], call.q_heads);
    }
  }

  /// Whether elements become float32 before they are multiplied.
  bool converted() const { return !Path::broadcasts(call); }

  /// Whether memory waits for the arithmetic rather than the other way round: many rows, or some
  /// and a type that is converted.
  bool bound_by_arithmetic() const { return row_count > kRowsShare / (converted() ? 4 : 2); }

  bool in_pairs() const {
    return !Path::kInteger && !Path::kBfloat16 && element_bytes(call.k.type) < 2;
  }

  /// Vectors of dims whose sums stay in registers for `rows` rows: half of the registers, which are
  /// twice as many as a vector has lanes.
  static constexpr int vectors_of(int rows) { return kLanes / std::max(rows, 2); }

  /// Whether values are read once, row by row. Sums take whole powers of two of vectors in a pass
  /// (DecodeSums::sum_rows).
  bool in_one_pass() const {
    return !bound_by_arithmetic() && element_bytes(call.v.type) >= 2 &&
           call.value_dim <= vectors_of(rows_computed) * kLanes &&
           std::has_single_bit(static_cast<std::uint64_t>(call.value_dim));
  }

  /// Whether that is one stream: processors see it, and fetch it into L2 by themselves faster than
  /// they can be asked to (docs/kernel-notes.md).
  bool in_one_stream() const { return in_one_pass() && !sequence.pages; }

  /// Whether totals of rows wait for their values. Nothing asks for those of weights that are not
  /// rounded before a split ends (slack()). Other numbers of rows, and codes as integers, do no
  /// better that way (docs/kernel-notes.md).
  bool late_totals() const {
    return !Path::kBfloat16 && !Path::kInteger && rows_computed % kLateRows == 0;
  }

  /// Whether block b's part of them is summed beside the first values, by units that multiply-adds
  /// leave idle. All rows see all of it; beside 16 registers there is no room.
  bool totals_beside_values(int b) const {
    return kTotalsBeside && late_totals() && full[b] &&
           call.value_dim >= vectors_of(kLateRows) * kLanes;
  }

  /// Values that are fetched as one: a piece, or each by itself where they stream by with next to
  /// no arithmetic.
  std::int64_t values_fetched() const {
    const bool alone = in_one_stream() && row_count == 1 && element_bytes(call.v.type) == 4;
    return alone ? 1 : values_together;
  }

  /// By how many bytes whole groups of keys, `tokens` in all, come sooner than `wanted` bytes
  /// ahead. Keys in one piece need not come as whole groups; those of long rows do better that way
  /// (docs/kernel-notes.md).
  std::int64_t too_early(std::int64_t tokens, std::int64_t wanted) const {
    const std::int64_t token = call.k.token;
    if (!dense_keys || sequence.pages || keys_together * token > kLongGroup) return 0;
    return std::max<std::int64_t>(0, tokens * token - wanted);
  }

  /// Whether a block of values is one piece: read in one pass, fetched as keys, not waited for, or
  /// read beside what other workers read, where memory gives the more the longer pieces are.
  bool in_one_piece() const {
    return Path::kInteger /* a sum of its own */ || values_in_keys || bound_by_arithmetic() ||
           in_one_pass() || (memory_decides() && item.beside_others);
  }

  /// Whether memory decides what else is best: with narrower vectors arithmetic does, and where
  /// pages are very short their number.
  bool memory_decides() const { return kLanes == 16 && !parted_keys; }

  /// Of a lone worker's pages, whose beginnings no processor foresees, lines come sooner.
  std::int64_t bytes_ahead() const {
    const bool sooner = memory_decides() && sequence.pages && !item.beside_others;
    return sooner ? 2 * kBytesAhead : kBytesAhead;
  }

  /// Keys of a piece of values that are read in several passes: a share of a block, within a page
  /// or whole pages. Only the first pass over a piece waits for memory, but each loads and stores
  /// its sums, which costs bfloat16 the most: without pages it gains too little by short ones
  /// (docs/kernel-notes.md).
  int keys_of_piece() const {
    const bool short_pieces = Path::kBfloat16 ? sequence.pages && memory_decides() : kLanes == 16;
    const std::int64_t most = short_pieces ? 2048 : 4096,
                       bytes = some_bytes(call.v, call.value_dim);
    int keys = kKeyBlock;
    while (keys > kShortestPiece && keys * bytes > most) keys /= 2;
    return keys;
  }

  /// Whether `rows` rows lie one after the other, and what is fetched while they are read in
  /// columns stays in L1 for as long.
  static bool touch(const Operand& x, std::int64_t dim, std::int64_t rows) {
    constexpr std::int64_t kMostBytes = 32 << 10;
    return x.token == row_bytes(x, dim) && rows * x.token <= kMostBytes;
  }

  /// `tokens` in whole units.
  static std::int64_t whole(std::int64_t unit, std::int64_t tokens) {
    return std::max<std::int64_t>(1, (tokens + unit - 1) / unit) * unit;
  }

  static std::int64_t some_bytes(const Operand& x, std::int64_t dim) {
    return std::max<std::int64_t>(1, row_bytes(x, dim));
  }

  /// Rows that have queries, if only zeros: turned keys are multiplied by whole kRowsShare.
  std::int64_t rows_packed() const {
    return kTurned > 0 && row_count > kRowsShare ? whole(kRowsShare, row_count) : rows_computed;
  }

  void pack_q() {
    const std::int64_t steps = Path::q_steps(call.head_dim), row_floats = pad(steps);
    if constexpr (kFillLanes) {
      if (rows_are_lanes) return pack_q_lanes(row_floats);
    }
    for (int r = 0; r < row_count; ++r) {
      read_q(memory.q_rows, r);
      float* to = q_of(r, 0);
      for (std::int64_t s = 0; s < steps; ++s) to[s * kTogether] = memory.q_rows[s];
    }
    for (int r = row_count; r < rows_packed(); ++r) {
      float* to = q_of(r, 0);
      for (std::int64_t s = 0; s < steps; ++s) to[s * kTogether] = 0.0f;
    }
  }

  void read_q(float* to, int r) const {
    Path::q_row(to, sequence.q + query[r] * call.q.token + head[r] * call.q.head, call,
                item.kv_head, rules.q_factor);
  }

  void pack_q_lanes(std::int64_t row_floats) {
    for (int r = 0; r < row_count; ++r) read_q(memory.q_rows + r * row_floats, r);
    for (std::int64_t s = 0; s < row_floats; s += kLanes) {
      Simd::V lane[kLanes];
      for (int r = 0; r < kLanes; ++r)
        lane[r] = Simd::load(memory.q_rows + std::min(r, row_count - 1) * row_floats + s);
      Simd::transpose(lane);
      for (int i = 0; i < kLanes; ++i) Simd::store(memory.q + (s + i) * kLanes, lane[i]);
    }
  }

  /// Step s of row r's query; the next rows' follow, the next step's is kTogether on.
  float* q_of(int r, std::int64_t s) const {
    return memory.q + (r / kTogether * pad(Path::q_steps(call.head_dim)) + s) * kTogether +
           r % kTogether;
  }

  /// Where values lie in the keys, the whole next block is fetched, group by group of lanes, while
  /// this one's scores and sums are computed: memory has all of the time.
  void fetch_block(std::int64_t block) {
    for (int g = 0; g < kGroups; ++g) {
      const std::int64_t key = std::min(block + g * kLanes, sequence.kv_len - 1);
      next[g] = key_rows(call, sequence, call.k, sequence.k, item.kv_head, key).data;
    }
  }

  /// The lines of the next block that come with the scores of the keys from `at` on of this one:
  /// kFetched with each line of those keys' rows.
  const std::byte* lines_with_scores(int at) const { return next[at / kLanes]; }

  /// Those that come with the sums of dims from d on: the rest of a group's with each quarter of
  /// the dims, a line a step.
  const std::byte* lines_with_sums(std::int64_t d) const {
    const std::int64_t row_lines = (Path::steps(call.head_dim) + kLanes - 1) / kLanes;
    const std::int64_t group = d * kGroups / call.value_dim;
    const std::int64_t before = (d - group * call.value_dim / kGroups) / (2 * kLanes);
    return next[group] + kLine * (kFetched * row_lines + before * Path::steps(kKeyBlock));
  }

  int keys_of(std::int64_t block) const {
    return static_cast<int>(std::min<std::int64_t>(kKeyBlock, sequence.kv_len - block));
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

  // --- where keys lie ---

  /// Rows from `at` on of `count` that lie one after the other, the first at `rows`; bytes from
  /// them to those that go to L2; the scales of the one at `at`, null where there are none a token.
  struct Share {
    const std::byte* rows;
    std::int64_t far, count, at;
    const float* scales;
  };

  /// The keys of a group of lanes: row i lies at i * token past the one of its half.
  struct GroupRows {
    KeyRows low, high;
    POLYHEAD_INLINE const std::byte* row(int i, std::int64_t token) const {
      return (i < kLanes / 2 ? low : high).data + i * token;
    }
  };

  struct KeyGroup : GroupRows {
    Share low_ahead, high_ahead;  // what to fetch while these are read
  };

  POLYHEAD_INLINE KeyGroup group_at(std::int64_t first, int keys) const {
    const Operand& x = call.k;
    KeyGroup group;
    group.low = group.high = key_rows(call, sequence, x, sequence.k, item.kv_head, first);
    group.low_ahead = group.high_ahead = share_ahead(group.low, first);
    const int half = kLanes / 2;
    if (!parted_keys) {
      group.high_ahead.at += half;
    } else if (keys > half) {
      group.high = key_rows(call, sequence, x, sequence.k, item.kv_head, first + half);
      group.high_ahead = share_ahead(group.high, first + half);
      group.high.data -= half * x.token;
      if (group.high.scales) group.high.scales -= half * x.scales.token;
    }
    return group;
  }

  /// The scales of a group's keys for one block of dims, a lane each.
  POLYHEAD_INLINE Simd::V scales_of(const GroupRows& rows, int keys, std::int64_t block) const {
    const Scales& step = call.k.scales;
    const std::int64_t at = block * step.block;
    if (step.token == 1 && keys == kLanes && rows.low.scales == rows.high.scales)
      return Simd::load(rows.low.scales + at);
    alignas(64) float scale[kLanes] = {};
    for (int i = 0; i < keys; ++i)
      scale[i] = (i < kLanes / 2 ? rows.low : rows.high).scales[at + i * step.token];
    return Simd::load(scale);
  }

  /// The rows of keys that come keys_ahead after `first`, whose own are `rows`, among those of its
  /// page or of what is scored together.
  POLYHEAD_INLINE Share share_ahead(const KeyRows& rows, std::int64_t first) const {
    const std::int64_t at = first & (keys_run - 1);
    const Operand& x = call.k;
    const KeyRows here{rows.data - at * x.token, nullptr};
    const KeyRows ahead = rows_ahead(x, sequence.k, here, first - at, keys_ahead);
    const KeyRows far = rows_ahead(x, sequence.k, here, first - at, keys_far);
    return {ahead.data - keys_early, far.data - ahead.data - keys_far_early, keys_run, at,
            ahead.scales ? ahead.scales + at * x.scales.token : nullptr};
  }

  /// What a group of keys fetches, column by column of kBytes. With nothing to fetch, one line
  /// again and again, which costs less than to ask each time.
  template <std::int64_t kBytes>
  class KeysAhead {
   public:
    KeysAhead() = default;
    POLYHEAD_INLINE KeysAhead(const FewRows& few, const KeyGroup& group, bool any)
        : stride_(any ? Column::stride(few.dense_keys, few.call.k.token) : 0),
          column_stride_(any ? (few.dense_keys ? group.low_ahead.count : 1) : 0),
          low_(any ? group.low_ahead.rows + group.low_ahead.at * stride_ : group.low.data),
          high_(any ? group.high_ahead.rows + group.high_ahead.at * stride_ : group.low.data),
          low_far_(any ? group.low_ahead.far : 0),
          high_far_(any ? group.high_ahead.far : 0) {}

    /// The lines that belong to a column, row by row in order.
    class Lines {
     public:
      POLYHEAD_INLINE void fetch(int i) {
        if (i == kLanes / 2) at_ = high_, far_ = high_far_;
        if (i % (kLanes / 2) % Column::kRowsALine != 0) return;
        Column::fetch(at_, far_);
        at_ = forget(at_ + stride_);
      }

     private:
      friend class KeysAhead;
      const std::byte *at_, *high_;
      std::int64_t far_, high_far_, stride_;
    };

    /// Of the column that begins `column` bytes into the rows.
    POLYHEAD_INLINE Lines column(std::int64_t column) const {
      const std::int64_t first = static_cast<std::uint64_t>(column) / kBytes % Column::kRowsALine;
      const std::int64_t from = column * column_stride_ + first * stride_;
      Lines lines;
      lines.at_ = forget(low_ + from);
      lines.high_ = forget(high_ + from);
      lines.far_ = low_far_;
      lines.high_far_ = high_far_;
      lines.stride_ = Column::kRowsALine * stride_;
      return lines;
    }

   private:
    using Column = ColumnAhead<kBytes>;
    std::int64_t stride_, column_stride_;
    const std::byte *low_, *high_;
    std::int64_t low_far_, high_far_;
  };

  /// Fetches the scales of `keys` rows from the one whose scales are `from`.
  static void fetch_scales(const float* from, const Scales& step, std::int64_t dims, int keys) {
    for (std::int64_t block = 0; from && block * 32 < dims; ++block) {
      for (int key = 0; key < keys; key += 16)
        __builtin_prefetch(from + block * step.block + key * step.token, 0, 3);
    }
  }

  /// The rows that are read `tokens` after `key`, whose own are `rows`, or else those. Scales by
  /// channel are none of theirs.
  POLYHEAD_INLINE KeyRows rows_ahead(const Operand& x, const std::byte* first, const KeyRows& rows,
                                     std::int64_t key, std::int64_t tokens) const {
    const Place at = place_of(key + tokens);
    if (!at.there) return rows;
    KeyRows ahead = key_rows(call, sequence, x, first, at.kv_head, at.key);
    if (x.scales.shift == 0) ahead.scales = nullptr;
    return ahead;
  }

  /// What is read in place of `key`, where that lies past the item's keys: those of the worker's
  /// next item, if it is of this sequence.
  struct Place {
    bool there;
    std::int64_t kv_head, key;
  };
  POLYHEAD_INLINE Place place_of(std::int64_t key) const {
    const std::int64_t stop = std::min(sequence.kv_len, item.end_split * kSplitKeys);
    if (key < stop) return {true, item.kv_head, key};
    // In whole blocks, so that groups and pieces fall on groups and pieces.
    const std::int64_t past = key - (stop + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    const std::int64_t after = item.next_first_split * kSplitKeys + past;
    const bool there =
        past >= 0 && item.next_rows > 0 && item.next_batch == item.batch && after < sequence.kv_len;
    return {there, item.next_kv_head, after};
  }
};
